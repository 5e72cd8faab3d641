"""Build the wheelhouse of one plane: our own wheels, what they need, and pip itself.

A wheelhouse is one folder named by version and content, such as `agents/0.1.0+3fa9c1d2e4b7`. A node installs from it
with `--no-index`, so nodes need no package index, and pip comes from its own wheel, so they need no ensurepip. The
same sources, lock and interpreters give the same name, so building again does nothing.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from kinemill.errors import ConfigError, EnvironmentFault, KinemillError, NotFoundError, UnavailableError

__all__ = ["PLANES", "Wheelhouse", "build", "main", "source_digest"]

# Plane -> our distributions in it; the first is the one that nodes install.
PLANES: dict[str, tuple[str, ...]] = {"agents": ("agents", "core"), "training": ("training", "loaders", "core")}

# pip is the one package outside the lock: it is what reads the lock's wheels on the node.
PIP = "pip>=25,<27"

# Changes when the layout of a wheelhouse does, so that an older one is not taken for a new one.
_FORMAT = "1"
_PIP_DEADLINE_S = 900
_MANIFEST = "artifact.json"


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    """A wheelhouse on disk.

    Attributes:
        plane: Its plane, such as `agents`.
        version: Version and content, such as `0.1.0+3fa9c1d2e4b7`; names the folder and, on nodes, the venv.
        requirement: What a node installs, such as `kinemill-agents==0.1.0`.
        path: The folder with the wheels.
        archive: The same folder as one tar file, for nodes that do not share it.
        changed: True where this call made it.
    """

    plane: str
    version: str
    requirement: str
    path: str
    archive: str
    changed: bool


def source_digest(repo: Path, distributions: Iterable[str], extra: Iterable[str]) -> str:
    """Digest of everything that decides what a wheelhouse holds.

    Args:
        repo: The repository's root.
        distributions: The folders of our distributions.
        extra: Further facts, such as the lock's text and the interpreters.

    Returns:
        The first 12 hex digits of a sha256 over names and contents.
    """
    digest = hashlib.sha256()
    for distribution in distributions:
        root = repo / distribution
        files = [root / "pyproject.toml", root / "README.md", *sorted((root / "src").rglob("*"))]
        for path in files:
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                digest.update(f"{path.relative_to(repo)}\0{len(content)}\0".encode())
                digest.update(content)
    for text in extra:
        digest.update(f"\0{text}".encode())
    return digest.hexdigest()[:12]


def build(
    plane: str, *, repo: Path, output: Path, pythons: Sequence[str], also: Sequence[str] = (), dry_run: bool = False
) -> Wheelhouse:
    """Make the wheelhouse of a plane, or find it made.

    Args:
        plane: One of `PLANES`.
        repo: The repository's root.
        output: Where wheelhouses live; this one becomes `<output>/<plane>/<version>`.
        pythons: Versions of Python on the nodes, such as `["3.11", "3.13"]`.
        also: What nodes install beside it from the site's own wheels, such as `["torch==2.13.0"]`; named, not fetched.
        dry_run: Say what would be made and make nothing.

    Returns:
        The wheelhouse.

    Raises:
        ConfigError: The plane is not known, or no Python is named.
        NotFoundError: A distribution is not there.
        EnvironmentFault: A wheel could not be built.
        UnavailableError: A package could not be fetched.
    """
    distributions = PLANES.get(plane)
    if distributions is None:
        raise ConfigError(f"plane {plane!r} has no wheelhouse; known: {', '.join(PLANES)}")
    if not pythons:
        raise ConfigError(f"plane {plane}: name at least one version of Python")
    project = _project(repo / distributions[0] / "pyproject.toml")
    lock = repo / "requirements" / f"{plane}.txt"
    lock_text = lock.read_text(encoding="utf-8") if lock.is_file() else ""
    digest = source_digest(
        repo,
        distributions,
        [_FORMAT, lock_text, PIP, ",".join(pythons), platform.machine(), platform.libc_ver()[0], *also],
    )
    version = f"{project['version']}+{digest}"
    requirement = f"{project['name']}=={project['version']}"
    folder = output / plane
    target = folder / version
    archive = folder / f"{version}.tar"
    made = Wheelhouse(plane, version, requirement, str(target), str(archive), changed=False)
    pointer = folder / "current.json"
    if not dry_run:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            fresh = not (target / _MANIFEST).is_file() or not archive.is_file()
            if fresh:
                _fill(target, archive, made, repo=repo, lock=lock if lock_text else None, pythons=pythons, also=also)
            moved = _write_if_different(pointer, json.dumps(asdict(made), indent=2, sort_keys=True) + "\n")
        changed = fresh or moved
    else:
        changed = not (target / _MANIFEST).is_file() or not archive.is_file()
    return Wheelhouse(plane, version, requirement, str(target), str(archive), changed=changed)


def _fill(
    target: Path,
    archive: Path,
    made: Wheelhouse,
    *,
    repo: Path,
    lock: Path | None,
    pythons: Sequence[str],
    also: Sequence[str],
) -> None:
    """Build and fetch into a folder beside the target, then put it in place by rename."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as temporary:
        work = Path(temporary) / "wheels"
        work.mkdir()
        for distribution in PLANES[made.plane]:
            _build_wheel(repo / distribution, work)
        for python in pythons:
            _fetch(work, made.requirement, lock=lock, python=python)
        wheels = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(work.iterdir())}
        manifest = {
            "plane": made.plane,
            "version": made.version,
            "requirement": made.requirement,
            "also": list(also),
            "pythons": list(pythons),
            "wheels": wheels,
        }
        (work / _MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
        for path in work.iterdir():
            path.chmod(0o644)
        work.chmod(0o755)
        packed = Path(temporary) / "wheels.tar"
        with tarfile.open(packed, "w") as tar:
            tar.add(work, arcname=made.version, filter=_anonymous)
        shutil.rmtree(target, ignore_errors=True)
        work.rename(target)
        packed.rename(archive)


def _build_wheel(distribution: Path, into: Path) -> None:
    if not (distribution / "pyproject.toml").is_file():
        raise NotFoundError(f"{distribution}: no pyproject.toml; run this from the repository's root")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into.resolve())]
    done = subprocess.run(command, cwd=distribution, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise EnvironmentFault(f"{distribution}: the wheel was not built: {done.stderr.strip()[-2000:]}")


def _fetch(into: Path, requirement: str, *, lock: Path | None, python: str) -> None:
    """Fetch what a Python of this version needs, as wheels only."""
    base = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--implementation", "cp", "--python-version", python),
        *("--find-links", str(into), "--dest", str(into)),
    ]
    wanted = ["--no-deps", "--requirement", str(lock)] if lock else [requirement]
    for command in ([*base, *wanted], [*base, "--no-deps", PIP]):
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PIP_DEADLINE_S)
        if done.returncode != 0:
            raise UnavailableError(
                f"wheels for Python {python} could not be fetched; check pip's index settings on this machine: "
                f"{done.stderr.strip()[-2000:]}"
            )


