"""Copies of the sources as three releases: `previous` (0.0.9), `new` (as they are), `bad` (0.2.0, misjudges nodes).

python sources.py REPOSITORY FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

PARTS = ("core", "agents", "requirements")


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Change exactly one place, or say that it is gone."""
    text, count = re.subn(pattern, replacement, path.read_text(encoding="utf-8"), count=1, flags=re.MULTILINE)
    if count != 1:
        raise SystemExit(f"{path}: nothing there to change: {pattern}")
    path.write_text(text, encoding="utf-8")


def release(repo: Path, folder: Path, version: str) -> Path:
    """A copy under another version."""
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", "dist")
        shutil.copytree(repo / part, folder / part, ignore=ignored, dirs_exist_ok=True)
    if version:
        for part in ("core", "agents"):
            edit(folder / part / "pyproject.toml", r'^version = ".*"$', f'version = "{version}"')
    return folder / "agents" / "src" / "kinemill" / "agents"


def main(repo: Path, folder: Path) -> None:
    """Make all three."""
    release(repo, folder / "new", "")
    previous = release(repo, folder / "previous", "0.0.9")
    # Units and hooks differ too, as they may between releases, so that it is seen whether they follow the version.
    edit(previous / "units" / "kinemill-node-check.timer", r"^(Description=.*)$", r"\1 (0.0.9)")
    edit(previous / "hooks" / "prolog.sh", r"^(# Slurm hook.*)$", r"# Release 0.0.9.\n\1")
    bad = release(repo, folder / "bad", "0.2.0")
    edit(bad / "skus" / "h200-8.toml", r"^pcie_width = \{ value = 16", "pcie_width = { value = 32")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
