"""Looks at each mount point that jobs need. A dead server hangs the child, which the runner kills."""

from __future__ import annotations

import os

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def read(ctx: Context, emit: Emit) -> None:
    """Emit `mounts.table` first (from the kernel, cannot hang), then `mount.<path>` one by one."""
    table: dict[str, str] = {}
    for line in ctx.path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines():
        words = line.split(" ")
        if len(words) >= 4:
            table[words[1].replace("\\040", " ")] = f"{words[2]} {words[3]}"
    emit("mounts.table", {m: table.get(m) for m in ctx.settings.hardware.mounts})
    for mount in ctx.settings.hardware.mounts:
        if mount not in table:
            continue
        emit(f"mount.{mount}", {"probing": True})
        try:
            st = os.statvfs(mount)
            with os.scandir(mount) as entries:  # one entry is a look; a folder of millions is not read
                next(entries, None)
            emit(f"mount.{mount}", {"ok": True, "blocks": st.f_blocks})
        except OSError as exc:
            emit(f"mount.{mount}", {"error": exc.strerror or str(exc)})
