"""A node check: how it is declared and what it answers."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["Check", "CheckClass", "CheckContext", "CheckResult", "CheckStatus", "FixAction"]


class CheckStatus(enum.StrEnum):
    """What a check found. UNKNOWN is "could not measure": never OK, never broken."""

    OK = "OK"
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"
    UNKNOWN = "UNKNOWN"


class CheckClass(enum.StrEnum):
    """What kind of fault; only the first two become T and H in a drain reason."""

    TRANSIENT = "transient"
    HARD = "hard"
    CONFIG = "config"
    APP = "app"

    @property
    def letter(self) -> str | None:
        """`T`, `H`, or None for the classes that never drain a node."""
        return {"transient": "T", "hard": "H"}.get(self.value)


class CheckContext(enum.StrEnum):
    """Who runs the check."""

    PROLOG = "prolog"
    EPILOG = "epilog"
    PERIODIC = "periodic"
    BOOT = "boot"
    INJOB = "injob"
    CLI = "cli"


class FixAction(enum.StrEnum):
    """What would cure it."""

    NONE = "none"
    WATCH = "watch"
    RESET = "reset"
    REBOOT = "reboot"
    ISOLATE = "isolate"


@dataclass(frozen=True, slots=True)
class Check:
    """How a check is declared.

    Raises:
        ValueError: No context, or a timeout outside (0, 10] seconds.
    """

    name: str
    """Dotted, such as `gpu.ecc`; first field of a drain reason after the prefix."""
    version: int
    contexts: tuple[CheckContext, ...]
    timeout_s: float = 2.0
    cache_s: float = 0.0
    """How old a cached answer may be; 0 means measure each time."""
    default_on: bool = True
    help: str = ""

    def __post_init__(self) -> None:
        if not self.contexts:
            raise ValueError(f"check '{self.name}' runs in no context")
        if not 0 < self.timeout_s <= 10:
            raise ValueError(f"check '{self.name}': timeout_s must be in (0, 10]")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one run of a check answered."""

    check: str
    status: CheckStatus
    cls: CheckClass = CheckClass.TRANSIENT
    action: FixAction = FixAction.NONE
    code: str = ""
    """Stable short code, such as `ecc_vol_unc`."""
    detail: str = ""
    """At most 80 characters for a person."""
    evidence: dict[str, str] = field(default_factory=dict)
    limit: str = ""
    """The limit it was held against."""
    source: str = ""
    """Where the limit comes from: measured, vendor sheet, guess."""
    age_s: float = 0.0
    seconds: float = 0.0
    version: int = 1
