"""Role gpu_driver against STUB PACKAGES from a signed source: pinned, run, changed only on a node that is free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinemill.control.sandbox import stub
from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.furnish import NodeSpec
from kinemill.control.sandbox.standins import Hardware, change_gpus
from support.cluster import need_sandbox
from support.deploy import Roles
from support.stub_packages import DCGM, driver_stubs, make_source

pytestmark = pytest.mark.full("cluster")

OLD, NEW = "570.133.20-1stub1", "580.95.05-1stub1"
# What stands in for Slurm here: it says what a file says, and fails where there is none.
TOLD = "#!/bin/sh\nexec cat /run/told-{}\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    folder.parent.chmod(0o755)
    folder.chmod(0o755)
    stubs = [one for version in (OLD, NEW) for one in driver_stubs(version, stub.library())]
    make_source(folder / "stubs", [*stubs[:-1]])
    return folder


@pytest.fixture(scope="module")
def box(source: Path) -> Iterator[Sandbox]:
    need_sandbox()
    spec = NodeSpec("n1", "bookworm", hardware=Hardware(gpus=8))
    found = Sandbox.up([spec], name=f"g{os.getpid() % 10**6}", owned=True, wheelhouses=source)
    found.use_library("n1", "absent")
    yield found
    found.down()


@pytest.fixture
def roles(box: Sandbox, source: Path, tmp_path: Path) -> Roles:
    stubs = {
        "name": "stubs",
        "uris": ["file:/srv/wheelhouses/stubs"],
        "suites": ["./"],
        "key": str(source / "stubs.asc"),
    }
    facts: dict[str, Any] = {
        "vendor_provides": ["containers", "time"],
        "base_package_sources": [stubs],
        "base_minimum_free_mb": 100,
        "gpu_driver_version": OLD,
        "gpu_driver_dcgm": True,
        "node_agents_hardware": {"sku": "h200-8"},
    }
    return Roles(box, tmp_path, {"slurm_nodes": ["n1"]}, facts)


def shell(box: Sandbox, text: str) -> str:
    return box.exec("n1", ["sh", "-c", text], check=False).stdout.strip()


def version(box: Sandbox, package: str = "nvidia-open") -> str:
    return shell(box, f"dpkg-query --show --showformat='${{Version}}' {package}")


def running(box: Sandbox, driver: str) -> None:
    """What the loaded driver calls itself."""
    change_gpus(box.stand_ins("n1"), {"driver": driver})


def slurm(box: Sandbox, state: str | None, jobs: str = "") -> None:
    """Let a stand-in for Slurm say this; None for a controller that is silent."""
    for name in ("squeue", "sinfo", "slurmd"):
        path = box.root("n1") / "usr/local/bin" / name
        path.write_text(TOLD.format(name))
        path.chmod(0o755)
    for name, text in (("sinfo", state), ("squeue", None if state is None else jobs)):
        shell(box, f"rm -f /run/told-{name}")
        if text is not None:
            shell(box, f"echo {text} >/run/told-{name}")


def test_the_driver_is_installed_pinned_run_and_never_changed_under_a_job(box: Sandbox, roles: Roles) -> None:
    running(box, "570.133.20")
    # given a source that has a newer driver too, when the role runs on a node without any
    roles.apply(["base", "gpu_driver"])
    # then the pinned one is there, with all that belongs to it
    assert version(box) == version(box, "libnvidia-ml1") == version(box, "nvidia-fabricmanager") == OLD
    assert version(box, "datacenter-gpu-manager-4-core") == DCGM
    for name in ("nvidia-persistenced", "nvidia-fabricmanager", "nvidia-dcgm"):
        assert shell(box, f"systemctl is-active {name}; systemctl is-enabled {name}").split() == ["active", "enabled"]
    # and a second run changes nothing, and neither does an upgrade of everything
    assert roles.apply(["base", "gpu_driver"])["changed"] == 0
    shell(box, "DEBIAN_FRONTEND=noninteractive apt-get --quiet --assume-yes upgrade")
    assert version(box, "libnvidia-ml1") == OLD
    # when a daemon stops, or a GPU leaves persistence mode, or the library is gone, then verify fails
    for broken, mended, words in (
        (
            "systemctl stop nvidia-fabricmanager",
            "systemctl start nvidia-fabricmanager",
            "nvidia-fabricmanager does not",
        ),
        (
            "mv /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 /opt/",
            "mv /opt/libnvidia-ml.so.1 /usr/lib/x86_64-linux-gnu/",
            "does not answer",
        ),
    ):
        shell(box, broken)
        done = roles.run(["gpu_driver"], "--tags=gpu_driver_verify")
        shell(box, mended)
        assert done.returncode == 2, done.stdout
        assert words in done.stdout
    change_gpus(box.stand_ins("n1"), {"gpu3.persistence": "0"})
    done = roles.run(["gpu_driver"], "--tags=gpu_driver_verify")
    change_gpus(box.stand_ins("n1"), {"gpu3.persistence": "1"})
    assert "1 of 8 GPUs are not in persistence mode" in done.stdout
    # given a newer pin, and a node that is busy, or may be, then the node is refused and keeps what it has
    for state, jobs, words in (
        ("allocated", "17", "jobs 17 run here"),
        (None, "", "does not say whether jobs run here"),
        ("idle", "", "is idle and may be given a job"),
    ):
        slurm(box, state, jobs)
        done = roles.run(["gpu_driver"], gpu_driver_version=NEW)
        assert done.returncode == 2, done.stdout
        assert words in done.stdout
        assert "changed=0" in done.stdout
    assert version(box) == version(box, "libnvidia-ml1") == OLD
    # and a busy node whose pin is what it has is left in peace
    slurm(box, "allocated", "17")
    assert roles.apply(["gpu_driver"])["changed"] == 0
    # when it is drained, then the new driver is there, and verify asks for the reboot
    slurm(box, "drained")
    done = roles.run(["gpu_driver"], gpu_driver_version="580.95.05-*")
    assert "driver 570.133.20 runs, but nvidia-open 580.95.05-1stub1 is installed; reboot the node" in done.stdout
    assert version(box) == version(box, "libnvidia-ml1") == version(box, "nvidia-fabricmanager") == NEW
    running(box, "580.95.05")
    assert roles.apply(["gpu_driver"], gpu_driver_version="580.95.05-*")["changed"] == 0
    # and going back is the same
    running(box, "570.133.20")
    roles.apply(["gpu_driver"])
    assert version(box) == OLD


def test_a_driver_of_the_vendors_is_only_looked_at(box: Sandbox, roles: Roles) -> None:
    before = shell(box, "dpkg-query --list; ls -l /etc/apt/preferences.d")
    counts = roles.apply(["gpu_driver"], vendor_provides=["driver", "time"], gpu_driver_dcgm=False)
    assert counts["changed"] == 0
    assert shell(box, "dpkg-query --list; ls -l /etc/apt/preferences.d") == before


def test_a_source_that_another_key_signs_brings_nothing(box: Sandbox, roles: Roles, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = make_source(tmp_path / "other" / "stubs", driver_stubs(NEW, stub.library())[:1])
    wrong = {"name": "wrong", "uris": ["file:/srv/wheelhouses/stubs"], "suites": ["./"], "key": str(other)}
    done = roles.run(["base"], base_package_sources=[wrong])
    shell(box, "rm /etc/apt/sources.list.d/kinemill-wrong.sources")
    assert done.returncode == 2, done.stdout
