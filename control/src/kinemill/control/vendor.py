"""Whether a node is what its inventory says: every contradiction, in words, before anything is changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["TESTED_SYSTEMS", "node_faults"]

# Debian's releases that a test bed runs; others of its family are taken with a word, anything else is refused.
TESTED_SYSTEMS = {("debian", "12"), ("debian", "13")}

# Parts that only a node with GPUs has.
_COMPUTE = frozenset({"driver", "fabric", "containers"})
# Parts that no program on a node gives away.
_UNSEEN = frozenset({"time", "shared_storage"})


def node_faults(
    look: Mapping[str, Any],
    *,
    provides: Sequence[str],
    hostname: str,
    compute: bool,
    users: Sequence[Mapping[str, Any]] = (),
    minimum_free_mb: int = 0,
) -> list[str]:
    """Compare a node with what its inventory says about it.

    Args:
        look: What module `kinemill_node_look` saw.
        provides: The inventory's `vendor_provides`.
        hostname: The name that the inventory gives the node.
        compute: Whether it is a compute node.
        users: Users that the inventory declares, `name` and `uid`.
        minimum_free_mb: Room that / needs, in MiB.

    Returns:
        One sentence each; empty where node and inventory agree.
    """
    faults: list[str] = []
    stated = set(provides) - _UNSEEN - (frozenset() if compute else _COMPUTE)
    for part in sorted(stated - set(look["found"])):
        faults.append(f"vendor_provides names {part}, but nothing of it is here; install it or take it off the list")
    for part in sorted(set(look["found_first"]) - set(provides)):
        if compute or part not in _COMPUTE:
            faults.append(
                f"{part} was here before us, but vendor_provides does not name it; add it, or use a bare image"
            )
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
    return faults
