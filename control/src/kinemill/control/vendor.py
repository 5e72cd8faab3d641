"""Whether a node is what its inventory says: every contradiction, in words, before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["OLDEST_SLURM", "TESTED_SYSTEMS", "node_faults", "slurm_release"]

# Debian's releases that a test bed runs; others of its family are taken with a word, anything else is refused.
TESTED_SYSTEMS = {("debian", "12"), ("debian", "13")}

# Parts that only a node with GPUs has.
_COMPUTE = frozenset({"driver", "fabric", "containers"})
# Parts that no program on a node gives away.
_UNSEEN = frozenset({"time", "shared_storage", "firewall"})
# The oldest Slurm that is tested; what is older lacks commands and settings that the agents use.
OLDEST_SLURM = (22, 5)
# Debian's packages give user and group slurm this id on every machine that has none yet.
_DEBIAN_SLURM_ID = 64030
# Where Debian's packages put the daemons, by either name; one that runs from elsewhere is somebody else's. Debian 12
# runs slurmd-wlm, to which slurmd is a link.
_PACKAGED = frozenset(f"/usr/sbin/{name}{suffix}" for name in ("slurmd", "slurmctld") for suffix in ("", "-wlm"))


def node_faults(
    look: Mapping[str, Any],
    *,
    provides: Sequence[str],
    hostname: str,
    compute: bool,
    users: Sequence[Mapping[str, Any]] = (),
    minimum_free_mb: int = 0,
    controller: bool = False,
    controller_look: Mapping[str, Any] | None = None,
) -> list[str]:
    """Compare a node with what its inventory says about it.

    Args:
        look: What module `kinemill_node_look` saw.
        provides: The inventory's `vendor_provides`.
        hostname: The name that the inventory gives the node.
        compute: Whether it is a compute node.
        users: Users that the inventory declares, `name` and `uid`.
        minimum_free_mb: Room that / needs, in MiB.
        controller: Whether it runs Slurm's controller.
        controller_look: What the module saw on the first controller, where that is known.

    Returns:
        One sentence each, the node's name first; empty where node and inventory agree.
    """
    faults: list[str] = []
    stated = set(provides) - _UNSEEN - (frozenset() if compute else _COMPUTE)
    for part in sorted(stated - set(look["found"])):
        faults.append(f"vendor_provides names {part}, but nothing of it is here; install it or take it off the list")
    brought = set(provides) | ({"munge"} if "slurm" in provides else set())  # no Slurm without it
    for part in sorted(set(look["found_first"]) - brought):
        if compute or part not in _COMPUTE:
            faults.append(
                f"{part} was here before us, but vendor_provides does not name it; add it, or use a bare image"
            )
    faults += _slurm_faults(look, "slurm" in provides, compute=compute, controller=controller)
    faults += _cluster_faults(look, controller_look or {}, "slurm" in provides)
    if look["hostname"] != hostname:
        faults.append(f"the node calls itself {look['hostname']!r}, the inventory calls it {hostname!r}; rename one")
    if look["os_id"] != "debian" and "debian" not in look["os_like"]:
        faults.append(f"{look['os_id']} {look['os_version']} is not of Debian's family; the roles know no other")
    if look["free_mb"] < minimum_free_mb:
        faults.append(f"/ has {look['free_mb']} MiB free, {minimum_free_mb} are needed")
    names = {uid: name for name, uid in look["users"].items()}
    for user in users:
        name, uid = user["name"], user["uid"]
        found = look["users"].get(name)
        if found is not None and found != uid:
            faults.append(f"user {name} has uid {found} here, the inventory says {uid}; files would change hands")
        elif found is None and uid in names:
            faults.append(f"uid {uid} belongs to {names[uid]} here, the inventory gives it to {name}")
        group = look.get("groups", {}).get(name)
        if group is not None and group != uid:
            faults.append(f"group {name} has gid {group} here, the inventory says {uid}; files would change hands")
    return [f"{hostname}: {fault}" for fault in faults]


def slurm_release(version: str) -> tuple[int, int]:
    """Year and month of a version such as `24.11.5`; (0, 0) where it is none."""
    found = re.search(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _slurm_faults(look: Mapping[str, Any], provided: bool, *, compute: bool, controller: bool) -> list[str]:
    """What contradicts about this node's own Slurm, whoever brought it."""
    faults: list[str] = []
    daemons: Mapping[str, Mapping[str, Any]] = look.get("slurm", {})
    needed = [name for name, is_one in (("slurmd", compute), ("slurmctld", controller)) if is_one]
    for name in needed if provided and "slurm" in look["found"] else []:
        daemon = daemons.get(name, {})
        if not daemon.get("version"):
            faults.append(f"vendor_provides names slurm, but {name} is not here; install it or take slurm off the list")
        elif not daemon["runs"] and look.get("first_contact"):
            faults.append(
                f"vendor_provides names slurm, but {name} does not run; let the vendor start it, "
                "or take slurm off the list"
            )
    for name, daemon in sorted(daemons.items()):
        release = slurm_release(daemon.get("version") or "")
        if release != (0, 0) and release < OLDEST_SLURM:
            faults.append(
                f"{name} is Slurm {daemon['version']}, the oldest that is supported is {_dotted(OLDEST_SLURM)}; "
                "ask the vendor for a newer one"
            )
        foreign = sorted(set(daemon.get("runs") or []) - _PACKAGED)
        if foreign and not provided:
            faults.append(
                f"{name} runs from {foreign[0]}, which is no package of ours, but vendor_provides does not name slurm; "
                "add it, or stop that daemon"
            )
    return faults


def _cluster_faults(look: Mapping[str, Any], first: Mapping[str, Any], provided: bool) -> list[str]:
    """What does not fit between this node and the controller."""
    faults: list[str] = []
    here, there = (_slurm_version(one, name) for one, name in ((look, "slurmd"), (first, "slurmctld")))
    if slurm_release(here) > slurm_release(there) > (0, 0):
        faults.append(
            f"slurmd {here} is newer than the controller's slurmctld {there}, which Slurm does not allow; "
            "let the vendor upgrade the controller first"
        )
    for kind in ("users", "groups") if first else ():
        # Where Slurm is not there yet, the package will choose.
        mine, other = (one.get(kind, {}).get("slurm", None if provided else _DEBIAN_SLURM_ID) for one in (look, first))
        if mine is not None and other is not None and mine != other:
            letter = kind[0]
            faults.append(
                f"{kind[:-1]} slurm has or will have {letter}id {mine} here, {other} on the controller; "
                "Slurm refuses messages of another id: make them equal"
            )
    return faults


def _slurm_version(look: Mapping[str, Any], daemon: str) -> str:
    """Version of a daemon, or nothing."""
    return str(look.get("slurm", {}).get(daemon, {}).get("version") or "")


def _dotted(release: tuple[int, int]) -> str:
    return f"{release[0]}.{release[1]:02d}"
