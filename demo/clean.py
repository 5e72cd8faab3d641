"""`make clean-demo`: stops what a killed demo left running and removes everything that it made."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from kinemill.errors import ConflictError, KinemillError
from kinemill.process import OwnedFolder

__all__ = ["clean"]

SERVERS = ("postgres", "s3")
MADE = ("state", "drops", "drops.new", "report.html", ".report.html.new", "facts.json", ".facts.json.new", "episodes")


def clean(folder: Path) -> list[str]:
    """Stop and remove.

    Returns:
        What was done, one line each; empty where there was nothing.

    Raises:
        ConflictError: The demo is running.
    """
    from demo.preflight import alone

    if not folder.exists():
        return []
    said: list[str] = []
    state = folder / "state"
    if state.exists():
        with alone(folder):
            for name in SERVERS:
                place = state / name
                if place.exists():
                    OwnedFolder(place).release()  # taking it ends whatever an earlier owner left there
                    outside = _outside(place)
                    if outside is not None:
                        shutil.rmtree(outside)
                        said.append(f"removed {outside}")
    for name in MADE:
        target = folder / name
        if target.is_dir() and not target.is_symlink():
            shutil.rmtree(target)
        elif target.exists() or target.is_symlink():
            target.unlink()
        else:
            continue
        said.append(f"removed {target}")
    if not any(folder.iterdir()):
        folder.rmdir()
    return said


def _outside(place: Path) -> Path | None:
    """Where a database whose account cannot reach our folder has its data; it names us as its origin."""
    link = place / "data"
    if not link.is_symlink():
        return None
    real = link.readlink().parent
    origin = real / "origin"
    return real if origin.is_file() and origin.read_text(encoding="utf-8") == str(place) else None


def main(argv: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(prog="make clean-demo", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("build/demo"), help="the demo's folder")
    args = parser.parse_args(argv)
    try:
        said = clean(args.dir.absolute())
    except ConflictError as exc:
        print(f"clean-demo: {exc}", file=sys.stderr)
        return exc.exit_code
    except KinemillError as exc:
        print(f"clean-demo: {exc}", file=sys.stderr)
        return exc.exit_code
    print("\n".join(said) if said else "nothing to remove", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
