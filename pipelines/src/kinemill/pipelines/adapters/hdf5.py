"""HDF5 demonstrations: the ALOHA layout (one episode a file) and robomimic / robosuite (`data/demo_N`).

Rows are aligned by number. Time is the first column of `states` where the vendor says so (`time_base: column`,
as in robosuite), else row number over the vendor's rate. With neither, the file has no clock and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill.errors import CorruptError, DataError, LimitError, UnsupportedError
from kinemill.pipelines.adapters.base import (
    Adapter,
    CameraTrack,
    EpisodeFacts,
    Finding,
    Level,
    Picture,
    RawEpisode,
    Source,
    SourceFacts,
    TopicFacts,
    topic_facts,
)
from kinemill.pipelines.adapters.files import head_finding
from kinemill.pipelines.adapters.images import MAX_PIXELS, decode_file, even
from kinemill.pipelines.adapters.mapping import map_state, plan_topics
from kinemill.pipelines.adapters.vendor import VendorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADAPTER"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
MAX_STATE_BYTES = 1 << 30
"""State columns are held in memory whole."""


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    import h5py

    try:
        with h5py.File(path, "r", locking=False) as file:
            yield file
    except (OSError, RuntimeError, KeyError) as exc:
        text = str(exc)
        kind = "cut off" if "truncated" in text or "eof" in text.lower() else "damaged"
        raise CorruptError(f"{path.name}: the HDF5 file is {kind} ({text.splitlines()[0]})") from exc


def _datasets(group: Any, prefix: str = "", depth: int = 0) -> dict[str, Any]:
    """Data sets below `group` by path; nothing that leads out of the file is followed.

    Raises:
        UnsupportedError: An external link, external storage or a virtual data set: they read other files.
    """
    import h5py

    out: dict[str, Any] = {}
    if depth > 8:
        return out
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise UnsupportedError(f"'{prefix}{name}' is a link into another file ({link.filename!r}), never followed")
        if isinstance(link, h5py.SoftLink):
            continue
        item = group[name]
        if isinstance(item, h5py.Dataset):
            if item.external or item.is_virtual:
                raise UnsupportedError(f"'{prefix}{name}' keeps its data in another file; it is not read")
            out[f"{prefix}{name}"] = item
        elif isinstance(item, h5py.Group):
            out |= _datasets(item, f"{prefix}{name}/", depth + 1)
    return out


def _episodes(file: Any) -> list[tuple[str, Any]]:
    """(key, group) of each episode: the file itself, or each `data/demo_N` in the order of N."""
    import h5py

    data = file.get("data")
    if isinstance(data, h5py.Group):
        demos = [k for k in data if isinstance(data.get(k), h5py.Group)]
        demos.sort(key=lambda k: [int(p) if p.isdigit() else p for p in re.split(r"(\d+)", k)])
        return [(k, data[k]) for k in demos]
    return [("", file)]


def _is_camera(name: str, data: Any) -> bool:
    """Raw pictures (n, h, w, 3) of bytes, or one encoded file a row under `images/`."""
    if data.dtype.kind != "u" or data.dtype.itemsize != 1:
        return False
    return (data.ndim == 4 and data.shape[3] in (3, 4)) or (data.ndim == 2 and "images/" in name)


def _is_state(data: Any) -> bool:
    return data.dtype.kind in "fiu" and data.ndim in (1, 2) and data.shape[0] > 0


def _camera_name(name: str) -> str:
    return name.rsplit("/", 1)[-1]


class Hdf5Adapter:
    """See the module."""

    name = "hdf5"
    version = 1

    def find(self, root: Path, files: list[Path]) -> list[Source]:
        """Each `.hdf5` or `.h5` file."""
        return [
            Source(self.name, path.relative_to(root).as_posix() if path != root else path.name, path, (path,))
            for path in files
            if path.suffix in (".hdf5", ".h5")
        ]

    def inspect(self, source: Source, vendor: VendorSpec) -> SourceFacts:
        """Rows and shapes of every episode."""
        bad = head_finding(source.path)
        if bad is not None:
            return SourceFacts(self.name, (), (bad,))
        with source.path.open("rb") as file:
            if file.read(8) != SIGNATURE:
                text = f"{source.key}: it does not start like an HDF5 file"
                return SourceFacts(self.name, (), (Finding("not_hdf5", Level.FAIL, text),))
        try:
            with _opened(source.path) as file:
                episodes = tuple(
                    self._facts(source, vendor, key, group, index) for index, (key, group) in enumerate(_episodes(file))
                )
                findings = list(_attribute_findings(source, file, episodes))
        except UnsupportedError as exc:
            return SourceFacts(self.name, (), (Finding("data_elsewhere", Level.FAIL, f"{source.key}: {exc}"),))
        except CorruptError as exc:
            code = "truncated" if "cut off" in str(exc) else "corrupt"
            return SourceFacts(self.name, (), (Finding(code, Level.FAIL, str(exc)),))
        if not episodes:
            findings.append(Finding("empty", Level.FAIL, f"{source.key}: no demonstration inside"))
        return SourceFacts(self.name, episodes, tuple(findings))

    def _facts(self, source: Source, vendor: VendorSpec, key: str, group: Any, index: int) -> EpisodeFacts:
        topics: list[TopicFacts] = []
        findings: list[Finding] = []
        lengths: dict[str, int] = {}
        clockless = False
        data = _datasets(group)
        where = f"{source.key} {key}".strip()
        for name, item in data.items():
            if item.ndim == 0 or name == "compress_len":
                continue
            if item.ndim == 2 and item.shape[1] == 0:
                findings.append(Finding("zero_width", Level.INFO, f"{where}: '{name}' has no columns; it is left out"))
            camera, state = _is_camera(name, item), _is_state(item)
            shape = "x".join(map(str, item.shape[1:])) or "1"
            kind = f"{item.dtype}[{shape}]"
            label = _camera_name(name) if camera else name
            if not camera and not state:
                topics.append(TopicFacts(label, kind, int(item.shape[0])))
                continue
            rows = int(item.shape[0])
            if rows > 0:
                lengths[label] = rows
            facts = topic_facts(label, kind, _times(data, vendor, rows))
            clockless = clockless or facts.messages < rows
            topics.append(facts if facts.messages == rows else TopicFacts(label, kind, rows))
        if clockless:
            text = (
                f"{where}: no time stamps: give `fps` and `time_base: rows` in the vendor YAML, "
                "or `time_base: column` where the first column of `states` is the time"
            )
            findings.append(Finding("no_clock", Level.FAIL, text))
        if len(set(lengths.values())) > 1:
            text = f"{where}: columns differ in length ({', '.join(f'{k} {v}' for k, v in sorted(lengths.items()))})"
            findings.append(Finding("lengths_differ", Level.FAIL, text))
        if not any("action" in t.topic for t in topics):
            findings.append(Finding("no_action", Level.WARN, f"{where}: no action of any name"))
        return EpisodeFacts(key, index, tuple(topics), tuple(findings))

    def read(self, source: Source, vendor: VendorSpec, index: int) -> RawEpisode:
        """Episode `index`; pictures are read from the file one by one."""
        with _opened(source.path) as file:
            key, group = _episodes(file)[index]
            where = f"{source.key} {key}".strip()
            data = _datasets(group)
            cameras = {_camera_name(n): n for n, item in data.items() if _is_camera(n, item)}
            states = [
                n
                for n, item in data.items()
                if _is_state(item) and n not in cameras.values() and n != "compress_len" and item.shape[-1] > 0
            ]
            plan = plan_topics(vendor, cameras, states)
            tracks = []
            for name, spec in plan.states.items():
                item = data[name]
                if item.nbytes > MAX_STATE_BYTES:
                    raise LimitError(f"{where}: '{name}' claims {item.nbytes} bytes of state")
                t_ns = _times(data, vendor, int(item.shape[0]))
                if len(t_ns) < int(item.shape[0]):
                    raise DataError(f"{where}: no time stamps, and no fps in the vendor YAML")
                columns = int(item.shape[1]) if item.ndim == 2 else 1
                tracks.append(map_state(name, spec, [""] * columns, t_ns=t_ns, values=item[...], where=where))
            seen = []
            for name, camera in plan.cameras.items():
                item = data[cameras[name]]
                picture = even(_picture(item, 0, where, swap=False))
                rate_hz = camera.rate_hz or vendor.fps
                seen.append(CameraTrack(camera.topic, name, picture.shape[1], picture.shape[0], rate_hz))
        return RawEpisode(
            key=key,
            robot=vendor.robot,
            task=vendor.task,
            instruction=vendor.instruction,
            cameras=tuple(seen),
            states=tuple(tracks),
            pictures=lambda: _pictures(source, vendor, index),
            missing=plan.missing,
            counts={"unmapped_topics": len(plan.unmapped)} if plan.unmapped else {},
        )


def _attribute_findings(source: Source, file: Any, episodes: tuple[EpisodeFacts, ...]) -> Iterator[Finding]:
    """Attributes that promise something else than the rows."""
    data = file.get("data")
    if data is None:
        return
    total = data.attrs.get("total")
    rows = sum(max((t.messages for t in e.topics), default=0) for e in episodes)
    if total is not None and int(total) != rows:
        text = f"{source.key}: the attribute 'total' says {int(total)}, the rows sum to {rows} and are believed"
        yield Finding("metadata_count_wrong", Level.WARN, text)


def _times(data: dict[str, Any], vendor: VendorSpec, rows: int) -> NDArray[Any]:
    """(rows,) int64 ns; empty where there is no clock."""
    import numpy as np

    if vendor.time_base == "column":
        column = np.asarray(data["states"][:, 0] if "states" in data and data["states"].ndim == 2 else [])
        if len(column) == rows and np.isfinite(column).all():
            t_ns: NDArray[Any] = np.rint(column.astype(np.float64) * 1e9).astype(np.int64)
            return t_ns
    elif vendor.fps is not None:
        counted: NDArray[Any] = np.rint(np.arange(rows) * (1e9 / vendor.fps)).astype(np.int64)
        return counted
    return np.zeros(0, dtype=np.int64)


def _picture(item: Any, row: int, where: str, *, swap: bool) -> NDArray[Any]:
    import numpy as np

    if item.ndim == 4:
        if int(item.shape[1]) * int(item.shape[2]) > MAX_PIXELS:
            raise LimitError(f"{where}: a picture claims {item.shape[1]}x{item.shape[2]} pixels")
        image: NDArray[Any] = np.asarray(item[row])[..., :3]
        return image[..., ::-1] if swap else image
    return decode_file(bytes(item[row]), f"{where}, picture {row}", swap=swap)


def _pictures(source: Source, vendor: VendorSpec, index: int) -> Iterator[Picture]:
    with _opened(source.path) as file:
        key, group = _episodes(file)[index]
        where = f"{source.key} {key}".strip()
        data = _datasets(group)
        cameras = {_camera_name(n): n for n, item in data.items() if _is_camera(n, item)}
        plan = plan_topics(vendor, cameras, [])
        rows = max((int(data[cameras[n]].shape[0]) for n in plan.cameras), default=0)
        t_ns = _times(data, vendor, rows)
        if len(t_ns) < rows:
            raise DataError(f"{where}: {rows} pictures, {len(t_ns)} time stamps")
        for row in range(rows):
            for name, camera in plan.cameras.items():
                item = data[cameras[name]]
                if row < item.shape[0]:
                    swap = (camera.color_order or vendor.color_order) == "bgr"
                    yield Picture(camera.topic, int(t_ns[row]), even(_picture(item, row, where, swap=swap)))


ADAPTER: Adapter = Hdf5Adapter()