def _project(path: Path) -> dict[str, str]:
    try:
        return dict(tomllib.loads(path.read_text(encoding="utf-8"))["project"])
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no such file; is the repository's root right?") from error


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Drop owner and time, so that the same wheels give the same archive."""
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = 0
    return info


def _write_if_different(path: Path, text: str) -> bool:
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return False
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of `python -m kinemill.control.wheelhouse`; prints one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m kinemill.control.wheelhouse", description=__doc__)
    parser.add_argument("--plane", required=True, choices=sorted(PLANES))
    parser.add_argument("--repo", type=Path, default=Path.cwd())
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--python", action="append", default=[], metavar="VERSION", help="Python on the nodes: 3.11")
    parser.add_argument("--also", action="append", default=[], metavar="REQUIREMENT", help="from the site's own wheels")
    parser.add_argument("--dry-run", action="store_true", help="say what would be made")
    options = parser.parse_args(arguments)
    os.environ.pop("PIP_REQUIRE_VIRTUALENV", None)
    try:
        made = build(
            options.plane,
            repo=options.repo,
            output=options.output,
            pythons=options.python,
            also=options.also,
            dry_run=options.dry_run,
        )
    except KinemillError as error:
        print(str(error), file=sys.stderr)
        return error.exit_code
    print(json.dumps(asdict(made), sort_keys=True))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
