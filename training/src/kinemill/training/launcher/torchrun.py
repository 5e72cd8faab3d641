"""Runs torchrun's own agent in this process: the ranks of this node, restarted in place.

Two settings make that sound with torch 2.13 (both are covered by tests):

* `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`. Without it the workers of every restart share the agent's store, read the
  addresses of the dead ones and hang or fail in "connectFullMesh".
* On one node all rendezvous goes through files in a private folder. torch's TCP store listens on every interface, and
  the agents' rendezvous un-pickles what it reads there; a laptop in a café must not offer that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kinemill.contracts import ExitCode
from kinemill.errors import ConflictError
from kinemill.training.attempts.evidence import ENV_LAUNCH, read_verdict, verdict_path
from kinemill.training.attempts.history import root_cause
from kinemill.training.checkpoint.folder import PosixRunFolder

__all__ = ["ENV_FIRST_ATTEMPT", "ENV_STORE", "LaunchPlan", "LaunchResult", "launch", "tail_rows"]

ENV_STORE: Final = "KINEMILL_STORE"
"""Folder for the workers' file store; unset where several nodes take part (then the usual env:// is used)."""
ENV_FIRST_ATTEMPT: Final = "KINEMILL_FIRST_ATTEMPT"
"""Attempts from this number on belong to this launch."""
FLIGHT_ENTRIES: Final = "2000"


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """What to start on this node."""

    run: Path
    command: tuple[str, ...]
    """One rank's command; torch's environment variables tell it which."""
    nproc: int
    nnodes: int = 1
    rdzv_endpoint: str = ""
    """host:port of the rendezvous; only for several nodes."""
    launch_id: str = ""
    """The same on all nodes of a launch; made up where empty."""
    max_restarts: int = 3
    monitor_interval_s: float = 0.2
    hang_s: float = 0.0
    grace_s: float = 120.0
    """How long ranks get to save after SIGTERM."""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchResult:
    """How a launch ended."""

    exit_code: int
    message: str
    attempts: tuple[int, ...]
    """Attempt numbers claimed meanwhile."""


def launch(plan: LaunchPlan, *, on_row: Callable[[dict[str, Any]], None] | None = None) -> LaunchResult:
    """Run the ranks to their end, restarting them in place as often as the plan allows.

    Args:
        plan: What to start.
        on_row: Called from a thread with every row of the attempts' `metrics.jsonl`, as they appear.

    Returns:
        Exit code 0 finished, 75 may succeed later (failed too often, or asked to stop), 78 a wrong setting, 1 a fault
        that a person must look at.

    Raises:
        ConflictError: Another launch works in the same run folder on this machine.
    """
    run = PosixRunFolder(plan.run)
    with _alone(run, plan), contextlib.ExitStack() as stack:
        scratch = Path(tempfile.mkdtemp(prefix="kinemill-launch-"))  # mode 0700
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        launch_id = plan.launch_id or uuid.uuid4().hex[:12]
        first = max(run.attempts(), default=0) + 1
        stack.enter_context(_environment(_env(plan, launch_id, first, scratch)))
        if on_row is not None:
            stack.enter_context(_tailing(run, first, on_row))
        code, message = _run_agent(plan, launch_id, scratch)
        verdict = read_verdict(run.root / "attempts", launch_id)
        if code == ExitCode.TRANSIENT and verdict is None and (tried := run.attempts()):
            cause = root_cause(run.attempt_path(tried[-1])) if tried[-1] >= first else None
            message = f"{message}; {cause}" if cause else message
        if verdict is not None:
            code, message = verdict.exit_code, verdict.message
            if plan.nnodes == 1:
                verdict_path(run.root / "attempts", launch_id).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            (run.root / "attempts" / "early").rmdir()  # goes away where every rank got its number
        return LaunchResult(code, message, tuple(n for n in run.attempts() if n >= first))


