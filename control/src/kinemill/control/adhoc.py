"""What the playbooks of playbooks/adhoc may be asked, and how they judge a node: pure functions, no Ansible, no Slurm.

A request is judged whole, before anything is touched, and all that is wrong with it is said at once.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kinemill.contracts.fleet import REASON_MAX, DrainEvent, format_reason
from kinemill.errors import ExternalError, LimitError
from kinemill.records import nearest
from kinemill.slurm.hostlist import expand_hostlist

__all__ = [
    "PLAYBOOKS",
    "Rule",
    "batch_size",
    "chosen",
    "drain_text",
    "refusing",
    "request_faults",
    "results",
    "without",
    "worse",
]


@dataclass(frozen=True, slots=True)
class Rule:
    """What a playbook needs to be told.

    Attributes:
        nodes: `named` where nodes must be named, `any` where none means all, `never` where it is about a whole cluster.
        needs: Variables that must hold something.
        confirm: Whether `adhoc_confirm` must repeat the cluster's name.
        stated: Whether slurm.conf, as the inventory states it, must name the nodes.
    """

    nodes: str
    needs: tuple[str, ...] = ()
    confirm: bool = False
    stated: bool = True


PLAYBOOKS: Final[dict[str, Rule]] = {
    "upgrade_agents": Rule("any"),
    "rollback_agents": Rule("any"),
    "drain": Rule("named", needs=("adhoc_reason", "adhoc_who")),
    "undrain": Rule("named"),
    "add_node": Rule("named"),
    "remove_node": Rule("named", needs=("adhoc_reason", "adhoc_who"), stated=False),
    "rotate_munge_key": Rule("never"),
    "rotate_secrets": Rule("never"),
    "reboot": Rule("named", needs=("adhoc_reason", "adhoc_who")),
    "uninstall": Rule("never", confirm=True),
    "support_bundle": Rule("any"),
}
"""By the playbook's file name."""

MOST_BUNDLED: Final = 32
"""Nodes in one support bundle; their texts pass through the control host's memory."""

_WHO: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,31}")
_VERSION: Final = re.compile(r"previous|[0-9][A-Za-z0-9.]{0,30}\+[0-9a-f]{12}")
_BATCH: Final = re.compile(r"(?P<number>[1-9][0-9]{0,4})(?P<percent>%?)")
_DEEPEST: Final = 80
"""Fixed parts of a reason (prefix, check, letter, code, event) never leave less than this for words."""
_RANK: Final = {"SKIP": 0, "OK": 0, "WARN": 1, "UNKNOWN": 2, "FAIL": 3}


def chosen(said: Any, nodes: Sequence[str]) -> list[str]:
    """The nodes that a person named, in their order, each once.

    Args:
        said: `n1,n2`, `n[1-3]`, `all`, or a list of such.
        nodes: All compute nodes of the inventory, for `all`.

    Raises:
        ExternalError: Not a list of hosts.
        LimitError: More hosts than anybody means.
    """
    words = [str(word) for word in said] if isinstance(said, list | tuple) else [str(said)]
    found: list[str] = []
    for word in (one.strip() for one in words):
        found += list(nodes) if word == "all" else expand_hostlist(word.replace(" ", ""))
    return list(dict.fromkeys(found))


