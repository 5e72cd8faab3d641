"""What the tests of the repository's own rules share: where things are, and how its lists are read."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any, Final

__all__ = ["DISTRIBUTIONS", "ROOT", "lock_pins", "name_of", "project", "tracked"]

ROOT: Final = Path(__file__).resolve().parents[2]
DISTRIBUTIONS: Final = ("core", "control", "agents", "pipelines", "loaders", "training")


def project(distribution: str) -> dict[str, Any]:
    """Return the ``[project]`` table of a distribution."""
    table: dict[str, Any] = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]
    return table


def name_of(requirement: str) -> str:
    """Return the normalised package name of a requirement line."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=!~;(]", requirement.strip(), maxsplit=1)[0]).lower()


def lock_pins(name: str) -> dict[str, set[str]]:
    """Return package -> versions of requirements/<name>.txt (several, if Python versions differ)."""
    pins: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        if match := re.match(r"^([A-Za-z0-9_.-]+)==([^ ;\\]+)", line):
            pins.setdefault(name_of(match[1]), set()).add(match[2])
    return pins


def tracked(*patterns: str) -> list[Path]:
    """Return the files that git keeps, in the working tree, by pathspec."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z", "--", *patterns], check=True, capture_output=True, text=True
    ).stdout
    return [path for name in found.split("\0") if name and (path := ROOT / name).is_file()]
