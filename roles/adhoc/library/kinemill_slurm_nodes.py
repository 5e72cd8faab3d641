#!/usr/bin/python3
"""Ansible module: drain nodes for a person, lift such drains, and wait for nodes; the rest is left alone.

Runs on a controller and uses the Slurm access of the agents that are installed there.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible.module_utils.basic import AnsibleModule

if TYPE_CHECKING:
    from kinemill.contracts.slurm import NodeInfo, SlurmAdmin

DOCUMENTATION = r"""
module: kinemill_slurm_nodes
short_description: Drain nodes for a person, lift such drains, wait for nodes
description:
  - C(drained) writes C(kinemill1|operator|H|<code>|<event>|<text>) as the reason. A node that somebody else drained is
    refused, or kept as it is with C(keep); its reason is never overwritten. Either all nodes are drained or none.
  - C(resumed) lifts drains of this form only, and with C(event) only that one. A node in service is left alone.
  - C(idle) waits until no job is on the nodes, C(registered) until Slurm hears them again, C(shown) only looks.
author: kinemill
options:
  nodes:
    description: Names; C(unknown_ok) says whether Slurm may not know one.
    type: list
    elements: str
    required: true
  state:
    description: What to bring about.
    type: str
    choices: [drained, resumed, idle, registered, shown]
    required: true
  code:
    description: What it is for, such as C(drain) or C(reboot).
    type: str
    default: drain
  text:
    description: Who, until when, why.
    type: str
    default: ""
  keep:
    description: Leave a node that is drained already as it is.
    type: bool
    default: false
  event:
    description: Eight digits of one drain.
    type: str
    default: ""
  unknown_ok:
    description: Whether nodes that Slurm does not know are passed over.
    type: bool
    default: false
  agents:
    description: The agents' venv on this host.
    type: path
    required: true
  wait_s:
    description: How long C(idle) and C(registered) wait.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Drain
  kinemill_slurm_nodes:
    nodes: [n1]
    state: drained
    text: "anna: fan swap"
    agents: /opt/kinemill/agents/current
"""

CHECK = "operator"
"""Stands where an agent's reason names its check, so that people and automatons tell the two apart."""
DRAINED = {"DRAIN", "DRAINED", "DRAINING"}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
ON_NODE = {"RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STOPPED"}
HANDS_OFF = ("UNKNOWN", "FUTURE", "POWER")
AWAY = {"DOWN", "NOT_RESPONDING", "UNKNOWN", "REBOOT_ISSUED", "REBOOT_REQUESTED", "INVALID_REG"}


class Done:
    """What came of it.

    Attributes:
        event: Number of the drain that was written, or stood there already; empty where there is none.
        kept: Nodes that were left as they are, and their reasons.
        unknown: Names that Slurm does not know.
    """

    def __init__(self, unknown: Sequence[str] = ()) -> None:
        self.changed = False
        self.event = ""
        self.drained: list[str] = []
        self.resumed: list[str] = []
        self.kept: dict[str, str] = {}
        self.unknown = list(unknown)


class RefusedError(Exception):
    """What was asked for is not done; the message says why."""


def known(slurm: SlurmAdmin, names: Sequence[str], *, unknown_ok: bool) -> tuple[list[NodeInfo], list[str]]:
    """The nodes, and the names that Slurm does not know.

    Raises:
        RefusedError: There are some, and there may be none.
    """
    table = {node.name: node for node in slurm.nodes()}
    unknown = [name for name in names if name not in table]
    if unknown and not unknown_ok:
        raise RefusedError(f"Slurm does not know {', '.join(unknown)}; see: sinfo -N")
    return [table[name] for name in names if name in table], unknown


def shown(node: NodeInfo) -> str:
    """`n1 (IDLE+DRAIN: reason)`."""
    return f"{node.name} ({'+'.join(sorted(node.states))}{': ' + node.reason if node.reason else ''})"


def drain(slurm: SlurmAdmin, names: Sequence[str], asked: dict[str, Any], *, dry: bool = False) -> Done:
    """Drain all, or refuse and drain none.

    Raises:
        RefusedError: Somebody else drained one of them, or its state is not known.
    """
    from kinemill.contracts.fleet import DrainEvent, format_reason, parse_reason

    nodes, unknown = known(slurm, names, unknown_ok=asked["unknown_ok"])
    done = Done(unknown=unknown)
    wanted: list[NodeInfo] = []
    foreign: list[str] = []
    for node in nodes:
        ours = parse_reason(node.reason)
        if any(state.startswith(HANDS_OFF) for state in node.states):
            foreign.append(shown(node))
        elif not node.states & DRAINED:
            wanted.append(node)
        elif ours is not None and (ours.check, ours.code, ours.text) == (CHECK, asked["code"], asked["text"]):
            done.kept[node.name] = node.reason
            done.event = ours.event
        elif asked["keep"]:
            done.kept[node.name] = node.reason
        else:
            foreign.append(shown(node))
    if foreign:
        raise RefusedError(
            f"none was drained, for these are drained already, or their state is unclear: {', '.join(foreign)}"
        )
    event = secrets.token_hex(4)
    reason = format_reason(DrainEvent(CHECK, "H", asked["code"], event, asked["text"]))
    for node in wanted:
        if not dry:
            (now,) = slurm.nodes([node.name])  # Slurm has no compare-and-set: look again right before
            if now.states & DRAINED:
                raise RefusedError(
                    f"{shown(now)} was drained by somebody else meanwhile; drained so far: {done.drained}"
                )
            slurm.drain(node.name, reason)
        done.drained.append(node.name)
        done.changed, done.event = True, event
    return done


