"""Checkpoints: asynchronous, published by pointer, fenced by attempt, with the data position inside.

`folder` knows the disk and needs no torch; `saver` knows torch.distributed.checkpoint.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinemill.training.checkpoint.folder import (
    Pointer,
    PosixRunFolder,
    RunFolder,
    Saved,
    open_run,
    write_atomically,
)

if TYPE_CHECKING:
    from kinemill.training.checkpoint.saver import Checkpointer, Restored

__all__ = [
    "Checkpointer",
    "Pointer",
    "PosixRunFolder",
    "Restored",
    "RunFolder",
    "Saved",
    "open_run",
    "write_atomically",
]


def __getattr__(name: str) -> Any:
    if name in {"Checkpointer", "Restored"}:
        from kinemill.training.checkpoint import saver

        return getattr(saver, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
