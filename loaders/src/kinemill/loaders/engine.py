"""The work of one process: plan, fetch ahead, verify, decode into the batch, mask what is broken.

Bytes are fetched by a few threads while the process decodes, never more than `prefetch` samples
ahead; samples of one batch that lie near each other in one episode share a request. What was
fetched stays a while, bounded in bytes, for the neighbours to come.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.contracts import layout_key
from kinemill.episode import EpisodeReader, Layout
from kinemill.errors import CorruptError, KinemillError, NotFoundError, UnknownKeyError, UsageError
from kinemill.loaders.faults import Faults
from kinemill.loaders.fields import Field
from kinemill.loaders.manifest import ManifestRow
from kinemill.loaders.planning import Grid, SamplePlan, Slots, fill, in_place, make_grid, plan_sample
from kinemill.loaders.resize import resize_frames
from kinemill.loaders.settings import ReadSettings
from kinemill.loaders.transforms import sample_rng

if TYPE_CHECKING:
    from kinemill.contracts import Store

__all__ = ["Engine", "Found", "Job"]

log = logging.getLogger(__name__)
EPISODES_KEPT = 512
MERGE_GAP = 64 << 10
"""Ranges of one object that lie this near are one request."""


@dataclass(frozen=True, slots=True)
class Job:
    """One sample to read: its number, its row, its step, and where it goes."""

    sample: int
    source: int
    row: int
    step: int


@dataclass(slots=True)
class Found:
    """What became of a sample."""

    valid: bool
    anchor_ns: int
    row: ManifestRow
    reason: str = ""
    waited_s: float = 0.0
    """For its bytes."""
    decode_s: float = 0.0
    """Checking and decoding."""


@dataclass(slots=True)
class _Seconds:
    """Time and traffic of this process, for metrics and `bench`."""

    fetch_s: float = 0.0
    decode_s: float = 0.0
    plan_s: float = 0.0
    requests: int = 0
    bytes: int = 0
    samples: int = 0
    groups: Counter[int] = field(default_factory=Counter)


class _Ranges:
    """Fetched bytes of one process, newest kept, bounded."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._by_key: dict[str, list[int]] = {}
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: str, start: int, length: int) -> memoryview | None:
        with self._lock:
            for at in self._by_key.get(key, ()):
                data = self._held[key, at]
                if at <= start and start + length <= at + len(data):
                    self._held.move_to_end((key, at))
                    return memoryview(data)[start - at : start - at + length]
        return None

    def put(self, key: str, start: int, data: bytes) -> None:
        if len(data) > self._limit:
            return
        with self._lock:
            old = self._held.pop((key, start), None)
            if old is None:
                self._by_key.setdefault(key, []).append(start)
            else:
                self._bytes -= len(old)
            self._held[key, start] = data
            self._bytes += len(data)
            while self._bytes > self._limit:
                (gone, at), dropped = self._held.popitem(last=False)
                self._bytes -= len(dropped)
                self._by_key[gone].remove(at)
                if not self._by_key[gone]:
                    del self._by_key[gone]


@dataclass(slots=True, eq=False)
class _Pending:
    """A planned sample whose bytes are on their way."""

    row: ManifestRow
    plan: SamplePlan | None = None
    blobs: list[Future[memoryview] | memoryview] = field(default_factory=list)
    error: KinemillError | None = None


