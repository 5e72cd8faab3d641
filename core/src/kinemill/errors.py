"""Every error that kinemill raises on purpose, in one tree.

::

    KinemillError
    ├── UsageError              the caller asked for something impossible        exit 2
    ├── ConfigError             a setting, inventory or spec is wrong            exit 78
    │   └── ContractError       a record does not fit its contract
    │       └── UnknownKeyError a key nobody declared (names the nearest one)
    ├── DataError               an input file or record is bad                   exit 1
    │   ├── TruncatedError      it ends too early
    │   ├── CorruptError        its bytes are not what was written (crc, sha256, sequence)
    │   ├── UnsupportedError    it is sound, but of a kind we refuse, and says which
    │   └── LimitError          it would cost more memory, time or disk than the bound
    ├── NotFoundError           a key, row, node or file that is not there       exit 1
    ├── ConflictError           somebody else was first (create-if-absent, row_version, lock)  exit 1
    ├── StateError              the thing is not in a state that allows this     exit 1
    ├── EnvironmentFault        this machine lacks something (disk, rights, tool) exit 1
    │   └── MissingToolError    a program or library is not installed
    ├── ExternalError           an outside service answered wrongly              exit 1
    └── TransientError          the same call may work later                     exit 75
        ├── UnavailableError    a service is down, refused, or lost
        └── DeadlineError       it took longer than it was allowed

``transient`` is a promise: where it is True, trying the same call again may help.
Messages say what happened, where, and what to do next.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ConfigError",
    "ConflictError",
    "ContractError",
    "CorruptError",
    "DataError",
    "DeadlineError",
    "EnvironmentFault",
    "ExternalError",
    "KinemillError",
    "LimitError",
    "MissingToolError",
    "NotFoundError",
    "StateError",
    "TransientError",
    "TruncatedError",
    "UnavailableError",
    "UnknownKeyError",
    "UnsupportedError",
    "UsageError",
]


class KinemillError(Exception):
    """Root of the tree.

    Attributes:
        transient: True where the same call may succeed later.
        exit_code: What a command exits with when this reaches its edge; one of
            `kinemill.contracts.ExitCode`.
    """

    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1


class UsageError(KinemillError):
    """The caller asked for something that cannot be done as asked."""

    exit_code = 2


class ConfigError(KinemillError):
    """A setting, inventory or spec is wrong; nothing was started."""

    exit_code = 78


class ContractError(ConfigError):
    """A record does not fit the contract that both sides agreed on."""


class UnknownKeyError(ContractError):
    """A key that nobody declared; the message names the nearest declared one."""


class DataError(KinemillError):
    """An input file or record is bad; the rest of the batch carries on."""


class TruncatedError(DataError):
    """The input ends before its own structure says it should."""


class CorruptError(DataError):
    """The bytes are not those that were written: crc, sha256, sequence or count differ."""


class UnsupportedError(DataError):
    """The input is sound but of a kind that is refused; the message names the kind."""


class LimitError(DataError):
    """Handling the input would pass a bound on memory, time or disk."""


class NotFoundError(KinemillError):
    """A key, row, node or file that is not there."""


class ConflictError(KinemillError):
    """Somebody else was first: create-if-absent, stale row version, a held lock."""


class StateError(KinemillError):
    """The thing is not in a state that allows this."""


class EnvironmentFault(KinemillError):
    """This machine lacks something: room, rights, a kernel feature."""


class MissingToolError(EnvironmentFault):
    """A program or library that this command needs is not installed."""


class ExternalError(KinemillError):
    """An outside service gave an answer that its own protocol does not allow."""


class TransientError(KinemillError):
    """The same call may succeed later."""

    transient = True
    exit_code = 75


class UnavailableError(TransientError):
    """A service is down, refused the connection or dropped it."""


class DeadlineError(TransientError):
    """It took longer than it was allowed."""
