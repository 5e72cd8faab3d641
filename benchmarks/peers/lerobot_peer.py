"""LeRobot on the common recording: build a set with its own writer, read it as its users do."""

from __future__ import annotations

import json
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import content as c
import numpy as np
from serve import serve

KEYS = [f"observation.images.c{i}" for i in range(c.CAMERAS)]


def build(root: Path, codec: str, episodes: int, seconds: int) -> None:
    """Write the set: `codec` av1 is the writer's default."""
    from lerobot.configs.video import RGBEncoderConfig
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    shape = (c.HEIGHT, c.WIDTH, 3)
    features: dict[str, Any] = {
        k: {"dtype": "video", "shape": shape, "names": ["height", "width", "channels"]} for k in KEYS
    }
    features["observation.state"] = {"dtype": "float32", "shape": (c.STATE,), "names": None}
    features["action"] = {"dtype": "float32", "shape": (c.JOINTS,), "names": None}
    options = {} if codec == "av1" else {"rgb_encoder": RGBEncoderConfig(vcodec=codec)}
    data = LeRobotDataset.create(
        "kinemill/bench", c.FPS, features, root=root, use_videos=True, streaming_encoding=True, **options
    )
    for episode in range(episodes):
        for step in range(seconds * c.FPS):
            t = np.array([step / c.FPS])
            item = {k: c.frame(episode, i, step) for i, k in enumerate(KEYS)}
            data.add_frame({**item, "observation.state": c.state(t)[0], "action": c.action(t)[0], "task": "bench"})
        data.save_episode()
    data.finalize()


def replicate(root: Path, target: Path, times: int) -> None:
    """The same set with every episode `times` over: tables repeated, videos shared."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    shutil.copytree(root, target, copy_function=lambda a, b: Path(b).hardlink_to(a))
    info_path = target / "meta/info.json"
    info = json.loads(info_path.read_text())
    episodes, frames = info["total_episodes"], info["total_frames"]
    data_path = next((target / "data").rglob("*.parquet"))
    data = pq.read_table(data_path)
    meta_path = next((target / "meta/episodes").rglob("*.parquet"))
    meta = pq.read_table(meta_path)

    def shifted(table: Any, steps: dict[str, int]) -> Any:
        parts = []
        for turn in range(times):
            part = table
            for name, by in steps.items():
                if name in part.column_names:
                    at = part.column_names.index(name)
                    column = pa.array(np.asarray(part[name]) + by * turn, part.schema.field(name).type)
                    part = part.set_column(at, part.schema.field(name), column)
            parts.append(part)
        return pa.concat_tables(parts)

    for path, table, steps in (
        (data_path, data, {"index": frames, "episode_index": episodes}),
        (meta_path, meta, {"episode_index": episodes, "dataset_from_index": frames, "dataset_to_index": frames}),
    ):
        path.unlink()
        pq.write_table(shifted(table, steps), path)
    info_path.unlink()
    info |= {
        "total_episodes": episodes * times,
        "total_frames": frames * times,
        "splits": {"train": f"0:{episodes * times}"},
    }
    info_path.write_text(json.dumps(info))


def open_set(root: str, deltas: dict[str, list[float]]) -> Any:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    return LeRobotDataset("kinemill/bench", root=root, delta_timestamps=deltas, return_uint8=True)


def main(root: str) -> None:
    """Answer commands."""
    import torch
    from torch.utils.data import DataLoader, default_collate

    sets: dict[str, Any] = {}

    def vla_set() -> Any:
        if "vla" not in sets:
            sets["vla"] = open_set(root, {"action": [i / c.FPS for i in range(c.CHUNK)]})
        return sets["vla"]

    def clip_set(frames: int) -> Any:
        if "clip" not in sets:
            sets["clip"] = open_set(root, {k: [i / c.FPS for i in range(frames)] for k in KEYS})
        return sets["clip"]

    def vla(n: int, seed: int, batch: int) -> int:
        data = vla_set()
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        for at in range(0, n, batch):
            default_collate([data[i] for i in picks[at : at + batch]])
        return n

    def clips(n: int, seed: int, frames: int, per_episode: int) -> int:
        data = clip_set(frames)
        rng = np.random.default_rng(seed)
        episodes = len(data) // per_episode
        for _ in range(n):
            default_collate([data[int(rng.integers(episodes)) * per_episode + int(rng.integers(per_episode - frames))]])
        return n

    def workers(n: int, seed: int, batch: int) -> int:
        data = vla_set()
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        loader = DataLoader(data, batch_size=batch, sampler=picks, num_workers=2, multiprocessing_context="fork")
        return sum(len(b["action"]) for b in loader)

    def quality() -> float:
        data = vla_set()
        found = []
        for step in (3, 40, 77):
            item = data[step]
            found += [c.psnr(item[k].permute(1, 2, 0).numpy(), c.frame(0, i, step)) for i, k in enumerate(KEYS)]
        return float(np.mean(found))

    def cold() -> float:
        start = time.process_time()
        data = open_set(root, {"action": [i / c.FPS for i in range(c.CHUNK)]})
        _ = data[len(data) // 2]
        return time.process_time() - start

    torch.set_num_threads(1)
    serve({"vla": vla, "clips": clips, "workers": workers, "quality": quality, "cold": cold})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", target, codec, episodes, seconds]:
            build(Path(target), codec, int(episodes), int(seconds))
        case ["replicate", source, target, times]:
            replicate(Path(source), Path(target), int(times))
        case [source]:
            main(source)
