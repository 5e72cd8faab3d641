"""One episode of a vendor's recording into a kinemill file, measured on the way. Runs in the child."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill.contracts import TopicKind
from kinemill.errors import DataError, UnsupportedError
from kinemill.pipelines.adapters.base import CameraTrack, Picture, RawEpisode, Source, StateTrack
from kinemill.pipelines.adapters.mapping import quaternion_norm
from kinemill.pipelines.adapters.registry import adapter
from kinemill.pipelines.adapters.vendor import StateMap, VendorSpec
from kinemill.pipelines.gates.measure import Converted, PictureMeter, TopicMeasure, measure_state
from kinemill.pipelines.ingest.readback import undecodable, worst_psnr

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VERSION", "convert_episode"]

VERSION = 1
"""Raised when the same episode comes out with other bytes; part of the completion key."""

STATE_SLICE_NS = 200_000_000
"""Topics of one group are written in turns of this much time, well inside the writer's reorder window."""
SAMPLES = 3
SAMPLE_EVERY = 97
"""Pictures 0, 97 and 194 of a camera are kept, to be compared with what is read back: a prime, so that they stand
at different places of their GOPs."""
PROGRESS_EVERY = 50


def convert_episode(
    source: Source,
    vendor: VendorSpec,
    index: int,
    *,
    episode_id: uuid.UUID,
    profile: str,
    out: Path,
    vendor_key: str = "",
    progress: Callable[[int], None] = lambda frames: None,
) -> Converted:
    """Read episode `index` of `source` and write it to `out`.

    Args:
        source: The recording.
        vendor: How to read it.
        index: As in `EpisodeFacts.index`.
        episode_id: Its id from here on.
        profile: Rendition profile of the file.
        out: A path that is not there yet.
        vendor_key: The catalog's name for it; written into the file.
        progress: Told how many pictures are written, now and then.

    Raises:
        DataError: It cannot be read; nothing stands at `out`.
    """
    from kinemill.episode.topics import profile_of

    raw = adapter(source.adapter).read(source, vendor, index)
    where = f"{source.key}{raw.key}"
    if not raw.cameras and not raw.states:
        raise UnsupportedError(f"{where}: no topic that could be read")
    gop = profile_of(profile).gop_frames
    through = raw.packets is not None and raw.packet_gop == gop
    if through:
        try:
            return _write(
                raw,
                vendor,
                where,
                episode_id=episode_id,
                profile=profile,
                out=out,
                vendor_key=vendor_key,
                through=True,
                progress=progress,
            )
        except UnsupportedError:
            through = False  # the stream breaks a rule that its container does not show: encode it anew
    return _write(
        raw,
        vendor,
        where,
        episode_id=episode_id,
        profile=profile,
        out=out,
        vendor_key=vendor_key,
        through=through,
        progress=progress,
    )


def _write(
    raw: RawEpisode,
    vendor: VendorSpec,
    where: str,
    *,
    episode_id: uuid.UUID,
    profile: str,
    out: Path,
    vendor_key: str,
    through: bool,
    progress: Callable[[int], None],
) -> Converted:
    from dataclasses import replace

    from kinemill.episode.writer import EpisodeWriter

    meters = {c.topic: PictureMeter(c.topic) for c in raw.cameras}
    samples: dict[str, list[tuple[int, NDArray[Any]]]] = defaultdict(list)
    seen: dict[str, int] = defaultdict(int)
    states = [_in_order(s) for s in raw.states]
    metadata = {"robot": raw.robot, "task": raw.task, "vendor": vendor.vendor, "source": where[:500]}
    # With these the catalog can be rebuilt from the files alone.
    metadata |= {"instruction": raw.instruction, **({"vendor_key": vendor_key} if vendor_key else {})}
    with EpisodeWriter(
        out, episode_id=episode_id, profile=profile, topics=_specs(raw, states), metadata=metadata
    ) as writer:
        stream = raw.packets() if through and raw.packets is not None else raw.pictures()
        for written, picture in enumerate(stream, 1):
            _check_size(raw.cameras, picture, where)
            if picture.packet is not None:
                writer.packet(picture.topic, picture.t_ns, picture.packet)
            else:
                assert picture.image is not None  # noqa: S101 - one of the two is there
                writer.frame(picture.topic, picture.t_ns, picture.image)
                number = seen[picture.topic]
                if number % SAMPLE_EVERY == 0 and len(samples[picture.topic]) < SAMPLES:
                    samples[picture.topic].append((picture.t_ns, picture.image.copy()))
                seen[picture.topic] = number + 1
            meters[picture.topic].add(picture.t_ns, picture.image, picture.packet)
            if written % PROGRESS_EVERY == 0:
                progress(written)
        progress(sum(m.count for m in meters.values()))
        _write_states(writer, states)
    receipt = writer.receipt
    assert receipt is not None  # noqa: S101 - close() returned
    psnr = worst_psnr(out, samples)
    # Packets that nobody of ours has encoded are all decoded once: FFmpeg hides damage from whoever looks at one.
    bad = undecodable(out, {c.topic: meters[c.topic].count for c in raw.cameras}) if through else {}
    specs = {m.topic: m for m in (vendor.states or {}).values()}
    measures: list[TopicMeasure] = [meters[c.topic].result(psnr.get(c.topic), bad.get(c.topic, 0)) for c in raw.cameras]
    for state, original in zip(states, raw.states, strict=True):
        spec = specs.get(state.topic, StateMap(state.topic))
        measure = measure_state(
            state.topic,
            t_ns=state.t_ns,
            values=state.values,
            units=state.units,
            quaternion_error=quaternion_norm(state, spec),
        )
        before = measure_state(state.topic, t_ns=original.t_ns, values=original.values, units=state.units)
        measures.append(replace(measure, backward_steps=before.backward_steps))
    return Converted(
        index=-1,
        key=raw.key,
        episode_id=str(episode_id),
        file=out.name,
        receipt=receipt,
        robot=raw.robot,
        task=raw.task,
        instruction=raw.instruction,
        passthrough=through and bool(raw.cameras),
        topics=tuple(measures),
        missing=raw.missing,
        counts=dict(raw.counts),
    )


