"""How often a shim found no working agent: the lines that shims append, counted on from where the last run stopped.

The shims only append, so that they work where nothing else does. What was counted stands in the agent's state; a file
that was counted to its end and is long is put aside, so that what lies in memory (`/run`) stays bounded.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from pathlib import Path

from kinemill.agents.files import read_json, write_json

__all__ = ["count_missing"]

_NAME = "agent_missing"
_HOOKS = (b"prolog", b"epilog", b"healthcheck")
_CHUNK = 64 << 10
_TURN_BYTES = 1 << 20
"""Read in one run, some 40,000 lines in 15 ms: a prolog waits for this. The next run goes on."""
_LONG_BYTES = 1 << 20


def count_missing(run_dir: Path, state: Path) -> dict[str, int]:
    """Hook -> times that it found no working agent, since this node's state was made.

    Args:
        run_dir: Where the shims write.
        state: The agent's folder, in which the count is kept.

    Raises:
        EnvironmentFault: The state cannot be written.
    """
    head, offset, counted = _kept(state)
    try:
        fd = os.open(run_dir / _NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return dict(counted)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return dict(counted)
        first = os.pread(fd, 64, 0).partition(b"\n")[0].decode("ascii", "replace")
        if first != head or offset > found.st_size:  # another file, after a reboot or after it was put aside
            offset = 0
        end = _count(fd, offset, counted)
        if end != offset:
            _keep(state, first, end, counted)
        if end >= _LONG_BYTES and end >= os.fstat(fd).st_size and _put_aside(run_dir):
            _count(fd, end, counted)  # what came in between
            _keep(state, "", 0, counted)
    finally:
        os.close(fd)
    return dict(counted)


def _put_aside(run_dir: Path) -> bool:
    try:
        (run_dir / _NAME).rename(run_dir / f"{_NAME}.1")
    except OSError:
        return False
    return True


def _count(fd: int, at: int, counted: Counter[str]) -> int:
    """Count whole lines from `at` on; returns where the next run begins."""
    stop = at + _TURN_BYTES
    while at < stop:
        chunk = os.pread(fd, _CHUNK, at)
        whole = chunk.rfind(b"\n") + 1
        if not whole:
            if len(chunk) < _CHUNK:
                break
            whole = len(chunk)  # no line of the shims is that long
        for line in chunk[:whole].splitlines():
            words = line.split()
            if len(words) == 3 and words[1] in _HOOKS:
                counted[words[1].decode()] += 1
        at += whole
    return at


def _kept(state: Path) -> tuple[str, int, Counter[str]]:
    """(first line of the file last read, bytes of it counted, counts); what is no count is none."""
    data = read_json(state, "missing.json")
    if not isinstance(data, dict):
        return "", 0, Counter()
    head, offset, hooks = data.get("head"), data.get("offset"), data.get("hooks")
    known = hooks.items() if isinstance(hooks, dict) else ()
    counted = Counter({name: n for name, n in known if name.encode() in _HOOKS and type(n) is int and n > 0})
    if not isinstance(head, str) or type(offset) is not int or offset < 0:
        return "", 0, counted
    return head, offset, counted


def _keep(state: Path, head: str, offset: int, counted: Counter[str]) -> None:
    write_json(state, "missing.json", {"head": head, "offset": offset, "hooks": dict(counted)})
