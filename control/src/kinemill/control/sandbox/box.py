"""A sandbox: a private network with real nodes in it, on one machine.

Nodes share this machine's kernel as real root. It is a test bed, not a cage for hostile code.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kinemill.control.sandbox import anchor, furnish, images, node_parts
from kinemill.control.sandbox.furnish import NodeSpec
from kinemill.control.sandbox.host import require, run, state_root
from kinemill.control.sandbox.names import Places, check_name, node_address
from kinemill.errors import (
    ConfigError,
    ConflictError,
    DeadlineError,
    ExternalError,
    NotFoundError,
    StateError,
    UnavailableError,
)
from kinemill.process import ProcessId

__all__ = ["NodeStatus", "Sandbox", "names", "sweep", "temporary"]

_BOOT_DEADLINE_S = 300
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_DEFAULT_NAME = "default"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as `status` shows it.

    Attributes:
        name: Its host name.
        address: Its address in the sandbox.
        image: What it was made from.
        state: `up`, `booting`, `off`.
        disk_used_bytes: Bytes in its writable layer.
    """

    name: str
    address: str
    image: str
    state: str
    disk_used_bytes: int


def sweep() -> list[int]:
    """Remove what killed commands, dead owners and reboots left; returns the ids."""
    swept: list[int] = []
    with anchor.locked(state_root() / "locks" / "sweep"):
        for places in names().values():
            owner = anchor.read_record(places).get("owner")
            if owner is not None and not ProcessId(**owner).alive():
                anchor.destroy(places)
                swept.append(places.id)
        for places in anchor.leftovers():
            # Whoever holds the lock for a moment more is just starting; `allocate` decides, not us.
            with contextlib.suppress(ConflictError), anchor.locked(places.lock, deadline_s=0):
                anchor.destroy(places)
                swept.append(places.id)
    return swept


def names() -> dict[str, Places]:
    """Name -> places of every sandbox that has a name."""
    folder = state_root() / "by-name"
    found: dict[str, Places] = {}
    for link in sorted(folder.iterdir()) if folder.is_dir() else []:
        if link.is_symlink() and link.readlink().name.isdigit():
            found[link.name] = Places(int(link.readlink().name))
    return found


