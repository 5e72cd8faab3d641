"""A LeRobot data set as it lies on disk: which episodes there are, and where their rows and videos are.

Paths and counts come from the files; what `meta/` says otherwise becomes a finding.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.errors import CorruptError, DataError
from kinemill.pipelines.adapters.base import Finding, Level, Source
from kinemill.pipelines.adapters.files import head_finding, inside
from kinemill.pipelines.adapters.video import VideoIndex, index_video

__all__ = ["EpisodeVideo", "LeRobotSet", "SetEpisode", "load_set", "read_parquet"]

MAX_JSON_BYTES = 64 << 20


@dataclass(slots=True)
class EpisodeVideo:
    """One camera of one episode."""

    path: Path
    first_s: float | None = None
    """Where the episode starts inside a shared file; None where it has the file for itself."""
    last_s: float | None = None


@dataclass(slots=True)
class SetEpisode:
    index: int
    length: int | None
    """As meta says."""
    tasks: tuple[str, ...]
    data: Path | None
    videos: dict[str, EpisodeVideo] = field(default_factory=dict)


@dataclass(slots=True)
class LeRobotSet:
    root: Path
    info: dict[str, Any]
    episodes: list[SetEpisode]
    cameras: list[str]
    """Features that are videos or pictures, as info.json lists them."""
    findings: list[Finding]
    indexes: dict[Path, VideoIndex | DataError] = field(default_factory=dict)
    """Videos are indexed once, however many episodes share them."""
    rows: tuple[Path, Any] | None = None
    """The data file that was read last: the next episode is nearly always in it too."""

    def table(self, path: Path) -> Any:
        """All rows of a data file.

        Raises:
            CorruptError: It cannot be read.
        """
        if self.rows is None or self.rows[0] != path:
            self.rows = (path, read_parquet(path))
        return self.rows[1]

    def index(self, path: Path) -> VideoIndex:
        """The video's index.

        Raises:
            DataError: It cannot be read.
        """
        if path not in self.indexes:
            try:
                bad = head_finding(path)
                self.indexes[path] = CorruptError(bad.message) if bad else index_video(path)
            except DataError as exc:
                self.indexes[path] = exc
        found = self.indexes[path]
        if isinstance(found, DataError):
            raise found
        return found


def _json(path: Path) -> Any:
    if path.stat().st_size > MAX_JSON_BYTES:
        raise CorruptError(f"{path.name} is larger than {MAX_JSON_BYTES >> 20} MiB")
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise CorruptError(f"meta/{path.name} is not valid JSON ({exc}); {path.stat().st_size} bytes") from exc


def _fill(template: str, values: dict[str, Any]) -> str:
    """A path template with the known placeholders filled in, and no other magic of `str.format`."""

    def put(match: re.Match[str]) -> str:
        value = values.get(match[1])
        if value is None:
            return match[0]
        return f"{int(value):0{int(match[2][:2])}d}" if match[2] else str(value)

    return re.sub(r"\{(\w+)(?::(\d{1,2})d)?\}", put, template)


def read_parquet(path: Path, columns: list[str] | None = None) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(path, columns=columns, use_threads=False, partitioning=None)
    except (pa.ArrowException, OSError, ValueError) as exc:
        raise CorruptError(f"{path.name}: the Parquet file cannot be read ({str(exc).splitlines()[0]})") from exc


_last: list[tuple[tuple[object, ...], LeRobotSet]] = []
"""The set that was opened last: a parser is asked for one episode of it after the other."""


def load_set(source: Source) -> LeRobotSet:
    """The set at `source`; the same object again while none of its files changed.

    Raises:
        CorruptError: Its metadata cannot be read.
    """
    stats = [(p, p.stat()) for p in source.files]
    mark = (source.path, tuple((str(p), s.st_size, s.st_mtime_ns) for p, s in stats))
    if not _last or _last[0][0] != mark:
        _last[:] = [(mark, _load(source))]
    return _last[0][1]


def _load(source: Source) -> LeRobotSet:
    root = source.path
    info = _json(root / "meta" / "info.json")
    if not isinstance(info, dict) or not isinstance(info.get("features"), dict):
        raise CorruptError("meta/info.json has no features")
    version = str(info.get("codebase_version", ""))
    features: dict[str, Any] = {k: v for k, v in info["features"].items() if isinstance(v, dict)}
    listed = [k for k, v in features.items() if v.get("dtype") in ("video", "image")]
    findings: list[Finding] = []
    files = set(source.files)
    if version.startswith("v3"):
        episodes = _episodes_v3(source, info, listed, files)
    elif version.startswith("v2"):
        episodes = _episodes_v2(source, info, listed, files, findings)
    else:
        raise CorruptError(f"codebase_version {version!r} is not v2.0, v2.1 or v3.0")
    there = [c for c in listed if features[c].get("dtype") == "image" or any(c in e.videos for e in episodes)]
    for camera in listed:
        if camera not in there:
            text = f"{source.key}: info.json lists the camera {camera}, and there is no file of it"
            findings.append(Finding("camera_not_there", Level.WARN, text, {"camera": camera}))
    findings += _info_findings(source, info, episodes)
    return LeRobotSet(root, info, episodes, there, findings)


def _info_findings(source: Source, info: dict[str, Any], episodes: list[SetEpisode]) -> Iterator[Finding]:
    """What info.json says of the set as a whole against what is there."""
    videos = len({v.path for e in episodes for v in e.videos.values()})
    promised = info.get("total_videos")
    if isinstance(promised, int) and promised != videos and str(info.get("codebase_version", "")).startswith("v2"):
        text = f"{source.key}: info.json says {promised} videos, there are {videos}"
        yield Finding("video_count_wrong", Level.WARN, text, {"meta": str(promised), "files": str(videos)})
    for name, span in (info.get("splits") or {}).items() if isinstance(info.get("splits"), dict) else ():
        match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", str(span))
        if match and int(match[2]) > len(episodes):
            text = f"{source.key}: the split '{name}' says {span}, there are {len(episodes)} episodes"
            yield Finding("split_wrong", Level.WARN, text)


def _tasks(value: Any) -> tuple[str, ...]:
    return tuple(str(v) for v in value) if isinstance(value, list | tuple) else ()


def _episodes_v2(
    source: Source, info: dict[str, Any], cameras: list[str], files: set[Path], findings: list[Finding]
) -> list[SetEpisode]:
    root = source.path
    path = root / "meta" / "episodes.jsonl"
    rows: list[dict[str, Any]] = []
    if path in files:
        for line in path.read_text("utf-8", "replace").splitlines():
            if line.strip():
                try:
                    row = json.loads(line)
                except ValueError as exc:
                    raise CorruptError(f"meta/episodes.jsonl has a line that is not JSON ({exc})") from exc
                if isinstance(row, dict) and isinstance(row.get("episode_index"), int):
                    rows.append(row)
    numbered = {
        int(m[1]): p for p in sorted(files) if p.suffix == ".parquet" and (m := re.fullmatch(r"episode_(\d+)", p.stem))
    }
    known = {row["episode_index"] for row in rows}
    rows += [{"episode_index": i} for i in numbered if i not in known]
    told = info.get("chunks_size")
    size = told if isinstance(told, int) and told > 0 else 1000
    moved: set[str] = set()
    out = []
    for row in sorted(rows, key=lambda r: int(r["episode_index"])):
        index = int(row["episode_index"])
        values = {"episode_chunk": index // size, "episode_index": index}
        data = inside(root, _fill(str(info.get("data_path", "")), values))
        if data not in files:
            data = numbered.get(index)
        length = row.get("length") if isinstance(row.get("length"), int) else None
        episode = SetEpisode(index, length, _tasks(row.get("tasks")), data)
        for camera in cameras:
            video = inside(root, _fill(str(info.get("video_path") or ""), {**values, "video_key": camera}))
            if video not in files:
                video = _elsewhere(files, camera, f"episode_{index:06d}.mp4")
                if video is not None:
                    moved.add(camera)
            if video is not None:
                episode.videos[camera] = EpisodeVideo(video)
        out.append(episode)
    if moved:
        text = f"{source.key}: videos of {', '.join(sorted(moved))} are not where info.json says; found by name"
        findings.append(Finding("path_differs", Level.INFO, text))
    return out


def _elsewhere(files: set[Path], camera: str, leaf: str) -> Path | None:
    """A video that is not where the template says: the same leaf below a folder named for the camera."""
    names = {camera, camera.rsplit(".", 1)[-1]}
    for path in sorted(files):
        if path.name == leaf and names & set(path.parent.parts):
            return path
    return None


def _episodes_v3(source: Source, info: dict[str, Any], cameras: list[str], files: set[Path]) -> list[SetEpisode]:
    root = source.path
    tables = [p for p in sorted(files) if p.suffix == ".parquet" and p.is_relative_to(root / "meta" / "episodes")]
    if not tables:
        raise CorruptError("no meta/episodes/**/*.parquet")
    out: list[SetEpisode] = []
    for path in tables:
        names = _parquet_names(path)
        wanted = [n for n in names if not n.startswith("stats/")]
        for row in read_parquet(path, wanted).to_pylist():
            index = int(row["episode_index"])
            values = {"chunk_index": row.get("data/chunk_index", 0), "file_index": row.get("data/file_index", 0)}
            data = inside(root, _fill(str(info.get("data_path", "")), values))
            length = int(row["length"]) if row.get("length") is not None else None
            episode = SetEpisode(index, length, _tasks(row.get("tasks")), data if data in files else None)
            for camera in cameras:
                prefix = f"videos/{camera}/"
                if row.get(f"{prefix}file_index") is None:
                    continue
                chunk, number = int(row[f"{prefix}chunk_index"]), int(row[f"{prefix}file_index"])
                values = {"chunk_index": chunk, "file_index": number, "video_key": camera}
                video = inside(root, _fill(str(info.get("video_path") or ""), values))
                if video not in files:
                    video = _elsewhere(files, camera, f"file-{number:03d}.mp4")
                if video is not None:
                    first, last = row.get(f"{prefix}from_timestamp"), row.get(f"{prefix}to_timestamp")
                    episode.videos[camera] = EpisodeVideo(video, first, last)
            out.append(episode)
    return sorted(out, key=lambda e: e.index)


def _parquet_names(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as exc:
        raise CorruptError(f"{path.name}: the Parquet file cannot be read ({str(exc).splitlines()[0]})") from exc
