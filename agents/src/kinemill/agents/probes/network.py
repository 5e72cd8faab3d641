"""Reads InfiniBand ports and Ethernet links from sysfs."""

from __future__ import annotations

from pathlib import Path

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()[:200]
    except (OSError, UnicodeDecodeError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def read(ctx: Context, emit: Emit) -> None:
    """Emit `ib.ports` and `eth.<name>`."""
    ports: list[dict[str, object]] = []
    for port in sorted(ctx.path("/sys/class/infiniband").glob("*/ports/*")):
        ports.append(
            {
                "port": f"{port.parent.parent.name}/{port.name}",
                "link_layer": _text(port / "link_layer"),
                "state": _text(port / "state"),
                "phys_state": _text(port / "phys_state"),
                "rate": _text(port / "rate"),
                "link_downed": _number(port / "counters/link_downed"),
            }
        )
    emit("ib.ports", ports)
    for name in ctx.settings.hardware.ethernet:
        folder = ctx.path(f"/sys/class/net/{Path(name).name}")
        emit(
            f"eth.{name}",
            {
                "present": folder.is_dir(),
                "operstate": _text(folder / "operstate"),
                "speed_mbps": _number(folder / "speed"),
                "carrier_down_count": _number(folder / "carrier_down_count"),
            },
        )
