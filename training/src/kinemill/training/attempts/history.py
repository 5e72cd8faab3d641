"""Claims attempt numbers, keeps their `meta.json`, and decides when trying again makes no sense."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kinemill import records
from kinemill.contracts import AttemptMeta, AttemptOutcome
from kinemill.errors import ContractError
from kinemill.training.checkpoint.folder import RunFolder, write_atomically

__all__ = ["claim", "finish_meta", "history", "read_meta", "root_cause", "stuck", "write_meta"]


def claim(run: RunFolder) -> int:
    """The next attempt number, the same on all ranks. Collective where torch.distributed is up."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return run.claim_attempt()
    answer: list[int | BaseException] = [0]
    if dist.get_rank() == 0:
        try:
            answer = [run.claim_attempt()]
        except Exception as exc:  # noqa: BLE001 - told to every rank, which all raise it: none is left waiting
            answer = [exc]
    dist.broadcast_object_list(answer, src=0)
    if isinstance(answer[0], BaseException):
        raise answer[0]
    return answer[0]


def write_meta(folder: Path, meta: AttemptMeta) -> None:
    """`meta.json` in the attempt's folder, whole or not at all."""
    write_atomically(folder / "meta.json", records.dumps(meta, indent=1).encode())


def read_meta(folder: Path) -> AttemptMeta | None:
    """The attempt's `meta.json`; None where the attempt died before it wrote one, or what it wrote is no meta."""
    try:
        return records.loads(AttemptMeta, (folder / "meta.json").read_bytes(), where=str(folder / "meta.json"))
    except (FileNotFoundError, NotADirectoryError, ContractError):
        return None


def finish_meta(
    folder: Path, outcome: AttemptOutcome, *, ended_at_ns: int, last_step: int | None, overwrite: bool = False
) -> None:
    """Say how the attempt ended; an outcome that stands is kept unless `overwrite`."""
    meta = read_meta(folder)
    if meta is None or (meta.outcome is not AttemptOutcome.RUNNING and not overwrite):
        return
    step = last_step if last_step is not None else meta.last_step
    write_meta(folder, dataclasses.replace(meta, outcome=outcome, ended_at_ns=ended_at_ns, last_step=step))


def history(run: RunFolder) -> list[AttemptMeta]:
    """All attempts that got far enough to describe themselves, in order."""
    found = (read_meta(run.attempt_path(number)) for number in run.attempts())
    return [meta for meta in found if meta is not None]


def root_cause(folder: Path) -> str | None:
    """In one line, which rank of the attempt failed first and how; None where nothing says so.

    A signal that nobody of ours sends comes before any error file: peers of a killed rank write errors that only blame
    the connection. Among error files the earliest counts.
    """
    signals: list[tuple[int, str]] = []
    errors: list[tuple[int, str]] = []
    for rank in sorted(folder.glob("rank-*")):
        end, error = _json(rank / "exit.json"), _json(rank / "error.json")
        at = f" at step {end['last_step']}" if end.get("last_step") is not None else ""
        if end.get("hung_s") is not None:
            said = f"rank {end['rank']} hung{at} ({end['hung_s']:.0f} s without a step); see {rank}/stacks.txt"
            signals.append((end["ended_at_ns"], said))
        elif end.get("signal") not in {None, "SIGTERM"}:
            memory = ", and the kernel killed for memory" if end.get("oom_kills", 0) > 0 else ""
            said = f"rank {end['rank']} ended by {end['signal']}{at}{memory}; see {rank}"
            signals.append((end["ended_at_ns"], said))
        if error:
            said = f"rank {error['rank']}: {error['type']}: {str(error['message'])[:300]}; see {rank}/error.json"
            errors.append((error["time_ns"], said))
    found = sorted(signals) or sorted(errors)
    return found[0][1] if found else None


def _json(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        data = json.loads(path.read_bytes())
        if isinstance(data, dict):
            return data
    return {}


def stuck(before: Sequence[AttemptMeta], resume_step: int | None, *, limit: int, since: int = 1) -> str | None:
    """Why another attempt makes no sense, or None.

    Pure. An attempt makes progress when it publishes a checkpoint, so that the next one resumes later. `limit`
    failed attempts in a row that all resumed where this one would resume are enough.

    Args:
        before: Earlier attempts, in order.
        resume_step: Where the coming attempt would start; None is from scratch.
        limit: Attempts without progress to allow; 0 turns the rule off.
        since: First attempt number of this launch: a person who starts the run again gets a fresh count.
    """
    if limit <= 0:
        return None
    recent = [meta for meta in before if meta.number >= since][-limit:]
    if len(recent) < limit or any(m.outcome in {AttemptOutcome.FINISHED, AttemptOutcome.PREEMPTED} for m in recent):
        return None
    if any((meta.resume_step or 0) != (resume_step or 0) for meta in recent):
        return None
    names = ", ".join(f"{meta.number:06d}" for meta in recent)
    where = f"step {resume_step}" if resume_step is not None else "the start"
    return f"attempts {names} all began at {where} and published no checkpoint: the fault is not a passing one"
