"""A rank of the reference job on made-up data: `python training_rank.py CONFIG`. What the launcher's tests start.

The data are a function of the sample's number: a bright spot whose place is the action. `CRASH` in the environment is a
list of `attempt:rank:step:how`, where how is kill, segv, raise, config, hang or a signal that the launcher gets.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import torch

from kinemill.errors import ConfigError
from kinemill.logs import logs_from_settings
from kinemill.training.checkpoint import Checkpointer
from kinemill.training.job.config import JobConfig, load_config
from kinemill.training.job.loop import run_rank
from kinemill.training.job.source import Batch, Statistics


class Spots:
    """`Source` over numbered samples; rank r of w takes numbers r, r + w, ... of each global batch."""

    cameras = 1

    def __init__(self, config: JobConfig, rank: int, world: int) -> None:
        self._config, self._rank, self._world = config, rank, world
        self._position = 0
        self.seen = Path(config.run) / f"seen-{rank}.txt"

    def statistics(self) -> Statistics:
        rows = torch.rand(64, 2, generator=torch.Generator().manual_seed(1))
        return Statistics.of(rows, rows)

    def batches(self) -> Iterator[Batch]:
        size = self._config.train.batch
        while True:
            start = self._position + self._rank * size
            with self.seen.open("a") as out:
                out.write(f"{start}\n")
            self._position += size * self._world
            _crash(self._rank, self._position // (size * self._world))
            yield self._batch(range(start, start + size))

    def held_out(self, samples: int) -> Iterator[Batch]:
        yield self._batch(range(10**6 + self._rank, 10**6 + samples, self._world))

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position = state["position"]

    def counters(self) -> dict[str, float]:
        return {"samples": float(self._position)}

    def close(self) -> None:
        return

    def _batch(self, numbers: range) -> Batch:
        n, (height, width), steps = len(numbers), (12, 16), self._config.data.chunk_steps
        frames = torch.zeros(n, 1, height, width, 3, dtype=torch.uint8)
        action = torch.zeros(n, steps, 2)
        for i, number in enumerate(numbers):
            draw = torch.Generator().manual_seed(number)
            y, x = (int(torch.randint(limit, (), generator=draw)) for limit in (height, width))
            frames[i, 0, y, x] = 255
            action[i, :] = torch.tensor([x / width, y / height])
        return Batch(frames, torch.zeros(n, 2), action, torch.ones(n, steps, dtype=torch.bool))


def _crash(rank: int, step: int) -> None:
    attempts = Path(os.environ["RUN"]) / "attempts"
    attempt = max(int(p.name) for p in attempts.iterdir() if p.name.isdigit())
    for item in filter(None, os.environ.get("CRASH", "").split(",")):
        *where, how = item.split(":")
        if [int(w) for w in where] != [attempt, rank, step]:
            continue
        match how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segv":
                ctypes.string_at(0)
            case "raise":
                raise RuntimeError("a fault of the job's own")
            case "config":
                raise ConfigError("data.cameras: no such topic")
            case "hang":
                time.sleep(3600)
            case "term":
                _ask_to_stop()


def _ask_to_stop() -> None:
    """SIGTERM for the launcher; the step goes on once this rank was told, however long torchrun and the minder take."""
    came = threading.Event()
    before = signal.getsignal(signal.SIGTERM)
    assert callable(before), "the rank catches signals before its first step"

    def told(signum: int, frame: Any) -> None:
        came.set()
        before(signum, frame)

    signal.signal(signal.SIGTERM, told)
    os.kill(int(os.environ["LAUNCHER"]), signal.SIGTERM)
    if not came.wait(120):
        raise RuntimeError("the launcher's SIGTERM did not reach its rank in 120 s")


def _let_saves_end() -> None:
    """Every save is on the disk by the poll after it: these steps take no time, a slow disk would leave saves out."""
    poll = Checkpointer.poll

    def patient(saver: Checkpointer, *, stop: bool = False) -> bool:
        if saver._flight is not None:
            futures.wait([saver._flight.future])
        return poll(saver, stop=stop)

    Checkpointer.poll = patient  # type: ignore[method-assign]  # in this process alone


if __name__ == "__main__":
    logs_from_settings()
    torch.set_num_threads(1)
    chosen = load_config(Path(sys.argv[1]))
    os.environ["RUN"] = chosen.run
    _let_saves_end()
    sys.exit(run_rank(chosen, Spots))
