"""A Slurm cluster in a sandbox, configured before its nodes boot so that it is ready seconds after them.

What differs from production is in `TEST_BED` and nowhere else: no cgroup confinement (nodes have no controllers), short
time-outs, and nodes that claim more than this machine has. slurm.conf comes from the role that production uses.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.control.render import render_template
from kinemill.control.sandbox import anchor, faults, images
from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.furnish import File, NodeSpec
from kinemill.control.sandbox.standins import Hardware
from kinemill.errors import DeadlineError, ExternalError

__all__ = ["TEST_BED", "Cluster"]

CONFIG = "/etc/slurm"
_READY_DEADLINE_S = 180

TEST_BED: Mapping[str, Any] = {
    "slurm_controller_auth_info": "cred_expire=5",
    "slurm_controller_constrain": False,
    "slurm_controller_proctrack": "proctrack/linuxproc",
    "slurm_controller_task_plugins": ["task/none"],
    "slurm_controller_select_parameters": "CR_Core",
    "slurm_controller_scheduler_parameters": ["bf_interval=5", "nohold_on_prolog_fail"],
    "slurm_controller_slurmd_parameters": ["config_overrides"],
    "slurm_controller_slurmd_timeout_s": 15,
    "slurm_controller_slurmctld_timeout_s": 30,
    "slurm_controller_message_timeout_s": 10,
    "slurm_controller_kill_wait_s": 5,
    "slurm_controller_resume_timeout_s": 90,
    "slurm_controller_return_to_service": 2,
    "slurm_controller_prolog_flags": ["Alloc"],
    "slurm_controller_prolog": "/etc/slurm/hooks/prolog",
    "slurm_controller_epilog": "/etc/slurm/hooks/epilog",
    "slurm_controller_health_program": "/etc/slurm/hooks/health",
    "slurm_controller_health_interval_s": 10,
    "slurm_controller_reboot_program": "/etc/slurm/hooks/reboot",
}

# Hooks that a test fills: each runs what is executable in a folder beside it and fails as the first of them does.
_HOOK = """#!/bin/sh
for part in /etc/slurm/hooks/{name}.d/*; do
  [ -x "$part" ] || continue
  "$part" || exit $?
done
exit 0
"""
_REBOOT = "#!/bin/sh\nexec systemctl reboot\n"

# The controller's first start needs slurmdbd, and slurmdbd needs to know the cluster.
_ACCOUNTING = """#!/bin/sh
until sacctmgr --immediate --noheader --parsable2 show cluster format=cluster 2>/dev/null | grep -qx {cluster}; do
  sacctmgr --immediate --quiet add cluster {cluster} >/dev/null 2>&1 || sleep 0.2
done
"""
_SLURMCTLD = """[Unit]
After=slurmdbd.service munge.service
Wants=slurmdbd.service munge.service
[Service]
ExecStartPre=+/etc/slurm/hooks/accounting
TimeoutStartSec=90
Restart=on-failure
RestartSec=1
"""
_SLURMDBD = """[Unit]
After=mariadb.service munge.service
Requires=mariadb.service
[Service]
Restart=on-failure
RestartSec=1
"""
_SLURMD = """[Unit]
After=munge.service
Wants=munge.service
[Service]
Restart=on-failure
RestartSec=1
"""
_FOLDERS = """d /var/log/slurm 0755 slurm slurm
d /var/lib/slurm 0755 slurm slurm
d /var/lib/slurm/slurmctld 0700 slurm slurm
d /var/lib/slurm/slurmd 0755 root root
"""
_DBD = """AuthType=auth/munge
DbdHost={controller}
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurmdbd.pid
"""


@dataclass(slots=True)
class Cluster:
    """A running Slurm cluster.

    Attributes:
        box: The sandbox that it runs in.
        controller: The node with slurmctld, slurmdbd and the database.
        computes: The nodes with slurmd.
        image: What they were made from.
        ready_s: Seconds from `up` to all nodes idle.
    """

    box: Sandbox
    controller: str
    computes: tuple[str, ...]
    image: str
    ready_s: float = field(default=0.0)

    @classmethod
    def up(
        cls,
        controller: str,
        computes: Sequence[str],
        *,
        image: str = "bookworm-slurm",
        name: str | None = None,
        gpus: int = 8,
        disk: str = "2G",
        settings: Mapping[str, Any] | None = None,
        proxy: bool = False,
        wheelhouses: Path | None = None,
        owned: bool = False,
        change: Callable[[NodeSpec], NodeSpec] = lambda spec: spec,
        say: Callable[[str], None] = lambda _: None,
    ) -> Cluster:
        """Bring a cluster up.

        Args:
            controller: The controller's host name.
            computes: The compute nodes' host names.
            image: An image with Slurm.
            name: The sandbox's name.
            gpus: Stub GPUs on each compute node.
            disk: Size of each node's writable layer.
            settings: Variables of role slurm_controller that win over `TEST_BED`.
            proxy: Whether nodes reach packages.
            wheelhouses: See `Sandbox.up`.
            owned: See `Sandbox.up`.
            change: Called with each node before it is made; returns what it shall be instead.
            say: Called with a line of progress.

        Returns:
            The cluster, all nodes idle.

        Raises:
            DeadlineError: It does not get ready; the daemons' logs are in the message.
        """
        images.build(image, say=say)
        started = time.monotonic()
        specs = _specs(controller, computes, image=image, gpus=gpus, disk=disk, settings=settings or {})
        specs = [change(spec) for spec in specs]
        box = Sandbox.up(specs, name=name, proxy=proxy, wheelhouses=wheelhouses, owned=owned, say=say)
        cluster = cls(box, controller, tuple(computes), image)
        cluster.wait_idle()
        cluster.ready_s = time.monotonic() - started
        say(f"Slurm {cluster.version()}: {len(computes)} nodes idle after {cluster.ready_s:.1f} s")
        return cluster

    def slurm(self, *command: str, deadline_s: float = 120, check: bool = True) -> str:
        """Output of a Slurm command on the controller."""
        return self.box.exec(self.controller, command, deadline_s=deadline_s, check=check).stdout

    def version(self) -> str:
        """Slurm's version, such as 24.11.5."""
        return self.slurm("scontrol", "--version").split()[-1]

    def states(self) -> dict[str, str]:
        """Node -> its state in sinfo's long words, such as `idle`, `draining`, `down*`."""
        lines = self.slurm("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return dict(line.split() for line in lines)

    def node(self, name: str) -> dict[str, str]:
        """A node as `scontrol show node` prints it."""
        return _fields(self.slurm("scontrol", "--oneliner", "show", "node", name))

    def job(self, job_id: int) -> dict[str, str]:
        """A job as `scontrol show job` prints it."""
        return _fields(self.slurm("scontrol", "--oneliner", "show", "job", str(job_id)))

    def submit(self, script: str, *options: str, user: str = "root") -> int:
        """Submit a batch script; returns the job's id."""
        command = ["sbatch", "--parsable", "--output=/dev/null", "--chdir=/tmp", *options]
        if user != "root":
            command = ["runuser", "-u", user, "--", *command]
        done = self.box.exec(self.controller, command, stdin=f"#!/bin/bash\n{script}\n")
        return int(done.stdout.strip().split(";")[0])

    def wait_idle(self, nodes: Sequence[str] | None = None, *, deadline_s: float = _READY_DEADLINE_S) -> None:
        """Wait until nodes are idle.

        Raises:
            DeadlineError: They are not; the daemons' logs are in the message.
        """
        wanted = set(nodes if nodes is not None else self.computes)

        def idle() -> bool:
            try:
                states = self.states()
            except (ExternalError, ValueError):
                return False
            return all(states.get(node) == "idle" for node in wanted)

        try:
            anchor.until(f"{', '.join(sorted(wanted))} idle", idle, deadline_s=deadline_s, every_s=0.2)
        except DeadlineError as error:
            raise DeadlineError(f"{error}\n{self.report()}") from error

    def hook(self, node: str, kind: str, name: str, script: str | None) -> None:
        """Put a script under a hook of a node (`prolog`, `epilog`, `health`), or take it away with None."""
        path = self.box.root(node) / "etc/slurm/hooks" / f"{kind}.d" / name
        if script is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{name}.new")
        temporary.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        temporary.chmod(0o755)
        temporary.replace(path)

    def settle(self) -> None:
        """Bring the cluster back to where a test can start: no jobs, reservations, hooks or drains; all nodes on."""
        for node in (self.controller, *self.computes):
            if self.box.nspawn_pid(node) is None:
                self.box.on(node)
        faults.partition(self.box, [self.controller, *self.computes], heal=True)
        for node in self.computes:
            for kind in ("prolog", "epilog", "health"):
                for path in (self.box.root(node) / "etc/slurm/hooks").glob(f"{kind}.d/*"):
                    path.unlink()
        ping = ("scontrol", "ping")
        anchor.until("controller", lambda: "UP" in self.slurm(*ping, check=False), deadline_s=_READY_DEADLINE_S)
        for line in self.slurm("scontrol", "--oneliner", "show", "reservation", check=False).splitlines():
            name = _fields(line).get("ReservationName")
            if name:
                self.slurm("scontrol", "delete", f"reservationname={name}", check=False)

        def resumed() -> bool:
            try:
                jobs = self.slurm("squeue", "--noheader", "--all", "--format=%A").split()
                states = self.states()
            except (ExternalError, ValueError):  # a controller that has just started
                return False
            for job in jobs:
                self.slurm("scancel", "--full", job, check=False)
            for node, state in states.items():
                if state.startswith(("drain", "down")):
                    self.slurm("scontrol", "update", f"nodename={node}", "state=resume", check=False)
            return not jobs and all(states.get(node) == "idle" for node in self.computes)

        try:
            anchor.until("all nodes idle", resumed, deadline_s=_READY_DEADLINE_S, every_s=0.3)
        except DeadlineError as error:
            raise DeadlineError(f"{error}\n{self.report()}") from error

    def report(self) -> str:
        """The end of every daemon's log, for a failed test."""
        parts: list[str] = []
        logs = {self.controller: ("slurmctld", "slurmdbd"), **dict.fromkeys(self.computes, ("slurmd",))}
        for node, daemons in logs.items():
            for daemon in daemons:
                path = self.box.root(node) / "var/log/slurm" / f"{daemon}.log"
                with contextlib.suppress(OSError):
                    tail = path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
                    parts += [f"--- {node} {daemon}.log", *tail]
            parts += [f"--- {node} journal", self.box.journal(node, lines=12).rstrip()]
        return "\n".join(parts)

    def down(self) -> None:
        """Remove it."""
        self.box.down()


def _fields(line: str) -> dict[str, str]:
    """`Name=value` words; a value that holds blanks, such as a reason, is kept whole."""
    found: dict[str, str] = {}
    last = ""
    for word in line.split():
        name, mark, value = word.partition("=")
        if mark and name.replace("/", "").replace(":", "").replace("_", "").isalnum() and name[:1].isupper():
            found[name] = value
            last = name
        elif last:
            found[last] += f" {word}"
    return found


def _specs(
    controller: str, computes: Sequence[str], *, image: str, gpus: int, disk: str, settings: Mapping[str, Any]
) -> list[NodeSpec]:
    """The nodes with everything that makes them a cluster."""
    old = images.recipe_of(image).suite == "bookworm"
    hardware = {"cpus": 16, "memory_mb": 64000, "gpus": gpus, "gpu_type": "h200"}
    variables = {
        **TEST_BED,
        "slurm_controller_cluster_name": "sandbox",
        "slurm_controller_hosts": [controller],
        "slurm_controller_nodes": [{"name": node, **hardware} for node in computes],
        "slurm_controller_accounting_host": controller,
        # 22.05 knows no "disabled"; it starts with v1 although nothing is mounted there.
        "slurm_controller_cgroup_plugin": "cgroup/v1" if old else "disabled",
        **settings,
    }
    files = {
        f"{CONFIG}/{name}": File(render_template("slurm_controller", f"{name}.j2", variables))
        for name in ("slurm.conf", "gres.conf", "cgroup.conf")
    }
    files |= {f"{CONFIG}/hooks/{name}": File(_HOOK.format(name=name), 0o755) for name in ("prolog", "epilog", "health")}
    files[f"{CONFIG}/hooks/reboot"] = File(_REBOOT, 0o755)
    files["/etc/munge/munge.key"] = File(secrets.token_hex(64), 0o400, "munge")
    files["/etc/tmpfiles.d/sandbox-slurm.conf"] = File(_FOLDERS)
    drop_in = "/etc/systemd/system/{}.service.d/sandbox.conf"
    head = {
        f"{CONFIG}/slurmdbd.conf": File(_DBD.format(controller=controller), 0o600, "slurm"),
        f"{CONFIG}/hooks/accounting": File(_ACCOUNTING.format(cluster="sandbox"), 0o755),
        drop_in.format("slurmctld"): File(_SLURMCTLD),
        drop_in.format("slurmdbd"): File(_SLURMDBD),
    }
    body = {
        # Uptime in a node is this machine's: without -b the controller could not see a reboot.
        "/etc/default/slurmd": File('SLURMD_OPTIONS="-b"\n'),
        drop_in.format("slurmd"): File(_SLURMD),
    }
    units = ("munge.service", "mariadb.service", "slurmdbd.service", "slurmctld.service")
    specs = [NodeSpec(controller, image=image, disk=disk, hardware=None, files={**files, **head}, units=units)]
    for node in computes:
        specs.append(
            NodeSpec(
                node,
                image=image,
                disk=disk,
                hardware=Hardware(gpus=gpus),
                files={**files, **body},
                units=("munge.service", "slurmd.service"),
            )
        )
    return specs
