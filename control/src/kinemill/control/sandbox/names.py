"""Every name, number and place of a sandbox; all of them follow from its id."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from kinemill.control.sandbox.host import DEFAULT_STATE, cgroup2_root, state_root
from kinemill.errors import ConfigError, EnvironmentFault

__all__ = ["BRIDGE", "GATEWAY", "IDS", "PREFIX_BITS", "PROXY_PORT", "STAND_INS", "Places", "check_name", "node_address"]

IDS = range(1, 64)
BRIDGE = "br0"
# Inside its namespace every sandbox has the same addresses.
GATEWAY = "10.77.0.1"
PREFIX_BITS = 24
PROXY_PORT = 3142
# Where a node sees what stands in for its hardware.
STAND_INS = "/opt/kinemill-stand-ins"

_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")


def check_name(name: str, what: str) -> str:
    """The name, if it is one.

    Raises:
        ConfigError: It is not: host names and interface names follow from it.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{what} {name!r}: 1 to 12 of a-z, 0-9 and '-', a letter first")
    return name


def node_address(index: int) -> str:
    """Address of the node with this index, 0 for the first."""
    return f"10.77.0.{11 + index}"


@dataclass(frozen=True, slots=True)
class Places:
    """Where one sandbox keeps what.

    Attributes:
        id: Its number, one of `IDS`.
    """

    id: int

    @property
    def home(self) -> Path:
        """Everything about the sandbox; gone after `down`."""
        return state_root() / str(self.id)

    @property
    def lock(self) -> Path:
        """Held by the sandbox's anchor process for as long as it lives."""
        return state_root() / "locks" / str(self.id)

    @property
    def record(self) -> Path:
        """Name, image and nodes, as JSON."""
        return self.home / "sandbox.json"

    @property
    def busy(self) -> Path:
        """Held while a command changes the sandbox."""
        return self.home / "busy"

    @property
    def relay(self) -> Path:
        """Unix socket of the package relay: the proxy's only way out."""
        return self.home / "relay.sock"

    @property
    def shared(self) -> Path:
        """Folder that all nodes see at /shared; it stands in for shared storage."""
        return self.home / "shared"

    @property
    def key(self) -> Path:
        """Private key that the nodes accept for root."""
        return self.home / "ssh_key"

    @property
    def known_hosts(self) -> Path:
        """The nodes' host keys."""
        return self.home / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """Settings with which a stock ssh reaches the nodes."""
        return self.home / "ssh_config"

    def node(self, name: str) -> Path:
        """Folder of a node."""
        return self.home / "nodes" / name

    @property
    def cgroup(self) -> Path:
        """The sandbox's cgroup; everything it runs is below it.

        Raises:
            EnvironmentFault: This machine has no cgroup2 mount.
        """
        root = cgroup2_root()
        if root is None:
            raise EnvironmentFault("no cgroup2 mount: mount -t cgroup2 none /sys/fs/cgroup/unified")
        return root / _group() / str(self.id)

    @property
    def twin_cgroup(self) -> Path:
        """Folder that nspawn mirrors into systemd's own hierarchy where a machine still has that one."""
        return Path("/sys/fs/cgroup/systemd") / _group() / str(self.id)


def _group() -> str:
    """Name of the cgroup above all sandboxes of this state folder: ids are counted in each folder by itself."""
    root = state_root()
    if root == DEFAULT_STATE:
        return "kinemill-sandbox"
    return f"kinemill-sandbox-{hashlib.sha256(str(root).encode()).hexdigest()[:8]}"