def _run_agent(plan: LaunchPlan, launch_id: str, scratch: Path) -> tuple[int, str]:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    one_node = plan.nnodes == 1
    config = LaunchConfig(
        min_nodes=plan.nnodes,
        max_nodes=plan.nnodes,
        nproc_per_node=plan.nproc,
        run_id=launch_id,
        rdzv_backend="c10d",
        rdzv_endpoint=str(scratch / "rendezvous") if one_node else plan.rdzv_endpoint,
        rdzv_configs={"store_type": "file"} if one_node else {},
        max_restarts=plan.max_restarts,
        monitor_interval=plan.monitor_interval_s,
        local_addr="127.0.0.1" if one_node else None,
        logs_specs=DefaultLogsSpecs(log_dir=str(scratch / "torchrun")),
        shutdown_timeout=int(plan.grace_s),
    )
    minder = ["-m", "kinemill.training.launcher.minder", "--run", str(plan.run), "--hang-s", str(plan.hang_s), "--"]
    try:
        elastic_launch(config, sys.executable)(*minder, *plan.command)
    except ChildFailedError:
        return ExitCode.TRANSIENT, f"gave up after {plan.max_restarts} restarts in place"
    except SignalException as exc:
        return ExitCode.TRANSIENT, f"stopped by {signal.Signals(exc.sigval).name}; the same command goes on from there"
    return ExitCode.OK, "finished"


def _env(plan: LaunchPlan, launch_id: str, first_attempt: int, scratch: Path) -> dict[str, str]:
    threads = max(1, (os.cpu_count() or 1) // plan.nproc)
    env = {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "TORCH_FR_BUFFER_SIZE": os.environ.get("TORCH_FR_BUFFER_SIZE", FLIGHT_ENTRIES),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        ENV_LAUNCH: launch_id,
        ENV_FIRST_ATTEMPT: str(first_attempt),
    }
    if plan.nnodes == 1:
        env |= {ENV_STORE: str(scratch), "GLOO_SOCKET_IFNAME": "lo"}
    return env | plan.env


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set for the agent's children, which inherit it; put back afterwards."""
    old = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in old.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def _alone(run: PosixRunFolder, plan: LaunchPlan) -> Iterator[None]:
    """One launch at a time per machine and run; the kernel lets go when the holder dies."""
    with (run.root / ".launch.lock").open("a+") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            handle.seek(0)
            holder = handle.read().strip() or "unknown"
            if plan.nnodes > 1:  # several nodes of one launch share the folder; the attempt fence guards the rest
                yield
                return
            raise ConflictError(
                f"run {run.root}: process {holder} is already running it; wait for it, or stop it first"
            ) from exc
        handle.truncate(0)
        handle.write(str(os.getpid()))
        handle.flush()
        yield


@contextlib.contextmanager
def _tailing(run: PosixRunFolder, first: int, on_row: Callable[[dict[str, Any]], None]) -> Iterator[None]:
    stop = threading.Event()

    def follow() -> None:
        offsets: dict[int, int] = {}
        while True:
            last = stop.is_set()  # one more look after the end
            for row in tail_rows(run, first, offsets):
                on_row(row)
            if last:
                return
            stop.wait(0.2)

    thread = threading.Thread(target=follow, name="metrics", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)  # it has one more look to take


def tail_rows(run: PosixRunFolder, first: int, offsets: dict[int, int]) -> Iterator[dict[str, Any]]:
    """New whole lines of the metrics of attempts from `first` on; `offsets` remembers how far was read."""
    for number in run.attempts():
        if number < first:
            continue
        try:
            with (run.attempt_path(number) / "metrics.jsonl").open("rb") as handle:
                handle.seek(offsets.get(number, 0))
                data = handle.read()
        except FileNotFoundError:
            continue
        whole = data[: data.rfind(b"\n") + 1]
        offsets[number] = offsets.get(number, 0) + len(whole)
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                yield json.loads(line)