class Sandbox:
    """One running sandbox.

    Args:
        places: Its places; use `open` or `up`.
        name: Its name.
    """

    def __init__(self, places: Places, name: str) -> None:
        self.places = places
        self.name = name

    # ---- life

    @classmethod
    def open(cls, name: str | None = None) -> Sandbox:
        """A running sandbox by name (default: `KINEMILL_SANDBOX`, else `default`).

        Raises:
            NotFoundError: There is none of that name.
            StateError: It is a leftover.
        """
        wanted = check_name(name or os.environ.get("KINEMILL_SANDBOX") or _DEFAULT_NAME, "sandbox")
        places = names().get(wanted)
        if places is None:
            raise NotFoundError(f"no sandbox {wanted!r}; bring one up: kinemill sandbox up --name {wanted}")
        anchor.anchor_pid(places)
        return cls(places, wanted)

    @classmethod
    def up(
        cls,
        specs: Sequence[NodeSpec],
        *,
        name: str | None = None,
        proxy: bool = True,
        wheelhouses: Path | None = None,
        owned: bool = False,
        say: Callable[[str], None] = lambda _: None,
    ) -> Sandbox:
        """Bring a sandbox and its nodes up; nodes that are up stay as they are.

        Args:
            specs: Its nodes. In a sandbox that is up, further ones are added and those that are off are switched on.
            name: Its name; see `open`.
            proxy: Whether the nodes reach packages.
            wheelhouses: A folder that all nodes see read-only at /srv/wheelhouses.
            owned: Whether it is swept once this process is dead.
            say: Called with a line of progress.

        Returns:
            The sandbox; every node answers on its ssh port.

        Raises:
            MissingToolError: This machine lacks something.
            ConfigError: A name is bad or given twice.
            ConflictError: All ids are taken, or another command is at work on this sandbox.
            DeadlineError: A node did not boot; the end of its console is in the message.
        """
        require()
        wanted = check_name(name or os.environ.get("KINEMILL_SANDBOX") or _DEFAULT_NAME, "sandbox")
        if len({check_name(spec.name, "node") for spec in specs}) != len(specs):
            raise ConfigError("two nodes have the same name")
        swept = sweep()
        if swept:
            say(f"swept what a killed run left: sandbox {', '.join(map(str, swept))}")
        found = {spec.image: images.build(spec.image, say=say) for spec in specs}
        box = cls._open_or_start(wanted, owned=owned)
        with anchor.locked(box.places.busy):
            if proxy:
                box.start_relay()
            fresh = box._add(specs, found, wheelhouses=wheelhouses, proxy=proxy)
            for spec in specs:
                if box.nspawn_pid(spec.name) is None:
                    box._switch_on(spec.name)
            box.wait([spec.name for spec in specs])
        say(f"sandbox {wanted}: {len(specs)} nodes up, {len(fresh)} new")
        return box

    @classmethod
    def _open_or_start(cls, name: str, *, owned: bool) -> Sandbox:
        with anchor.locked(state_root() / "locks" / "names"):
            places = names().get(name)
            if places is not None:
                anchor.anchor_pid(places)
                return cls(places, name)
            places, fd = anchor.allocate()
            try:
                anchor.start(places, fd)
                owner = ProcessId.of(os.getpid()) if owned else None
                record = {"id": places.id, "name": name, "made": int(time.time()), "nodes": []}
                record["owner"] = asdict(owner) if owner else None
                box = cls(places, name)
                box._write_record(record)
                for folder in (places.home / "nodes", places.shared):
                    folder.mkdir(exist_ok=True)
                places.shared.chmod(0o1777)
                run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sandbox", "-f", places.key])
                node_parts.write_ssh_config(box.places, box.nodes)
                link = state_root() / "by-name" / name
                link.parent.mkdir(exist_ok=True)
                link.symlink_to(Path("..") / str(places.id))
            except BaseException:
                anchor.destroy(places)
                raise
            return box

    def down(self) -> None:
        """Remove the sandbox with everything in it."""
        anchor.destroy(self.places)

    @property
    def record(self) -> dict[str, Any]:
        """Name, nodes and images."""
        return anchor.read_record(self.places)

    def _write_record(self, record: Mapping[str, Any]) -> None:
        temporary = self.places.record.with_suffix(".tmp")
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        temporary.replace(self.places.record)

    # ---- nodes

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes, in the order of their addresses."""
        return list(self.record.get("nodes", []))

    def address(self, node: str) -> str:
        """A node's address.

        Raises:
            NotFoundError: There is no such node.
        """
        try:
            return node_address(self.nodes.index(node))
        except ValueError:
            raise NotFoundError(f"sandbox {self.name} has no node {node!r}; it has {', '.join(self.nodes)}") from None

    def root(self, node: str) -> Path:
        """A node's root folder as this machine can read and write it, booted or not."""
        self.address(node)
        return Path(f"/proc/{anchor.anchor_pid(self.places)}/root{self.places.node(node)}/root")

    def stand_ins(self, node: str) -> Path:
        """The folder with what stands in for the node's hardware."""
        self.address(node)
        return self.places.node(node) / "stand-ins"

    def _add(
        self,
        specs: Sequence[NodeSpec],
        found: Mapping[str, images.Image],
        *,
        wheelhouses: Path | None,
        proxy: bool,
    ) -> list[str]:
        record = self.record
        for spec in specs:
            self._refuse_another(spec)
        # A node without node.json was being made when its maker was killed.
        fresh = [spec for spec in specs if not (self.places.node(spec.name) / "node.json").is_file()]
        if not fresh:
            return []
        for spec in fresh:
            node_parts.clear(self.places, spec.name)
        record["nodes"] = [*record["nodes"], *(spec.name for spec in fresh if spec.name not in record["nodes"])]
        self._write_record(record)
        for spec in fresh:
            node_parts.make(self.places, spec, found[spec.image], self.address(spec.name))
        public = self.places.key.with_suffix(".pub").read_text(encoding="ascii")
        for spec in fresh:
            self._furnish(spec, public, wheelhouses=wheelhouses, proxy=proxy)
        node_parts.write_ssh_config(self.places, self.nodes)
        for node in record["nodes"]:
            self._add_hosts(node)
        return [spec.name for spec in fresh]

    def _refuse_another(self, spec: NodeSpec) -> None:
        """A node that is there is taken as it is only where it was made from the same image.

        Raises:
            ConflictError: It was made from another one.
        """
        with contextlib.suppress(OSError):
            made = json.loads((self.places.node(spec.name) / "node.json").read_text(encoding="utf-8"))
            if made["image"] != spec.image:
                raise ConflictError(
                    f"node {spec.name} of sandbox {self.name} is made from {made['image']}, not {spec.image}; "
                    "take the sandbox down, or give this one another name"
                )

    def _furnish(self, spec: NodeSpec, public_key: str, *, wheelhouses: Path | None, proxy: bool) -> None:
        """Identity, keys, package sources, stand-ins and files of a node before its first boot."""
        folder = self.places.node(spec.name)
        host_key = folder / "ssh_host_ed25519_key"
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", spec.name, "-f", host_key])
        host_public = host_key.with_suffix(".pub").read_text(encoding="ascii")
        with self.places.known_hosts.open("a", encoding="ascii") as handle:
            handle.write(f"{spec.name} {' '.join(host_public.split()[:2])}\n")
        furnish.furnish(self.root(spec.name), spec, public_key=public_key, host_key=host_key, proxy=proxy)
        binds = [f"--bind-ro={bind}" for bind in spec.binds]
        if wheelhouses is not None:
            binds.append(f"--bind-ro={wheelhouses.resolve()}:/srv/wheelhouses")
        node: dict[str, object] = {"name": spec.name, "image": spec.image, "binds": binds}
        node["hardware"] = None if spec.hardware is None else asdict(spec.hardware)
        temporary = folder / "node.json.tmp"
        temporary.write_text(json.dumps(node, indent=2) + "\n", encoding="utf-8")
        temporary.replace(folder / "node.json")

    def use_library(self, node: str, variant: str) -> None:
        """Swap the node's stub library: `whole`, `partial`, `empty`, or `absent`."""
        furnish.install_library(self.root(node), variant)

    def _add_hosts(self, node: str) -> None:
        """Add lines that are missing; never rewrite a file that the node may share with others."""
        path = self.root(node) / "etc" / "hosts"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        known = {word for line in text.splitlines() for word in line.split("#")[0].split()[1:]}
        missing = [f"{self.address(name)} {name}\n" for name in self.nodes if name not in known]
        if missing:
            with path.open("a", encoding="utf-8") as handle:
                handle.writelines(missing)

    def _switch_on(self, node: str) -> None:
        folder = self.places.node(node)
        cgroup = self.places.cgroup / node
        cgroup.mkdir(exist_ok=True)
        if not self._is_off(node):
            return
        command = ["nsenter", "-t", str(anchor.anchor_pid(self.places)), "-m", "-n", "--"]
        command += [sys.executable, "-m", "kinemill.control.sandbox.supervise", str(self.places.id), node]
        pid = anchor.detach(
            command,
            cgroup=cgroup,
            pid_file=folder / "supervisor.pid",
            log=folder / "console.log",
            env=_child_environment(),
        )
        anchor.until(
            f"start of {node}",
            lambda: self.nspawn_pid(node) is not None or not anchor.alive(pid),
            deadline_s=_BOOT_DEADLINE_S,
        )
        if not anchor.alive(pid):
            raise ExternalError(f"node {node} did not start; its console ends with:\n{self.logs(node, lines=15)}")

    def _is_off(self, node: str) -> bool:
        """Whether the node is off for good; waits for its supervisor to end, or to boot it once more.

        The last that a supervisor does is to forget the node's process id, which must not be its successor's.
        """
        try:
            pid = int((self.places.node(node) / "supervisor.pid").read_text())
        except (OSError, ValueError):
            return True
        anchor.until(
            f"end of {node}, or its boot",
            lambda: self.nspawn_pid(node) is not None or pid not in anchor.pids(self.places) or not anchor.alive(pid),
            deadline_s=_BOOT_DEADLINE_S,
        )
        return self.nspawn_pid(node) is None

    def nspawn_pid(self, node: str) -> int | None:
        """Process id of the node's nspawn, or None where the node is off."""
        try:
            pid = int((self.places.node(node) / "nspawn.pid").read_text())
        except (OSError, ValueError):
            return None
        return pid if pid in anchor.pids(self.places) else None

    def leader(self, node: str) -> int:
        """Process id, on this machine, of the node's PID 1.

        Raises:
            StateError: The node is off.
        """
        self.address(node)
        pid = self.nspawn_pid(node)
        children = _children(pid) if pid else []
        if not children:
            raise StateError(f"node {node} is off; switch it on: kinemill sandbox on {node}")
        return children[0]

    def wait(self, nodes: Sequence[str] | None = None, *, deadline_s: float = _BOOT_DEADLINE_S) -> None:
        """Wait until nodes answer on their ssh port.

        Raises:
            DeadlineError: One does not; the end of its console is in the message.
        """
        for node in nodes if nodes is not None else self.nodes:
            question = functools.partial(self._answers_or_ended, node)
            try:
                anchor.until(f"node {node} answers", question, deadline_s=deadline_s)
            except DeadlineError as error:
                raise DeadlineError(f"{error}; its console ends with:\n{self.logs(node, lines=15)}") from error

    def _answers_or_ended(self, node: str) -> bool:
        if self._answers(node):
            return True
        try:
            supervisor = int((self.places.node(node) / "supervisor.pid").read_text())
        except (OSError, ValueError):
            supervisor = 0
        if not anchor.alive(supervisor):
            raise ExternalError(f"node {node} ended; its console ends with:\n{self.logs(node, lines=15)}")
        return False

    def _answers(self, node: str) -> bool:
        try:
            with anchor.tcp(self.places, self.address(node), 22, deadline_s=2) as connection:
                connection.settimeout(2)
                return connection.recv(4) == b"SSH-"
        except (UnavailableError, OSError):
            return False

    def status(self) -> list[NodeStatus]:
        """All nodes."""
        found: list[NodeStatus] = []
        for node in self.nodes:
            on = self.nspawn_pid(node) is not None
            state = "off" if not on else "up" if self._answers(node) else "booting"
            image = json.loads((self.places.node(node) / "node.json").read_text(encoding="utf-8"))["image"]
            usage = os.statvfs(self.root(node))
            used = (usage.f_blocks - usage.f_bfree) * usage.f_frsize
            found.append(NodeStatus(node, self.address(node), image, state, used))
        return found

    def on(self, node: str) -> None:
        """Switch a node on and wait until it answers; one that is on stays as it is."""
        self.address(node)
        with anchor.locked(self.places.busy):
            if self.nspawn_pid(node) is None:
                self._switch_on(node)
        self.wait([node])

    # ---- using nodes

    def exec_command(self, node: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command inside a node, from this machine."""
        inner = ["env", "-i", f"PATH={_PATH}", "HOME=/root", "LC_ALL=C.UTF-8", f"TERM={os.environ.get('TERM', 'dumb')}"]
        # --root and --wd: without them a relative path would still mean this machine's folder.
        entered = ["nsenter", "-t", str(self.leader(node)), "-a", "-r", "-w", "--", *inner, *command]
        return anchor.placed(self.places.cgroup / node, entered)

    def exec(
        self, node: str, command: Sequence[str], *, deadline_s: float = 60, check: bool = True, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside a node; see `host.run`."""
        done = run(self.exec_command(node, command), deadline_s=deadline_s, check=False, stdin=stdin)
        if check and done.returncode != 0:
            said = (done.stderr.strip() or done.stdout.strip())[-2000:]
            raise ExternalError(f"{node}: {' '.join(command)[:300]}: exit {done.returncode}: {said}")
        return done

    def logs(self, node: str, *, lines: int = 200) -> str:
        """The end of a node's console."""
        self.address(node)
        path = self.places.node(node) / "console.log"
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        return "\n".join(text.splitlines()[-lines:])

    def journal(self, node: str, *, lines: int = 200) -> str:
        """The end of a node's journal, whether it is on or off."""
        folder = self.root(node) / "var" / "log" / "journal"
        return run(["journalctl", f"--directory={folder}", "--no-pager", f"--lines={lines}"], check=False).stdout

    # ---- parts

    def start_relay(self) -> None:
        """Give the nodes their way to packages."""
        pid_file = self.places.home / "proxy.pid"
        with contextlib.suppress(OSError, ValueError):
            if int(pid_file.read_text()) in anchor.pids(self.places):
                return
        mirrors = json.dumps({"debian": images.host_mirror()})
        command = [sys.executable, "-m", "kinemill.control.sandbox.relay", str(self.places.id), mirrors]
        log = self.places.home / "relay.log"
        pid_file.unlink(missing_ok=True)
        pid = anchor.detach(
            command,
            cgroup=self.places.cgroup,
            pid_file=self.places.home / "relay.pid",
            log=log,
            env=_child_environment(),
        )
        anchor.until("package proxy", lambda: pid_file.is_file() or not anchor.alive(pid), deadline_s=_BOOT_DEADLINE_S)
        if not anchor.alive(pid):
            raise ExternalError(f"the package relay did not start: {log.read_text(errors='replace').strip()[-500:]}")


def _child_environment() -> dict[str, str]:
    kept = ["KINEMILL_SANDBOX_STATE", "KINEMILL_SANDBOX_CACHE", "KINEMILL_CACHE_DIR", "KINEMILL_CONFIG_DIR"]
    kept += ["http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE"]
    return {"PATH": _PATH, "LC_ALL": "C.UTF-8", **{name: os.environ[name] for name in kept if name in os.environ}}


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@contextlib.contextmanager
def temporary(specs: Sequence[NodeSpec], **options: Any) -> Iterator[Sandbox]:
    """A sandbox that is gone after the block."""
    box = Sandbox.up(specs, **options)
    try:
        yield box
    finally:
        box.down()
