"""Two real gloo ranks that tests send work to, and the work itself (spawned processes import it by name)."""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from kinemill.errors import EnvironmentFault
from kinemill.training.checkpoint import Checkpointer, PosixRunFolder

__all__ = ["Ranks", "fails_then_recovers", "publishes_at_once", "restores", "saves", "two_ranks"]


class Ranks:
    """Processes of one gloo group that run a function at the same time."""

    def __init__(self, world: int, folder: Path) -> None:
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for rank in range(world):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, world, str(folder / "store")), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def __call__(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """`work(rank, *args)` on every rank; what each returned."""
        for pipe in self._pipes:
            pipe.send((work, args))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(300), f"rank {rank} did not answer within 300 s"
            answers.append(pipe.recv())
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
                process.join()


def _serve(pipe: Connection, rank: int, world: int, store: str) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    while (job := pipe.recv()) is not None:
        work, args = job
        try:
            pipe.send(work(rank, *args))
        except BaseException as exc:  # noqa: BLE001 - handed to the test, which raises it
            pipe.send(exc)
    dist.destroy_process_group()


def two_ranks(folder: Path) -> Iterator[Ranks]:
    """For a module-scoped fixture."""
    ranks = Ranks(2, folder)
    try:
        yield ranks
    finally:
        ranks.close()


# ---- work for the ranks


def state_at(step: int) -> dict[str, Any]:
    """A state whose every value follows from the step."""
    import torch

    return {
        "model": {"w": torch.full((4, 3), float(step)), "b": torch.arange(3) + step},
        "optimizer": {
            "state": {"w": {"momentum": torch.full((4, 3), step / 8, dtype=torch.bfloat16)}},
            "param_groups": [{"lr": 0.1 * step, "params": ["w"]}, {"lr": 1.0, "params": ["b"]}],
        },
        "data": {"epoch": 1, "sample": step * 32, "empty": {}, "none": [], "nothing": None},
    }


def saves(rank: int, root: str, attempt: int, steps: list[int], keep: int = 3) -> int | None:
    """Save each step and wait; the newest published step."""
    saver = Checkpointer(PosixRunFolder(Path(root)), attempt=attempt, keep=keep)
    for step in steps:
        assert saver.save(step, state_at(step))
        saver.finish()
    saver.close()
    return saver.published_step


def publishes_at_once(rank: int, root: str) -> tuple[bool, int]:
    """Save once, then only poll: the pointer must move without another save."""
    run = PosixRunFolder(Path(root))
    saver = Checkpointer(run, attempt=1)
    assert saver.save(5, state_at(5))
    refused = saver.save(6, state_at(6)) is False
    polls = 0
    while saver.published_step is None:
        assert not saver.poll()
        polls += 1
    saver.close()
    return refused, polls


def restores(rank: int, root: str, attempt: int) -> tuple[int, dict[str, Any], tuple[str, ...]] | None:
    """What a new attempt finds, as plain values."""
    saver = Checkpointer(PosixRunFolder(Path(root)), attempt=attempt)
    found = saver.restore()
    saver.close()
    if found is None:
        return None
    state = found.state
    state["model"] = {k: v.tolist() for k, v in state["model"].items()}
    momentum = state["optimizer"]["state"]["w"]["momentum"]
    state["optimizer"]["state"]["w"]["momentum"] = [str(momentum.dtype), momentum.float().tolist()]
    return found.saved.step, state, found.skipped


class _Unwritable(PosixRunFolder):
    """Rank 1 cannot begin a checkpoint while `broken` is there."""

    def __init__(self, root: Path, rank: int) -> None:
        super().__init__(root)
        self._rank = rank

    def writer(self, name: str) -> Any:
        if self._rank == 1 and (self.root / "broken").exists():
            raise EnvironmentFault("checkpoint: no space left on device")
        return super().writer(name)


def fails_then_recovers(rank: int, root: str) -> tuple[bool, int | None, str, bool]:
    """One failed save costs nothing; `give_up_after` of them in a row end the attempt on every rank."""
    import torch.distributed as dist

    broken = Path(root) / "broken"
    saver = Checkpointer(_Unwritable(Path(root), rank), attempt=1, give_up_after=2)

    def set_broken(value: bool) -> None:
        dist.barrier()
        if rank == 0:
            broken.touch() if value else broken.unlink()
        dist.barrier()

    set_broken(True)
    first = saver.save(1, state_at(1))
    set_broken(False)
    assert saver.save(2, state_at(2))
    saver.finish()
    published = saver.published_step
    set_broken(True)
    assert not saver.save(3, state_at(3))
    try:
        saver.save(4, state_at(4))
        said = ""
    except EnvironmentFault as exc:
        said = str(exc)
    stops = saver.poll(stop=rank == 1)
    saver.close()
    return first, published, said, stops
