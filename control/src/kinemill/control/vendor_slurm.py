"""How our hooks and our policy get into a Slurm that the vendor runs, without a change to a file of the vendor's.

There are two ways in. Where the vendor's Prolog is a pattern, such as `/etc/slurm/prolog.d/*`, a file is dropped beside
the vendor's own. Where the vendor's slurm.conf includes a file that it leaves to the customer, a line goes there. Where
neither is open, the vendor is asked for one: nothing of theirs is edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from kinemill.control.vendor import slurm_release

__all__ = ["HEADER", "HOOKS", "Plan", "plan"]

HEADER = "# Written by Ansible (role slurm_controller). The vendor's slurm.conf includes this file."
HOOKS = ("prolog", "epilog")
_DROP_IN = """#!/bin/sh
# Written by Ansible (role slurm_hooks). Where the hook is gone, jobs go through.
[ -x {own} ] || exit 0
exec {own} "$@"
"""
# The oldest release that was seen to run all of several Prolog lines; before it the last one wins.
_SEVERAL_HOOKS = (24, 11)
# Names for a drop-in; the first that the vendor's pattern takes.
_NAMES = ("50-kinemill", "50-kinemill.sh", "kinemill", "kinemill.sh", "50-kinemill.{hook}", "{hook}-50-kinemill")
# What a policy has no effect without; the other settings only weigh it.
_NEEDED = ("AccountingStorageEnforce", "PreemptType")


@dataclass(slots=True)
class Plan:
    """What to add to a vendor's Slurm.

    Attributes:
        drop_ins: Files that run our hooks: path, content, mode.
        lines: Lines of the file that slurm.conf includes.
        text: That file, whole; empty where slurm.conf includes none.
        faults: Why it cannot be done, one sentence each with what to do.
    """

    drop_ins: list[dict[str, str]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    text: str = ""
    faults: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Way:
    """What there is to get in by."""

    host: str
    hooks_dir: str
    include: str
    stated: Mapping[str, Sequence[str]]
    release: tuple[int, int]


def plan(
    look: Mapping[str, Any],
    *,
    host: str,
    hooks_dir: str,
    include: str = "",
    given: Mapping[str, str] | None = None,
    policy: Mapping[str, str] | None = None,
    cluster_name: str = "",
    controllers: Sequence[str] = (),
) -> dict[str, Any]:
    """Find the way in.

    Args:
        look: What module `kinemill_slurm_look` saw.
        host: The node, for messages.
        hooks_dir: Folder of our hooks.
        include: The file that slurm.conf includes and leaves to us; empty where there is none.
        given: Hook -> folder or pattern whose programs the vendor's hook runs, where Slurm does not show it.
        policy: Settings that QOS need; none where the vendor's policy stays.
        cluster_name: What the inventory calls the cluster; not compared when empty.
        controllers: The inventory's controllers; not compared when empty.

    Returns:
        A `Plan` as a mapping.
    """
    found = Plan()
    if not look["answers"]:
        found.faults.append(
            f"{host}: vendor_provides names slurm, but no controller answers ({look['said'] or 'scontrol is silent'}); "
            "let the vendor start it, or take slurm off the list"
        )
        return asdict(found)
    running: Mapping[str, Sequence[str]] = look["running"]
    _same_cluster(found, running, host, cluster_name, controllers)
    stated: Mapping[str, Sequence[str]] = look["stated"] if look["has_file"] else running
    if include and look["has_file"]:
        _judge_include(found, look, host, include)
    way = _Way(host, hooks_dir, include, stated, slurm_release(" ".join(running.get("slurm_version", []))))
    for hook in HOOKS:
        _place(found, hook, way, (given or {}).get(hook, ""))
    _policy(found, way, policy or {})
    if include and look["has_file"]:
        found.text = "\n".join([HEADER, *found.lines, ""])
    return asdict(found)


def _same_cluster(
    found: Plan, running: Mapping[str, Sequence[str]], host: str, name: str, controllers: Sequence[str]
) -> None:
    """The Slurm that answers is the one that the inventory means."""
    here = (running.get("clustername") or [""])[0]
    if name and here != name:
        found.faults.append(
            f"{host}: the Slurm that answers is cluster {here!r}, the inventory's is {name!r}; "
            "set slurm_controller_cluster_name, or take slurm off vendor_provides"
        )
    hosts = [value.split("(", 1)[0] for value in running.get("slurmctldhost", [])]
    strangers = sorted(set(hosts) - set(controllers))
    if controllers and strangers:
        found.faults.append(
            f"{host}: Slurm's controller is {', '.join(strangers)}, which is not in the group slurm_controllers; add it"
        )


def _judge_include(found: Plan, look: Mapping[str, Any], host: str, include: str) -> None:
    """The file is included, and nobody else wrote in it."""
    if include not in look["includes"]:
        found.faults.append(
            f"{host}: vendor_slurm_include is {include}, but the vendor's slurm.conf does not include it; "
            f"ask the vendor for the line 'Include {include}', or leave the variable empty"
        )
    text = str(look["include_text"])
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if lines and not text.startswith(HEADER):
        found.faults.append(
            f"{host}: {include} holds lines that are not ours ({lines[0][:60]!r}); move them to another included file"
        )


def _place(found: Plan, hook: str, way: _Way, given: str) -> None:
    """One hook: by a file beside the vendor's, else by a line, else not at all."""
    own = f"{way.hooks_dir}/{hook}"
    theirs = [value for value in way.stated.get(hook, []) if value]
    if own in theirs:  # the vendor named it for us
        return
    patterns = [given] if given else [value for value in theirs if _is_pattern(value)]
    for pattern in patterns:
        path = _beside(pattern, hook)
        if path:
            found.drop_ins.append({"path": path, "content": _DROP_IN.format(own=own), "mode": "0755"})
            return
    name = hook.capitalize()
    if way.include and (not theirs or way.release >= _SEVERAL_HOOKS):
        found.lines.append(f"{name}={own}")
        return
    said = f"is {', '.join(theirs)}, which takes no further file" if theirs else "is not set"
    found.faults.append(
        f"{way.host}: Slurm's {name} {said}, and there is no other way in; ask the vendor for "
        f"{name}=/etc/slurm/{hook}.d/*, or for a file that slurm.conf includes (vendor_slurm_include), "
        f"or name the folder whose programs it runs (vendor_slurm_{hook})"
    )


