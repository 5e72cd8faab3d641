"""Reads the PCIe error counters that the kernel keeps for each device."""

from __future__ import annotations

import re

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def read(ctx: Context, emit: Emit) -> None:
    """Emit `pcie.fatal` and `pcie.nonfatal`: bus address -> total since boot, devices with more than 0 only."""
    for kind in ("fatal", "nonfatal"):
        totals: dict[str, int] = {}
        for file in sorted(ctx.path("/sys/bus/pci/devices").glob(f"*/aer_dev_{kind}")):
            try:
                match = re.search(r"^TOTAL_ERR_\w+ (\d+)", file.read_text("ascii"), re.MULTILINE)
            except (OSError, UnicodeDecodeError):
                continue
            if match and int(match[1]) > 0:
                totals[file.parent.name] = int(match[1])
        emit(f"pcie.{kind}", totals)
