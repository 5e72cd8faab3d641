"""Knows whether obstore can work in this process: its runtime's threads do not survive a fork."""

from __future__ import annotations

import os

__all__ = ["obstore_usable"]

_runtime_at_fork = False
_broken = False


def _note_runtime() -> None:
    """Before a fork: does this process have a running runtime, whoever started it?"""
    global _runtime_at_fork  # noqa: PLW0603 - the state of the process
    _runtime_at_fork = False
    try:
        threads = os.listdir("/proc/self/task")  # noqa: PTH208 - runs at each fork
    except OSError:
        _runtime_at_fork = True
        return
    if len(threads) == 1:
        return
    for thread in threads:
        try:
            with open(f"/proc/self/task/{thread}/comm", "rb") as file:  # noqa: PTH123 - as above
                if file.read().startswith(b"tokio"):
                    _runtime_at_fork = True
                    return
        except OSError:
            continue


def _in_child() -> None:
    global _broken  # noqa: PLW0603 - the state of the process
    _broken = _broken or _runtime_at_fork


os.register_at_fork(before=_note_runtime, after_in_child=_in_child)


def obstore_usable() -> bool:
    """False in a child that was forked while obstore's runtime ran; there a call would wait for ever."""
    return not _broken
