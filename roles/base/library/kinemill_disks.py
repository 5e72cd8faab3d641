#!/usr/bin/python3
"""Ansible module: give a node's own disks a filesystem, once, and never over anything that is already there."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_disks
short_description: Give a node's own disks a filesystem
description:
  - Formats a disk that holds nothing at all, or whose serial number stands in C(wipe). Anything else is refused, with
    what is there, before any disk is touched.
  - A disk that carries our label with the asked filesystem is ours and is never formatted again, whatever C(wipe) says.
  - A disk that is mounted, swapped to, or part of something else is refused even where C(wipe) names it.
  - A disk that the node lacks is returned as absent and is no fault.
author: kinemill
options:
  disks:
    description: Disks, with device (a path below /dev/disk), mount and filesystem.
    type: list
    elements: dict
    required: true
  wipe:
    description: Serial numbers of disks that may lose what they hold.
    type: list
    elements: str
    default: []
  mounted:
    description: Whether a disk that is not mounted at its place is a fault.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Format what is empty
  kinemill_disks:
    disks:
      - device: /dev/disk/by-id/nvme-MODEL_S4EV0N1
        mount: /scratch
        filesystem: xfs
"""

LABEL = "kinemill"
# An empty disk reads as zeros here; bytes that no signature explains may be somebody's raw data.
PROBED_BYTES = 1 << 20
PACKAGES = {"xfs": "xfsprogs", "ext4": "e2fsprogs"}
MAKE = {"xfs": ["mkfs.xfs", "-q", "-L", LABEL], "ext4": ["mkfs.ext4", "-q", "-F", "-L", LABEL]}


class Seen(NamedTuple):
    """What a device holds.

    Attributes:
        serial: Its serial number; empty where it tells none.
        signatures: Type of each signature, with its label.
        parts: Partitions and whatever else is built on it.
        mounts: Where it or a part of it is mounted, or `[SWAP]`.
        zeros: Whether its first megabyte is empty.
    """

    serial: str = ""
    signatures: Sequence[tuple[str, str]] = ()
    parts: Sequence[str] = ()
    mounts: Sequence[str] = ()
    zeros: bool = True


def judge(disk: dict[str, Any], seen: Seen, wipe: list[str]) -> tuple[str, str]:
    """What is to be done with a disk: `keep`, `format`, `wipe` or `refuse`, and why."""
    name, kind, place = disk["device"], disk["filesystem"], disk["mount"]
    elsewhere = [mount for mount in seen.mounts if mount != place]
    if seen.parts and seen.mounts:
        elsewhere = list(seen.mounts)
    if elsewhere:
        return "refuse", f"{name} is in use at {', '.join(elsewhere)}; take it out of use first"
    if list(seen.signatures) == [(kind, LABEL)] and not seen.parts:
        return "keep", "ours"
    if seen.mounts:
        return "refuse", f"{name} is mounted at {place}, but we did not format it; unmount it first"
    held = [f"{one} {label!r}" if label else one for one, label in seen.signatures] + list(seen.parts)
    if not held and seen.zeros:
        return "format", "empty"
    what = f"{name} (serial {seen.serial or 'unknown'}) holds {', '.join(held) or 'bytes that no signature explains'}"
    if seen.serial and seen.serial in wipe:
        return "wipe", what
    return "refuse", f"{what}; put its serial into base_disks_wipe if all of it may be lost, or leave the disk out"


