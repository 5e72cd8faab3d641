"""Saves a run while it goes on, and publishes a save as soon as every rank has finished writing it.

The write runs in a thread of torch.distributed.checkpoint with a gloo group of its own, never the training group: its
collectives would otherwise meet those of the step. Each step one five-integer MIN all-reduce on a second group of our
own says whether all ranks have written, whether all of them could, and whether all want to go on, so the pointer moves
at the first step after the last rank is done and not at the next save.
"""

from __future__ import annotations

import itertools
import logging
import time
import warnings
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import async_save
from torch.distributed.checkpoint.storage import StorageWriter

from kinemill.errors import CorruptError, EnvironmentFault, UsageError
from kinemill.training.checkpoint.folder import RunFolder, Saved

__all__ = ["Checkpointer", "Restored"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """What `Checkpointer.restore` found."""

    saved: Saved
    state: dict[str, Any]
    """Nested like the state that was saved."""
    skipped: tuple[str, ...] = ()
    """Newer published checkpoints that are damaged, with the reason."""


@dataclass(frozen=True, slots=True)
class _Ballot:
    """One rank's say, or after the vote what holds for all of them."""

    ready: bool
    done: bool
    written: bool
    published: bool
    go: bool


@dataclass(slots=True)
class _Flight:
    step: int
    name: str
    future: Future[Any]


class Checkpointer:
    """Asynchronous checkpoints of one attempt of a run.

    Every method but `close` is collective: all ranks call it, at the same steps. Without torch.distributed it works on
    the one process there is.

    Args:
        run: Where the run lives.
        attempt: Number of this attempt; the fence against processes that outlived theirs.
        keep: Published checkpoints to keep.
        give_up_after: Failed saves in a row before `poll` raises; a full disk that somebody clears costs no attempt.
    """

    def __init__(self, run: RunFolder, *, attempt: int, keep: int = 3, give_up_after: int = 3) -> None:
        self._run = run
        self._attempt = attempt
        self._keep = keep
        self._give_up_after = give_up_after
        self._alone = not dist.is_initialized()
        if self._alone:  # that is what we told it; and it warns from a thread, where no context of ours reaches
            warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        self._rank = 0 if self._alone else dist.get_rank()
        self._world = 1 if self._alone else dist.get_world_size()
        self._save_group = None if self._alone else dist.new_group(backend="gloo")
        self._vote_group = None if self._alone else dist.new_group(backend="gloo")
        self._flight: _Flight | None = None
        self._pending_step: int | None = None
        self._publish_error: EnvironmentFault | None = None
        self._reason: BaseException | None = None
        self._failed_in_a_row = 0
        self.published_step: int | None = None
        """The newest step that this process knows to be published."""

    # ---- saving

    def save(self, step: int, state: Mapping[str, Any]) -> bool:
        """Start writing `state` as of after `step` steps; returns as soon as it has been copied.

        Args:
            step: Steps done.
            state: Nested dict of tensors and plain values, the same keys on all ranks, all keys text.

        Returns:
            False where this save was left out: the previous one is still being written, or a rank could not begin.

        Raises:
            UsageError: A key is not text.
            EnvironmentFault: Saving failed `give_up_after` times in a row.
        """
        whole = _checked(state, "state")
        if self._flight is not None:
            log.warning("step %d is not saved: step %d is still being written", step, self._flight.step)
            return False
        name = self._run.step_name(step, self._attempt)
        writer: StorageWriter | None = None
        try:
            writer = self._run.writer(name)
        except EnvironmentFault as exc:
            self._reason = exc
        # A rank that begins alone would wait for the others for ever, so all ask before any begins.
        if not self._vote(ready=writer is not None).ready:
            self._failed(name)
            return False
        started = async_save(whole, storage_writer=writer, process_group=self._save_group, no_dist=self._alone)
        if not isinstance(started, Future):
            raise TypeError(f"async_save gave {type(started).__name__}, expected a Future")
        self._flight = _Flight(step, name, started)
        return True

    def poll(self, *, stop: bool = False) -> bool:
        """Publish what is finished, and agree on whether to go on. Call it once a step.

        Args:
            stop: This rank wants to stop (it was asked to by a signal).

        Returns:
            True where any rank wants to stop.

        Raises:
            EnvironmentFault: Saving failed `give_up_after` times in a row.
        """
        done = self._flight is not None and self._flight.future.done()
        answer = self._vote(done=done, written=not done or self._written(), go=not stop)
        self._settle(answer)
        return not answer.go

    def finish(self) -> None:
        """Wait for the save in flight and publish it.

        Raises:
            EnvironmentFault: It could not be written or published.
        """
        before = self._failed_in_a_row
        if self._flight is not None:
            self._settle(self._vote(done=True, written=self._written()))
        self._settle(self._vote(done=False))
        if self._failed_in_a_row > before:
            raise self._gave_up()

    def save_now(self, step: int, state: Mapping[str, Any]) -> None:
        """Save `step` and wait until it is published (before an exit on request).

        Raises:
            EnvironmentFault: It could not be written or published.
        """
        self.finish()
        if self.published_step != step:
            self.save(step, state)
            self.finish()
        if self.published_step != step:
            raise self._gave_up()

    def close(self) -> None:
        """Let go of the groups."""
        if not self._alone and dist.is_initialized():
            for group in (self._save_group, self._vote_group):
                dist.destroy_process_group(group)

    def _written(self) -> bool:
        """Wait for this rank's write; False, with the reason kept, where it failed."""
        if self._flight is None:
            return True
        problem = self._flight.future.exception()
        if problem is not None:
            self._reason = problem
        return problem is None

    def _vote(self, *, ready: bool = True, done: bool = True, written: bool = True, go: bool = True) -> _Ballot:
        """What holds on all ranks."""
        mine = (ready, done, written, self._publish_error is None, go)
        if self._alone:
            return _Ballot(*mine)
        ballot = torch.tensor(mine, dtype=torch.int32)
        dist.all_reduce(ballot, op=dist.ReduceOp.MIN, group=self._vote_group)
        return _Ballot(*(bool(v) for v in ballot.tolist()))

    def _settle(self, answer: _Ballot) -> None:
        """Act on a vote, alike on every rank: first the publication before it, then the write."""
        if self._pending_step is not None:
            pending, self._pending_step = self._pending_step, None
            if answer.published:
                self.published_step = pending
                self._failed_in_a_row = 0
            else:
                self._reason, self._publish_error = self._publish_error or self._reason, None
                self._failed(None)
        if self._flight is None:
            return
        if not answer.written:
            self._written()
            name = self._flight.name
            self._flight = None
            self._failed(name)
        elif answer.done:
            self._publish()

    def _publish(self) -> None:
        flight, self._flight = self._flight, None
        if flight is None:
            return
        self._pending_step = flight.step
        if self._rank == 0:
            try:
                files = self._run.seal(flight.name)
                self._run.publish(
                    Saved(flight.step, flight.name, self._attempt, self._world, time.time_ns(), files), keep=self._keep
                )
            except EnvironmentFault as exc:  # the others learn it from the next vote
                self._publish_error = exc

    def _failed(self, name: str | None) -> None:
        if name is not None and self._rank == 0:
            self._run.discard(name)
        self._failed_in_a_row += 1
        log.error("checkpoint failed (%d in a row): %s", self._failed_in_a_row, self._said())
        if self._failed_in_a_row >= self._give_up_after:
            raise self._gave_up()

    def _said(self) -> str:
        if isinstance(self._reason, CheckpointException):  # its own text is a traceback for every rank
            rank, (cause, _) = min(self._reason.failures.items(), key=lambda item: item[0])
            return f"rank {rank}: {type(cause).__name__}: {cause}"
        return f"{type(self._reason).__name__}: {self._reason}" if self._reason else "another rank could not write"

    def _gave_up(self) -> EnvironmentFault:
        return EnvironmentFault(
            f"checkpoints of {self._run.url} failed {self._failed_in_a_row} times in a row, the last one with "
            f"{self._said()}; the last published step is {self.published_step}"
        )

    # ---- restoring

    def restore(self) -> Restored | None:
        """The newest published checkpoint that is whole, loaded on every rank; None where there is none.

        Raises:
            CorruptError: All published checkpoints are damaged.
        """
        chosen, skipped = self._choose()
        if chosen is None:
            if skipped:
                raise CorruptError(f"{self._run.url}: every published checkpoint is damaged: {'; '.join(skipped)}")
            return None
        reader = self._run.reader(chosen.name)
        metadata = reader.read_metadata()
        flat: dict[str, Any] = {}
        for key, item in metadata.state_dict_metadata.items():
            if isinstance(item, TensorStorageMetadata):
                flat[key] = torch.empty(item.size, dtype=item.properties.dtype)
            elif isinstance(item, BytesStorageMetadata):
                flat[key] = None
        dcp_load(flat, storage_reader=reader, process_group=self._save_group, no_dist=self._alone)
        state: dict[str, Any] = {}
        for key, value in flat.items():
            if isinstance(value, str) and value in _EMPTY.values():
                value = {} if value == _EMPTY["dict"] else []  # noqa: PLW2901 - the marker is not the value
            _place(state, metadata.planner_data.get(key, (key,)), value)
        self.published_step = chosen.step
        return Restored(chosen, state, tuple(skipped))

    def _choose(self) -> tuple[Saved | None, list[str]]:
        """Rank 0 looks at the disk and tells the others: all load the same step."""
        answer: list[Any] = [None]
        if self._rank == 0:
            pointer = self._run.pointer()
            skipped: list[str] = []
            chosen = None
            for saved in pointer.saved if pointer else ():
                damage = self._run.damage(saved)
                if damage is None:
                    chosen = saved
                    break
                log.error("checkpoint of step %d is damaged (%s); trying the one before", saved.step, damage)
                skipped.append(f"step {saved.step}: {damage}")
            answer = [(chosen, skipped)]
        if not self._alone:
            dist.broadcast_object_list(answer, src=0, group=self._vote_group)
        chosen, skipped = answer[0]
        return chosen, skipped


_EMPTY: Final = {"dict": "kinemill: an empty dict", "list": "kinemill: an empty list"}
"""Flat names on disk cannot say that there is nothing under a name, so these words stand for it."""


def _checked(value: Any, where: str) -> Any:
    """`value` with its empty containers marked.

    Raises:
        UsageError: A dict with keys that are not text: flat names do not tell it from a list.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise UsageError(f"checkpoint {where}: key {key!r} is not text; name it, such as by parameter name")
        return {k: _checked(v, f"{where}.{k}") for k, v in value.items()} or _EMPTY["dict"]
    if isinstance(value, list | tuple):
        return [_checked(v, f"{where}[{i}]") for i, v in enumerate(value)] or _EMPTY["list"]
    return value


def _place(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    """Put `value` at `path` into nested dicts and lists, growing them; integers in a path are list positions."""
    for part, following in itertools.pairwise(path):
        fresh: Any = [] if isinstance(following, int) else {}
        tree = _child(tree, part, fresh)
    _child(tree, path[-1], value)


def _child(tree: Any, part: Any, fresh: Any) -> Any:
    if isinstance(tree, list):
        while len(tree) <= part:
            tree.append(None)
        if tree[part] is None:
            tree[part] = fresh
        return tree[part]
    return tree.setdefault(part, fresh)
