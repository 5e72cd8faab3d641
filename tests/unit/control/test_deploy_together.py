"""Names and messages that many hosts share are said once, and none is lost."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.control.deploy.record import Failure, Finding, HostLine, RoleTime, RunRecord
from kinemill.control.deploy.report import page
from kinemill.control.deploy.show import summary
from kinemill.control.deploy.together import fold, same_failures, same_findings
from kinemill.slurm.hostlist import expand_hostlist

GONE = Finding("reach", "", "cannot be reached", "fix the name server", transient=True)
STOPPED = Failure("", "munge", "Start munge", "roles/munge/tasks/configure.yml:9", "failed", "it does not start")


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["n1"], "n1"),
        (["n1", "n2", "n3"], "n[1-3]"),
        (["gpu003", "head01", "gpu001", "gpu002", "gpu007"], "gpu[001-003,007], head01"),
        (["n9", "n10", "n11"], "n[9,10-11]"),
        (["n09", "n9", "n10"], "n[9,09-10]"),
        (["10.0.0.8", "10.0.0.9"], "10.0.0.[8-9]"),
        (["ctl", "ctl"], "ctl"),
        (["hosts.yml:3", "hosts.yml:4"], "hosts.yml:3, hosts.yml:4"),
        (["fd00::1", "fd00::2"], "fd00::1, fd00::2"),
        (["7"], "7"),
        ([], ""),
    ],
)
def test_names_are_folded_where_they_are_hosts(names: list[str], said: str) -> None:
    assert fold(names) == said


HOSTS = st.from_regex(r"[a-z]{1,2}(-[a-z])?[0-9]{0,3}", fullmatch=True)


@given(st.lists(HOSTS, max_size=40))
def test_slurm_reads_the_same_hosts_from_it(names: list[str]) -> None:
    assert set(expand_hostlist(fold(names).replace(" ", ""))) == set(names)


def test_what_differs_in_more_than_its_place_stays_apart() -> None:
    findings = [
        dataclasses.replace(GONE, where="n1"),
        dataclasses.replace(GONE, where="n2", fatal=False),
        dataclasses.replace(GONE, where="n3"),
    ]
    assert [(one.where, one.fatal) for one in same_findings(findings)] == [("n[1,3]", True), ("n2", False)]
    failures = [dataclasses.replace(STOPPED, host=host) for host in ("n1", "n2")]
    other = dataclasses.replace(STOPPED, host="n3", message="it is not there")
    assert [(one.host, one.message) for one in same_failures([*failures, other])] == [
        ("n[1-2]", "it does not start"),
        ("n3", "it is not there"),
    ]


def test_a_thousand_nodes_with_one_fault_are_one_row_on_the_page_and_one_line_on_the_screen() -> None:
    nodes = [f"gpu{number:04}" for number in range(1, 1001)]
    record = RunRecord("big", "site.yml", state="refused")
    record.findings = tuple(dataclasses.replace(GONE, where=node) for node in nodes)
    drawn, said = page(record), summary(record)
    assert drawn.count("cannot be reached") == said.count("cannot be reached") == 1
    assert "gpu[0001-1000]" in drawn
    assert "gpu[0001-1000]" in said
    assert "Reaching the nodes: 1000 found" in drawn
    assert "refused for 1000 faults" in said


def test_the_page_counts_hosts_by_state_and_names_its_colours() -> None:
    record = RunRecord("some", "site.yml", state="failed", started="2026-11-30T07:40:00+00:00", revision="abc1234+")
    record.hosts = {"n1": HostLine(ok=3, failed=1), "n2": HostLine(ok=3, changed=1), "n3": HostLine(ok=3, changed=2)}
    record.roles = (RoleTime("munge", 99.9, 1000, 1000),)
    record.failures = (dataclasses.replace(STOPPED, host="n1", meaning="a service does not start"),)
    drawn = page(record)
    assert "<h2>Hosts: 1 failed, 2 changed</h2>" in drawn
    assert "changed something" in drawn
    assert "A service does not start." in drawn
    assert "2026-11-30 07:40:00 UTC to ?" in drawn
    assert "commit abc1234 with changes beside it" in drawn
    assert "goes on from what is there" in drawn