def _policy(found: Plan, way: _Way, policy: Mapping[str, str]) -> None:
    """Settings that the vendor leaves open; those that the vendor states otherwise are told, never overruled."""
    for name, value in policy.items():
        theirs = [one for one in way.stated.get(name.lower(), []) if one and one.lower() != "none"]
        if not theirs and way.include:
            found.lines.append(f"{name}={value}")
        elif name in _NEEDED and not (theirs and set(value.split(",")) <= set(theirs[-1].replace(" ", "").split(","))):
            said = f"says {name}={theirs[-1]}" if theirs else f"does not set {name}"
            found.faults.append(
                f"{way.host}: the vendor's slurm.conf {said}, the policy needs {value}; ask the vendor for it, "
                "or set slurm_controller_policy to false"
            )


def _is_pattern(value: str) -> bool:
    return any(mark in value for mark in "*?[")


def _beside(pattern: str, hook: str) -> str:
    """A path that the pattern takes, or nothing; a folder takes any name."""
    path = PurePosixPath(pattern)
    if not _is_pattern(pattern):
        return str(path / _NAMES[0])
    if _is_pattern(str(path.parent)):
        return ""
    for name in _NAMES:
        candidate = name.format(hook=hook)
        if fnmatchcase(candidate, path.name):
            return str(path.parent / candidate)
    return ""
