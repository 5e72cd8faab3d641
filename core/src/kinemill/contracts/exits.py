"""What a command's exit status says; stable, so that hooks and batch scripts may rely on it."""

from __future__ import annotations

import enum

__all__ = ["ExitCode"]


class ExitCode(enum.IntEnum):
    """Exit codes of every kinemill command.

    75 and 78 are EX_TEMPFAIL and EX_CONFIG of sysexits.h.
    """

    OK = 0
    FINDING = 1
    """It ran, and found or hit something that a person must look at."""
    USAGE = 2
    TRANSIENT = 75
    """The same command may succeed later; a batch script may requeue."""
    CONFIG = 78
    """A setting or spec is wrong; trying again cannot help."""
