"""Whether every node can be reached, lets its operator become root, and is what the inventory says.

The nodes are asked through Ansible itself, all at once: only so does the answer hold for the run that follows, whatever
jump hosts, users and keys the inventory sets.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinemill.control.deploy.engine import Order, play
from kinemill.control.deploy.reading import Target
from kinemill.control.deploy.record import Finding, NodeLook
from kinemill.control.deploy.redact import Redactor
from kinemill.control.deploy.remedy import explain
from kinemill.control.deploy.tally import message_of

__all__ = ["AT_ONCE", "Answers", "deadline_s", "families", "look_at", "parse_look"]

AT_ONCE = 50
"""Nodes asked at a time."""

_CLOCK_S = 60
"""munge takes credentials that are up to 300 s old; a clock that far off is a fault long before."""
_FULL_MB = 16
"""Below this Ansible cannot put its own modules on the node."""


@dataclass(slots=True)
class Answers:
    """What the nodes said, event by event.

    Attributes:
        targets: The nodes asked, by name.
        looks: What each said.
        findings: What is wrong.
        complaint: What Ansible said where it could not even ask.
    """

    targets: Mapping[str, Target]
    looks: dict[str, NodeLook] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    complaint: str = ""
    _settled: set[str] = field(default_factory=set)
    _full: set[str] = field(default_factory=set)

    def feed(self, event: Mapping[str, Any], *, now_s: float) -> None:
        """Take one event of ansible-runner, secrets already out."""
        kind = event.get("event")
        if kind in ("verbose", "error"):
            text = str(event.get("stdout", "")).strip()
            if text.startswith(("[ERROR]", "ERROR!")) and not self.complaint:
                self.complaint = text
            return
        data = event.get("event_data")
        if kind not in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable") or not isinstance(data, Mapping):
            return
        host, task = str(data.get("host")), str(data.get("task"))
        result = data.get("res")
        result = result if isinstance(result, Mapping) else {}
        if kind == "runner_on_unreachable":
            self._settled.add(host)
            self._add(unreachable(host, self.targets.get(host), message_of(result)))
        elif kind == "runner_on_failed":
            self._refused(host, task, result)
        elif task == "Log in":
            self._settled.add(host)
            self._looked(host, str(result.get("stdout", "")), now_s)

    def unanswered(self, after_s: float) -> None:
        """Add those who said nothing in time."""
        for host in self.targets:
            if host not in self._settled:
                text = f"did not answer within {after_s:.0f} s"
                self._add(Finding("reach", host, text, "check power and network, or leave it out with --limit", True))

    def _add(self, finding: Finding) -> None:
        if finding not in self.findings:
            self.findings.append(finding)

    def _looked(self, host: str, text: str, now_s: float) -> None:
        look = parse_look(text)
        self.looks[host] = look
        target = self.targets.get(host)
        if 0 <= look.free_mb < _FULL_MB:
            self._full.add(host)
            self._add(Finding("node", host, f"/ is full: {look.free_mb} MiB free", "make room on the node"))
        if not look.python:
            self._add(Finding("node", host, "has no python3, which Ansible needs there", "apt-get install python3"))
        if target is None or target.connection == "local":
            return
        if look.addresses and families(look.addresses) == {6}:
            text = f"has IPv6 addresses only ({', '.join(look.addresses[:3])}); Slurm is set up for IPv4 here"
            self._add(Finding("node", host, text, "give the node an IPv4 address"))
        if look.clock_s and abs(look.clock_s - now_s) > _CLOCK_S:
            text = f"its clock is {look.clock_s - now_s:+.0f} s off ours; munge refuses what is older than 300 s"
            self._add(Finding("node", host, text, "set the clock, or let the role base install one", fatal=False))

    def _refused(self, host: str, task: str, result: Mapping[str, Any]) -> None:
        message = message_of(result)
        remedy = explain(message)
        if task == "Become root":
            meaning = remedy.meaning if remedy and remedy.kind == "sudo" else f"cannot become root: {_line(message)}"
            action = remedy.action if remedy and remedy.kind == "sudo" else "check ansible_become and sudo on the node"
            self._settled.add(host)
            self._add(Finding("reach", host, meaning, action))
            return
        if host in self._full and remedy is not None and remedy.kind == "disk":
            return  # told already
        said = result.get("msg")
        if isinstance(said, list):
            for line in (str(one).removeprefix(f"{host}: ") for one in said):
                if not (host in self._full and line.startswith("/ has ")):  # told already
                    self._add(Finding("node", host, line))
            return
        action = remedy.action if remedy else ""
        self._add(Finding("node", host, f"{task}: {_line(message)}", action))


def look_at(
    order: Order,
    targets: Iterable[Target],
    *,
    roles: Sequence[str],
    redactor: Redactor,
    work: Path,
    timeout_s: int,
    connect_timeout_s: int,
    stop: Callable[[], bool],
) -> Answers:
    """Ask the nodes.

    Args:
        order: How the run itself would be; its inventory, arguments and passwords are used.
        targets: Whom to ask.
        roles: Roles of the repository that have a preflight.
        redactor: Takes secrets out of what they say.
        work: A private folder.
        timeout_s: How long each `AT_ONCE` nodes may take.
        connect_timeout_s: How long one connection may take to open.
        stop: The operator wants to stop.
    """
    answers = Answers({target.name: target for target in targets})
    if not answers.targets:
        return answers
    playbook = Path(__file__).with_name("data") / "look.yml"
    allowed_s = deadline_s(len(answers.targets), timeout_s)
    end_s = time.monotonic() + allowed_s
    late = False

    def enough() -> bool:
        nonlocal late
        late = late or time.monotonic() > end_s
        return late or stop()

    asked = replace(
        order,
        playbook=playbook,
        hosts=tuple(answers.targets),
        extra={"kinemill_deploy_roles": list(roles)},
        environment={**order.environment, "ANSIBLE_TIMEOUT": str(connect_timeout_s)},
        forks=min(AT_ONCE, len(answers.targets)),
    )

    def take(event: dict[str, Any]) -> None:
        answers.feed(redactor.value(event), now_s=time.time())

    play(asked, work=work, on_event=take, stop=enough)
    if not stop():
        if answers.complaint and not answers.looks and not answers.findings:
            answers.findings.append(Finding("inventory", "ansible", _line(answers.complaint)))
        else:
            answers.unanswered(allowed_s)
    return answers


def deadline_s(nodes: int, timeout_s: int) -> float:
    """How long so many nodes may take together."""
    return float(timeout_s * max(1, math.ceil(nodes / AT_ONCE)))


def parse_look(text: str) -> NodeLook:
    """What look.sh printed; anything else around it, such as a login banner, is passed over."""
    values = dict(line.strip().partition("=")[::2] for line in text.splitlines() if "=" in line)
    free, clock = values.get("free_kb", ""), values.get("clock_s", "")
    return NodeLook(
        hostname=values.get("hostname", ""),
        free_mb=int(free) // 1024 if free.isdigit() else -1,
        python=values.get("python", ""),
        addresses=tuple(word for word in values.get("addresses", "").split() if _is_address(word)),
        clock_s=int(clock) if clock.isdigit() else 0,
    )


def families(addresses: Iterable[str]) -> set[int]:
    """4 and 6, whichever is among the addresses; loopback and link-local ones do not count."""
    found: set[int] = set()
    for word in addresses:
        if _is_address(word):
            address = ipaddress.ip_address(word)
            if not (address.is_loopback or address.is_link_local):
                found.add(address.version)
    return found


def unreachable(host: str, target: Target | None, message: str) -> Finding:
    """Why a host cannot be reached, and what to do."""
    remedy = explain(message)
    address = target.address if target is not None else host
    if target is not None and (remedy is None or remedy.kind in ("unreachable", "name")):
        known = families(_resolve(address))
        if known == {6}:
            text = f"{address} has only an IPv6 address, and there is no way to it from here"
            return Finding("reach", host, text, "set ansible_host to an IPv4 address, or give this machine IPv6", True)
    where = f" ({address})" if address != host else ""
    if remedy is None:
        return Finding("reach", host, f"cannot be reached{where}: {_line(message)}", "try ssh by hand", True)
    return Finding("reach", host, f"cannot be reached{where}: {remedy.meaning}", remedy.action, remedy.transient)


def _resolve(name: str) -> list[str]:
    try:
        return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})
    except (OSError, UnicodeError):
        return []


def _is_address(word: str) -> bool:
    try:
        ipaddress.ip_address(word)
    except ValueError:
        return False
    return True


def _line(text: str) -> str:
    """A message in one line."""
    return " ".join(text.split())[:300]
