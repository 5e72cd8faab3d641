"""Where things are: the repository, the inventory, and a folder for each run."""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kinemill.errors import EnvironmentFault, UsageError
from kinemill.process import private_folder
from kinemill.records import nearest

__all__ = ["RunFolder", "find_inventory", "find_repo", "prune", "work_folder"]

_STAMP = "%Y%m%dT%H%M%SZ"


def find_repo(start: Path) -> Path:
    """The nearest folder, from `start` upwards, that holds `site.yml` and `roles`.

    Raises:
        UsageError: There is none.
    """
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / "site.yml").is_file() and (folder / "roles").is_dir():
            return folder
    raise UsageError(f"{start} is not inside a folder with site.yml and roles; change to it or give --repo")


def find_inventory(name: str, repo: Path, *, here: Path) -> Path:
    """An inventory by its path, or by its name below `inventories`.

    Args:
        name: As typed.
        repo: The repository.
        here: The folder that relative paths start from.

    Returns:
        Its absolute path.

    Raises:
        UsageError: There is none; the nearest name is told.
    """
    known = sorted(path.parent.name for path in (repo / "inventories").glob("*/hosts.yml"))
    for path in (here / name, repo / "inventories" / name):
        if name and path.exists():
            return path.resolve()
    close = nearest(Path(name).name, known)
    hint = f"did you mean {close}?" if close else f"there are: {', '.join(known) or 'none'}"
    raise UsageError(f"no inventory {name}; {hint}")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that keeps what one run leaves; only its owner can read it.

    Attributes:
        path: The folder, named for the time of the run.
    """

    path: Path

    @classmethod
    def make(cls, runs_dir: Path, inventory: str, now: datetime.datetime) -> RunFolder:
        """A new one; two runs in one second get two folders.

        Raises:
            EnvironmentFault: It cannot be made, or the folder above it is not ours.
        """
        try:
            above = private_folder(private_folder(runs_dir) / inventory)
            stamp = now.astimezone(datetime.UTC).strftime(_STAMP)
            for attempt in range(1, 100):
                path = above / (stamp if attempt == 1 else f"{stamp}-{attempt}")
                with contextlib.suppress(FileExistsError):
                    path.mkdir(mode=0o700)
                    return cls(path)
        except OSError as error:
            raise EnvironmentFault(
                f"{runs_dir}: cannot keep runs there ({error.strerror}); set deploy.runs_dir"
            ) from error
        raise EnvironmentFault(f"{above}: a hundred runs in one second")

    def write(self, name: str, text: str) -> Path:
        """Write a file as a whole, readable by its owner only."""
        path = self.path / name
        temporary = path.with_name(f".{name}.new")
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="utf-8", errors="backslashreplace") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
        return path

    def open(self, name: str) -> Log:
        """A file to add to, readable by its owner only."""
        return Log(self.path / name)

    def point_latest(self) -> None:
        """Let `latest` beside the run folders name this one."""
        temporary = self.path.parent / f".latest.{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        temporary.symlink_to(self.path.name)
        temporary.rename(self.path.parent / "latest")


class Log:
    """A text file that grows; each `add` reaches the kernel at once, so that a killed run still says what it did."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def add(self, text: str) -> None:
        """Write `text`."""
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._fd, data) :]

    def close(self) -> None:
        """No more."""
        os.close(self._fd)


def prune(runs_dir: Path, inventory: str, keep: int) -> list[str]:
    """Remove all but the newest runs of an inventory.

    Args:
        runs_dir: The folder above all inventories.
        inventory: The inventory's name.
        keep: How many stay.

    Returns:
        Names of the folders that are gone.
    """
    above = runs_dir / inventory
    runs = sorted(path for path in above.glob("[0-9]*Z*") if path.is_dir() and not path.is_symlink())
    gone = runs[: max(0, len(runs) - keep)]
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return [path.name for path in gone]


def work_folder(environ: Mapping[str, str] | None = None) -> Path:
    """A new private folder for what must not be kept, in memory where the machine has such a place."""
    env = os.environ if environ is None else environ
    for place in (env.get("XDG_RUNTIME_DIR", ""), "/dev/shm"):  # noqa: S108 - mkdtemp makes it 0700
        if place and os.access(place, os.W_OK | os.X_OK):
            return Path(tempfile.mkdtemp(prefix="kinemill-deploy-", dir=place))
    return Path(tempfile.mkdtemp(prefix="kinemill-deploy-"))
