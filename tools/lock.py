"""Write requirements/<plane>.txt from the distributions' own dependency lists (``make lock``).

``all.txt`` is what ``.venv`` installs. Each plane's lock is compiled with it as a constraint, so a node, a pipeline
worker and a developer's machine run the same versions. Airflow has its own venv and its own answer; ``pins.in`` binds
both. No lock names an index.

Run with ``--upgrade`` to move the pins; without it only what the inputs force is changed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
REQUIREMENTS: Final = ROOT / "requirements"
DISTRIBUTIONS: Final = ("core", "control", "agents", "pipelines", "loaders", "training")
OURS: Final = re.compile(r"^kinemill-([a-z]+)(?:\[([a-z0-9,\s-]+)\])?$")


def third_party(distribution: str, extras: frozenset[str] | None = None) -> set[str]:
    """Return the third-party requirements of a distribution, with those of the kinemill distributions it names.

    Args:
        distribution: folder name, e.g. "agents".
        extras: which optional groups count; None for all.
    """
    project = tomllib.loads((ROOT / distribution / "pyproject.toml").read_text())["project"]
    optional = project.get("optional-dependencies", {})
    wanted = list(project.get("dependencies", []))
    for extra in optional if extras is None else extras:
        wanted += optional[extra]
    found: set[str] = set()
    for requirement in wanted:
        if match := OURS.match(requirement):
            named = frozenset(part.strip() for part in match[2].split(",")) if match[2] else frozenset()
            found |= third_party(match[1], named)
        else:
            found.add(requirement)
    return found


def hand_written(name: str) -> set[str]:
    """Return the lines of requirements/<name>.in."""
    lines = (REQUIREMENTS / f"{name}.in").read_text().splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith("#")}


def inputs() -> dict[str, set[str]]:
    """Return what each lock has to hold: lock name -> requirements."""
    planes = {name: third_party(name) for name in DISTRIBUTIONS}
    return {
        "all": hand_written("dev").union(*planes.values()),
        **planes,
        "airflow": hand_written("airflow") | third_party("pipelines"),
    }


def compile_lock(name: str, requirements: set[str], *, constraint: Path, upgrade: bool) -> None:
    """Resolve one lock with uv and write it.

    Raises:
        subprocess.CalledProcessError: nothing satisfies the requirements; uv has said why.
    """
    target = REQUIREMENTS / f"{name}.txt"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / f"{name}.in"
        source.write_text("\n".join(sorted(requirements, key=str.lower)) + "\n")
        argv = [sys.executable, "-m", "uv", "pip", "compile", str(source), "--output-file", str(target)]
        argv += ["--universal", "--python-version", "3.11", "--generate-hashes", "--no-annotate", "--quiet"]
        argv += ["--no-emit-index-url", "--no-emit-find-links", "--excludes", str(REQUIREMENTS / "exclude.txt")]
        argv += ["--constraints", str(constraint)]
        argv += ["--upgrade"] if upgrade else []
        subprocess.run(argv, check=True, cwd=ROOT, env=os.environ | {"UV_CUSTOM_COMPILE_COMMAND": "make lock"})
    pins = sum("==" in line for line in target.read_text().splitlines())
    sys.stdout.write(f"requirements/{name}.txt: {pins} packages\n")


def main() -> int:
    """Compile every lock, the widest first."""
    parser = argparse.ArgumentParser(description="Write requirements/<plane>.txt from the pyprojects and *.in files.")
    parser.add_argument("--upgrade", action="store_true", help="move every pin to the newest that fits")
    options = parser.parse_args()
    for name, requirements in inputs().items():
        follows = name not in {"all", "airflow"}
        constraint = REQUIREMENTS / ("all.txt" if follows else "pins.in")
        compile_lock(name, requirements, constraint=constraint, upgrade=options.upgrade)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
