"""The stages, each through the command that a person would type."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import IO, Any

from kinemill.errors import ExternalError

__all__ = ["Command", "Drops", "keep_open", "kinemill", "make_drops", "write_job", "write_spec"]

VENDORS = ("gantry_ros2", "twinarm_aloha", "deskarm_lerobot")
GRACE_S = 120.0
"""How long a command gets to end by itself after Ctrl-C; training saves within it."""


# ---- commands


@dataclass(frozen=True, slots=True)
class Command:
    """How a kinemill command ended."""

    code: int
    stdout: str

    def json(self) -> dict[str, Any]:
        """Its last line as JSON.

        Raises:
            ExternalError: It said nothing.
        """
        if not self.stdout.strip():
            raise ExternalError(f"a kinemill command ended with exit code {self.code}; what it said stands above")
        answer: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return answer


_libc = ctypes.CDLL(None)
_kept: tuple[int, ...] = ()
PR_SET_PDEATHSIG = 1


def keep_open(*descriptors: int) -> None:
    """Descriptors that commands inherit: the demo's lock, which then stands until the last of them has ended."""
    global _kept  # noqa: PLW0603 - one demo a process
    _kept = descriptors


def _interrupted_with_us() -> None:
    """Ctrl-C for the command when we are killed (prctl(2)): it cleans up, and the next run finds nobody at work."""
    _libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGINT), 0, 0, 0)


def kinemill(
    arguments: Iterable[str],
    env: dict[str, str],
    *,
    ok: tuple[int, ...] = (0,),
    on_line: Callable[[str], None] | None = None,
    stderr: IO[Any] | None = None,
) -> Command:
    """Run `kinemill ARGUMENTS`; its stderr is ours, so that its progress is seen.

    Args:
        arguments: Of the command.
        env: Added to the environment.
        ok: Exit codes that are no failure.
        on_line: Called with every line of stdout as it comes.
        stderr: Where its stderr goes instead.

    Raises:
        ExternalError: Another exit code; what it said stands above.
        KeyboardInterrupt: Ctrl-C; the command has ended by then.
    """
    words = list(arguments)
    argv = [str(Path(sys.executable).with_name("kinemill")), *words]
    lines: list[str] = []
    with subprocess.Popen(
        argv,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        pass_fds=_kept,
        preexec_fn=_interrupted_with_us,  # noqa: PLW1509 - two system calls, and no other thread runs by then
    ) as child:
        try:
            assert child.stdout is not None  # noqa: S101 - asked for above
            for line in child.stdout:
                lines.append(line)
                if on_line is not None:
                    on_line(line)
            code = child.wait()
        except BaseException:
            _end(child)
            raise
    if code not in ok:
        raise ExternalError(f"'kinemill {' '.join(words[:2])}' ended with exit code {code}; what it said stands above")
    return Command(code, "".join(lines))


def _end(child: subprocess.Popen[str]) -> None:
    """Let a command end by itself: it heard Ctrl-C too, or hears SIGTERM now. More Ctrl-C shorten its time."""
    if child.stdout is not None:  # a pipe that nobody reads would hold it up
        threading.Thread(target=child.stdout.read, daemon=True).start()
    child.send_signal(signal.SIGTERM)
    for wait_s in (GRACE_S, 5.0):
        try:
            child.wait(wait_s)
            return
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            child.terminate()
    child.kill()


# ---- drops


@dataclass(frozen=True, slots=True)
class Drops:
    """What the drops are made of; another one makes them anew."""

    seed: int
    episodes: int
    seconds: float
    version: int = 1


def make_drops(folder: Path, wanted: Drops, live: Callable[[str], None]) -> tuple[list[dict[str, Any]], bool]:
    """Three vendors' drops, two at a time; all of them or none.

    Returns:
        One dict per vendor (`kinemill.pipelines.drops.Drop`), and whether they were made now.
    """
    note = folder / "drops.json"
    if note.exists():
        known = json.loads(note.read_text())
        if known["wanted"] == asdict(wanted):
            return list(known["drops"]), False
    fresh = folder.with_name(folder.name + ".new")
    _remove(fresh)
    fresh.mkdir()
    found: dict[str, dict[str, Any]] = {}
    # Spawned, not forked: this process has threads. A broken pool or Ctrl-C ends the workers.
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        jobs = {pool.submit(_make_one, str(fresh), vendor, asdict(wanted)): vendor for vendor in VENDORS}
        try:
            for job in as_completed(jobs):
                found[jobs[job]] = job.result()
                live(f"made {len(found)} of {len(VENDORS)} drops")
        except BaseException:
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.terminate()
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    drops = [found[vendor] for vendor in VENDORS]
    for drop in drops:
        drop["path"] = str(folder / drop["vendor"])
    (fresh / "drops.json").write_text(json.dumps({"wanted": asdict(wanted), "drops": drops}, indent=1))
    _remove(folder)
    fresh.rename(folder)
    return drops, True


def _make_one(root: str, vendor: str, wanted: dict[str, Any]) -> dict[str, Any]:
    from kinemill.pipelines.drops import generate_drops

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends us
    (drop,) = generate_drops(
        Path(root), wanted["seed"], episodes=wanted["episodes"], seconds=wanted["seconds"], only=(vendor,)
    )
    return {**asdict(drop), "path": str(drop.path)}


def _remove(path: Path) -> None:
    import shutil

    if path.exists():
        shutil.rmtree(path)


# ---- files that the commands read

SPEC = """\
# What the demo trains on: every published episode that has cameras and actions.
name: demo-reach
profile: vla
filters:
  - {column: groups, has: cameras}
  - {column: groups, has: state}
balance_by: vendor
splits: {train: 0.75, val: 0.25}
split_seed: {split_seed}
"""


def write_spec(path: Path, split_seed: int) -> None:
    """The curation spec."""
    path.write_text(SPEC.replace("{split_seed}", str(split_seed)))


JOB = """\
# The demo's training job; `kinemill train run` reads it.
run = "{run}"

[data]
manifest = "{manifest}"
store = "s3://corpus"
mode = "node_mmap"

[train]
steps = {steps}
batch = 32
checkpoint_every = {every}
held_out_samples = 256

[launch]
nproc = 2
hang_s = 300.0
grace_s = 45.0

# The first attempt loses rank 1 to SIGKILL, so that the restart is seen.
[fault]
rank = 1
step = {kill}
"""


def write_job(path: Path, *, run: Path, manifest: str, steps: int) -> None:
    """The job file. Checkpoints every sixth of the way; the kill comes between two of them."""
    every = max(1, steps // 6)
    kill = every * 2 + max(1, every // 2)
    path.write_text(JOB.format(run=run, manifest=manifest, steps=steps, every=every, kill=kill))
