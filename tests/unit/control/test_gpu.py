"""When a GPU driver may be changed, and when it is the one that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from kinemill.control.gpu import change_faults, driver_faults
from kinemill.control.nodeconf import parse_enroot, parse_plugstack, parse_preferences
from kinemill.errors import ConfigError

OLD: dict[str, Any] = {
    "driver": "570.10.01",
    "gpus": 8,
    "persistent": 8,
    "error": "",
    "installed": {"nvidia-open": "570.10.01-1"},
    "stopped": [],
    "slurm": True,
    "steps": 0,
    "jobs": [],
    "state": "drained",
}
NEW = "580.95.05-*"


def change(version: str = NEW, **seen: Any) -> list[str]:
    return change_faults({**OLD, **seen}, version=version, node="n1")


def test_a_drained_node_without_jobs_may_change() -> None:
    assert change() == []
    assert change(state="down") == []


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        ({"jobs": ["17", "18"]}, "jobs 17, 18 run here"),
        ({"steps": 2, "jobs": []}, "2 job steps run here"),
        ({"steps": 1, "jobs": None}, "1 job steps run here"),
        ({"jobs": None}, "does not say whether jobs run"),
        ({"state": "idle"}, "n1 is idle and may be given a job"),
        ({"state": "draining"}, "n1 is draining"),
        ({"state": ""}, "does not tell"),
    ],
)
def test_a_node_in_use_or_in_doubt_keeps_its_driver(seen: dict[str, Any], words: str) -> None:
    (fault,) = change(**seen)
    assert words in fault
    assert "nvidia-open 570.10.01-1 would become 580.95.05-*" in fault


def test_where_nothing_would_change_nobody_is_in_the_way() -> None:
    busy = {"jobs": ["17"], "steps": 3, "state": "allocated"}
    assert change(version="570.10.01-1", **busy) == []
    assert change(version="570.10.01-*", **busy) == []
    # a first installation, and one before Slurm
    assert change(installed={}, **busy) == []
    assert change(slurm=False, state="") == []


def test_a_version_must_be_pinned() -> None:
    assert "pin the driver's version" in change(version="")[0]


def test_the_driver_that_was_asked_for_has_no_fault() -> None:
    assert driver_faults(OLD, version="570.10.01-*", persistence=True) == []
    # the vendor's own, whatever its version and packages
    assert driver_faults({**OLD, "installed": {}, "persistent": 0}) == []


@pytest.mark.parametrize(
    ("seen", "said", "words"),
    [
        (
            {"error": "nvmlInit_v2: Driver/library version mismatch"},
            {},
            "version mismatch; a changed driver needs a reb",
        ),
        ({"gpus": 0}, {}, "sees no GPU"),
        ({}, {"version": NEW}, "nvidia-open is 570.10.01-1, the inventory says 580.95.05-*"),
        ({"driver": "565.01"}, {"version": "570.*"}, "driver 565.01 runs, but nvidia-open 570.10.01-1 is installed"),
        ({"installed": {}}, {"version": "570.*"}, "no package is installed"),
        ({"persistent": 6}, {"persistence": True}, "2 of 8 GPUs are not in persistence mode"),
        ({"stopped": ["nvidia-fabricmanager"]}, {}, "nvidia-fabricmanager does not run"),
    ],
)
def test_each_fault_of_a_driver_is_told(seen: dict[str, Any], said: dict[str, Any], words: str) -> None:
    (fault,) = driver_faults({**OLD, **seen}, **said)
    assert words in fault


def test_preferences_of_apt_are_read_strictly() -> None:
    text = "# note\nPackage: a*\nPin: version 1\nPin-Priority: 1001\n\nPackage: b\nPin: release a=x\nPin-Priority: -1\n"
    assert [one["Package"] for one in parse_preferences(text)] == ["a*", "b"]
    for bad in (
        "Package: a\nPin: version 1\n",
        text.replace("1001", "high"),
        text.replace("Pin: version 1\n", "Pin:\n"),
    ):
        with pytest.raises(ConfigError):
            parse_preferences(bad)


def test_settings_of_the_container_runtime_are_read_strictly() -> None:
    assert parse_enroot("# note\nENROOT_DATA_PATH /tmp/a-$(id -u)\n") == {"ENROOT_DATA_PATH": "/tmp/a-$(id -u)"}
    assert parse_plugstack("optional /lib/a.so x=1 y=2\n") == [("optional", "/lib/a.so", "x=1 y=2")]
    for bad in ("DATA /tmp\n", "ENROOT_A\n", "ENROOT_A 1\nENROOT_A 2\n"):
        with pytest.raises(ConfigError, match=r"enroot\.conf line"):
            parse_enroot(bad)
    for bad in ("perhaps /lib/a.so\n", "required a.so\n", "include\n"):
        with pytest.raises(ConfigError, match=r"plugstack\.conf line"):
            parse_plugstack(bad)
