"""A node's own disks: what may be formatted, and how they are mounted."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kinemill.control.nodeconf import parse_mount
from support.ansible import ROLES, load_module

DISKS = load_module(ROLES / "base" / "library" / "kinemill_disks.py")
MOUNTS = load_module(ROLES / "base" / "filter_plugins" / "kinemill_mounts.py")
DISK = {"device": "/dev/disk/by-id/nvme-A", "mount": "/scratch", "filesystem": "xfs"}


def verdict(*, wipe: list[str] | None = None, **seen: Any) -> tuple[str, str]:
    found: tuple[str, str] = DISKS.judge(DISK, DISKS.Seen(serial="S1", **seen), wipe or [])
    return found


def test_an_empty_disk_is_formatted_and_ours_is_kept() -> None:
    assert verdict()[0] == "format"
    ours = {"signatures": [("xfs", "kinemill")], "zeros": False}
    assert verdict(**ours)[0] == "keep"
    assert verdict(**ours, mounts=["/scratch"])[0] == "keep"
    # whatever the list says: a second run with the serial still in it keeps what the first made
    assert verdict(**ours, wipe=["S1"])[0] == "keep"


HELD = [
    ({"signatures": [("xfs", "")]}, "holds xfs"),
    ({"signatures": [("ext4", "kinemill")]}, "holds ext4 'kinemill'"),
    ({"signatures": [("xfs", "kinemill"), ("dos", "")]}, "holds xfs 'kinemill', dos"),
    ({"signatures": [("gpt", "")], "parts": ["nvme0n1p1"]}, "holds gpt, nvme0n1p1"),
    ({"signatures": [("LVM2_member", "")], "parts": ["dm-0"]}, "holds LVM2_member, dm-0"),
    ({"parts": ["md127"]}, "holds md127"),
    ({"zeros": False}, "bytes that no signature explains"),
]


@pytest.mark.parametrize(("seen", "words"), HELD)
def test_whatever_a_disk_holds_is_refused_unless_its_serial_is_listed(seen: dict[str, Any], words: str) -> None:
    what, why = verdict(**seen, wipe=["S2", ""])
    assert what == "refuse"
    assert words in why
    assert "serial S1" in why
    assert verdict(**seen, wipe=["S1"])[0] == "wipe"


def test_a_disk_without_a_serial_is_never_wiped() -> None:
    seen = DISKS.Seen(signatures=[("xfs", "")])
    assert DISKS.judge(DISK, seen, ["", "unknown"])[0] == "refuse"


@pytest.mark.parametrize(
    "seen",
    [
        {"mounts": ["/home"], "signatures": [("ext4", "")]},
        {"mounts": ["[SWAP]"], "signatures": [("swap", "")]},
        {"mounts": ["/scratch"], "signatures": [("ext4", "")]},
        {"mounts": ["/scratch"], "parts": ["nvme0n1p1"], "signatures": [("gpt", "")]},
        {"mounts": ["/elsewhere", "/scratch"], "signatures": [("xfs", "kinemill")]},
    ],
)
def test_a_disk_in_use_is_refused_even_where_it_is_listed(seen: dict[str, Any]) -> None:
    assert verdict(**seen, wipe=["S1"])[0] == "refuse"


def test_all_that_is_built_on_a_disk_is_found() -> None:
    tree = [
        {
            "name": "nvme0n1",
            "mountpoints": [None],
            "children": [
                {"name": "nvme0n1p1", "mountpoints": ["/boot"]},
                {"name": "nvme0n1p2", "children": [{"name": "vg-root", "mountpoints": ["/", "/old"]}]},
            ],
        }
    ]
    assert DISKS.flatten(tree) == (["nvme0n1p1", "nvme0n1p2", "vg-root"], ["/", "/boot", "/old"])


def test_a_mount_unit_is_sound_and_named_as_systemd_asks() -> None:
    found = MOUNTS.mounts([DISK, {"device": "/dev/disk/by-id/b", "mount": "/scratch-2/a.b", "options": "nodev"}])
    assert found["units"] == ["scratch.mount", r"scratch\x2d2-a.b.mount"]
    settings = parse_mount(found["files"][0]["content"])
    assert settings["What"] == DISK["device"]
    assert "Options=nodev\n" in found["files"][1]["content"]
    assert "Type=xfs\n" in found["files"][1]["content"]


@pytest.mark.parametrize(
    ("path", "name"),
    [("/a-b/c_d", r"a\x2db-c_d"), ("/.hidden/x.y", r"\x2ehidden-x.y"), ("/mnt/ü", r"mnt-\xc3\xbc")],
)
def test_names_are_those_of_systemd_itself(path: str, name: str) -> None:
    # as systemd-escape --path prints them
    assert MOUNTS.unit_name(path) == f"{name}.mount"


@pytest.mark.parametrize("disk", [{"device": "nvme0n1", "mount": "/a"}, {"device": "/dev/a", "mount": "/a b"}])
def test_a_path_that_systemd_would_read_otherwise_is_refused(disk: dict[str, str]) -> None:
    with pytest.raises(MOUNTS.AnsibleFilterError, match=re.escape("not a plain absolute path")):
        MOUNTS.mounts([disk])