def batch_size(said: Any, total: int) -> int:
    """Nodes at a time, from `5` or `10%`; at least one.

    Raises:
        ValueError: Neither.
    """
    match = _BATCH.fullmatch(str(said).strip())
    if match is None or (match["percent"] and int(match["number"]) > 100):
        raise ValueError(f"adhoc_batch is {said!r}; say a number of nodes, such as 5, or a share, such as 10%")
    number = int(match["number"])
    return max(1, total * number // 100) if match["percent"] else number


def drain_text(who: str, until: str, reason: str) -> str:
    """What a person's drain says after the fixed parts of its reason: who, until when, why."""
    return f"{who} until {until}: {reason}" if until else f"{who}: {reason}"


def request_faults(
    playbook: str,
    given: Mapping[str, Any],
    *,
    groups: Mapping[str, Sequence[str]],
    stated: Sequence[str],
    cluster: str,
    limit: str | None,
    now: dt.datetime,
) -> list[str]:
    """Everything that is wrong with a request.

    Args:
        playbook: File name without ending.
        given: The values of role adhoc's variables.
        groups: The inventory's groups.
        stated: Nodes that the inventory's `slurm_controller_nodes` names.
        cluster: The cluster's name.
        limit: What `--limit` said, if anything.
        now: The time, with its zone.

    Returns:
        One sentence each; empty where there is nothing to refuse.
    """
    rule = PLAYBOOKS[playbook]
    faults: list[str] = []
    if limit is not None:
        faults.append("--limit hides hosts that must be asked too; name nodes by -e adhoc_nodes=n1,n2")
    if not groups.get("slurm_controllers"):
        faults.append("the inventory's group slurm_controllers is empty, so nobody can ask Slurm")
    nodes = list(groups.get("slurm_nodes", ()))
    faults += _node_faults(rule, given, nodes, stated, playbook)
    for name in rule.needs:
        if not str(given[name]).strip():
            faults.append(f"{name} is empty; {_WHY[name]}")
    faults += _value_faults(given, now)
    if rule.confirm and str(given["adhoc_confirm"]) != cluster:
        faults.append(f"this is for good: say -e adhoc_confirm={cluster}, which is the cluster's name")
    return faults


_WHY: Final = {
    "adhoc_reason": "say why, for whoever sees the drained node: -e adhoc_reason='fan swap'",
    "adhoc_who": "say who is asked about it: -e adhoc_who=anna",
}


def _node_faults(
    rule: Rule, given: Mapping[str, Any], nodes: Sequence[str], stated: Sequence[str], playbook: str
) -> list[str]:
    said = given["adhoc_nodes"]
    empty = not said or (isinstance(said, str) and not said.strip())
    if rule.nodes == "never":
        return [] if empty else [f"{playbook} concerns the whole cluster; leave adhoc_nodes out"]
    if empty and rule.nodes == "named":
        return ["adhoc_nodes is empty; name the nodes, such as -e adhoc_nodes=n1,n2 (or all)"]
    try:
        wanted = chosen(said or "all", nodes)
    except (ExternalError, LimitError) as error:
        return [f"adhoc_nodes: {error}"]
    faults = []
    for name in wanted:
        if name not in nodes:
            close = nearest(name, nodes)
            hint = f"; did you mean {close}?" if close else ""
            faults.append(f"{name} is not in the inventory's group slurm_nodes{hint}")
        elif rule.stated and name not in stated:
            faults.append(f"{name} is in no entry of slurm_controller_nodes; write there what its hardware is")
    canary = str(given["adhoc_canary"]).strip()
    if canary and canary not in wanted:
        faults.append(f"adhoc_canary is {canary}, which is none of the chosen nodes")
    if playbook == "support_bundle" and len(wanted) > MOST_BUNDLED:
        faults.append(f"a bundle of {len(wanted)} nodes; name at most {MOST_BUNDLED}, those that it is about")
    if playbook == "remove_node" and not faults and set(wanted) >= set(stated or nodes):
        faults.append("these are all nodes that there are; a cluster without nodes does not start")
    return faults


def _value_faults(given: Mapping[str, Any], now: dt.datetime) -> list[str]:
    faults = []
    who, reason, until = (str(given[name]).strip() for name in ("adhoc_who", "adhoc_reason", "adhoc_until"))
    if who and _WHO.fullmatch(who) is None:
        faults.append(f"adhoc_who is {who!r}; letters, digits and . _ @ - only, at most 32")
    if reason and (not reason.isascii() or not reason.isprintable() or "|" in reason or " : " in reason):
        faults.append("adhoc_reason must be printable ASCII on one line, without | and without ' : ', where Slurm adds")
    if until:
        faults += _until_faults(until, now)
    room = len(drain_text(who, until, reason))
    if reason and room > _DEEPEST:
        faults.append(f"who, until and reason take {room} characters together; sinfo shows {_DEEPEST}")
    version = str(given["adhoc_version"]).strip()
    if version and _VERSION.fullmatch(version) is None:
        faults.append(f"adhoc_version is {version!r}; say previous, or a whole version such as 0.1.0+3fa9c1d2e4b7")
    try:
        batch_size(given["adhoc_batch"], 1)
    except ValueError as error:
        faults.append(str(error))
    for name in ("adhoc_wait_minutes", "adhoc_log_lines"):
        if not re.fullmatch(r"[0-9]{1,6}", str(given[name]).strip()):
            faults.append(f"{name} is {given[name]!r}; say a whole number")
    if str(given["adhoc_allow_down"]).lower() not in {"true", "false", "yes", "no"}:
        faults.append(f"adhoc_allow_down is {given['adhoc_allow_down']!r}; say true or false")
    return faults


def _until_faults(until: str, now: dt.datetime) -> list[str]:
    try:
        end = dt.datetime.fromisoformat(until)
    except ValueError:
        return [f"adhoc_until is {until!r}; say a date or a time, such as 2030-01-31 or 2030-01-31T18:00"]
    if end.tzinfo is None:
        end = end.replace(tzinfo=now.tzinfo)
        if len(until) <= 10:  # a date means its end
            end += dt.timedelta(days=1)
    return [f"adhoc_until is {until}, which is past"] if end <= now else []


def results(text: str) -> list[dict[str, Any]] | None:
    """What `kinemill-node check --json` answered; None where that is no answer."""
    try:
        found = json.loads(text)["results"]
        return [dict(one) for one in found if one["check"] and one["status"]]
    except (ValueError, KeyError, TypeError):
        return None


def worse(before: str, after: str) -> list[str]:
    """Checks that a change made worse: those that fail now, or cannot be measured now, and did better before.

    A check that is new and fails counts: it would drain the node. A warning does not, for it drains nothing. Agents
    that did not answer before cannot be made worse by such that do.

    Args:
        before: What `kinemill-node check --json` printed.
        after: The same, later.

    Returns:
        One line each.
    """
    old, new = results(before), results(after)
    if new is None:
        return ["the agents do not answer"]
    if old is None:
        return []
    was = {str(one["check"]): str(one["status"]) for one in old}
    return [
        f"{one['check']}: {was.get(one['check'], 'not there')} before, {one['status']} now ({one.get('detail', '')})"
        for one in new
        if max(_RANK.get(was.get(one["check"], "OK"), 2), 1) < _RANK.get(one["status"], 2)
    ]


def refusing(text: str) -> list[str]:
    """What keeps a node from service: a transient or hard fault, what could not be measured, or agents that are silent.

    Args:
        text: What `kinemill-node check --json` printed.
    """
    found = results(text)
    if found is None:
        return ["the agents do not answer"]
    return [
        f"{one['check']}: {one['status']} ({one.get('detail', '')})"
        for one in found
        if one["status"] == "UNKNOWN" or (one["status"] == "FAIL" and one.get("cls") in ("transient", "hard"))
    ]


def without(
    entries: Sequence[Mapping[str, Any]], gone: Iterable[str], *, key: str, default: str = ""
) -> list[dict[str, Any]]:
    """Entries of slurm.conf without some nodes; an entry that named no other is left out.

    Args:
        entries: `slurm_controller_nodes` (key `name`) or `slurm_controller_partitions` (key `nodes`).
        gone: Nodes to leave out.
        key: Where an entry keeps its host list.
        default: What an entry without the key means; `ALL` stays as it is.
    """
    lost = set(gone)
    kept: list[dict[str, Any]] = []
    for entry in entries:
        hosts = str(entry.get(key, default))
        if hosts.upper() == "ALL":
            kept.append(dict(entry))
            continue
        names = expand_hostlist(hosts)
        left = [name for name in names if name not in lost]
        if len(left) == len(names):
            kept.append(dict(entry))
        elif left:
            kept.append({**entry, key: ",".join(left)})
    return kept


def _reason_room() -> int:
    """Characters that the longest fixed part leaves; what `_DEEPEST` promises."""
    return REASON_MAX - len(format_reason(DrainEvent("operator", "H", "remove", "0" * 8, "")))


assert _reason_room() >= _DEEPEST, "a person's words would be cut"  # noqa: S101 (holds at import or never)
