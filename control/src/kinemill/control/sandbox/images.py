"""Node images: built once from a recipe, kept outside the checkout under a hash of the recipe.

An image is a folder that nodes use as the read-only lower layer of their root. The package mirror is the one that this
machine's apt uses, or `KINEMILL_SANDBOX_MIRROR`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from kinemill.control.sandbox.host import cache_root, require, run
from kinemill.errors import (
    ConfigError,
    DeadlineError,
    EnvironmentFault,
    ExternalError,
    LimitError,
    NotFoundError,
    UnavailableError,
)

__all__ = ["RECIPES", "Image", "Recipe", "apt_settings", "build", "find", "host_mirror", "prune"]

# What every node has: enough for Ansible, ssh and faults; no Slurm.
_BASE = (
    *("systemd", "systemd-sysv", "dbus", "udev", "iproute2", "iputils-ping", "python3", "python3-apt"),
    *("ca-certificates", "procps", "kmod", "sudo", "openssh-server", "libfaketime", "nftables", "passwd"),
)
_SLURM = ("munge", "slurmctld", "slurmd", "slurm-client", "slurmdbd", "slurmrestd", "mariadb-server")

_ROOM_BYTES = 2_500_000_000
_DEADLINE_S = 1500


@dataclass(frozen=True, slots=True)
class Recipe:
    """What an image is made of.

    Attributes:
        name: Its name on the command line.
        suite: The Debian suite.
        packages: What is installed.
    """

    name: str
    suite: str
    packages: tuple[str, ...]

    @property
    def script(self) -> str:
        """The shell script that finishes the image."""
        return (files("kinemill.control.sandbox") / "data" / "finish-image.sh").read_text(encoding="utf-8")

    @property
    def digest(self) -> str:
        """First 12 hex digits of a sha256 over the recipe."""
        text = json.dumps([self.name, self.suite, sorted(self.packages), self.script])
        return hashlib.sha256(text.encode()).hexdigest()[:12]


RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("bookworm", "bookworm", _BASE),
        Recipe("bookworm-slurm", "bookworm", _BASE + _SLURM),
        Recipe("trixie-slurm", "trixie", _BASE + _SLURM),
        Recipe("sid-slurm", "sid", _BASE + _SLURM),
    )
}


@dataclass(frozen=True, slots=True)
class Image:
    """An image on disk.

    Attributes:
        name: The recipe's name.
        root: The folder that is a node's lower layer.
        digest: The recipe's hash.
        built_s: How long building took, in seconds; 0 where it was found.
        bytes: Its size on disk.
    """

    name: str
    root: Path
    digest: str
    built_s: float
    bytes: int


def recipe_of(name: str) -> Recipe:
    """The recipe of a name.

    Raises:
        ConfigError: There is none.
    """
    try:
        return RECIPES[name]
    except KeyError:
        raise ConfigError(f"no image {name!r}; known: {', '.join(RECIPES)}") from None


def find(name: str) -> Image | None:
    """The built image of a name whose recipe is the present one, or None."""
    recipe = recipe_of(name)
    folder = _folder(recipe)
    try:
        record = json.loads((folder / "image.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Image(name, folder / "root", recipe.digest, 0.0, int(record["bytes"]))


def build(name: str, *, say: Callable[[str], None] = lambda _: None) -> Image:
    """Build an image, or find it built. One build at a time per recipe; others wait for it.

    Args:
        name: One of `RECIPES`.
        say: Called with a line of progress.

    Returns:
        The image.

    Raises:
        ConfigError: The name is not known.
        EnvironmentFault: This machine lacks something, or the disk ran full.
        UnavailableError: The package mirror does not answer.
        DeadlineError: It answers too slowly.
        ExternalError: The build failed otherwise; its log is named.
    """
    recipe = recipe_of(name)
    ready = find(name)
    if ready is not None:
        return ready
    require(for_images=True)
    folder = _folder(recipe)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{recipe.name}.lock"):
        ready = find(name)
        if ready is not None:
            return ready
        started = time.monotonic()
        say(f"image {name}: building from {host_mirror()} (minutes, once)")
        size = _build(recipe, folder)
        taken = time.monotonic() - started
        say(f"image {name}: {size / 1e6:.0f} MB in {taken:.0f} s")
        return Image(name, folder / "root", recipe.digest, taken, size)


def prune() -> list[str]:
    """Remove images whose recipe is not a present one; returns their names."""
    root = cache_root() / "images"
    wanted = {_folder(recipe).name for recipe in RECIPES.values()}
    gone: list[str] = []
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.is_dir() and path.name not in wanted:
            shutil.rmtree(path)
            gone.append(path.name)
    return gone


def host_mirror() -> str:
    """The Debian mirror that this machine's apt uses.

    Raises:
        NotFoundError: There is none, as on a machine that is not Debian.
    """
    own = os.environ.get("KINEMILL_SANDBOX_MIRROR")
    if own:
        return own.rstrip("/")
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(LABEL)|$(COMPONENT)"]
    for line in run([*command, "Created-By: Packages"]).stdout.splitlines():
        uri, origin, label, component = line.split("|")
        if (origin, label, component) == ("Debian", "Debian", "main"):
            return uri.rstrip("/")
    # A machine that never updated its lists knows no origins, but it knows where it would fetch them.
    for line in run(["apt-get", "--print-uris", "update"], check=False).stdout.splitlines():
        match = re.match(r"'(\S+/debian)/dists/", line)
        if match:
            return match[1]
    raise NotFoundError(
        "this machine's apt has no Debian mirror; "
        "set KINEMILL_SANDBOX_MIRROR to one, such as the address in a sources.list of Debian"
    )


def apt_settings() -> list[str]:
    """Settings of this machine's apt that decide how packages are reached, as lines of an apt.conf."""
    wanted = ("Acquire::Check-Valid-Until", "Acquire::Check-Date", "Acquire::http::Proxy", "Acquire::https::Proxy")
    lines = run(["apt-config", "dump", "--format", '%F "%v";%n']).stdout.splitlines()
    return [line for line in lines if line.split(" ", 1)[0] in wanted]