def resume(slurm: SlurmAdmin, names: Sequence[str], asked: dict[str, Any], *, dry: bool = False) -> Done:
    """Lift our drains; a node in service is left alone.

    Raises:
        RefusedError: A node is drained by somebody else, or by another drain than the one asked for; none is lifted.
    """
    from kinemill.contracts.fleet import parse_reason

    nodes, unknown = known(slurm, names, unknown_ok=asked["unknown_ok"])
    done = Done(unknown=unknown)
    wanted: list[NodeInfo] = []
    foreign: list[str] = []
    for node in nodes:
        ours = parse_reason(node.reason)
        if not node.states & DRAINED:
            done.kept[node.name] = ""
        elif ours is None or ours.check != CHECK or (asked["event"] and ours.event != asked["event"]):
            foreign.append(shown(node))
        else:
            wanted.append(node)
    if foreign:
        which = f"drain {asked['event']}" if asked["event"] else "a drain of drain.yml or its like"
        raise RefusedError(f"none was resumed, for these are not under {which}: {', '.join(foreign)}")
    for node in wanted:
        if not dry:
            (now,) = slurm.nodes([node.name])
            if now.reason != node.reason:
                raise RefusedError(f"{shown(now)} changed meanwhile; resumed so far: {done.resumed}")
            slurm.resume(node.name)
        done.resumed.append(node.name)
        done.changed = True
    return done


def wait(
    slurm: SlurmAdmin,
    names: Sequence[str],
    asked: dict[str, Any],
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Done:
    """Wait until the nodes are free of jobs, or heard again.

    Raises:
        RefusedError: They are not, in time; the message names them and their jobs.
    """
    from kinemill.errors import KinemillError

    until = clock() + asked["wait_s"]
    while True:
        try:
            nodes, unknown = known(slurm, names, unknown_ok=asked["unknown_ok"])
            if asked["state"] == "idle":
                late = [node for node in nodes if node.states & BUSY]
            else:
                late = [node for node in nodes if node.states & AWAY or not node.boot_time_s]
            what = [shown(node) for node in late]
        except KinemillError as error:  # a controller that is just restarting
            if not error.transient or clock() >= until:
                raise
            late, what = [None], [str(error)]
        if not late:
            return Done(unknown=unknown)
        if clock() >= until:
            raise RefusedError(
                f"after {asked['wait_s']} s still not {asked['state']}: {', '.join(what)}{_jobs(slurm, late)}"
            )
        sleep(min(5.0, max(0.5, asked["wait_s"] / 60)))


def _jobs(slurm: SlurmAdmin, late: Sequence[NodeInfo | None]) -> str:
    names = {node.name for node in late if node is not None}
    found = [job for job in slurm.jobs() if job.state in ON_NODE and names & set(job.nodes)]
    jobs = [f"{job.job_id} of {job.user or '?'}" for job in found]
    return f"; jobs there: {', '.join(jobs[:20])}" if jobs else ""


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "nodes": {"type": "list", "elements": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["drained", "resumed", "idle", "registered", "shown"],
                "required": True,
            },
            "code": {"type": "str", "default": "drain"},
            "text": {"type": "str", "default": ""},
            "keep": {"type": "bool", "default": False},
            "event": {"type": "str", "default": ""},
            "unknown_ok": {"type": "bool", "default": False},
            "agents": {"type": "path", "required": True},
            "wait_s": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    # Pure Python, so it does not matter which one runs this module.
    sys.path[:0] = [str(found) for found in Path(module.params["agents"]).glob("lib/python3*/site-packages")]
    try:
        from kinemill.errors import KinemillError
        from kinemill.slurm.cli import open_admin
    except ImportError as error:
        module.fail_json(msg=f"the agents are not installed on this host, so Slurm cannot be asked: {error}")
    slurm = open_admin(timeout_s=30)
    asked = module.params
    try:
        if asked["state"] == "drained":
            done = drain(slurm, asked["nodes"], asked, dry=module.check_mode)
        elif asked["state"] == "resumed":
            done = resume(slurm, asked["nodes"], asked, dry=module.check_mode)
        elif asked["state"] == "shown":
            done = Done(unknown=known(slurm, asked["nodes"], unknown_ok=asked["unknown_ok"])[1])
        else:
            done = Done() if module.check_mode else wait(slurm, asked["nodes"], asked)
        nodes, _ = known(slurm, asked["nodes"], unknown_ok=True)
    except (KinemillError, RefusedError) as error:
        module.fail_json(msg=str(error))
    look = {node.name: {"states": sorted(node.states), "reason": node.reason} for node in nodes}
    module.exit_json(**vars(done), nodes=look)


if __name__ == "__main__":
    main()
