"""Disks of a node, by role base: formatted once, only when empty, mounted now and at boot."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.furnish import NodeSpec
from support.cluster import need_sandbox
from support.deploy import Roles, disk

pytestmark = pytest.mark.full("cluster")


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    need_sandbox()
    found = Sandbox.up([NodeSpec("n1", "bookworm", hardware=None)], name=f"d{os.getpid() % 10**6}", owned=True)
    yield found
    found.down()


@pytest.fixture
def roles(box: Sandbox, tmp_path: Path) -> Roles:
    facts = {"vendor_provides": ["time"], "base_package_lists": False, "base_minimum_free_mb": 100}
    return Roles(box, tmp_path, {"slurm_nodes": ["n1"]}, facts)


def shell(box: Sandbox, text: str) -> str:
    return box.exec("n1", ["sh", "-c", text], check=False).stdout.strip()


def test_an_empty_disk_is_formatted_mounted_and_left_alone_ever_after(box: Sandbox, roles: Roles) -> None:
    with disk(box, "n1", "EMPTY1") as name:
        wanted = {"base_disks": [{"device": name, "mount": "/scratch", "filesystem": "ext4"}]}
        # given a dry run, which leaves the disk as it is
        assert roles.run(["base"], "--check", **wanted).returncode == 0
        assert shell(box, f"wipefs --no-act --noheadings {name}") == ""
        # when the role runs, then a folder for scratch files lies on the disk
        roles.apply(["base"], base_scratch_dir="/scratch", **wanted)
        assert shell(box, "findmnt --noheadings --output FSTYPE,OPTIONS /scratch").split() == ["ext4", "rw,noatime"]
        assert shell(box, "stat --format=%a /scratch") == "1777"
        assert shell(box, "systemctl is-enabled scratch.mount") == "enabled"
        # and a second run changes nothing, even with its serial among those that may be wiped
        shell(box, "echo precious >/scratch/file")
        counts = roles.apply(["base"], base_scratch_dir="/scratch", base_disks_wipe=["EMPTY1"], **wanted)
        assert counts["changed"] == 0
        # when it is not mounted, then verify fails, and a run mounts it with what it held
        shell(box, "systemctl stop scratch.mount")
        broken = roles.run(["base"], "--tags=base_verify", **wanted)
        assert broken.returncode == 2
        assert "is not mounted at /scratch" in broken.stdout
        roles.apply(["base"], base_scratch_dir="/scratch", **wanted)
        assert shell(box, "cat /scratch/file") == "precious"
        shell(box, "systemctl disable --now scratch.mount")


HELD = {
    "filesystem": "mkfs.ext4 -q {0}",
    "partitions": "printf '\\125\\252' | dd of={0} bs=1 seek=510 conv=notrunc; "
    "printf '\\203\\0\\0\\0\\0\\010\\0\\0\\0\\020\\0\\0' | dd of={0} bs=1 seek=450 conv=notrunc",
    "raw bytes": "printf precious | dd of={0} bs=1 seek=5000 conv=notrunc",
}


@pytest.mark.parametrize("what", HELD)
def test_a_disk_that_holds_something_is_untouched_until_its_serial_is_listed(
    box: Sandbox, roles: Roles, what: str
) -> None:
    with disk(box, "n1", "HELD1") as name:
        shell(box, HELD[what].format(name))
        before = shell(box, f"sha256sum <{name}")
        wanted = {"base_disks": [{"device": name, "mount": "/data", "filesystem": "ext4"}]}
        # when another disk's serial is listed, then nothing of the node was changed
        done = roles.run(["base"], base_disks_wipe=["OTHER"], **wanted)
        assert done.returncode == 2
        assert "HELD1" in done.stdout
        assert "base_disks_wipe" in done.stdout
        assert shell(box, f"sync; sha256sum <{name}") == before
        assert "changed=0" in done.stdout
        # when its own is
        roles.apply(["base"], base_disks_wipe=["HELD1"], **wanted)
        assert shell(box, "findmnt --noheadings --output FSTYPE /data") == "ext4"
        shell(box, "systemctl disable --now data.mount")


def test_a_disk_in_use_is_refused_even_when_listed(box: Sandbox, roles: Roles) -> None:
    with disk(box, "n1", "USED1") as name:
        shell(box, f"mkfs.ext4 -q {name}; mkdir -p /mnt/old; mount {name} /mnt/old; echo precious >/mnt/old/file")
        wanted = {"base_disks": [{"device": name, "mount": "/data", "filesystem": "ext4"}]}
        done = roles.run(["base"], base_disks_wipe=["USED1"], **wanted)
        assert done.returncode == 2
        assert "in use at /mnt/old" in done.stdout
        assert shell(box, "cat /mnt/old/file") == "precious"
        shell(box, "umount /mnt/old")


def test_a_node_without_the_disk_says_so_and_goes_on(box: Sandbox, roles: Roles) -> None:
    wanted = {"base_disks": [{"device": "/dev/disk/by-id/nvme-none", "mount": "/data"}]}
    done = roles.run(["base"], **wanted)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "/dev/disk/by-id/nvme-none: not here" in done.stdout
