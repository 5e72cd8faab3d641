"""Parsing of what the kernel and Slurm hand over, hostile values included."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.agents.context import job_from_environment
from kinemill.agents.metrics import render
from kinemill.agents.probes.host import parse_cpu_list
from kinemill.agents.probes.kernel_log import parse_line
from kinemill.agents.xids import XIDS, parse_xid
from kinemill.contracts.checks import FixAction


def test_kmsg_records_are_read_by_their_monotonic_stamp() -> None:
    assert parse_line("4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79") == (5.678901, "NVRM: Xid (PCI:0000:3b:00): 79")
    assert parse_line(" SUBSYSTEM=pci") is None
    assert parse_line("nonsense") is None


def test_xid_and_sxid_lines() -> None:
    event = parse_xid(5.0, "NVRM: Xid (PCI:0000:3B:00): 31, pid='<unknown>', name=<unknown>, Ch 00000008")
    assert event is not None
    assert (event.pci, event.number, event.switch) == ("0000:3b:00", 31, False)
    assert parse_xid(5.0, "NVRM: loading NVIDIA UNIX Kernel Module") is None


# (random text alone never gets behind the first comma)
PIECES = st.sampled_from(
    ["4,12,5678901,-;", "4,12,", ";", "NVRM: Xid (PCI:0000:3B:00): 79, pid=", "NVRM: Xid (PCI:", "): ", "79, ",
     "nvidia-nvswitch0: SXid (PCI:0000:C3:00.0): 12028, Fatal, Link 3 ", "9" * 40, "\n", "\x00", "x" * 500]
)  # fmt: skip


@given(st.lists(st.one_of(PIECES, st.text(max_size=40)), max_size=8).map("".join))
def test_no_line_breaks_the_parsers(line: str) -> None:
    record = parse_line(line)
    if record is not None:
        at_s, text = record
        assert at_s >= 0
        assert line.partition(";")[2].startswith(text)
        assert len(text) <= 500
    event = parse_xid(1.0, line)
    if event is not None:
        assert ("SXid" if event.switch else "Xid") in line
        assert 0 <= event.number < 10**6
        assert event.pci == event.pci.lower()


def test_every_row_of_the_table_has_a_source_and_a_known_action() -> None:
    for number, rule in XIDS.items():
        assert rule.source, number
        assert rule.action in {a.value for a in FixAction} | {"app"}
        assert isinstance(rule.fix, FixAction)


def test_the_job_is_read_from_the_hooks_environment() -> None:
    job = job_from_environment(
        {"SLURM_JOB_ID": "77", "SLURM_JOB_GPUS": "0,3", "SLURM_JOB_UID": "1000", "SLURM_JOB_USER": "kim"}
    )
    assert job is not None
    assert (job.job_id, job.gpus, job.uid, job.user) == (77, (0, 3), 1000, "kim")


@pytest.mark.parametrize(
    "environ",
    [{}, {"SLURM_JOB_ID": ""}, {"SLURM_JOB_ID": "7; rm -rf /"}, {"SLURM_JOB_ID": "-1"}, {"SLURM_JOB_ID": "9" * 40}],
)
def test_a_damaged_job_id_is_no_job(environ: dict[str, str]) -> None:
    assert job_from_environment(environ) is None


def test_hostile_values_are_made_harmless() -> None:
    job = job_from_environment({"SLURM_JOB_ID": "1", "SLURM_JOB_GPUS": "0,$(x)", "SLURM_JOB_USER": "a\nb;c"})
    assert job is not None
    assert job.gpus is None
    assert job.user == "a?b?c"


@pytest.mark.parametrize(("text", "count"), [("0-3\n", 4), ("0", 1), ("0-1,8-11,20", 7)])
def test_cpu_lists(text: str, count: int) -> None:
    assert parse_cpu_list(text) == count


@pytest.mark.parametrize("text", ["", "a", "3-", "1,,2"])
def test_bad_cpu_lists(text: str) -> None:
    with pytest.raises(ValueError, match="CPU list"):
        parse_cpu_list(text)


def test_labels_are_escaped_and_only_declared_metrics_are_written() -> None:
    text = render([("kinemill_check_result", "", {"check": 'a"b\\c\nd', "class": "hard"}, 2.0)])
    assert text.splitlines()[-1] == 'kinemill_check_result{check="a\\"b\\\\c\\nd",class="hard"} 2'
    with pytest.raises(KeyError):
        render([("kinemill_made_up", "", {}, 1.0)])
