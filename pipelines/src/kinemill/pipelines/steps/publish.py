"""Step `publish`: upload under an immutable key, read back, compare the sha256, then tell the catalog."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import suppress
from pathlib import Path

from kinemill.contracts import Receipt, Rendition, StepResult, StepSpec, StepStatus, Store, episode_key
from kinemill.errors import ConflictError, CorruptError
from kinemill.pipelines.gates import Converted
from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.ingest.ledger import EpisodeEntry
from kinemill.pipelines.steps.convert import episode_id_of
from kinemill.pipelines.steps.post_gate import JudgedAll
from kinemill.pipelines.steps.pre_gate import Inspected
from kinemill.pipelines.steps.registry import StepContext, step

__all__ = ["STEP", "put_and_read_back", "reference_camera"]

PART_BYTES = 16 << 20

SPEC = StepSpec("publish", version=1, timeout_s=3600.0, requires=("post_gate",))


def put_and_read_back(store: Store, path: Path, receipt: Receipt) -> Rendition:
    """Create the object and prove that the store holds exactly these bytes.

    An object that stands under the key already is one of a run that was killed: it is proven just the same.

    Raises:
        CorruptError: What comes back is not what was sent.
    """
    key = episode_key(uuid.UUID(receipt.episode_id), receipt.profile, receipt.sha256)
    with suppress(ConflictError):
        store.put_if_absent(key, path)
    meta = store.head(key)
    digest = hashlib.sha256()
    for start in range(0, meta.size_bytes, PART_BYTES):
        digest.update(store.get_range(key, start, min(PART_BYTES, meta.size_bytes - start), etag=meta.etag))
    if meta.size_bytes != receipt.size_bytes or digest.hexdigest() != receipt.sha256:
        raise CorruptError(
            f"{store.url}/{key}: read back {meta.size_bytes} bytes with sha256 {digest.hexdigest()[:12]}..., "
            f"written {receipt.size_bytes} with {receipt.sha256[:12]}...: the store damaged it or the key was taken"
        )
    return Rendition(receipt.episode_id, receipt.profile, key, receipt, meta.etag)


def reference_camera(converted: Converted, receipt: Receipt) -> tuple[int, float]:
    """(frames, nominal rate in Hz) of the fastest camera; (0, 0.0) without cameras."""
    best = (0, 0.0)
    for group in receipt.groups:
        for topic in group.topics:
            if topic.kind == "video" and topic.messages > 0:
                span_s = max((m.t_last_ns - m.t_first_ns) / 1e9 for m in converted.topics if m.topic == topic.topic)
                measured = (topic.messages - 1) / span_s if span_s > 0 else 0.0
                best = max(best, (topic.messages, topic.rate_hz or measured or 1.0))
    return best


@step(SPEC)
def STEP(ctx: StepContext) -> StepResult:  # noqa: N802 - the registry's name for it
    """Publish every episode that passed the gates."""
    keys = {e.index: e.key for e in ctx.load(Inspected, "facts.json").facts.episodes}
    published = uploaded = 0
    for judged in ctx.load(JudgedAll, "judged.json").episodes:
        converted, receipt = judged.episode, judged.episode.receipt
        assert receipt is not None  # noqa: S101 - the gate lets nothing else through
        path = ctx.workdir / converted.file
        vendor_key = f"{ctx.delivery}/{ctx.source.key}{keys[converted.index]}"
        rendition = put_and_read_back(ctx.store, path, receipt)
        frames, fps = reference_camera(converted, receipt)
        entry = EpisodeEntry(
            vendor=ctx.vendor.vendor,
            vendor_key=vendor_key,
            delivery=ctx.delivery,
            batch=ctx.batch,
            robot=converted.robot,
            task=converted.task,
            instruction=converted.instruction,
            rendition=rendition,
            frames=frames,
            fps=fps,
            findings=judged.findings,
            scores={f"psnr_db:{m.topic}": m.psnr_db for m in converted.topics if m.psnr_db is not None},
        )
        assert receipt.episode_id == str(episode_id_of(ctx.vendor.vendor, vendor_key))  # noqa: S101 - ids are never mixed
        ctx.ledger.publish(entry)
        path.unlink(missing_ok=True)
        published += 1
        uploaded += receipt.size_bytes
        data: dict[str, int | float | str] = {
            "episode": keys[converted.index],
            "bytes": receipt.size_bytes,
            "frames": frames,
            "key": rendition.key,
        }
        ctx.tell(Event("episode", ctx.source.key, vendor_key, data))
    return ctx.result(SPEC, StepStatus.OK, counts={"published": published, "bytes": uploaded})
