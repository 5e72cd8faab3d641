"""Reads the kernel's messages since boot. Judged by their monotonic stamps, never by wall dates.

Lines are those of /dev/kmsg: `priority,sequence,microseconds,flags;text`. A flood is cut at a
bound, newest kept; a stand-in file is read like the device.
"""

from __future__ import annotations

import collections
import os
import re
import stat

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["MAX_LINES", "parse_line", "read"]

MAX_LINES = 20_000
_MAX_BYTES = 8 << 20
_RECORD = 8192
_LINE = re.compile(r"(?P<prio>\d{1,6}),(?P<seq>\d{1,20}),(?P<us>\d{1,20}),[^;]{0,40};(?P<text>.*)")
_INTERESTING = re.compile(
    r"NVRM: Xid|SXid|hung task|blocked for more than|Machine Check|\[Hardware Error\]|mce:|AER:|nvme"
    r"|Remounting filesystem|EXT4-fs error|XFS.*(?:shutdown|corruption)|I/O error|Out of memory|oom-kill"
)


def parse_line(line: str) -> tuple[float, str] | None:
    """(seconds since boot, text) of one record; None for continuations and damage."""
    match = _LINE.fullmatch(line)
    return (int(match["us"]) / 1e6, match["text"][:500]) if match else None


def read(ctx: Context, emit: Emit) -> None:
    """Emit `kernel.lines` ([seconds, text] of the interesting ones), `kernel.seen`, `kernel.last_s`, `kernel.lost`."""
    path = ctx.settings.kernel_log
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    kept: collections.deque[tuple[float, str]] = collections.deque(maxlen=MAX_LINES)
    seen = 0
    last_s = 0.0
    lost = False
    try:
        device = stat.S_ISCHR(os.fstat(fd).st_mode)
        if not device:
            size = os.fstat(fd).st_size
            if size > _MAX_BYTES:
                os.lseek(fd, size - _MAX_BYTES, os.SEEK_SET)
                lost = True
        for line in _records(fd, device=device):
            if line is None:
                lost = True
                continue
            parsed = parse_line(line)
            seen += parsed is not None
            last_s = max(last_s, parsed[0]) if parsed is not None else last_s
            if parsed is not None and _INTERESTING.search(parsed[1]):
                lost = lost or len(kept) == MAX_LINES
                kept.append(parsed)
    finally:
        os.close(fd)
    emit("kernel.seen", seen)
    emit("kernel.last_s", last_s)
    emit("kernel.lost", lost)
    emit("kernel.lines", list(kept))


def _records(fd: int, *, device: bool) -> collections.abc.Iterator[str | None]:
    """Each record's first line; None where the kernel says that records were overwritten."""
    rest = b""
    while True:
        try:
            block = os.read(fd, _RECORD if device else 1 << 16)
        except BlockingIOError:
            return
        except BrokenPipeError:  # overwritten before we came; the next read goes on
            yield None
            continue
        if not block:
            break
        if device:
            yield block.split(b"\n", 1)[0].decode("utf-8", "replace")
            continue
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
