"""What the test bed needs of this machine, where it keeps things, and how it runs programs."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinemill.errors import DeadlineError, EnvironmentFault, ExternalError, MissingToolError
from kinemill.settings import cache_dir

__all__ = ["DEFAULT_STATE", "Lack", "cache_root", "cgroup2_root", "lacks", "require", "run", "state_root"]

# Program -> Debian package.
_TOOLS: Mapping[str, str] = {
    "systemd-nspawn": "systemd-container",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "ip": "iproute2",
    "tc": "iproute2",
    "bridge": "iproute2",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "gcc": "gcc",
}
_IMAGE_TOOLS: Mapping[str, str] = {
    "mmdebstrap": "mmdebstrap",
    "setpriv": "util-linux",
    "apt-config": "apt",
    "dpkg": "dpkg",
}


DEFAULT_STATE = Path("/run/kinemill/sandbox")


@dataclass(frozen=True, slots=True)
class Lack:
    """Something that this machine does not have.

    Attributes:
        what: What is missing.
        cure: What to do about it.
        package: The Debian package that brings it, or empty.
    """

    what: str
    cure: str
    package: str = ""


def state_root() -> Path:
    """Where running sandboxes keep all their state (`KINEMILL_SANDBOX_STATE`, default `/run/kinemill/sandbox`)."""
    return Path(os.environ.get("KINEMILL_SANDBOX_STATE") or DEFAULT_STATE)


def cache_root() -> Path:
    """Where images and packages are kept (`KINEMILL_SANDBOX_CACHE`, default below kinemill's cache folder)."""
    own = os.environ.get("KINEMILL_SANDBOX_CACHE")
    if own:
        return Path(own)
    return cache_dir() / "sandbox"


def cgroup2_root() -> Path | None:
    """Where this machine has cgroup2 mounted, or None."""
    for line in Path("/proc/self/mounts").read_text(encoding="ascii", errors="replace").splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind == "cgroup2":
            return Path(place)
    return None


def lacks(*, for_images: bool = False) -> list[Lack]:
    """Everything that this machine lacks, all at once.

    Args:
        for_images: Look for what building an image takes as well.

    Returns:
        What is missing; empty when the test bed can run.
    """
    found: list[Lack] = []
    if os.geteuid() != 0:
        found.append(Lack("root", "run as root: nodes are made of mounts, namespaces and cgroups"))
    for tool, package in {**_TOOLS, **(_IMAGE_TOOLS if for_images else {})}.items():
        if shutil.which(tool, path=_search_path()) is None:
            found.append(Lack(tool, f"apt-get install --no-install-recommends {package}", package))
    filesystems = Path("/proc/filesystems").read_text(encoding="ascii").split()
    if "overlay" not in filesystems and not Path("/sys/module/overlay").exists():
        found.append(Lack("overlayfs in the kernel", "modprobe overlay, or use a kernel that has it"))
    groups = cgroup2_root()
    if groups is None:
        found.append(Lack("a cgroup2 mount", "mount -t cgroup2 none /sys/fs/cgroup/unified"))
    elif not os.access(groups, os.W_OK):
        found.append(Lack(f"the right to write in {groups}", "use a machine or a container that may make cgroups"))
    return found


def require(*, for_images: bool = False) -> None:
    """Refuse to go on where something is missing.

    Raises:
        MissingToolError: A program or a kernel feature is missing; the message lists all of them.
        EnvironmentFault: This is not root.
    """
    found = lacks(for_images=for_images)
    if not found:
        return
    text = "the sandbox needs: " + "; ".join(f"{lack.what} ({lack.cure})" for lack in found)
    packages = sorted({lack.package for lack in found if lack.package})
    if packages:
        text += f". In one line: apt-get install --no-install-recommends {' '.join(packages)}"
    raise EnvironmentFault(text) if os.geteuid() != 0 else MissingToolError(text)


def run(
    command: Sequence[str | os.PathLike[str]],
    *,
    deadline_s: float = 60,
    stdin: str | None = None,
    check: bool = True,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a program with a deadline and plain surroundings.

    Args:
        command: The program and its arguments.
        deadline_s: When to give up.
        stdin: Text for its input.
        check: Raise where it fails.
        env: Further environment.

    Returns:
        Its status and output.

    Raises:
        ExternalError: It failed; the message ends with what it said.
        DeadlineError: It took too long.
        MissingToolError: It is not installed.
    """
    words = [os.fspath(word) for word in command]
    surroundings = {"PATH": _search_path(), "LC_ALL": "C.UTF-8", **(env or {})}
    for name in ("http_proxy", "https_proxy", "no_proxy", "HOME", "KINEMILL_SANDBOX_STATE"):
        if name in os.environ:
            surroundings.setdefault(name, os.environ[name])
    try:
        done = subprocess.run(
            words,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
            env=surroundings,
        )
    except FileNotFoundError as error:
        raise MissingToolError(f"{words[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise DeadlineError(f"{' '.join(words[:6])} ...: not done after {deadline_s:g} s") from error
    if check and done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise ExternalError(f"{' '.join(words)[:300]}: exit {done.returncode}: {said}")
    return done


def _search_path() -> str:
    return "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
