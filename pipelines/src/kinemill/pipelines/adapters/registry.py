"""Finds adapters (one module each in this package) and the recordings in a drop."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from pathlib import Path

from kinemill.errors import NotFoundError
from kinemill.pipelines.adapters.base import Adapter, Finding, Level, Source
from kinemill.records import nearest

__all__ = ["adapter", "adapters", "find_sources"]


@functools.cache
def adapters() -> dict[str, Adapter]:
    """Every adapter by name: each module of this package that has an `ADAPTER`."""
    found: dict[str, Adapter] = {}
    for info in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda m: m.name):
        module = importlib.import_module(f"{__package__}.{info.name}")
        candidate: Adapter | None = getattr(module, "ADAPTER", None)
        if candidate is not None:
            found[candidate.name] = candidate
    return found


def adapter(name: str) -> Adapter:
    """The adapter of that name.

    Raises:
        NotFoundError: There is none; the nearest name is suggested.
    """
    known = adapters()
    if name not in known:
        close = nearest(name, known)
        hint = f"did you mean '{close}'?" if close else f"known: {', '.join(known)}"
        raise NotFoundError(f"no adapter '{name}'; {hint}")
    return known[name]


def _regular_files(root: Path) -> tuple[list[Path], list[Finding]]:
    """Regular files below `root`, sorted; links that lead out of it are left out and told."""
    if root.is_file():
        return [root], []
    real = root.resolve()
    files: list[Path] = []
    findings: list[Finding] = []
    for folder, names, leaves in os.walk(root, followlinks=False):
        names.sort()
        for name in sorted(leaves):
            path = Path(folder) / name
            if path.is_symlink() and not path.resolve().is_relative_to(real):
                text = f"{path.relative_to(root)} is a link that leads out of the drop; it is not read"
                findings.append(Finding("link_out_of_drop", Level.WARN, text))
            elif path.is_file():
                files.append(path)
    return files, findings


def find_sources(root: Path, only: str | None = None) -> tuple[list[Source], list[Finding], list[Path]]:
    """All recordings in a drop.

    Args:
        root: The drop, a folder or one file.
        only: Name of the one adapter to ask; all where None.

    Returns:
        The recordings sorted by key, findings about the drop itself, and files that nobody claimed.

    Raises:
        NotFoundError: `root` is not there, or no such adapter.
    """
    if not root.exists():
        raise NotFoundError(f"no drop at {root}")
    files, findings = _regular_files(root)
    asked = [adapter(only)] if only else list(adapters().values())
    sources = [source for each in asked for source in each.find(root, files)]
    sources.sort(key=lambda s: s.key)
    claimed = {path for source in sources for path in source.files}
    return sources, findings, [path for path in files if path not in claimed]