def _specs(raw: RawEpisode, states: list[StateTrack]) -> list[Any]:
    from kinemill.episode.topics import TopicSpec

    specs = [
        TopicSpec(c.topic, TopicKind.VIDEO, rate_hz=c.rate_hz or 30.0, width=c.width, height=c.height)
        for c in raw.cameras
    ]
    for state in states:
        if not len(state.t_ns):
            continue
        specs.append(
            TopicSpec(
                state.topic, TopicKind.STATE, rate_hz=state.rate_hz, names=_distinct(state.names), units=state.units
            )
        )
    return specs


def _distinct(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names, a repeated one getting its number: two columns of one name cannot be told apart later."""
    out: list[str] = []
    for name in names:
        candidate, number = name, 2
        while candidate in out:
            candidate, number = f"{name}_{number}", number + 1
        out.append(candidate)
    return tuple(out)


def _in_order(state: StateTrack) -> StateTrack:
    """`state` in the order of its stamps."""
    from dataclasses import replace

    import numpy as np

    if len(state.t_ns) and int(state.t_ns.min()) < 0:
        raise DataError(f"{state.topic}: time stamps below zero")
    if len(state.t_ns) < 2 or (np.diff(state.t_ns) >= 0).all():
        return state
    order = np.argsort(state.t_ns, kind="stable")
    return replace(state, t_ns=state.t_ns[order], values=state.values[order])


def _write_states(writer: Any, states: list[StateTrack]) -> None:
    """All state topics, in turns of `STATE_SLICE_NS`."""
    import numpy as np

    filled = [s for s in states if len(s.t_ns)]
    if not filled:
        return
    at = min(int(s.t_ns[0]) for s in filled)
    end = max(int(s.t_ns[-1]) for s in filled)
    done = [0] * len(filled)
    while at <= end:
        until = at + STATE_SLICE_NS
        for number, state in enumerate(filled):
            stop = int(np.searchsorted(state.t_ns, until, side="left"))
            if stop > done[number]:
                part = slice(done[number], stop)
                writer.rows(state.topic, state.t_ns[part], state.values[part])
                done[number] = stop
        # Straight to the next row there is: a recording may pause for days.
        left = [int(s.t_ns[d]) for s, d in zip(filled, done, strict=True) if d < len(s.t_ns)]
        at = max(until, min(left)) if left else end + 1


def _check_size(cameras: tuple[CameraTrack, ...], picture: Picture, where: str) -> None:
    if picture.image is None:
        return
    camera = next(c for c in cameras if c.topic == picture.topic)
    height, width = picture.image.shape[:2]
    if (width, height) != (camera.width, camera.height):
        raise DataError(
            f"{where}, {picture.topic} at {picture.t_ns / 1e9:.3f} s: a picture of {width}x{height} "
            f"in a stream of {camera.width}x{camera.height}"
        )
