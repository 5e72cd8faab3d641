"""The export's counters for the node exporter's text folder, kept from one run to the next in the file itself."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path

from kinemill.contracts import METRICS

__all__ = ["count_rows"]

_ROWS = "kinemill_export_rows_total"
_BIG = 4096
"""Bytes of our own file, generously."""


def count_rows(path: Path, rows: int) -> int:
    """Add rows to the counter that stands in a file; begins at 0 where it holds none.

    Args:
        path: Prometheus text, replaced as a whole.
        rows: That this run committed to the warehouse.

    Returns:
        The new total.
    """
    metric = METRICS[_ROWS]
    # two exports never run at once, but one may write this down while the next begins
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        total = _standing(path) + rows
        fresh = path.with_name(f".{path.name}.new")
        text = f"# HELP {_ROWS} {metric.help}\n# TYPE {_ROWS} {metric.kind}\n{_ROWS} {total}\n"
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    finally:
        os.close(folder)
    return total


def _standing(path: Path) -> int:
    try:
        with path.open("rb") as file:
            text = file.read(_BIG).decode("utf-8", "replace")
    except FileNotFoundError:
        return 0
    found = re.search(rf"^{_ROWS} ([0-9]{{1,18}})$", text, re.MULTILINE)
    return int(found[1]) if found else 0
