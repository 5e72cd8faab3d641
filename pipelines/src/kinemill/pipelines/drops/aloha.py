"""An ALOHA-style vendor: one HDF5 file per episode, rows without time stamps, written by `h5py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinemill.pipelines.drops.arm import Painter, simulate
from kinemill.pipelines.drops.drop import BrokenEpisode, Drop, rng_for
from kinemill.pipelines.drops.ros2 import jpeg

__all__ = ["VENDOR", "write_drop", "write_episode"]

VENDOR = "twinarm_aloha"
RATE_HZ = 20
CAMERAS = {"cam_high": "scene", "cam_wrist": "wrist"}


def write_episode(path: Path, rng: np.random.Generator, seconds: float, size: tuple[int, int], *, raw: bool) -> None:
    """One file in the ALOHA layout; pictures raw, or JPEG padded to one length as its recorder does.

    The pictures are stored blue first, as they come from the camera driver.
    """
    import h5py

    motion = simulate(rng, seconds)
    painter = Painter(rng, *size)
    steps = [motion.at(i / RATE_HZ) for i in range(int(seconds * RATE_HZ))]
    q, command = motion.q[steps], motion.command[steps]
    with h5py.File(path, "w") as out:
        out.attrs["sim"] = False
        out.attrs["compress"] = not raw
        observations = out.create_group("observations")
        observations.create_dataset("qpos", data=q)
        observations.create_dataset("qvel", data=np.gradient(q, axis=0) * RATE_HZ)
        out.create_dataset("action", data=command)
        images = observations.create_group("images")
        lengths = []
        for name, view in CAMERAS.items():
            draw = getattr(painter, view)
            frames = [
                np.ascontiguousarray(draw(motion.q[s], motion.goal[s], int(motion.hue[s]))[..., ::-1]) for s in steps
            ]
            if raw:
                images.create_dataset(name, data=np.stack(frames), chunks=(1, size[1], size[0], 3))
                continue
            files = [jpeg(frame) for frame in frames]
            width = max(map(len, files))
            padded = np.zeros((len(files), width), dtype=np.uint8)
            for row, data in zip(padded, files, strict=True):
                row[: len(data)] = np.frombuffer(data, dtype=np.uint8)
            images.create_dataset(name, data=padded, chunks=(1, width))
            lengths.append([len(data) for data in files])
        if lengths:
            out.create_dataset("compress_len", data=np.array(lengths))


def write_drop(root: Path, seed: int, *, episodes: int, seconds: float, width: int, height: int) -> Drop:
    """`episodes` good files, the first with raw pictures, and one whose commands hold NaN."""
    import h5py

    root.mkdir(parents=True)
    for index in range(episodes + 1):
        rng = rng_for(seed, VENDOR, index)
        write_episode(root / f"episode_{index}.hdf5", rng, seconds, (width, height), raw=index == 0)
    with h5py.File(root / f"episode_{episodes}.hdf5", "r+") as victim:
        victim["action"][50:53, 1] = np.nan
    return Drop(
        vendor=VENDOR,
        path=root,
        episodes=episodes,
        broken=(BrokenEpisode(f"episode_{episodes}.hdf5", "nan_in_state", "three commands are NaN"),),
        quirks=(
            "no time stamps: the rate is the vendor's word",
            "blue and red swapped",
            "one file with raw pictures, the others with padded JPEG",
            "velocities that nobody asked for",
        ),
    )
