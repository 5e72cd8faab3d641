"""A fleet of worker processes for the optimizer's tests: started once a topology, reused by every case.

Ranks of one pretend node share KINEMILL_NODE_ID, which is what the optimizer's discovery asks for.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from support.muon_fabric import CARD, Fabric, enter

__all__ = ["Failed", "Fleet", "fleet"]

_DEADLINE_S = 300.0
_PRELOAD = [
    "torch",
    "torch._dynamo",  # the first optimizer of a process imports it: seconds of CPU, once instead of once a worker
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint",
    "support.muon_work",
]


@dataclass(frozen=True, slots=True)
class Failed:
    """What a worker raised, or how it died."""

    kind: str
    text: str


class Fleet:
    """`sum(nodes)` workers in one process group over gloo."""

    def __init__(self, nodes: Sequence[int], network: Fabric | None = None) -> None:
        """Start them.

        Args:
            nodes: Ranks of each pretend node.
            network: Where each node has a network namespace of its own; None is the loopback.
        """
        self.nodes = tuple(nodes)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOAD)  # torch is imported once, then every worker is a fork
        self._pipes: list[Connection] = []
        self.processes: list[Any] = []
        world = sum(nodes)
        rank = 0
        for node, ranks in enumerate(nodes):
            for local in range(ranks):
                ours, theirs = context.Pipe()
                env = {
                    "RANK": str(rank),
                    "WORLD_SIZE": str(world),
                    "LOCAL_RANK": str(local),
                    "LOCAL_WORLD_SIZE": str(ranks),
                    "KINEMILL_NODE_ID": f"node-{node}",
                    "GLOO_SOCKET_IFNAME": CARD if network else "lo",
                    "TEST_NETWORK": network.name(node) if network else "",
                    "TEST_MASTER": network.address(0) if network else "127.0.0.1",
                    "KINEMILL_CONFIG_DIR": "/nonexistent",
                }
                process = context.Process(target=_serve, args=(theirs, env), daemon=True)
                process.start()
                theirs.close()
                self._pipes.append(ours)
                self.processes.append(process)
                rank += 1
        port = self._receive(0)
        for pipe in self._pipes[1:]:
            pipe.send(port)
        for rank in range(world):
            if self._receive(rank) != "up":
                raise RuntimeError(f"rank {rank} of {self.nodes} did not come up")

    def outcomes(self, function: Callable[..., Any], *args: Any, ranks: Sequence[int] | None = None) -> list[Any]:
        """Call ``function(rank, *args)`` on all workers, or on `ranks`; results or `Failed`, in rank order."""
        chosen = list(range(len(self._pipes))) if ranks is None else list(ranks)
        for rank in chosen:
            self._pipes[rank].send((function, args))
        return [self._receive(rank) for rank in chosen]

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """As `outcomes`, but a failure fails the test."""
        found = self.outcomes(function, *args)
        for rank, one in enumerate(found):
            assert not isinstance(one, Failed), f"rank {rank}: {one.kind}: {one.text}"
        return found

    def _receive(self, rank: int) -> Any:
        pipe, process = self._pipes[rank], self.processes[rank]
        wait([pipe, process.sentinel], timeout=_DEADLINE_S)
        if pipe.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                return pipe.recv()
        if not process.is_alive():
            return Failed("died", f"exit code {process.exitcode}")
        self.close()
        raise AssertionError(f"rank {rank} of {self.nodes} gave no answer in {_DEADLINE_S:.0f} s")

    def close(self) -> None:
        """Kill and reap all workers: nothing of theirs has to be kept."""
        for process in self.processes:
            if process.is_alive() and process.pid is not None:
                os.kill(process.pid, signal.SIGKILL)
        for process in self.processes:
            process.join(10)
        for pipe in self._pipes:
            pipe.close()


@contextlib.contextmanager
def fleet(*nodes: int, network: Fabric | None = None) -> Iterator[Fleet]:
    """A fleet for a block."""
    found = Fleet(nodes, network)
    try:
        yield found
    finally:
        found.close()


def _serve(pipe: Connection, env: dict[str, str]) -> None:
    import datetime as dt

    if env["TEST_NETWORK"]:
        enter(env["TEST_NETWORK"])
    import torch
    import torch.distributed as dist
    from torch._C._distributed_c10d import TCPStore

    os.environ.update(env)
    torch.set_num_threads(1)
    rank, world = int(env["RANK"]), int(env["WORLD_SIZE"])
    limit = dt.timedelta(seconds=240)
    if rank == 0:
        store = TCPStore(env["TEST_MASTER"], 0, world, is_master=True, wait_for_workers=False, timeout=limit)
        pipe.send(store.port)
    else:
        store = TCPStore(env["TEST_MASTER"], pipe.recv(), world, is_master=False, timeout=limit)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=limit)
    pipe.send("up")
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            answer = function(rank, *args)
        except BaseException as exc:  # noqa: BLE001 - the test judges; torch's CheckpointException is no Exception
            text = str(exc) if type(exc).__module__.startswith("kinemill") else traceback.format_exc()
            answer = Failed(type(exc).__name__, text)
        pipe.send(answer)
