"""LeRobot data sets v2.0, v2.1 and v3.0: Parquet rows with MP4 videos or pictures beside them.

Episodes, lengths, cameras and paths are taken from the files themselves; what `meta/` says otherwise is a
finding. Pictures belong to rows by number: a constant offset between the two clocks is reported, not applied.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill.errors import DataError
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
from kinemill.pipelines.adapters.images import decode_file, even
from kinemill.pipelines.adapters.lerobot_set import EpisodeVideo, LeRobotSet, SetEpisode, load_set
from kinemill.pipelines.adapters.mapping import Plan, map_state, plan_topics
from kinemill.pipelines.adapters.vendor import VendorSpec
from kinemill.pipelines.adapters.video import VideoIndex, packets, pictures

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADAPTER"]

INDEX_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")


class LeRobotAdapter:
    """See the module."""

    name = "lerobot"
    version = 1

    def find(self, root: Path, files: list[Path]) -> list[Source]:
        """Each folder with a meta/info.json."""
        found = []
        for path in files:
            if path.name == "info.json" and path.parent.name == "meta":
                home = path.parent.parent
                inner = tuple(p for p in files if p.is_relative_to(home))
                key = home.relative_to(root).as_posix() if home != root else root.name
                found.append(Source(self.name, key, home, inner))
        return found

    # ---- inspect

    def inspect(self, source: Source, vendor: VendorSpec) -> SourceFacts:
        """Rows and pictures of every episode that has data."""
        try:
            data = load_set(source)
        except DataError as exc:
            return SourceFacts(self.name, (), (Finding("bad_metadata", Level.FAIL, f"{source.key}: {exc}"),))
        findings = list(data.findings)
        episodes = []
        for episode in data.episodes:
            if episode.data is not None:
                episodes.append(self._facts(source, vendor, data, episode))
        without = [e.index for e in data.episodes if e.data is None]
        if without:
            text = f"{source.key}: {len(without)} of {len(data.episodes)} episodes have no data file"
            findings.append(Finding("episodes_without_data", Level.WARN, text, {"episodes": str(len(without))}))
        blind = [e for e in episodes if any(f.code == "video_missing" for f in e.findings)]
        if blind:
            text = f"{source.key}: {len(blind)} episodes have rows but no video"
            findings.append(Finding("episodes_without_video", Level.WARN, text, {"episodes": str(len(blind))}))
        if not episodes:
            findings.append(Finding("empty", Level.FAIL, f"{source.key}: no episode has data"))
        return SourceFacts(self.name, tuple(episodes), tuple(findings))

    def _facts(self, source: Source, vendor: VendorSpec, data: LeRobotSet, episode: SetEpisode) -> EpisodeFacts:
        import numpy as np

        where = f"{source.key}#{episode.index}"
        key = f"#{episode.index}"
        findings: list[Finding] = []
        try:
            table = _rows(data, episode)
        except DataError as exc:
            return EpisodeFacts(key, episode.index, (), (Finding("corrupt", Level.FAIL, f"{where}: {exc}"),))
        rows = table.num_rows
        t_ns = _times(table, vendor, data.info)
        if episode.length is not None and episode.length != rows:
            level = Level.FAIL if rows < episode.length else Level.WARN
            text = f"{where}: meta says {episode.length} rows, the data file holds {rows}"
            findings.append(Finding("rows_differ", level, text, {"rows": str(rows), "meta": str(episode.length)}))
        topics = [
            topic_facts(name, str(table.schema.field(name).type), t_ns)
            if len(t_ns) == rows
            else TopicFacts(name, str(table.schema.field(name).type), rows)
            for name in _state_columns(table)
        ]
        topics += [topic_facts(name, "image", t_ns) for name in _image_columns(table, data.cameras)]
        if len(t_ns) != rows:
            text = f"{where}: no `timestamp` column and no fps: give `fps` and `time_base: rows` in the vendor YAML"
            findings.append(Finding("no_clock", Level.FAIL, text))
        in_rows = set(_image_columns(table, data.cameras))
        seen: dict[Path, list[str]] = defaultdict(list)
        for camera in data.cameras:
            if camera in in_rows:
                continue
            if camera not in episode.videos:
                text = f"{where}: no video of {camera}"
                findings.append(Finding("video_missing", Level.FAIL, text, {"camera": camera}))
                continue
            video = episode.videos[camera]
            seen[video.path].append(camera)
            try:
                index = data.index(video.path)
            except DataError as exc:
                findings.append(Finding("bad_video", Level.FAIL, f"{where}, {camera}: {exc}", {"camera": camera}))
                continue
            chosen = _chosen(video, index)
            t_s = index.t_s[chosen] - (video.first_s or 0.0)
            kind = f"{index.codec} {index.pixel_format} {index.width}x{index.height}"
            topics.append(topic_facts(camera, kind, np.rint(t_s * 1e9).astype(np.int64)))
            findings += _frame_findings(where, camera, len(chosen), rows)
            if len(chosen) and len(t_ns) and abs(t_s[0] - t_ns[0] / 1e9) > 1e-3:
                text = (
                    f"{where}: rows start at {t_ns[0] / 1e9:.3f} s, {camera} at {t_s[0]:.3f} s; aligned by row number"
                )
                findings.append(Finding("video_offset", Level.INFO, text, {"camera": camera}))
        if not any("action" in t.topic for t in topics):
            findings.append(Finding("no_action", Level.WARN, f"{where}: no action of any name"))
        return EpisodeFacts(key, episode.index, tuple(topics), tuple(findings))

    # ---- read

    def read(self, source: Source, vendor: VendorSpec, index: int) -> RawEpisode:
        """Episode `index` of the set."""
        data = load_set(source)
        episode = next((e for e in data.episodes if e.index == index), None)
        if episode is None or episode.data is None:
            raise DataError(f"{source.key}: no data of episode {index}")
        where = f"{source.key}#{index}"
        table = _rows(data, episode)
        t_ns = _times(table, vendor, data.info)
        if len(t_ns) != table.num_rows:
            raise DataError(f"{where}: no time stamps, and no fps in the vendor YAML")
        in_rows = _image_columns(table, data.cameras)
        videos = [c for c in data.cameras if c in episode.videos and c not in in_rows]
        plan = plan_topics(vendor, [*in_rows, *videos], _state_columns(table))
        tracks = [
            map_state(
                name,
                spec,
                _names(data.info, name, _width(table, name)),
                t_ns=t_ns,
                values=_matrix(table, name, where),
                where=where,
            )
            for name, spec in plan.states.items()
        ]
        cameras, gops = [], []
        for name, camera in plan.cameras.items():
            rate = camera.rate_hz or float(data.info.get("fps") or 0) or None
            if name in in_rows:
                first = even(decode_file(_image(table, name, 0), where))
                cameras.append(CameraTrack(camera.topic, name, first.shape[1], first.shape[0], rate))
                gops.append(0)
                continue
            found = data.index(episode.videos[name].path)
            gop = _passable_gop(found, _chosen(episode.videos[name], found), vendor.color_order)
            gops.append(gop)
            codec = "h264" if gop else ""
            width, height = found.width // 2 * 2, found.height // 2 * 2
            cameras.append(CameraTrack(camera.topic, name, width, height, rate, codec))
        same = len(set(gops)) == 1 and gops[0] > 0
        return RawEpisode(
            key=f"#{index}",
            robot=vendor.robot if vendor.robot != "unknown" else str(data.info.get("robot_type") or "unknown")[:64],
            task=vendor.task,
            instruction="; ".join(episode.tasks)[:1024] or vendor.instruction,
            cameras=tuple(cameras),
            states=tuple(tracks),
            pictures=lambda: _stream(data, episode, plan, table=table, t_ns=t_ns, vendor=vendor),
            packets=(lambda: _packet_stream(data, episode, plan, t_ns)) if same else None,
            packet_gop=gops[0] if same else 0,
            missing=plan.missing,
            counts={"unmapped_topics": len(plan.unmapped)} if plan.unmapped else {},
        )


# ---- one episode


def _rows(data: LeRobotSet, episode: SetEpisode) -> Any:
    """The rows of one episode, in the order of the file."""
    import numpy as np
    import pyarrow as pa

    assert episode.data is not None  # noqa: S101 - callers have looked
    table = data.table(episode.data)
    if "episode_index" in table.column_names:
        # Written as float64 by some tools: compare as numbers.
        table = table.filter(pa.array(np.asarray(table["episode_index"].to_numpy()) == episode.index))
    return table


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) or pa.types.is_large_list(kind))


def _state_columns(table: Any) -> list[str]:
    """Columns of numbers that are no index: lists of numbers, and plain floats that are called action or state."""
    import pyarrow as pa

    out = []
    for item in table.schema:
        if item.name in INDEX_COLUMNS:
            continue
        numeric = _is_list(item.type) and (
            pa.types.is_floating(item.type.value_type) or pa.types.is_integer(item.type.value_type)
        )
        if numeric or (pa.types.is_floating(item.type) and re.search(r"action|state", item.name)):
            out.append(item.name)
    return out


def _image_columns(table: Any, cameras: list[str]) -> list[str]:
    """Columns that hold picture files: a struct with `bytes`, or plain bytes of a feature that is a camera."""
    import pyarrow as pa

    return [
        f.name
        for f in table.schema
        if (pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)
        or (f.name in cameras and (pa.types.is_binary(f.type) or pa.types.is_large_binary(f.type)))
    ]


def _image(table: Any, name: str, row: int) -> bytes:
    value = table[name][row].as_py()
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes) or not data:
        raise DataError(f"row {row} of {name} holds no picture")
    return data


def _width(table: Any, name: str) -> int:
    column = table[name]
    return len(column[0]) if _is_list(column.type) and len(column) else 1


def _matrix(table: Any, name: str, where: str) -> NDArray[Any]:
    """(rows, width) float64; NaN where the file has null."""
    import numpy as np

    column = table[name].combine_chunks()
    if not _is_list(column.type):
        return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.float64)[:, None]
    width = _width(table, name)
    flat = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float64)
    if len(flat) != width * table.num_rows:
        raise DataError(f"{where}: rows of '{name}' differ in width")
    return flat.reshape(table.num_rows, width)


def _names(info: dict[str, Any], name: str, width: int) -> list[str]:
    """Column names from info.json, which nests them in several ways; empty strings where they do not fit."""

    def leaves(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        return [x for v in value for x in leaves(v)] if isinstance(value, list) else []

    found = leaves((info["features"].get(name) or {}).get("names"))
    return found if len(found) == width else [""] * width


def _times(table: Any, vendor: VendorSpec, info: dict[str, Any]) -> NDArray[Any]:
    """(rows,) int64 ns, rounded to µs since the column is float32 in most sets; empty where there is no clock."""
    import numpy as np

    if vendor.time_base != "rows" and "timestamp" in table.column_names:
        t_s = np.asarray(table["timestamp"].to_numpy(), dtype=np.float64)
        if np.isfinite(t_s).all():
            return np.rint(t_s * 1e6).astype(np.int64) * 1000
    fps = vendor.fps or (float(info["fps"]) if isinstance(info.get("fps"), int | float) else 0.0)
    if vendor.time_base == "rows" and fps > 0:
        return np.rint(np.arange(table.num_rows) * (1e9 / fps)).astype(np.int64)
    return np.zeros(0, dtype=np.int64)


def _chosen(video: EpisodeVideo, index: VideoIndex) -> NDArray[Any]:
    import numpy as np

    if video.first_s is None or video.last_s is None:
        return np.arange(len(index.t_s))
    return index.between(video.first_s, video.last_s)


def _frame_findings(where: str, camera: str, frames: int, rows: int) -> list[Finding]:
    evidence = {"camera": camera, "frames": str(frames), "rows": str(rows)}
    if frames < rows:
        text = f"{where}: {camera} has {frames} pictures for {rows} rows: {rows - frames} are missing"
        return [Finding("frames_missing", Level.FAIL, text, evidence)]
    if frames > rows:
        text = f"{where}: {camera} has {frames} pictures for {rows} rows: a discarded take may be in it"
        return [Finding("frames_extra", Level.FAIL, text, evidence)]
    return []


def _passable_gop(index: VideoIndex, chosen: NDArray[Any], color_order: str) -> int:
    """Frames per GOP where these packets may be stored as they are, else 0."""
    import numpy as np

    if index.codec != "h264" or index.pixel_format != "yuv420p" or index.reordered or color_order != "rgb":
        return 0
    if index.width % 2 or index.height % 2 or len(chosen) == 0:
        return 0
    keys = np.flatnonzero(index.key[chosen])
    if len(keys) == 0 or keys[0] != 0:
        return 0
    if len(keys) == 1:
        return len(chosen)
    steps = np.diff(keys)
    return int(steps[0]) if (steps == steps[0]).all() and len(chosen) - keys[-1] <= steps[0] else 0


def _stream(
    data: LeRobotSet, episode: SetEpisode, plan: Plan, *, table: Any, t_ns: NDArray[Any], vendor: VendorSpec
) -> Iterator[Picture]:
    """Row by row, one picture of each camera."""
    where = f"#{episode.index}"
    decoders: dict[str, Iterator[NDArray[Any]]] = {}
    for name, camera in plan.cameras.items():
        if name in episode.videos:
            video = episode.videos[name]
            index = data.index(video.path)
            swap = (camera.color_order or vendor.color_order) == "bgr"
            decoders[name] = pictures(video.path, index, _chosen(video, index), swap=swap)
    for row, stamp in enumerate(t_ns.tolist()):
        for name, camera in plan.cameras.items():
            if name in decoders:
                image = next(decoders[name], None)
                if image is None:
                    continue
            else:
                swap = (camera.color_order or vendor.color_order) == "bgr"
                image = even(decode_file(_image(table, name, row), f"{where}, row {row}", swap=swap))
            yield Picture(camera.topic, stamp, image)


def _packet_stream(data: LeRobotSet, episode: SetEpisode, plan: Plan, t_ns: NDArray[Any]) -> Iterator[Picture]:
    streams = {}
    for name in plan.cameras:
        index = data.index(episode.videos[name].path)
        streams[name] = packets(episode.videos[name].path, index, _chosen(episode.videos[name], index))
    for stamp in t_ns.tolist():
        for name, camera in plan.cameras.items():
            packet = next(streams[name], None)
            if packet is not None:
                yield Picture(camera.topic, stamp, packet=packet)


ADAPTER: Adapter = LeRobotAdapter()
