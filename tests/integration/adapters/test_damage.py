"""Whatever is done to a file: an adapter answers with findings or a `DataError`, never with another exception."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from kinemill.errors import DataError
from kinemill.pipelines.adapters import Level, adapter, load_vendor
from support.ingest import only_source, shared_drops

VICTIMS = {
    "mcap": ("gantry_ros2", "run_000", "run_000.mcap"),
    "bag metadata": ("gantry_ros2", "run_000", "metadata.yaml"),
    "hdf5": ("twinarm_aloha", "episode_1.hdf5", ""),
    "video": ("deskarm_lerobot", "", "videos/observation.images.top/chunk-000/file-000.mp4"),
    "rows": ("deskarm_lerobot", "", "data/chunk-000/file-000.parquet"),
    "episodes": ("deskarm_lerobot", "", "meta/episodes/chunk-000/file-000.parquet"),
    "info": ("deskarm_lerobot", "", "meta/info.json"),
}


def damage(data: bytes, rng: random.Random) -> bytes:
    """`data` with bits flipped, a part cut off, zeroed, doubled, or its head overwritten."""
    out, n = bytearray(data), len(data)
    match rng.choice(["flip", "flip", "flip", "cut", "zero", "double", "head"]):
        case "flip":
            for _ in range(rng.choice([1, 3, 20, 200])):
                out[rng.randrange(n)] ^= 1 << rng.randrange(8)
        case "cut":
            del out[rng.randrange(n) :]
        case "zero":
            at, size = rng.randrange(n), rng.choice([1, 100, 5000])
            out[at : at + size] = bytes(min(size, n - at))
        case "double":
            at = rng.randrange(n)
            out[at:at] = out[at : at + rng.choice([1, 50, 3000])]
        case _:
            for _ in range(10):
                out[rng.randrange(min(n, 600))] = rng.randrange(256)
    return bytes(out)


def survive(folder: Path, victim: str, seed: int) -> str:
    """Damage one file, look at it and read it; returns how that ended."""
    vendor_name, inner, leaf = VICTIMS[victim]
    vendor, drop = load_vendor(vendor_name), shared_drops()[vendor_name].path
    root = folder / (inner or "set")
    folder.mkdir(parents=True)
    if (drop / inner).is_dir():
        shutil.copytree(drop / inner, root)
    else:
        shutil.copyfile(drop / inner, root)
    path = root / leaf if leaf else root
    path.write_bytes(damage(path.read_bytes(), random.Random(f"{victim} {seed}")))
    source = only_source(root, vendor.adapter)
    facts = adapter(vendor.adapter).inspect(source, vendor)
    if not facts.episodes or any(f.level is Level.FAIL for f in facts.findings):
        return "put aside"
    for episode in facts.episodes[:2]:
        if any(f.level is Level.FAIL for f in episode.findings):
            return "episode put aside"
        try:
            for _ in adapter(vendor.adapter).read(source, vendor, episode.index).pictures():
                pass
        except DataError:
            return "put aside while reading"
    return "read"


@pytest.mark.parametrize("victim", VICTIMS)
def test_damage_is_answered(victim: str, tmp_path: Path) -> None:
    ends = []
    for seed in range(6):
        ends.append(survive(tmp_path / str(seed), victim, seed))
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)

    assert len(ends) == 6, "no exception but DataError came out"


@pytest.mark.full("ingest")
@pytest.mark.parametrize("victim", VICTIMS)
def test_much_damage_is_answered(victim: str, tmp_path: Path) -> None:
    ends = set()
    for seed in range(6, 66):
        ends.add(survive(tmp_path / str(seed), victim, seed))
        shutil.rmtree(tmp_path / str(seed), ignore_errors=True)

    assert len(ends) > 1, "some damage has to be noticed"