def flatten(devices: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Names of what is built on devices, and where anything of it is mounted."""
    names: list[str] = []
    mounts: list[str] = []
    for one in devices:
        mounts += [mount for mount in one.get("mountpoints") or [] if mount]
        below_names, below_mounts = flatten(one.get("children") or [])
        names += [child["name"] for child in one.get("children") or []] + below_names
        mounts += below_mounts
    return sorted(set(names)), sorted(set(mounts))


def look(module: AnsibleModule, device: str) -> Seen:
    """Look at a device without changing it.

    Raises:
        ValueError: It is no whole disk.
    """
    if not stat.S_ISBLK(Path(device).stat().st_mode):
        raise ValueError(f"{device} is no block device")
    columns = ["--json", "--output", "NAME,TYPE,SERIAL,MOUNTPOINTS"]
    found = json.loads(module.run_command(["lsblk", *columns, device], check_rc=True)[1])["blockdevices"]
    if found[0]["type"] not in {"disk", "loop"}:
        raise ValueError(f"{device} is a {found[0]['type']}, not a whole disk")
    wiped = module.run_command(["wipefs", "--no-act", "--json", device], check_rc=True)[1].strip()
    signatures = json.loads(wiped)["signatures"] if wiped else []
    parts, mounts = flatten(found)
    holders = Path("/sys/class/block", os.path.realpath(device).rpartition("/")[2], "holders")
    held = sorted(path.name for path in holders.iterdir()) if holders.is_dir() else []
    with Path(device).open("rb", buffering=0) as handle:
        zeros = not any(handle.read(PROBED_BYTES) or b"")
    return Seen(
        serial=(found[0].get("serial") or "").strip(),
        signatures=sorted({(str(one["type"]), str(one.get("label") or "")) for one in signatures}),
        parts=sorted({*parts, *held}),
        mounts=mounts,
        zeros=zeros,
    )


def bring(module: AnsibleModule, device: str, kind: str, seen: Seen, *, wipe: bool) -> None:
    """Format a device, after a last look by the kernel that nobody uses it."""
    os.close(os.open(device, os.O_RDONLY | os.O_EXCL))  # fails on a device that is mounted or held
    if wipe:
        targets = [f"/dev/{part}" for part in seen.parts if Path("/dev", part).exists()]
        module.run_command(["wipefs", "--all", *targets, device], check_rc=True)
        # Otherwise the kernel goes on with partitions whose table is gone; a disk without any may refuse, harmlessly.
        module.run_command(["blockdev", "--rereadpt", device])
    module.run_command([*MAKE[kind], device], check_rc=True)


def main() -> None:
    """Entry."""
    disk = {
        "device": {"type": "path", "required": True},
        "mount": {"type": "path", "required": True},
        "filesystem": {"type": "str", "choices": sorted(MAKE), "default": "xfs"},
        "options": {"type": "str"},
    }
    module = AnsibleModule(
        argument_spec={
            "disks": {"type": "list", "elements": "dict", "options": disk, "required": True},
            "wipe": {"type": "list", "elements": "str", "default": []},
            "mounted": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    present: list[dict[str, Any]] = []
    absent: list[str] = []
    faults: list[str] = []
    todo: list[tuple[dict[str, Any], str, Seen]] = []
    for one in module.params["disks"]:
        device = one["device"]
        if not Path(device).exists():
            absent.append(device)
            continue
        try:
            seen = look(module, device)
        except (OSError, ValueError) as error:
            faults.append(str(error))
            continue
        verdict, why = judge(one, seen, module.params["wipe"])
        if verdict == "refuse":
            faults.append(why)
        elif verdict != "keep":
            todo.append((one, verdict, seen))
        if module.params["mounted"] and one["mount"] not in seen.mounts:
            faults.append(f"{device} is not mounted at {one['mount']}")
        present.append(one)
    kinds = sorted({one["filesystem"] for one, _, _ in todo})
    lacks = [PACKAGES[kind] for kind in kinds if module.get_bin_path(MAKE[kind][0]) is None]
    answer = {"present": present, "absent": absent, "lacks": lacks, "formatted": [one["device"] for one, _, _ in todo]}
    if faults:
        module.fail_json(msg="; ".join(faults), faults=faults, **{**answer, "formatted": []})
    if not module.check_mode:
        for one, verdict, seen in todo:
            try:
                bring(module, one["device"], one["filesystem"], seen, wipe=verdict == "wipe")
            except OSError as error:
                module.fail_json(msg=f"{one['device']}: {error}", **{**answer, "formatted": []})
    module.exit_json(changed=bool(todo), **answer)


if __name__ == "__main__":
    main()
