"""Manifests and stores for the loaders' tests."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kinemill.contracts import MANIFEST_COLUMNS, ObjectMeta
from kinemill.errors import ConflictError, NotFoundError, TruncatedError
from kinemill.loaders.manifest import ManifestRef
from kinemill.store.parallel import Lanes, download, filler

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.contracts.store import Progress

__all__ = ["FolderStore", "arrow_type", "manifest_columns", "publish", "schema", "write_manifest"]


def arrow_type(text: str) -> pa.DataType:
    """The contract's type text as Arrow's type."""
    if text.startswith("dictionary<"):
        return pa.dictionary(getattr(pa, text[11:].partition(",")[0])(), pa.string())
    if text.startswith("fixed_size_binary["):
        return pa.binary(int(text[18:-1]))
    return getattr(pa, text)()


def schema(**metadata: str) -> pa.Schema:
    """The contract's schema."""
    told = {f"kinemill.manifest.{key}": value for key, value in metadata.items()}
    return pa.schema([pa.field(c.name, arrow_type(c.type), c.nullable) for c in MANIFEST_COLUMNS], told)


def manifest_columns(rows: int, *, seed: int = 0, words: int = 50) -> dict[str, Any]:
    """Made-up columns as NumPy and word lists; no two rows are alike."""
    rng = np.random.default_rng(seed)
    return {
        "episode_id": rng.integers(0, 256, (rows, 16), np.uint8),
        "profile": (rng.integers(0, 2, rows, np.int8), ["vla", "world"]),
        "sha256": rng.integers(0, 256, (rows, 32), np.uint8),
        "size_bytes": rng.integers(1_000_000, 60_000_000, rows),
        "vendor": (rng.integers(0, 12, rows).astype(np.int16), [f"vendor-{i:02}" for i in range(12)]),
        "robot": (rng.integers(0, 5, rows).astype(np.int16), [f"robot-{i}" for i in range(5)]),
        "task": (rng.integers(0, words, rows).astype(np.int32), [f"task {i:05}" for i in range(words)]),
        "instruction": (
            rng.integers(0, words, rows).astype(np.int32),
            [f"put item {i:05} into the bin on the left" for i in range(words)],
        ),
        "split": (rng.integers(0, 2, rows, np.int8), ["train", "val"]),
        "t_first_ns": rng.integers(0, 10**12, rows),
        "duration_ns": rng.integers(5 * 10**9, 60 * 10**9, rows),
        "frames": rng.integers(150, 1800, rows).astype(np.int32),
        "fps": np.full(rows, 30.0, np.float32),
        "weight": rng.random(rows, np.float32),
        "topics": (rng.integers(0, 2, rows).astype(np.int32), ['{"a":1}', '{"b":2}']),
    }


def _array(name: str, value: Any, kind: pa.DataType, lo: int, hi: int) -> pa.Array:
    if isinstance(value, tuple):
        codes, words = value
        indices = pa.array(codes[lo:hi], kind.index_type)
        return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))
    part = value[lo:hi]
    if pa.types.is_fixed_size_binary(kind):
        raw = pa.py_buffer(np.ascontiguousarray(part).tobytes())
        return pa.Array.from_buffers(kind, len(part), [None, raw])
    return pa.array(part, kind)


def write_manifest(
    path: Path,
    columns: dict[str, Any],
    *,
    batch_rows: int = 1 << 20,
    layouts: Sequence[bytes | None] | None = None,
    parquet: Path | None = None,
    **metadata: str,
) -> Path:
    """An Arrow IPC file of the contract, and the same as Parquet: even batches, one dictionary a field."""
    rows = len(columns["size_bytes"])
    whole = schema(**{"version": "1", "rows": str(rows), **metadata})
    out = pq.ParquetWriter(parquet, whole, compression="zstd", compression_level=1) if parquet else None
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, whole) as writer:
        for lo in range(0, rows, batch_rows):
            hi = min(rows, lo + batch_rows)
            arrays = []
            for field in whole:
                if field.name == "layout":
                    blobs = layouts[lo:hi] if layouts is not None else [None] * (hi - lo)
                    arrays.append(pa.array(blobs, pa.large_binary()))
                else:
                    arrays.append(_array(field.name, columns[field.name], field.type, lo, hi))
            batch = pa.record_batch(arrays, schema=whole)
            writer.write_batch(batch)
            if out is not None:
                out.write_batch(batch, row_group_size=batch_rows)
    if out is not None:
        out.close()
    return path


def publish(store: Store, path: Path, *, id: str = "m1", parquet: Path | None = None) -> ManifestRef:  # noqa: A002 - the field's own name
    """Put a manifest file and its pointer into a store, as `kinemill manifest build` does."""
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    key = f"manifests/{id}/data-{sha}.arrow"
    rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all().num_rows
    meta = store.put_if_absent(key, path)
    told = {
        "id": id,
        "key": key,
        "sha256": sha,
        "size_bytes": path.stat().st_size,
        "rows": rows,
        "etag": meta.etag,
    }
    if parquet is not None:
        told["parquet_key"] = f"manifests/{id}/data-{sha}.parquet"
        store.put_if_absent(told["parquet_key"], parquet)
    store.put_if_absent(f"manifests/{id}/manifest.json", json.dumps(told).encode())
    return ManifestRef(store=store.url, **told)


