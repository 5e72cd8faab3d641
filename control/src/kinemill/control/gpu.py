"""Whether a node's GPU driver may be changed now, and whether it is the one that the inventory asks for."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

__all__ = ["change_faults", "driver_faults"]

# A node in one of these takes no job while its driver is changed.
_OUT_OF_SERVICE = frozenset({"drained", "down", "future", "unknown"})


def change_faults(look: Mapping[str, Any], *, version: str, node: str) -> list[str]:
    """Why a node's driver may not be brought to the pinned version now.

    Args:
        look: What module `kinemill_gpu_look` saw, with the driver's packages.
        version: The pin, as apt takes it.
        node: The node's name in Slurm.

    Returns:
        One sentence each; empty where nothing would change, or nothing is in the way.
    """
    if not version:
        return ["gpu_driver_version is empty; pin the driver's version in the inventory"]
    old = {name: found for name, found in look["installed"].items() if not fnmatchcase(found, version)}
    if not old or not look["slurm"]:
        return []
    change = f"{', '.join(f'{name} {found}' for name, found in sorted(old.items()))} would become {version}"
    if look["steps"] or look["jobs"]:
        who = f"jobs {', '.join(look['jobs'])}" if look["jobs"] else f"{look['steps']} job steps"
        return [f"{change}, but {who} run here; drain {node} and come back when they have ended"]
    if look["jobs"] is None:
        return [f"{change}, but Slurm's controller does not say whether jobs run here; nothing was touched"]
    if look["state"] not in _OUT_OF_SERVICE:
        state = look["state"] or "in a state that Slurm does not tell"
        return [f"{change}, but {node} is {state} and may be given a job meanwhile; drain it first"]
    return []


def driver_faults(look: Mapping[str, Any], *, version: str = "", persistence: bool = False) -> list[str]:
    """Where a node's driver is not what it should be.

    Args:
        look: What module `kinemill_gpu_look` saw.
        version: The pin, where the driver is ours.
        persistence: Whether every GPU must be in persistence mode.

    Returns:
        One sentence each.
    """
    stopped = [f"{name} does not run" for name in look["stopped"]]
    if look["error"]:
        return [*stopped, f"the driver's library does not answer: {look['error']}; a changed driver needs a reboot"]
    faults = stopped
    if look["gpus"] == 0:
        faults.append("the driver sees no GPU")
    wrong = {name: found for name, found in look["installed"].items() if version and not fnmatchcase(found, version)}
    faults += [f"{name} is {found}, the inventory says {version}" for name, found in sorted(wrong.items())]
    # A package's version begins with the driver's own.
    running = look["driver"]
    if version and not wrong and not any(v.startswith(running) for v in look["installed"].values()):
        there = ", ".join(f"{name} {found}" for name, found in sorted(look["installed"].items())) or "no package"
        faults.append(f"driver {running} runs, but {there} is installed; reboot the node")
    if persistence and look["persistent"] < look["gpus"]:
        faults.append(f"{look['gpus'] - look['persistent']} of {look['gpus']} GPUs are not in persistence mode")
    return faults
