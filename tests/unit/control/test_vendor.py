"""A node that contradicts its inventory is named with every contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from kinemill.control.vendor import node_faults

BARE: dict[str, Any] = {
    "found": [],
    "found_first": [],
    "hostname": "n1",
    "os_id": "debian",
    "os_like": [],
    "os_version": "12",
    "free_mb": 4000,
    "users": {"root": 0, "researcher": 2000},
}


def faults(look: dict[str, Any] | None = None, **said: Any) -> list[str]:
    return node_faults({**BARE, **(look or {})}, **{"provides": [], "hostname": "n1", "compute": True, **said})


def test_a_node_that_is_as_stated_has_no_fault() -> None:
    assert faults() == []
    assert faults({"found": ["slurm"], "found_first": ["slurm"]}, provides=["slurm", "time"]) == []


def test_what_we_installed_ourselves_is_no_contradiction() -> None:
    assert faults({"found": ["munge", "slurm"], "found_first": []}) == []


@pytest.mark.parametrize(
    ("look", "said", "words"),
    [
        ({}, {"provides": ["slurm"]}, "vendor_provides names slurm, but nothing of it is here"),
        ({"found_first": ["driver"]}, {}, "driver was here before us"),
        ({"hostname": "ip-10-0-0-1"}, {}, "calls itself 'ip-10-0-0-1', the inventory calls it 'n1'"),
        ({"free_mb": 10}, {"minimum_free_mb": 1024}, "10 MiB free, 1024 are needed"),
        ({"os_id": "rocky", "os_like": ["rhel"]}, {}, "not of Debian's family"),
        ({}, {"users": [{"name": "researcher", "uid": 3000}]}, "has uid 2000 here, the inventory says 3000"),
        ({}, {"users": [{"name": "other", "uid": 2000}]}, "uid 2000 belongs to researcher"),
    ],
)
def test_each_contradiction_is_told(look: dict[str, Any], said: dict[str, Any], words: str) -> None:
    (fault,) = faults(look, **said)
    assert words in fault


def test_all_of_them_come_at_once_and_a_controller_needs_no_driver() -> None:
    many = faults({"hostname": "x", "free_mb": 1}, provides=["slurm", "driver"], minimum_free_mb=2)
    assert len(many) == 4
    assert faults(provides=["driver", "containers"], compute=False) == []
    assert faults({"os_id": "ubuntu", "os_like": ["debian"]}) == []