@dataclass
class FolderStore:
    """A `Store` over a folder that counts requests of all processes in a file. Faults on request.

    Attributes:
        root: The folder.
        delay_s: Added to each request.
        fail: Regular expression of keys whose ranges fail.
        fail_times: How often each range fails before it works; below zero: always.
    """

    root: Path
    delay_s: float = 0.0
    fail: str = ""
    fail_times: int = -1

    @property
    def url(self) -> str:
        return f"folder://{self.root}"

    @property
    def _log(self) -> Path:
        return self.root.parent / f"{self.root.name}.requests"

    def _note(self, op: str, key: str, length: int = 0) -> None:
        with self._log.open("a") as file:  # O_APPEND: one line is one write
            file.write(f"{op} {key} {length}\n")
        if self.delay_s:
            time.sleep(self.delay_s)  # stands for the network

    def requests(self) -> Counter[str]:
        """Requests so far by kind."""
        return Counter(line.split()[0] for line in self.lines())

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []

    def forget(self) -> None:
        """Count from zero."""
        self._log.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        path = self.root / key
        if not path.exists():
            raise NotFoundError(f"{self.url}: no object '{key}'")
        return path

    def _maybe_fail(self, key: str) -> None:
        if self.fail and re.search(self.fail, key):
            from kinemill.errors import UnavailableError

            marker = self.root.parent / f"{self.root.name}.failed"
            done = marker.stat().st_size if marker.exists() else 0
            if self.fail_times < 0 or done < self.fail_times:
                with marker.open("a") as file:
                    file.write("x")
                raise UnavailableError(f"{self.url}/{key}: connection reset")

    def get(self, key: str) -> bytes:
        self._note("get", key)
        self._maybe_fail(key)
        return self._path(key).read_bytes()

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        self._note("get_range", key, length)
        self._maybe_fail(key)
        path = self._path(key)
        if etag is not None and etag != self._etag(path):
            raise ConflictError(f"{self.url}/{key}: the object changed")
        fd = os.open(path, os.O_RDONLY)
        try:
            data = os.pread(fd, length, start)
        finally:
            os.close(fd)
        if len(data) != length:
            raise TruncatedError(f"{self.url}/{key}: {len(data)} of {length} bytes at {start}")
        return data

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    @staticmethod
    def _etag(path: Path) -> str:
        stat = path.stat()
        return f"{stat.st_size}-{stat.st_mtime_ns}"

    def head(self, key: str) -> ObjectMeta:
        self._note("head", key)
        path = self._path(key)
        return ObjectMeta(key, path.stat().st_size, self._etag(path))

    def put_if_absent(self, key: str, data: bytes | Path) -> ObjectMeta:
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("xb") as file:
                file.write(data.read_bytes() if isinstance(data, Path) else data)
        except FileExistsError as exc:
            raise ConflictError(f"{self.url}/{key}: exists already") from exc
        return ObjectMeta(key, path.stat().st_size, self._etag(path))

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectMeta:
        path = self._path(key)
        if self._etag(path) != etag:
            raise ConflictError(f"{self.url}/{key}: changed")
        path.write_bytes(data)
        return ObjectMeta(key, path.stat().st_size, self._etag(path))

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        for path in sorted(self.root.rglob("*")):
            key = str(path.relative_to(self.root))
            if path.is_file() and key.startswith(prefix):
                yield ObjectMeta(key, path.stat().st_size, self._etag(path))

    def download(
        self,
        key: str,
        path: Path,
        *,
        etag: str | None = None,
        size_bytes: int | None = None,
        part_bytes: int = 8 << 20,
        progress: Progress | None = None,
    ) -> ObjectMeta:
        meta = self.head(key) if size_bytes is None else ObjectMeta(key, size_bytes, etag)
        fill = filler(lambda start, length: self.get_range(key, start, length, etag=etag))
        return download(Lanes(), fill, meta, path, part_bytes=part_bytes, progress=progress)

    def delete(self, key: str) -> None:
        (self.root / key).unlink(missing_ok=True)


# ---- episodes