class Engine:
    """Reads samples in one process. Made anew in each (never pickled); one caller at a time."""

    def __init__(
        self,
        store: Store,
        fields: tuple[Field, ...],
        row_of: Callable[[int, int], ManifestRow],
        *,
        settings: ReadSettings,
        faults: Faults,
        anchor_hz: float | None = None,
        decoder: str = "pyav",
        pixels: str = "rgb",
        seed: int = 0,
        shape_frames: bool = False,
        unit: int = 1,
    ) -> None:
        """Hold what reading needs.

        Args:
            store: Of the episodes.
            fields: Of a sample.
            row_of: (source, row) -> manifest row.
            settings: Bounds.
            faults: Where masked samples are told.
            anchor_hz: See `make_grid`.
            decoder: A name in `kinemill.episode.decode.DECODERS`.
            pixels: rgb, yuv420 or gray.
            seed: Of transforms.
            shape_frames: Frames are resized, so decode to planes and convert once.
            unit: Samples that share a fetch; they are planned together, so that their ranges become one.
        """
        self.store = store
        self.fields = fields
        self.faults = faults
        self.counts = _Seconds()
        self.pid = os.getpid()
        self._row_of = row_of
        self._settings = settings
        self._anchor_hz = anchor_hz
        self._decoder = decoder
        self._pixel_format: Any = {"rgb": "yuv420p" if shape_frames else "rgb24", "yuv420": "yuv420p", "gray": "gray"}[
            pixels
        ]
        self._seed = seed
        self._window = -(-max(1, settings.prefetch) // unit) * unit
        self._episodes: OrderedDict[tuple[int, int], tuple[ManifestRow, EpisodeReader, Grid]] = OrderedDict()
        self._ranges = _Ranges(settings.cache_mib << 20)
        lanes = max(2, 2 * settings.prefetch)
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="fetch") if settings.prefetch else None
        self._ahead: OrderedDict[tuple[int, int, int], _Pending] = OrderedDict()
        self._count_lock = threading.Lock()

    # ---- episodes

    def _opened(self, source: int, row_number: int, row: ManifestRow) -> tuple[ManifestRow, EpisodeReader, Grid]:
        """Reader and anchors of an episode that is not at hand."""
        key = row.key
        packed = row.layout
        if packed is None:
            try:
                packed = self._counted(layout_key(key))
            except NotFoundError as exc:
                raise NotFoundError(
                    f"{key}: the manifest carries no layout and there is no sidecar {layout_key(key)}; "
                    "build the manifest again: `layouts: sidecar` in its spec writes them, `inline` needs none"
                ) from exc
        layout = Layout.from_columns(row.topics, packed)
        grid = make_grid(
            layout, frames=row.frames, fps=row.fps, anchor_hz=self._anchor_hz, duration_ns=row.duration_ns, where=key
        )
        reader = EpisodeReader(self.store, key, layout, decoder=self._decoder, pixel_format=self._pixel_format)
        found = self._episodes[source, row_number] = (row, reader, grid)
        while len(self._episodes) > EPISODES_KEPT:
            self._episodes.popitem(last=False)
        return found

    # ---- bytes

    def _counted(self, key: str) -> bytes:
        start = time.perf_counter()
        data = self.store.get(key)
        with self._count_lock:
            self.counts.requests += 1
            self.counts.bytes += len(data)
            self.counts.fetch_s += time.perf_counter() - start
        return data

    def _get(self, key: str, start: int, length: int) -> memoryview:
        began = time.perf_counter()
        data = self.store.get_range(key, start, length)
        with self._count_lock:
            self.counts.requests += 1
            self.counts.bytes += len(data)
            self.counts.fetch_s += time.perf_counter() - began
        self._ranges.put(key, start, data)
        return memoryview(data)

    def _request(self, key: str, start: int, length: int) -> Future[memoryview] | memoryview:
        """The bytes, from what is held or by one request; without threads at once."""
        held = self._ranges.get(key, start, length)
        if held is not None:
            return held
        if self._pool is not None:
            return self._pool.submit(self._get, key, start, length)
        try:
            return self._get(key, start, length)
        except KinemillError as exc:
            failed: Future[memoryview] = Future()
            failed.set_exception(exc)
            return failed

    # ---- samples

    def _plan(self, jobs: Sequence[Job]) -> list[_Pending]:
        """Plan samples; their bytes are not asked for yet."""
        began = time.perf_counter()
        out = []
        for job in jobs:
            place = (job.source, job.row)
            found = self._episodes.get(place)
            if found is None:
                row = self._row_of(*place)
            else:
                row = found[0]
                self._episodes.move_to_end(place)
            pending = _Pending(row)
            try:
                _, reader, grid = found or self._opened(*place, row)
                if job.step >= grid.steps:
                    raise CorruptError(f"{row.key}: step {job.step} of {grid.steps}; rebuild the manifest")
                pending.plan = plan_sample(reader, grid, self.fields, job.step)
            except (UsageError, UnknownKeyError):
                raise
            except KinemillError as exc:
                pending.error = exc
            out.append(pending)
        self.counts.plan_s += time.perf_counter() - began
        return out

    def _fetch(self, pendings: Sequence[_Pending]) -> None:
        """Ask for the bytes of planned samples; ranges of one object that touch or nearly do become one request."""
        by_key: dict[str, list[tuple[int, int]]] = {}
        for one in pendings:
            if one.plan is not None:
                by_key.setdefault(one.plan.reader.key, []).extend(one.plan.ranges)
        merged: dict[str, list[tuple[int, int, Future[memoryview] | memoryview]]] = {}
        for key, ranges in by_key.items():
            runs: list[list[int]] = []
            for start, length in sorted(ranges):
                if runs and start <= runs[-1][1] + (MERGE_GAP if len(ranges) > 1 else 0) and len(pendings) > 1:
                    runs[-1][1] = max(runs[-1][1], start + length)
                else:
                    runs.append([start, start + length])
            merged[key] = [(lo, hi, self._request(key, lo, hi - lo)) for lo, hi in runs]
        for one in pendings:
            if one.plan is None:
                continue
            for start, length in one.plan.ranges:
                for lo, hi, future in merged[one.plan.reader.key]:
                    if lo <= start and start + length <= hi:
                        one.blobs.append(_part(future, start - lo, length))
                        break

    def read(
        self, jobs: Sequence[Job], slots: Callable[[int], Slots], *, ahead: Sequence[Job] = (), epoch: int = 0
    ) -> list[Found]:
        """Read samples in order.

        Args:
            jobs: Which.
            slots: Where sample i goes.
            ahead: What this process reads next; fetched within the bound while these are decoded.
            epoch: For transforms.

        Raises:
            TooManyMaskedError: The ceiling on masked samples is passed.
        """
        places = [(job.source, job.row, job.step) for job in jobs]
        pendings: list[_Pending | None] = [self._ahead.pop(place, None) for place in places]
        missing = [i for i, one in enumerate(pendings) if one is None]
        window = self._window
        waiting = [missing[i : i + window] for i in range(0, len(missing), window)]
        if self._pool is None and missing:
            waiting = [missing]
        later = [job for job in ahead if (job.source, job.row, job.step) not in self._ahead]
        out: list[Found] = []
        for i, job in enumerate(jobs):
            # keep the next samples on their way: of this batch first, then of the one after
            while waiting and (waiting[0][0] <= i + window - 1):
                part = waiting.pop(0)
                fresh = self._plan([jobs[k] for k in part])
                self._fetch(fresh)
                for k, one in zip(part, fresh, strict=True):
                    pendings[k] = one
            if self._pool is not None and not waiting and later and i + window >= len(jobs):
                take = later[: max(1, window - len(self._ahead))] if len(self._ahead) < window else []
                later = later[len(take) :]
                if take:
                    fresh = self._plan(take)
                    self._fetch(fresh)
                    for one_job, one in zip(take, fresh, strict=True):
                        self._ahead[one_job.source, one_job.row, one_job.step] = one
            pending = pendings[i]
            assert pending is not None  # noqa: S101 - planned above
            pendings[i] = None
            out.append(self._finish(job, pending, slots(i), epoch))
        while len(self._ahead) > 2 * window:  # asked for and never read: an order that changed
            self._ahead.popitem(last=False)
        return out

    def _finish(self, job: Job, pending: _Pending, slots: Slots, epoch: int) -> Found:
        row = pending.row
        plan = pending.plan
        self.counts.samples += 1
        try:
            if pending.error is not None or plan is None:
                raise pending.error or CorruptError(f"{row.key}: not planned")
            waited = time.perf_counter()
            blobs = [blob.result() if isinstance(blob, Future) else blob for blob in pending.blobs]
            waited = time.perf_counter() - waited
            self.counts.groups[len(blobs)] += 1
            began = time.perf_counter()
            answers = plan.reader.decode(plan.plan, blobs, out=in_place(plan, slots, self._pixel_format))
            anchor = fill(
                plan,
                answers,
                slots,
                self._resized,
                lambda key: sample_rng(self._seed, epoch, job.sample, key),
            )
            took = time.perf_counter() - began
            self.counts.decode_s += took
        except (UsageError, UnknownKeyError):
            raise  # what was asked for is wrong, not the data
        except KinemillError as exc:
            for array in (*slots.data.values(), *slots.times.values()):
                array[...] = 0
            for pad in slots.pad.values():
                pad[...] = True
            reason = self.faults.mask(exc, source=row.key, episode_id=str(row.uuid))
            return Found(False, 0, row, reason)
        self.faults.good()
        for topic in plan.absent:
            self.faults.note_absent(topic)
        return Found(True, anchor, row, "", waited, took)

    def _resized(self, one: Field, frames: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Frames as the field wants them; untouched where format and size agree."""
        source = self._pixel_format
        target = {"rgb": "rgb24", "yuv420": "yuv420p", "gray": "gray"}[one.pixels]
        height = frames.shape[1] * 2 // 3 if source == "yuv420p" else frames.shape[1]
        if source == target and (height, frames.shape[2]) == one.frame_size:
            return frames
        return resize_frames(frames, source, target, one.frame_size)

    def verify_seconds(self, job: Job) -> float:
        """How long checking the bytes of one sample takes: crc, sequence numbers, counts; without decoding."""
        from kinemill.episode.opened import open_chunk

        (pending,) = self._plan([job])
        if pending.plan is None:
            return 0.0
        reader, took = pending.plan.reader, 0.0
        for fetch in pending.plan.plan.fetches:
            group = reader.layout.groups[fetch.group]
            blob = memoryview(self.store.get_range(reader.key, fetch.start, fetch.length))
            for k in range(fetch.first, fetch.last + 1):
                at = int(group.offset[k]) - fetch.start
                began = time.perf_counter()
                open_chunk(blob[at : at + int(group.length[k])], where=reader.key)
                took += time.perf_counter() - began
        return took

    def close(self) -> None:
        """End the fetching threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)


def _part(whole: Future[memoryview] | memoryview, start: int, length: int) -> Future[memoryview] | memoryview:
    """A piece of a merged range."""
    if isinstance(whole, memoryview):
        return whole[start : start + length]
    out: Future[memoryview] = Future()

    def ready(done: Future[memoryview]) -> None:
        if done.cancelled():
            out.cancel()
        elif (error := done.exception()) is not None:
            out.set_exception(error)
        else:
            out.set_result(done.result()[start : start + length])

    whole.add_done_callback(ready)
    return out
