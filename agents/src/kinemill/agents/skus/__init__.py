"""Limits per hardware SKU, one TOML file each; every limit names its source."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kinemill.errors import ConfigError
from kinemill.records import decode, nearest

__all__ = ["Limit", "Sku", "load_sku", "sku_names"]

_FOLDER = Path(__file__).parent  # not importlib.resources: its import costs a prolog 10 ms


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit and where it comes from."""

    value: int
    source: str
    """`measured`, `vendor sheet`, or `guess`, and of what."""


@dataclass(frozen=True, slots=True)
class Sku:
    """What a healthy node of this kind looks like; None means "not judged"."""

    name: str = ""
    gpu_name: str = ""
    gpus: int | None = None
    pcie_generation: Limit | None = None
    pcie_width: Limit | None = None
    nvlinks: Limit | None = None
    """Active links a GPU."""
    ecc_corrected_warn: Limit | None = None
    """Corrected errors since boot, a GPU."""
    ecc_corrected_fail: Limit | None = None
    temperature_c: Limit | None = None
    infiniband_rate_gbps: Limit | None = None
    ethernet_rate_mbps: Limit | None = None
    nvme_wear_percent: Limit | None = None
    idle_gpu_memory_mb: Limit | None = None
    """Memory in use on an idle GPU (driver's own)."""
    link_flaps: Limit | None = None
    """Times a link may have gone down since boot."""


def sku_names() -> list[str]:
    """Names of the shipped SKU files."""
    return sorted(f.stem for f in _FOLDER.glob("*.toml"))


@cache
def _read(name: str) -> Sku:
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,40}", name) or name not in sku_names():
        close = nearest(name, sku_names())
        hint = f"did you mean '{close}'?" if close else f"known: {', '.join(sku_names())}"
        raise ConfigError(f"hardware.sku '{name}' has no file of limits; {hint}")
    text = (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")
    return decode(Sku, tomllib.loads(text), where=f"skus/{name}.toml")


def load_sku(name: str) -> Sku:
    """The SKU of this name (`hardware.sku` in the inventory); one that judges nothing for an empty name.

    Raises:
        ConfigError: No such SKU; the nearest is named.
    """
    return _read(name) if name else Sku()