def frame_of(camera: int, step: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A picture that tells which one it is: the step as 16 grey squares, smooth enough to survive H.264."""
    image = np.full((height, width, 3), 60 + 40 * camera, np.uint8)
    for bit in range(16):
        x, y = (bit % 8) * (width // 8), (bit // 8) * (height // 2)
        image[y : y + height // 2, x : x + width // 8] = 220 if step >> bit & 1 else 30 + 20 * camera
    return image


def step_of(image: np.ndarray) -> int:
    """Which step `frame_of` drew, read back from a decoded picture."""
    height, width = image.shape[:2]
    step = 0
    for bit in range(16):
        x, y = (bit % 8) * (width // 8), (bit // 8) * (height // 2)
        part = image[y + 4 : y + height // 2 - 4, x + 2 : x + width // 8 - 2]
        step |= int(part.mean() > 140) << bit
    return step


@dataclass
class MadeEpisode:
    """One episode in a store, and what was put into it."""

    id: Any
    key: str
    receipt: Any
    topics: str
    layout: bytes
    row: dict[str, Any]


def make_episode(
    store: Store,
    *,
    seed: int = 0,
    frames: int = 60,
    cameras: int = 2,
    fps: float = 30.0,
    state_hz: float = 100.0,
    size: tuple[int, int] = (64, 48),
    profile: str = "vla",
    t0_ns: int = 1_000_000_000,
    jitter_ns: int = 0,
    damage: Any = None,
    instruction: str = "pick up the cube",
    robot: str = "robot-0",
    prefix: str = "/cam/",
    state: bool = True,
) -> MadeEpisode:
    """Record a small episode: frames that tell their step, states that tell their time.

    `/state` has columns (t - t0 in s, seed, row number); `/action` the negative of that. `damage` may
    change the file's bytes before it is stored (its sha256 stays that of the sound file).
    """
    import io
    import uuid

    from kinemill.contracts import TopicKind, episode_key
    from kinemill.episode import EpisodeWriter, TopicSpec
    from kinemill.episode.layout import Layout

    rng = np.random.default_rng(seed)
    width, height = size
    specs = [
        TopicSpec(f"{prefix}{i}", kind=TopicKind.VIDEO, rate_hz=fps, width=width, height=height) for i in range(cameras)
    ]
    if state:
        specs += [
            TopicSpec(name, kind=TopicKind.STATE, rate_hz=state_hz, names=("a", "b", "c"))
            for name in ("/state", "/action")
        ]
    episode = uuid.UUID(bytes=rng.bytes(6) + b"\x70" + rng.bytes(1) + b"\x80" + rng.bytes(7))
    sink = io.BytesIO()
    rows = round(frames / fps * state_hz) if cameras else frames
    times = t0_ns + (np.arange(rows) * (1e9 / state_hz)).astype(np.int64)
    if jitter_ns:
        times = np.sort(times + rng.integers(0, jitter_ns, rows))
    values = np.stack([(times - t0_ns) / 1e9, np.full(rows, float(seed)), np.arange(rows, dtype=float)], axis=1)
    with EpisodeWriter(sink, episode_id=episode, profile=profile, topics=specs) as writer:
        at = 0
        for step in range(frames if cameras else 1):
            t = t0_ns + round(step * 1e9 / fps)
            while state and at < rows and (times[at] <= t or step == frames - 1 or not cameras):
                writer.rows("/state", int(times[at]), values[at])
                writer.rows("/action", int(times[at]), -values[at])
                at += 1
            for camera in range(cameras):
                late = int(rng.integers(0, jitter_ns)) if jitter_ns else 0
                writer.frame(f"{prefix}{camera}", t + late, frame_of(camera, step, width, height))
    receipt = writer.receipt
    assert receipt is not None
    data = sink.getvalue()
    key = episode_key(episode, profile, receipt.sha256)
    store.put_if_absent(key, damage(data) if damage else data)
    topics, layout = Layout.from_receipt(receipt).columns()
    row = {
        "episode_id": episode.bytes,
        "profile": profile,
        "sha256": bytes.fromhex(receipt.sha256),
        "size_bytes": len(data),
        "vendor": f"vendor-{seed % 3}",
        "robot": robot,
        "task": "demo",
        "instruction": instruction,
        "split": "train",
        "t_first_ns": receipt.t_first_ns,
        "duration_ns": receipt.t_last_ns - receipt.t_first_ns,
        "frames": frames if cameras else 0,
        "fps": fps if cameras else 0.0,
        "weight": 1.0,
        "topics": topics,
        "layout": layout,
    }
    return MadeEpisode(episode, key, receipt, topics, layout, row)


def manifest_of(
    path: Path, rows: Sequence[dict[str, Any]], *, sidecar: bool = False, batch_rows: int = 1 << 20, **metadata: str
) -> Path:
    """A manifest file of real rows."""
    columns: dict[str, Any] = {}
    for column in MANIFEST_COLUMNS:
        if column.name == "layout":
            continue
        values = [row[column.name] for row in rows]
        if column.type.startswith("dictionary<"):
            words = sorted(set(values))
            place = {word: i for i, word in enumerate(words)}
            columns[column.name] = (np.asarray([place[v] for v in values]), words)
        elif column.type.startswith("fixed_size_binary["):
            columns[column.name] = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
        else:
            columns[column.name] = np.asarray(values)
    layouts = [None if sidecar else row["layout"] for row in rows]
    return write_manifest(path, columns, layouts=layouts, batch_rows=batch_rows, **metadata)
