"""MosaicML Streaming on the common recording: JPEG in MDS, one sample per time step, the action chunk in each."""

from __future__ import annotations

import io
import sys
import time
from pathlib import Path
from typing import Any

import content as c
import numpy as np
from PIL import Image
from serve import serve

KEYS = [f"c{i}" for i in range(c.CAMERAS)]
QUALITY = 92


def build(root: Path, episodes: int, seconds: int) -> None:
    """Write the shards."""
    from streaming import MDSWriter

    columns = {**dict.fromkeys(KEYS, "bytes"), "state": "ndarray", "action": "ndarray"}
    with MDSWriter(out=str(root), columns=columns, size_limit=1 << 26) as out:
        for episode in range(episodes):
            for step in range(seconds * c.FPS):
                item: dict[str, Any] = {}
                for i, key in enumerate(KEYS):
                    data = io.BytesIO()
                    Image.fromarray(c.frame(episode, i, step)).save(data, "JPEG", quality=QUALITY)
                    item[key] = data.getvalue()
                t = step / c.FPS
                item["state"] = c.state(np.array([t]))[0]
                item["action"] = c.action(t + np.arange(c.CHUNK) / c.HZ)
                out.write(item)


def main(root: str) -> None:
    """Answer commands."""
    import torch
    from streaming import StreamingDataset

    data = StreamingDataset(local=root, shuffle=False, batch_size=8)

    def put(item: dict[str, Any], out: np.ndarray) -> None:
        for i, key in enumerate(KEYS):
            out[i] = np.asarray(Image.open(io.BytesIO(item[key])))

    def vla(n: int, seed: int, batch: int) -> int:
        picks = np.random.default_rng(seed).integers(0, len(data), n).tolist()
        for at in range(0, n, batch):
            some = picks[at : at + batch]
            frames = torch.empty((len(some), c.CAMERAS, c.HEIGHT, c.WIDTH, 3), dtype=torch.uint8)
            actions = np.empty((len(some), c.CHUNK, c.JOINTS), np.float32)
            view = frames.numpy()
            for i, pick in enumerate(some):
                item = data[pick]
                put(item, view[i])
                actions[i] = item["action"]
        return n

    def clips(n: int, seed: int, frames: int, per_episode: int) -> int:
        rng = np.random.default_rng(seed)
        episodes = len(data) // per_episode
        for _ in range(n):
            start = int(rng.integers(episodes)) * per_episode + int(rng.integers(per_episode - frames))
            out = np.empty((frames, c.CAMERAS, c.HEIGHT, c.WIDTH, 3), np.uint8)
            for t in range(frames):
                put(data[start + t], out[t])
        return n

    def quality() -> float:
        out = np.empty((c.CAMERAS, c.HEIGHT, c.WIDTH, 3), np.uint8)
        found = []
        for step in (3, 40, 77):
            put(data[step], out)
            found += [c.psnr(out[i], c.frame(0, i, step)) for i in range(c.CAMERAS)]
        return float(np.mean(found))

    def cold() -> float:
        start = time.process_time()
        _ = StreamingDataset(local=root, shuffle=False, batch_size=8)[0]
        return time.process_time() - start

    torch.set_num_threads(1)
    serve({"vla": vla, "clips": clips, "quality": quality, "cold": cold})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["build", target, episodes, seconds]:
            build(Path(target), int(episodes), int(seconds))
        case [source]:
            main(source)
