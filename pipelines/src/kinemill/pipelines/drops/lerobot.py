"""A LeRobot v3 vendor: one data set with all episodes in shared Parquet and MP4 files (`pyarrow`, `av`)."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kinemill.pipelines.drops.arm import Painter, simulate
from kinemill.pipelines.drops.drop import BrokenEpisode, Drop, rng_for

__all__ = ["VENDOR", "write_drop"]

VENDOR = "deskarm_lerobot"
RATE_HZ = 20
CAMERAS = {"observation.images.top": "scene", "observation.images.grip": "wrist"}
NAMES = ["shoulder_lift.pos", "elbow_flex.pos", "wrist_flex.pos", "gripper.pos"]
TASK = "reach the disc; open the gripper where it is magenta"
GOP = 5


class _Video:
    """One MP4 with all episodes of one camera, H.264 without B-frames."""

    def __init__(self, path: Path, width: int, height: int) -> None:
        import av

        path.parent.mkdir(parents=True)
        self._out = av.open(str(path), "w")
        stream = self._out.add_stream("libx264", rate=RATE_HZ)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.time_base = Fraction(1, RATE_HZ * 512)
        stream.options = {
            "crf": "18",
            "preset": "veryfast",
            "tune": "fastdecode",
            "bf": "0",
            "g": str(GOP),
            "keyint_min": str(GOP),
            "sc_threshold": "0",
            "threads": "1",
        }
        self._stream = stream
        self.frames = 0

    def add(self, image: NDArray[np.uint8]) -> None:
        import av

        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = self.frames, Fraction(1, RATE_HZ)
        if self.frames % GOP == 0:
            frame.pict_type = av.video.frame.PictureType.I
        self._out.mux(self._stream.encode(frame))
        self.frames += 1

    def close(self) -> None:
        self._out.mux(self._stream.encode(None))
        self._out.close()


def _degrees(q: NDArray[np.float64]) -> NDArray[np.float32]:
    """Angles in degrees and the gripper in percent of its opening, as a hobby servo bus reports them."""
    from kinemill.pipelines.drops.arm import GRIPPER_OPEN_M

    out = np.rad2deg(q)
    out[:, 3] = q[:, 3] / GRIPPER_OPEN_M * 100.0
    return out.astype(np.float32)


def write_drop(root: Path, seed: int, *, episodes: int, seconds: float, width: int, height: int) -> Drop:
    """One data set of `episodes` good episodes, and a last one of which the metadata promise more than there is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    root.mkdir(parents=True)
    videos = {key: _Video(root / "videos" / key / "chunk-000" / "file-000.mp4", width, height) for key in CAMERAS}
    columns: dict[str, list[NDArray[Any]]] = {k: [] for k in ("action", "state", "timestamp", "frame", "episode")}
    meta: list[dict[str, Any]] = []
    done = 0
    for index in range(episodes + 1):
        rng = rng_for(seed, VENDOR, index)
        motion = simulate(rng, seconds)
        painter = Painter(rng, width, height)
        n = int(seconds * RATE_HZ) // GOP * GOP
        steps = [motion.at(i / RATE_HZ) for i in range(n)]
        columns["action"].append(_degrees(motion.command[steps]))
        columns["state"].append(_degrees(motion.q[steps]))
        columns["timestamp"].append((0.05 + np.arange(n) / RATE_HZ).astype(np.float32))
        columns["frame"].append(np.arange(n))
        columns["episode"].append(np.full(n, index))
        row: dict[str, Any] = {
            "episode_index": index,
            "tasks": [TASK],
            "length": n,
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": done,
            "dataset_to_index": done + n,
        }
        for key, view in CAMERAS.items():
            draw, first = getattr(painter, view), videos[key].frames
            # The grip camera of the last episode was unplugged early: a third of its pictures are not there.
            pictures = n * 2 // 3 if index == episodes and view == "wrist" else n
            for s in steps[:pictures]:
                videos[key].add(draw(motion.q[s], motion.goal[s], int(motion.hue[s])))
            row |= {
                f"videos/{key}/chunk_index": 0,
                f"videos/{key}/file_index": 0,
                f"videos/{key}/from_timestamp": first / RATE_HZ,
                f"videos/{key}/to_timestamp": (first + n) / RATE_HZ,
            }
        meta.append(row)
        done += n
    for video in videos.values():
        video.close()

    def fixed(parts: list[NDArray[np.float32]]) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(parts).ravel()), len(NAMES))

    table = pa.table(
        {
            "action": fixed(columns["action"]),
            "observation.state": fixed(columns["state"]),
            "timestamp": pa.array(np.concatenate(columns["timestamp"])),
            "frame_index": pa.array(np.concatenate(columns["frame"])),
            "episode_index": pa.array(np.concatenate(columns["episode"])),
            "index": pa.array(np.arange(done)),
            "task_index": pa.array(np.zeros(done, dtype=np.int64)),
        }
    )
    for path in ("data/chunk-000", "meta/episodes/chunk-000"):
        (root / path).mkdir(parents=True)
    pq.write_table(table, root / "data/chunk-000/file-000.parquet")
    pq.write_table(pa.Table.from_pylist(meta), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": [TASK]}), root / "meta/tasks.parquet")
    vector = {"dtype": "float32", "shape": [len(NAMES)], "names": NAMES}
    scalar = {"dtype": "int64", "shape": [1], "names": None}
    picture = {"dtype": "video", "shape": [height, width, 3], "names": ["height", "width", "channels"]}
    info = {
        "codebase_version": "v3.0",
        "robot_type": "deskarm",
        "total_episodes": episodes + 1,
        "total_frames": done,
        "total_tasks": 1,
        "fps": RATE_HZ,
        "splits": {"train": f"0:{episodes + 1}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "features": {
            "action": vector,
            "observation.state": vector,
            **dict.fromkeys(CAMERAS, picture),
            "observation.images.ghost": picture,
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), scalar),
        },
    }
    (root / "meta/info.json").write_text(json.dumps(info, indent=4))
    return Drop(
        vendor=VENDOR,
        path=root,
        episodes=episodes,
        broken=(
            BrokenEpisode(
                f"#{episodes}", "frames_missing", "its metadata promise a third more pictures than the video holds"
            ),
        ),
        quirks=(
            "time stamps start at 0.05 s, the video at 0",
            "angles in degrees, the gripper in percent",
            "all episodes in one Parquet file and one MP4 per camera",
            "info.json names a camera that does not exist",
        ),
    )
