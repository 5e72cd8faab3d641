"""A node that contradicts its inventory is named with every contradiction."""

from __future__ import annotations

from typing import Any

import pytest

from kinemill.control.vendor import node_faults, slurm_release

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


def daemon(version: str = "24.11.5", path: str = "/usr/sbin/slurmd", *, runs: bool = True) -> dict[str, Any]:
    return {"path": path, "version": version, "runs": [path] if runs else []}


# A node as a vendor of Slurm hands it over.
READY: dict[str, Any] = {
    "found": ["munge", "slurm"],
    "found_first": ["munge", "slurm"],
    "first_contact": True,
    "slurm": {"slurmd": daemon(), "slurmctld": {"path": None, "version": None, "runs": []}},
    "users": {"root": 0, "slurm": 64030},
    "groups": {"slurm": 64030},
}
HEAD: dict[str, Any] = {
    "slurm": {"slurmctld": daemon(path="/usr/sbin/slurmctld")},
    "users": {"slurm": 64030},
    "groups": {"slurm": 64030},
}


def faults(look: dict[str, Any] | None = None, **said: Any) -> list[str]:
    return node_faults({**BARE, **(look or {})}, **{"provides": [], "hostname": "n1", "compute": True, **said})


def test_a_node_that_is_as_stated_has_no_fault() -> None:
    assert faults() == []
    assert faults(READY, provides=["slurm", "time", "firewall"], controller_look=HEAD) == []


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


@pytest.mark.parametrize(
    ("change", "said", "words"),
    [
        # stated, and not there
        ({"slurm": {}}, {}, "vendor_provides names slurm, but slurmd is not here"),
        ({"slurm": {"slurmd": daemon(runs=False)}}, {}, "slurmd does not run; let the vendor start it"),
        ({}, {"controller": True}, "slurmctld is not here"),
        # there, and not stated
        ({}, {"provides": ["munge"]}, "slurm was here before us"),
        ({"found_first": ["munge"]}, {"provides": []}, "munge was here before us"),
        (
            {"found_first": [], "slurm": {"slurmd": daemon(path="/opt/slurm/sbin/slurmd")}},
            {"provides": []},
            "slurmd runs from /opt/slurm/sbin/slurmd",
        ),
        # there, and not fit
        ({"slurm": {"slurmd": daemon("21.08.8")}}, {}, "Slurm 21.08.8, the oldest that is supported is 22.05"),
        (
            {"slurm": {"slurmd": daemon("25.05.1")}},
            {},
            "slurmd 25.05.1 is newer than the controller's slurmctld 24.11.5",
        ),
        ({"users": {"slurm": 991}}, {}, "user slurm has or will have uid 991 here, 64030 on the controller"),
        ({"groups": {"slurm": 991}}, {}, "group slurm has or will have gid 991 here"),
    ],
)
def test_a_vendors_slurm_that_does_not_fit_is_named_with_its_node(
    change: dict[str, Any], said: dict[str, Any], words: str
) -> None:
    (fault,) = faults({**READY, **change}, **{"provides": ["slurm"], "controller_look": HEAD, **said})
    assert fault.startswith("n1: ")
    assert words in fault


def test_an_image_that_brings_the_user_slurm_fits_only_where_all_do() -> None:
    # given bare nodes: the package makes 64030 where there is none yet
    mine = {"users": {"slurm": 991}, "groups": {"slurm": 991}}
    none: dict[str, Any] = {"users": {"root": 0}, "groups": {"root": 0}}
    assert len(faults(mine, controller_look=none)) == 2
    assert len(faults(none, controller_look=mine)) == 2
    assert faults(mine, controller_look=mine) == []
    assert faults(none, controller_look=none) == []
    assert faults(mine) == []


def test_a_daemon_that_stopped_after_the_first_contact_is_for_verify_to_say() -> None:
    stopped = {**READY, "first_contact": False, "slurm": {"slurmd": daemon(runs=False)}}
    assert faults(stopped, provides=["slurm"]) == []


def test_the_floor_itself_is_taken_and_versions_are_read() -> None:
    assert faults({**READY, "slurm": {"slurmd": daemon("22.05.8")}}, provides=["slurm"]) == []
    assert slurm_release("slurm-wlm 22.05.8") == (22, 5)
    assert slurm_release("unknown") == (0, 0)


def test_a_users_group_counts_too() -> None:
    (fault,) = faults({"groups": {"researcher": 100}}, users=[{"name": "researcher", "uid": 2000}])
    assert "group researcher has gid 100 here" in fault


@pytest.mark.parametrize("path", ["/usr/sbin/slurmd", "/usr/sbin/slurmd-wlm"])
def test_a_daemon_of_debians_package_is_ours_on_a_second_run(path: str) -> None:
    # given a node that the roles themselves gave a Slurm
    look = {**BARE, "found": ["slurm", "munge"], "slurm": {"slurmd": daemon("22.05.8", path)}}
    # then a second run does not take it for the vendor's
    assert node_faults(look, provides=[], hostname="n1", compute=True) == []
