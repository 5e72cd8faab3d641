"""An ingestion step: what it needs, and what it reports."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["GateRole", "StepResult", "StepSpec", "StepStatus"]


class GateRole(enum.StrEnum):
    """Where a gate stands; an ordinary step is NONE."""

    NONE = "none"
    PRE = "pre"
    POST = "post"


class StepStatus(enum.StrEnum):
    """How one execution of a step ended."""

    OK = "ok"
    WARN = "warn"
    FAILED = "failed"
    SKIPPED = "skipped"
    """Toggled off, or already done with the same version and input digest."""


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What a step is and what one execution of it may use.

    Raises:
        ValueError: No cpu, no time, or a negative amount.
    """

    name: str
    version: int
    """Raised when the output changes; part of the completion key."""
    critical: bool = True
    """False: its failure makes the run degraded, not failed."""
    gate: GateRole = GateRole.NONE
    cpus: int = 1
    mem_bytes: int = 1 << 30
    gpus: int = 0
    scratch_per_input_byte: float = 0.0
    """Local disk needed, in bytes per input byte."""
    timeout_s: float = 3600.0
    retries: int = 2
    requires: tuple[str, ...] = ()
    """Names of the steps whose outputs it reads."""

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.timeout_s <= 0 or min(self.mem_bytes, self.gpus, self.retries) < 0:
            raise ValueError(f"step '{self.name}': cpus >= 1, timeout_s > 0, and nothing negative")
        if self.scratch_per_input_byte < 0:
            raise ValueError(f"step '{self.name}': scratch_per_input_byte is negative")


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one execution of a step reports; its completion key is (batch, step, version, input_digest)."""

    batch: str
    step: str
    step_version: int
    status: StepStatus
    input_digest: str
    """sha256 over the step's inputs, hex."""
    output_digest: str = ""
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    """Sentences for a person: what is wrong with which file, and what to do."""
    version: int = 1