def _folder(recipe: Recipe) -> Path:
    return cache_root() / "images" / f"{recipe.name}-{recipe.digest}"


def _build(recipe: Recipe, folder: Path) -> int:
    making = folder.with_name(f"{folder.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    free = shutil.disk_usage(folder.parent).free
    if free < _ROOM_BYTES:
        raise LimitError(
            f"{folder.parent}: {free / 1e9:.1f} GB free, an image needs {_ROOM_BYTES / 1e9:.1f} GB to be built; "
            "make room or set KINEMILL_SANDBOX_CACHE"
        )
    making.mkdir(parents=True)
    script = making / "finish-image.sh"
    script.write_text(recipe.script, encoding="utf-8")
    script.chmod(0o700)
    log = folder.with_name(f"{folder.name}.log")
    options = [f"--aptopt={line}" for line in apt_settings()]
    options += ['--aptopt=APT::Install-Recommends "false"', "--dpkgopt=force-unsafe-io"]
    options += [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale", "info")]
    # Its own namespaces, dying with this process: whatever kills the build, no mount and no process is left.
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--propagation=private"]
    command += ["--pid", "--fork", "--kill-child", "--mount-proc", "mmdebstrap", "--mode=root", "--variant=minbase"]
    command += [*options, f"--include={','.join(recipe.packages)}", f'--customize-hook={script} "$1"']
    command += [recipe.suite, str(making / "root"), f"deb {host_mirror()} {recipe.suite} main"]
    try:
        try:
            done = run(command, deadline_s=_DEADLINE_S, check=False, env={"DEBIAN_FRONTEND": "noninteractive"})
        except DeadlineError as error:
            raise DeadlineError(
                f"image {recipe.name} was not built after {_DEADLINE_S / 60:g} minutes: the mirror {host_mirror()} is "
                "slow, or this machine is; try again, or name another mirror in KINEMILL_SANDBOX_MIRROR"
            ) from error
        log.write_text(done.stdout + done.stderr, encoding="utf-8")
        if done.returncode != 0:
            raise _failure(done.stderr, log)
        script.unlink()
        size = _size(making / "root")
        record = {"name": recipe.name, "digest": recipe.digest, "bytes": size, "made": int(time.time())}
        (making / "image.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
        making.rename(folder)
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
    return size


def _failure(text: str, log: Path) -> Exception:
    """The error that the build's own words amount to."""
    tail = "\n".join(text.strip().splitlines()[-6:])
    if "No space left on device" in text:
        return EnvironmentFault(f"the disk ran full while the image was built; make room and try again (log: {log})")
    unreachable = (
        "Could not resolve",
        "Could not connect",
        "Failed to fetch",
        "Connection timed out",
        "Unable to connect",
    )
    if any(words in text for words in unreachable):
        return UnavailableError(f"the package mirror {host_mirror()} does not answer; try again (log: {log}): {tail}")
    return ExternalError(f"mmdebstrap failed (log: {log}): {tail}")


def _size(root: Path) -> int:
    return int(run(["du", "-sx", "--block-size=1", str(root)], deadline_s=300).stdout.split()[0])


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
