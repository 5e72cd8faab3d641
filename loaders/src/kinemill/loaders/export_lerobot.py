"""Write episodes as a LeRobot v3 data set: H.264 as it is, in MP4; state and action at the frames' times."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from kinemill.contracts import layout_key
from kinemill.episode import EpisodeReader, Layout, Window
from kinemill.errors import StateError, UnsupportedError, UsageError
from kinemill.loaders.fields import topic_facts
from kinemill.loaders.stores import store_for

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.loaders.manifest import Manifest, ManifestRow

__all__ = ["export"]

PER_FOLDER = 1000
LOOKED_AT = 8
"""Frames per camera and episode that image statistics are taken of."""
_QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}


def _key(topic: str) -> str:
    """`/cam/front` -> `observation.images.cam_front`: a LeRobot key holds no slash."""
    return "observation.images." + topic.strip("/").replace("/", "_").replace(".", "_")


def _stats(values: npt.NDArray[Any]) -> dict[str, list[Any]]:
    rows = np.asarray(values, np.float64).reshape(len(values), -1)
    told: dict[str, list[Any]] = {
        "min": rows.min(0).tolist(),
        "max": rows.max(0).tolist(),
        "mean": rows.mean(0).tolist(),
        "std": rows.std(0).tolist(),
        "count": [len(rows)],
    }
    for name, q in _QUANTILES.items():
        told[name] = np.quantile(rows, q, axis=0).tolist()
    return told


def _image_stats(frames: npt.NDArray[np.uint8]) -> dict[str, list[Any]]:
    """Of channels, in [0, 1], shaped (3, 1, 1) as LeRobot keeps them."""
    flat = _stats(frames.reshape(-1, 3)[::97] / 255.0)
    return {k: (v if k == "count" else [[[x]] for x in v]) for k, v in flat.items()}


def _packets(store: Store, key: str, layout: Layout, topic: str) -> list[tuple[int, bytes]]:
    """(time, Annex B) of every frame of one camera, verified chunk by chunk."""
    from kinemill.episode import wire
    from kinemill.episode.opened import open_chunk
    from kinemill.episode.proto import video_bytes

    group = layout.group_of(topic)
    if group is None:
        return []
    channel = next(t.channel_id for t in group.topics if t.topic == topic)
    found = []
    for k in range(len(group)):
        blob = store.get_range(key, int(group.offset[k]), int(group.length[k]))
        chunk = open_chunk(blob, where=f"{key}: chunk {k}")
        for i in np.flatnonzero(chunk.channel == channel).tolist():
            payload = chunk.data[int(chunk.offset[i]) + wire.MESSAGE_HEAD.size : int(chunk.end[i])]
            data, codec = video_bytes(payload)
            if codec != "h264":
                raise UnsupportedError(f"{key}: {topic} is {codec}; only h264 is exported")
            found.append((int(chunk.time[i]), bytes(data)))
    return found


def _mux(path: Path, packets: list[bytes], fps: Fraction, size: tuple[int, int]) -> None:
    """H.264 access units into an MP4, one every 1 / fps."""
    import av

    from kinemill.episode.h264 import first_slice_is_idr

    path.parent.mkdir(parents=True, exist_ok=True)
    first = packets[0]
    at = first.rfind(b"\x00\x00\x01\x65")  # the IDR slice; SPS and PPS stand before it
    with av.open(str(path), "w", format="mp4") as out:
        stream: Any = out.add_stream("h264", rate=fps)
        stream.width, stream.height, stream.pix_fmt = size[1], size[0], "yuv420p"
        stream.codec_context.extradata = first[: at if at > 0 else len(first)].rstrip(b"\x00")
        stream.time_base = Fraction(1, 1) / fps
        for i, data in enumerate(packets):
            packet = av.Packet(data)
            packet.stream = stream
            packet.time_base = Fraction(1, 1) / fps
            packet.pts = packet.dts = i
            packet.duration = 1
            packet.is_keyframe = first_slice_is_idr(memoryview(data))
            out.mux(packet)


def _layout_of(store: Store, row: ManifestRow) -> Layout:
    packed = row.layout if row.layout is not None else store.get(layout_key(row.key))
    return Layout.from_columns(row.topics, packed)


def export(
    manifest: Manifest,
    store_url: str | None,
    target: Path,
    *,
    fps: float | None = None,
    episodes: int | None = None,
    state: str | None = None,
    action: str | None = None,
) -> dict[str, Any]:
    """Write the data set.

    The frame rate is made exact: frame i of an episode gets the time i / fps, which is what LeRobot's lookup needs. An
    episode with dropped frames or another rate is refused, since it would be shifted silently.

    Args:
        manifest: The episodes.
        store_url: Where they lie.
        target: A folder that does not exist yet.
        fps: Of the set; default: the first episode's.
        episodes: Only the first so many.
        state: Topic for `observation.state`.
        action: Topic for `action`.

    Returns:
        Counts, for people.

    Raises:
        StateError: `target` exists.
        UsageError: No episode, or no camera or state to be found.
        UnsupportedError: An episode of another frame rate, or with dropped frames.
    """
    if target.exists():
        raise StateError(f"{target} exists; name a new folder")
    if store_url is None or not len(manifest):
        raise UsageError("nothing to export: name --store, and a manifest with episodes")
    store = store_for(store_url)
    rows = [manifest[i] for i in range(min(len(manifest), episodes or len(manifest)))]
    facts = topic_facts(rows[0].topics)
    cameras = [f for f in facts.values() if f.kind == "video"]
    states = [f for f in facts.values() if f.kind == "state"]
    action = action or next((f.topic for f in states if "action" in f.topic), None)
    state = state or next((f.topic for f in states if f.topic != action), None)
    if not cameras or state not in facts or action not in facts or state is None or action is None:
        raise UsageError(f"need a camera, a state and an action topic; the first episode has {', '.join(facts)}")
    rate = fps or rows[0].fps
    exact = Fraction(rate).limit_denominator(1001)
    part = target.with_name(f".{target.name}.part")
    tables: list[pa.Table] = []
    meta: list[dict[str, Any]] = []
    tasks: dict[str, int] = {}
    all_stats: dict[str, list[npt.NDArray[Any]]] = {}
    images: dict[str, list[npt.NDArray[np.uint8]]] = {}
    at = 0
    for number, row in enumerate(rows):
        layout = _layout_of(store, row)
        reader = EpisodeReader(store, row.key, layout)
        where = f"{row.key}: "
        times: list[int] = []
        told: dict[str, Any] = {}
        for camera in cameras:
            packets = _packets(store, row.key, layout, camera.topic)
            if len(packets) != row.frames:
                raise UnsupportedError(f"{where}{camera.topic} has {len(packets)} frames, the episode {row.frames}")
            stamps = np.array([t for t, _ in packets], np.int64)
            gaps = np.diff(stamps)
            if len(gaps) and (gaps.max() > 1.5e9 / rate or abs(gaps.mean() * rate / 1e9 - 1) > 0.02):
                raise UnsupportedError(
                    f"{where}{camera.topic} is not a steady {rate:g} fps (longest gap {gaps.max() / 1e6:.1f} ms); "
                    "LeRobot finds frames by number, so it would be shifted: leave it out by a filter"
                )
            times = times or stamps.tolist()
            key = _key(camera.topic)
            folder = f"chunk-{number // PER_FOLDER:03d}/file-{number % PER_FOLDER:03d}"
            _mux(part / "videos" / key / f"{folder}.mp4", [d for _, d in packets], exact, (camera.height, camera.width))
            told |= {
                f"videos/{key}/chunk_index": number // PER_FOLDER,
                f"videos/{key}/file_index": number % PER_FOLDER,
                f"videos/{key}/from_timestamp": 0.0,
                f"videos/{key}/to_timestamp": row.frames / rate,
            }
        looked = [times[i] for i in np.linspace(0, len(times) - 1, min(LOOKED_AT, len(times))).astype(int)]
        answer = reader.read(
            [
                Window.at(state, times, name="state"),
                Window.at(action, times, name="action"),
                *(Window.at(c.topic, looked, pick="nearest") for c in cameras),
            ]
        )
        n = len(times)
        task = row.instruction or row.task
        columns: dict[str, npt.NDArray[Any]] = {
            "observation.state": np.asarray(answer["state"][1], np.float32),
            "action": np.asarray(answer["action"][1], np.float32),
            "timestamp": (np.arange(n) / rate).astype(np.float32),
            "frame_index": np.arange(n),
            "episode_index": np.full(n, number),
            "index": at + np.arange(n),
            "task_index": np.full(n, tasks.setdefault(task, len(tasks))),
        }
        tables.append(_table(columns))
        stats = {name: _stats(values) for name, values in columns.items()}
        for name, values in columns.items():
            all_stats.setdefault(name, []).append(values)
        for camera in cameras:
            frames = answer[camera.topic][1]
            stats[_key(camera.topic)] = _image_stats(frames)
            images.setdefault(_key(camera.topic), []).append(frames.reshape(-1, 3)[::97])
        flat = {f"stats/{name}/{kind}": value for name, one in stats.items() for kind, value in one.items()}
        meta.append(
            {
                "episode_index": number,
                "tasks": [task],
                "length": n,
                "data/chunk_index": 0,
                "data/file_index": 0,
                "dataset_from_index": at,
                "dataset_to_index": at + n,
                **told,
                **flat,
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
        )
        at += n
    _write(part, tables, meta, tasks)
    features: dict[str, dict[str, Any]] = {
        _key(c.topic): {
            "dtype": "video",
            "shape": [c.height, c.width, 3],
            "names": ["height", "width", "channels"],
            "info": {
                "video.height": c.height,
                "video.width": c.width,
                "video.codec": "h264",
                "video.pix_fmt": "yuv420p",
                "video.fps": float(exact) if exact.denominator > 1 else exact.numerator,
                "video.channels": 3,
                "has_audio": False,
                "is_depth_map": False,
            },
        }
        for c in cameras
    }
    features |= {
        name: {"dtype": "float32", "shape": [facts[topic].columns], "names": None}
        for name, topic in (("observation.state", state), ("action", action))
    }
    features |= {
        name: {"dtype": dtype, "shape": [1], "names": None}
        for name, dtype in (
            ("timestamp", "float32"),
            ("frame_index", "int64"),
            ("episode_index", "int64"),
            ("index", "int64"),
            ("task_index", "int64"),
        )
    }
    info = {
        "codebase_version": "v3.0",
        "robot_type": rows[0].robot,
        "total_episodes": len(rows),
        "total_frames": at,
        "total_tasks": len(tasks),
        "chunks_size": PER_FOLDER,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": float(exact) if exact.denominator > 1 else exact.numerator,
        "splits": {"train": f"0:{len(rows)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": features,
    }
    whole = {name: _stats(np.concatenate(parts)) for name, parts in all_stats.items()}
    for name, parts in images.items():
        flat_image = _stats(np.concatenate(parts) / 255.0)
        whole[name] = {k: (v if k == "count" else [[[x]] for x in v]) for k, v in flat_image.items()}
    (part / "meta/stats.json").write_text(json.dumps(whole))
    (part / "meta/info.json").write_text(json.dumps(info, indent=4))  # last: without it there is no data set
    part.rename(target)
    return {"target": str(target), "episodes": len(rows), "frames": at, "cameras": [_key(c.topic) for c in cameras]}


def _table(columns: dict[str, npt.NDArray[Any]]) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        if values.ndim == 2:
            flat = pa.array(values.reshape(-1), pa.float32())
            arrays[name] = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
        else:
            arrays[name] = pa.array(values)
    return pa.table(arrays)


def _write(part: Path, tables: list[pa.Table], meta: list[dict[str, Any]], tasks: dict[str, int]) -> None:
    data = part / "data/chunk-000/file-000.parquet"
    data.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.concat_tables(tables), data)
    episodes = part / "meta/episodes/chunk-000/file-000.parquet"
    episodes.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(meta), episodes)

    def column(name: str, pandas: str, numpy: str) -> dict[str, Any]:
        return {"name": name, "field_name": name, "pandas_type": pandas, "numpy_type": numpy, "metadata": None}

    index = {  # LeRobot reads this table with pandas and looks tasks up in its index
        "index_columns": ["task"],
        "column_indexes": [],
        "columns": [column("task_index", "int64", "int64"), column("task", "unicode", "object")],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.3.3",
    }
    table = pa.table({"task_index": list(tasks.values()), "task": list(tasks)})
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(index)}), part / "meta/tasks.parquet")
