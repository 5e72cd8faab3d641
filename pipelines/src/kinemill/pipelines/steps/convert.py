"""Step `convert`: each episode that passed into a file of its own, in the child."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from kinemill.contracts import StepResult, StepSpec, StepStatus
from kinemill.pipelines.adapters.base import Finding, Level
from kinemill.pipelines.gates import Converted
from kinemill.pipelines.ingest.convert import VERSION
from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.ingest.sandbox import VendorDataError
from kinemill.pipelines.steps.aside import put_aside
from kinemill.pipelines.steps.pre_gate import Inspected
from kinemill.pipelines.steps.registry import StepContext, step

__all__ = ["STEP", "ConvertedAll", "episode_id_of"]

NAMESPACE = uuid.UUID("8a6a4bb4-2d31-5c1e-9f57-3a1d6f0a7c11")
"""Of episode ids: the same vendor and key give the same id, so that a run that was killed finds its own traces."""

SPEC = StepSpec(
    "convert",
    version=VERSION,
    cpus=1,
    mem_bytes=4 << 30,
    scratch_per_input_byte=1.5,
    timeout_s=7200.0,
    requires=("pre_gate",),
)


@dataclass(frozen=True, slots=True)
class ConvertedAll:
    """What the step leaves for the next one."""

    episodes: tuple[Converted, ...]


def episode_id_of(vendor: str, vendor_key: str) -> uuid.UUID:
    """The id of a vendor's episode."""
    return uuid.uuid5(NAMESPACE, f"{vendor}\0{vendor_key}")


@step(SPEC)
def STEP(ctx: StepContext) -> StepResult:  # noqa: N802 - the registry's name for it
    """Convert; its count `left` says how many episodes could be."""
    inspected = ctx.load(Inspected, "facts.json")
    keys = {e.index: e.key for e in inspected.facts.episodes}
    frames = {
        e.index: sum(t.messages for t in e.topics if ctx.vendor.cameras is None or t.topic in ctx.vendor.cameras)
        for e in inspected.facts.episodes
    }
    done: list[Converted] = []
    failed = 0
    for index in inspected.passed:
        vendor_key = f"{ctx.delivery}/{ctx.source.key}{keys[index]}"
        out = ctx.workdir / f"episode-{index}.mcap"
        out.unlink(missing_ok=True)

        def progress(count: int, index: int = index) -> None:
            data: dict[str, int | float | str] = {"episode": keys[index], "frames": count, "of": frames[index]}
            ctx.tell(Event("progress", ctx.source.key, "", data))

        try:
            converted = ctx.sandbox.convert(
                ctx.source,
                ctx.vendor,
                index,
                episode_id=str(episode_id_of(ctx.vendor.vendor, vendor_key)),
                profile=ctx.profile,
                out=str(out),
                vendor_key=vendor_key,
                progress=progress,
            )
        except VendorDataError as exc:
            failed += 1
            put_aside(ctx, "convert", keys[index], [Finding(exc.code, Level.FAIL, str(exc))])
            continue
        done.append(replace(converted, index=index))
    digest = ctx.save("converted.json", ConvertedAll(tuple(done)))
    counts = {"left": len(done), "refused": failed, "passthrough": sum(c.passthrough for c in done)}
    status = StepStatus.WARN if failed else StepStatus.OK
    return ctx.result(SPEC, status, output_digest=digest, counts=counts)
