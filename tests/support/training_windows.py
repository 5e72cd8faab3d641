"""A small corpus on disk for the training job's tests: real episodes, a real manifest."""

from __future__ import annotations

import hashlib
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from kinemill.episode import EpisodeWriter, Layout, TopicKind, TopicSpec
from kinemill.episode import publish as publish_episode
from kinemill.store.files import FileStore
from support.loaders import publish, write_manifest

__all__ = ["corpus"]

FRAMES, FPS = 30, 20
NAMES = ("a", "b", "c", "d")


def corpus(folder: Path, *, blind: int = 0) -> tuple[str, str]:
    """Four episodes of 30 frames (three to train on); ahead of them `blind` ones without cameras.

    Returns:
        The store's URL and the manifest's id.
    """
    store = FileStore(folder / "store")
    rows: list[dict[str, Any]] = []
    for index in range(4 + blind):
        cameras = index >= blind
        receipt = _write(folder / f"{index}.mcap", index, cameras=cameras)
        publish_episode(store, folder / f"{index}.mcap", receipt)
        topics, packed = Layout.from_receipt(receipt).columns()
        rows.append(
            {
                "receipt": receipt,
                "topics": topics,
                "layout": packed,
                "split": "val" if index == blind else "train",
                "frames": FRAMES if cameras else 0,
            }
        )
    receipts = [row["receipt"] for row in rows]
    columns = {
        "episode_id": np.array([list(uuid.UUID(r.episode_id).bytes) for r in receipts], np.uint8),
        "profile": _words([r.profile for r in receipts], np.int8),
        "sha256": np.array([list(bytes.fromhex(r.sha256)) for r in receipts], np.uint8),
        "size_bytes": np.array([r.size_bytes for r in receipts]),
        "vendor": _words(["v"] * len(rows), np.int16),
        "robot": _words(["r"] * len(rows), np.int16),
        "task": _words(["t"] * len(rows), np.int32),
        "instruction": _words([""] * len(rows), np.int32),
        "split": _words([row["split"] for row in rows], np.int8),
        "t_first_ns": np.array([r.t_first_ns for r in receipts]),
        "duration_ns": np.array([r.t_last_ns - r.t_first_ns for r in receipts]),
        "frames": np.array([row["frames"] for row in rows], np.int32),
        "fps": np.array([FPS if row["frames"] else 0 for row in rows], np.float32),
        "weight": np.ones(len(rows), np.float32),
        "topics": _words([row["topics"] for row in rows], np.int32),
    }
    path = write_manifest(folder / "m.arrow", columns, layouts=[row["layout"] for row in rows])
    publish(store, path, id="m1")
    return store.url, "m1"


def _words(values: list[str], kind: Any) -> tuple[Any, list[str]]:
    known = sorted(set(values))
    return np.array([known.index(v) for v in values], kind), known


def _write(path: Path, seed: int, *, cameras: bool) -> Any:
    rng = np.random.default_rng(seed)
    name = hashlib.sha256(str(seed).encode()).hexdigest()[:32]
    specs = [TopicSpec(t, TopicKind.STATE, rate_hz=FPS, names=NAMES, units="rad") for t in ("/joint_states", "/action")]
    if cameras:
        specs = [TopicSpec(t, rate_hz=FPS, width=64, height=48) for t in ("/cam/scene", "/cam/wrist")] + specs
    with EpisodeWriter(path, episode_id=uuid.UUID(name), profile="vla", topics=specs) as writer:
        for i in range(FRAMES):
            t_ns = i * 10**9 // FPS
            if cameras:
                for topic in ("/cam/scene", "/cam/wrist"):
                    writer.frame(topic, t_ns, rng.integers(0, 256, (48, 64, 3), np.uint8))
            for topic in ("/joint_states", "/action"):
                writer.rows(topic, t_ns, rng.normal(size=4))
    return writer.receipt
