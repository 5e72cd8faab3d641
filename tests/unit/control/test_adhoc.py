"""What the playbooks of playbooks/adhoc refuse, and how they judge a node."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from kinemill.contracts.fleet import DrainEvent, format_reason
from kinemill.control import adhoc
from support.ansible import REPO, ROLES, load

NOW = dt.datetime(2030, 5, 1, 12, tzinfo=dt.UTC)
GROUPS = {"slurm_controllers": ["ctl"], "slurm_nodes": ["n1", "n2", "n3"]}
GIVEN = {
    "adhoc_nodes": "n1", "adhoc_reason": "fan swap", "adhoc_who": "anna", "adhoc_until": "", "adhoc_event": "",
    "adhoc_batch": "10%", "adhoc_canary": "", "adhoc_version": "", "adhoc_wait_minutes": 60, "adhoc_allow_down": False,
    "adhoc_confirm": "", "adhoc_bundle_dir": "/x", "adhoc_log_lines": 2000,
}  # fmt: skip


def faults(playbook: str = "drain", *, limit: str | None = None, stated: Any = None, **given: Any) -> list[str]:
    return adhoc.request_faults(
        playbook,
        {**GIVEN, **{f"adhoc_{name}": value for name, value in given.items()}},
        groups=GROUPS,
        stated=["n1", "n2", "n3"] if stated is None else stated,
        cluster="sandbox",
        limit=limit,
        now=NOW,
    )


def text(**statuses: str) -> str:
    rows = [
        {"check": name.replace("_", "."), "status": status, "cls": "hard", "detail": "d"}
        for name, status in statuses.items()
    ]
    return json.dumps({"results": rows})


def test_every_playbook_has_a_rule_and_every_variable_a_default() -> None:
    assert {path.stem for path in (REPO / "playbooks" / "adhoc").glob("*.yml")} == set(adhoc.PLAYBOOKS)
    assert set(load(ROLES / "adhoc" / "defaults" / "main.yml")) == set(GIVEN)


def test_a_request_that_makes_sense_is_not_refused() -> None:
    assert faults() == []
    assert faults(nodes="n[1-2],n3", until="2030-05-01", batch=3, wait_minutes="0") == []
    assert faults("upgrade_agents", nodes="", reason="", who="", version="0.1.0+3fa9c1d2e4b7", canary="n2") == []
    assert faults("uninstall", nodes="", confirm="sandbox") == []


@pytest.mark.parametrize(
    ("playbook", "given", "said"),
    [
        ("drain", {"nodes": ""}, "adhoc_nodes is empty"),
        ("drain", {"nodes": []}, "adhoc_nodes is empty"),
        ("reboot", {"nodes": "  "}, "adhoc_nodes is empty"),
        ("drain", {"nodes": "n9"}, "n9 is not in the inventory's group slurm_nodes"),
        ("drain", {"nodes": "ctl"}, "ctl is not in"),
        ("drain", {"nodes": "n1:n2"}, "n1:n2 is not in"),
        ("drain", {"nodes": "n[3-1]"}, "counts backwards"),
        ("drain", {"nodes": "n[1-99999999]"}, "names more than"),
        ("drain", {"reason": " "}, "adhoc_reason is empty"),
        ("drain", {"who": ""}, "adhoc_who is empty"),
        ("drain", {"who": "anna | T"}, "adhoc_who is"),
        ("drain", {"reason": "a|b"}, "adhoc_reason must be printable"),
        ("drain", {"reason": "a : b"}, "adhoc_reason must be printable"),
        ("drain", {"reason": "a\nb"}, "adhoc_reason must be printable"),
        ("drain", {"reason": "x" * 90}, "characters together"),
        ("drain", {"until": "tomorrow"}, "adhoc_until is 'tomorrow'"),
        ("drain", {"until": "2030-04-30"}, "which is past"),
        ("reboot", {"batch": "0"}, "adhoc_batch is '0'"),
        ("reboot", {"batch": "101%"}, "adhoc_batch is '101%'"),
        ("reboot", {"wait_minutes": "-1"}, "adhoc_wait_minutes is '-1'"),
        ("upgrade_agents", {"canary": "n2"}, "adhoc_canary is n2, which is none of the chosen"),
        ("upgrade_agents", {"version": "newest"}, "adhoc_version is 'newest'"),
        ("upgrade_agents", {"version": "../0.1+3fa9c1d2e4b7"}, "adhoc_version is"),
        ("rotate_munge_key", {"nodes": "n1"}, "concerns the whole cluster"),
        ("rotate_munge_key", {"nodes": "", "allow_down": "maybe"}, "adhoc_allow_down is 'maybe'"),
        ("uninstall", {"nodes": ""}, "say -e adhoc_confirm=sandbox"),
        ("uninstall", {"nodes": "", "confirm": "yes"}, "say -e adhoc_confirm=sandbox"),
        ("remove_node", {"nodes": "all"}, "a cluster without nodes does not start"),
    ],
)
def test_a_request_is_refused_with_the_variable_and_the_remedy(playbook: str, given: dict[str, Any], said: str) -> None:
    (found,) = faults(playbook, **given)
    assert said in found


def test_all_faults_are_said_at_once() -> None:
    assert len(faults(nodes="n9", reason="", who="", until="x", limit="n1")) == 5


def test_a_new_node_must_stand_in_slurm_conf_and_a_removed_one_need_not() -> None:
    (found,) = faults("add_node", nodes="n3", stated=["n1", "n2"])
    assert "n3 is in no entry of slurm_controller_nodes" in found
    assert faults("remove_node", nodes="n3", stated=["n1", "n2"]) == []


def test_a_limit_is_refused_for_it_hides_the_controller() -> None:
    (found,) = faults(limit="n1")
    assert found.startswith("--limit hides hosts")


def test_nodes_are_chosen_in_order_and_once() -> None:
    assert adhoc.chosen("n2, n1,n2", ["n1", "n2"]) == ["n2", "n1"]
    assert adhoc.chosen("all", ["n1", "n2"]) == ["n1", "n2"]
    assert adhoc.chosen(["n[01-03]", "m1"], []) == ["n01", "n02", "n03", "m1"]


def test_batches() -> None:
    assert [adhoc.batch_size(said, 40) for said in ("5", 7, "10%", "1%", "100%")] == [5, 7, 4, 1, 40]


def test_the_longest_words_fit_every_reason() -> None:
    words = adhoc.drain_text("a" * 20, "2030-01-31T18:00", "x" * (80 - 20 - 16 - 9))
    for code in ("drain", "reboot", "remove"):
        assert format_reason(DrainEvent("operator", "H", code, "0123abcd", words)).endswith(words)


def test_worse_is_what_fails_or_cannot_be_measured_now_and_did_better_before() -> None:
    before = text(gpu_ecc="OK", gpu_xid="FAIL", host_clock="UNKNOWN", gpu_temperature="OK", gpu_mode="SKIP")
    after = text(
        gpu_ecc="FAIL", gpu_xid="FAIL", host_clock="OK", gpu_temperature="WARN", gpu_mode="UNKNOWN", gpu_new="FAIL"
    )
    assert [line.split(" now")[0] for line in adhoc.worse(before, after)] == [
        "gpu.ecc: OK before, FAIL",
        "gpu.mode: SKIP before, UNKNOWN",
        "gpu.new: not there before, FAIL",
    ]
    assert adhoc.worse(before, before) == []


def test_agents_that_fall_silent_are_worse_and_silent_ones_cannot_get_worse() -> None:
    assert adhoc.worse(text(gpu_ecc="OK"), "Traceback ...") == ["the agents do not answer"]
    assert adhoc.worse("", text(gpu_ecc="FAIL")) == []
    for broken in ("", "[]", '{"results": 1}', '{"results": [{"check": "x"}]}', "null"):
        assert adhoc.results(broken) is None


def test_a_booted_node_is_kept_out_by_faults_that_drain_and_by_silence() -> None:
    assert adhoc.refusing(text(gpu_ecc="OK", gpu_temperature="WARN")) == []
    assert adhoc.refusing(text(gpu_ecc="FAIL", host_clock="UNKNOWN")) == [
        "gpu.ecc: FAIL (d)",
        "host.clock: UNKNOWN (d)",
    ]
    config = json.dumps({"results": [{"check": "host.clock", "status": "FAIL", "cls": "config"}]})
    assert adhoc.refusing(config) == []
    assert adhoc.refusing("") == ["the agents do not answer"]


def test_slurm_conf_without_some_nodes() -> None:
    nodes = [{"name": "n[1-3]", "cpus": 16}, {"name": "m1", "cpus": 8}]
    assert adhoc.without(nodes, ["n2", "m1"], key="name") == [{"name": "n1,n3", "cpus": 16}]
    parts = [{"name": "main"}, {"name": "some", "nodes": "n[2-3]"}, {"name": "one", "nodes": "m1"}]
    assert adhoc.without(parts, ["n2", "m1"], key="nodes", default="ALL") == [
        {"name": "main"},
        {"name": "some", "nodes": "n3"},
    ]
