"""Runs one Slurm command in bounded time and space, and says in our own errors what went wrong."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kinemill.errors import (
    ConfigError,
    DeadlineError,
    ExternalError,
    KinemillError,
    MissingToolError,
    NotFoundError,
    StateError,
    UnavailableError,
)

__all__ = ["MAX_BYTES", "Answer", "Run", "failure", "run_here"]

MAX_BYTES = 256 << 20
"""More output than this is no answer: 10,000 nodes of JSON need a tenth of it."""
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"
_KEPT = ("SLURM_CONF", "SLURM_JWT", "HOME", "USER", "LOGNAME", "LD_LIBRARY_PATH", "PATH")
"""Of our own environment; SQUEUE_FORMAT and its like would change what the commands print."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str


Run = Callable[[Sequence[str], Mapping[str, str], float], Answer]
"""(argv, environment on top of the backend's own, seconds) -> what the command left behind."""


def run_here(argv: Sequence[str], extra: Mapping[str, str], timeout_s: float) -> Answer:
    """Run a command of this machine; it and its children are killed at the deadline.

    Raises:
        MissingToolError: The command is not installed.
        DeadlineError: It took longer than `timeout_s`.
        ExternalError: It prints without end.
    """
    env = {k: v for k, v in os.environ.items() if k in _KEPT}
    env["PATH"] = f"{env['PATH']}:{_PATH}" if env.get("PATH") else _PATH
    tool = shutil.which(argv[0], path=env["PATH"])
    if tool is None:
        raise MissingToolError(f"'{argv[0]}' is not installed here; install Slurm's client commands, or set PATH")
    # Times without a zone are printed in the zone that TZ names.
    env |= {"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard", **extra}
    child = subprocess.Popen(
        [tool, *argv[1:]],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        out, err = _drink(child, time.monotonic() + timeout_s, argv[0])
        code = child.wait(timeout=2)  # both pipes are closed: it is leaving
    except (DeadlineError, ExternalError, subprocess.TimeoutExpired) as exc:
        _kill(child)
        if isinstance(exc, KinemillError):
            raise
        raise DeadlineError(f"{argv[0]} closed its output and did not end") from exc
    except BaseException:
        _kill(child)
        raise
    return Answer(code, out, err)


def _drink(child: subprocess.Popen[bytes], until: float, name: str) -> tuple[str, str]:
    streams = [s for s in (child.stdout, child.stderr) if s is not None]
    parts: dict[int, bytearray] = {s.fileno(): bytearray() for s in streams}
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        for stream in streams:
            stack.enter_context(stream)
            selector.register(stream, selectors.EVENT_READ)
        while selector.get_map():
            left = until - time.monotonic()
            if left <= 0:
                raise DeadlineError(f"{name} did not answer in time; the controller may hang: try again")
            for key, _ in selector.select(left):
                block = os.read(key.fd, 1 << 16)
                parts[key.fd] += block
                if not block:
                    selector.unregister(key.fileobj)
                elif len(parts[key.fd]) > MAX_BYTES:
                    raise ExternalError(f"{name} printed more than {MAX_BYTES >> 20} MiB; that is no answer")
        out, err = (bytes(parts[s.fileno()]).decode("utf-8", "replace") for s in streams)
    return out, err


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # stuck in the kernel: left behind
        child.wait(timeout=1)
    for stream in (child.stdout, child.stderr):
        if stream is not None:
            stream.close()


_KINDS: tuple[tuple[type[KinemillError], re.Pattern[str]], ...] = (
    (
        NotFoundError,
        re.compile(
            r"Invalid (?:node name|job id|reservation)|not found|No such (?:job|node|reservation)|does not exist"
            r"|reservation is invalid|requested reservation",
            re.IGNORECASE,
        ),
    ),
    (
        StateError,
        re.compile(
            r"Invalid node state|has already finished|already (?:completing|completed|finished)"
            r"|Job is (?:pending|finished|held|running)"
            r"|can(?:not|'t) be (?:requeued|suspended|held)|Requested operation is presently disabled"
            r"|Only .* can be|not (?:pending|running)|Job is no longer|transition|in an invalid state",
            re.IGNORECASE,
        ),
    ),
    (
        UnavailableError,
        re.compile(
            r"Unable to contact|Connection (?:refused|reset|timed out)|Zero Bytes|Socket timed out|timed out"
            r"|Communication connection|Transport endpoint|temporarily|[Aa]uthentication|credential|munge"
            r"|in standby mode|Unable to establish|slurm_persist_conn|Insane message|Resource temporarily",
        ),
    ),
    (
        ConfigError,
        re.compile(r"Could not establish a configuration source|fatal: .*slurm\.conf|Unable to process configuration"),
    ),
)


def failure(argv: Sequence[str], answer: Answer) -> KinemillError:
    """What a command that ended badly means, in our own words."""
    words = " ".join((answer.err.strip() or answer.out.strip() or f"status {answer.code}").split())[:300]
    text = f"{' '.join(argv[:3])}: {words}"
    for kind, pattern in _KINDS:
        if pattern.search(words):
            return kind(text)
    return ExternalError(text)
