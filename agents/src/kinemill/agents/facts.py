"""What the probes read, as checks see it.

A fact that was not read is None, never a guess. A GPU value is a `Reading`: a value, or the name
of the error that NVML gave instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Facts", "Gpu", "Reading"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One NVML value, or why there is none."""

    value: Any = None
    error: str | None = None

    @property
    def not_supported(self) -> bool:
        """True where the GPU has no such thing, or this driver cannot say (an older library lacks the function)."""
        return self.error in ("NotSupported", "FunctionNotFound")

    @classmethod
    def of(cls, raw: Any) -> Reading:
        """From a probe's `{"v": ...}` or `{"e": ...}`; anything else is an error of its own."""
        if isinstance(raw, Mapping) and "v" in raw:
            return cls(raw["v"])
        if isinstance(raw, Mapping) and isinstance(raw.get("e"), str):
            return cls(None, raw["e"])
        return cls(None, "NotRead")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's readings by name."""

    index: int
    readings: dict[str, Reading]

    @property
    def slot(self) -> int:
        """The N of /dev/nvidiaN, which SLURM_JOB_GPUS counts by; NVML's own order may be another."""
        minor = self.get("minor").value
        return minor if isinstance(minor, int) else self.index

    def get(self, name: str) -> Reading:
        """The reading, or an error `NotRead`."""
        return self.readings.get(name, Reading(None, "NotRead"))


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the probes emitted, and how each probe ended."""

    values: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    """Probe -> `ok`, `timeout`, `died(...)`, `unreaped`, or `not run`."""
    age_s: dict[str, float] = field(default_factory=dict)
    """Probe -> age of its facts in seconds; 0 where freshly read."""
    spent_s: dict[str, float] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """The fact, or None where it was not read."""
        return self.values.get(key)

    def how(self, probe: str) -> str:
        """How the probe ended, for a detail text."""
        return self.ended.get(probe, "not run")

    def reading(self, key: str) -> Reading:
        """An NVML fact that is not a GPU's own."""
        return Reading.of(self.values.get(key))

    def gpus(self) -> list[Gpu]:
        """All GPUs that were reached, in index order."""
        found: list[Gpu] = []
        for key, raw in self.values.items():
            if key.startswith("gpu.") and isinstance(raw, Mapping):
                readings = {k: Reading.of(v) for k, v in raw.items() if k != "index"}
                found.append(Gpu(int(key.removeprefix("gpu.")), readings))
        return sorted(found, key=lambda g: g.index)
