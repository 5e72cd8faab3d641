"""Host lists, Slurm's text and JSON, and what a command's failure means; hostile and torn answers included."""

from __future__ import annotations

import contextlib
import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.contracts import JobRequest, NodeInfo
from kinemill.errors import (
    DeadlineError,
    ExternalError,
    KinemillError,
    LimitError,
    MissingToolError,
    NotFoundError,
    StateError,
    UnavailableError,
    UsageError,
)
from kinemill.process import ProcessId
from kinemill.slurm import jsonform, run, text
from kinemill.slurm.cli import CliSlurm
from kinemill.slurm.hostlist import expand_hostlist
from kinemill.slurm.run import Answer, failure, run_here

MARK = "@" + "0123456789abcdef" * 2
LINE = (
    "NodeName={name} Arch=x86_64 CPUTot=16 Gres=gpu:h200:8 GresUsed=gpu:h200:2(IDX:0-1) Version=22.05.8 "
    "RealMemory=64000 State={state} ThreadsPerCore=1 Partitions=main,long  BootTime=2026-11-30T01:28:09 "
    "AllocTRES=cpu=1,gres/gpu=2 {tail}"
)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10,12],m2", ["n08", "n09", "n10", "n12", "m2"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("r[1-2]-ib", ["r1-ib", "r2-ib"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_host_lists(words: str, hosts: list[str]) -> None:
    assert list(expand_hostlist(words)) == hosts


@pytest.mark.parametrize("words", ["n[1-", "n]1[", "n[[1]]", "n[1-x]", ",", "n1,,n2", "n[3-1]", "n[]"])
def test_what_is_no_host_list(words: str) -> None:
    with pytest.raises(ExternalError):
        expand_hostlist(words)


def test_a_host_list_cannot_blow_up() -> None:
    with pytest.raises(LimitError):
        expand_hostlist("n[1-999999999]")
    with pytest.raises(LimitError):
        expand_hostlist("a[1-999]b[1-999]c[1-999]")
    with pytest.raises(LimitError):
        expand_hostlist("n," * (1 << 20))


@given(st.text(alphabet="n[]-,0123456789\n", max_size=40))
def test_no_host_list_hangs_or_crashes(words: str) -> None:
    with contextlib.suppress(ExternalError, LimitError):
        assert all("[" not in h for h in expand_hostlist(words))


def sinfo(*rows: tuple[str, str, str, str]) -> str:
    return "".join("".join(f"{MARK}={v}" for v in row) + f"{MARK}.\n" for row in rows)


CLEAN = ("none", "Unknown", "Unknown")


def test_a_node_is_read_from_both_answers() -> None:
    tail = 'Reason=a | b [root@2026-11-30T01:29:03] Comment=c Extra={"a": 1} '
    (node,) = text.parse_nodes(
        LINE.format(name="n1", state="MIXED*+DRAIN", tail=tail),
        sinfo(("n1", "a | b", "2026-11-30T01:29:03", "root(0)")),
        MARK,
    )
    assert node == NodeInfo(
        "n1",
        frozenset({"MIXED", "DRAIN", "NOT_RESPONDING"}),
        reason="a | b",
        reason_time_s=1_796_002_143,
        reason_user="root",
        reason_uid=0,
        boot_time_s=1_796_002_089,
        version="22.05.8",
        extra='{"a": 1}',
        comment="c",
        gres="gpu:h200:8",
        gres_used="gpu:h200:2(IDX:0-1)",
        alloc_tres="cpu=1,gres/gpu=2",
        partitions=("main", "long"),
        cpus=16,
        real_memory_mb=64000,
    )


def test_a_reason_cannot_change_another_field_or_node() -> None:
    reason = "x Extra=forged State=DOWN Comment=y [root@2020-01-01T00:00:00]"
    tail = f"Reason={reason} [kim@2026-11-30T01:29:03] Extra=real "
    lines = LINE.format(name="n1", state="IDLE+DRAIN", tail=tail)
    (node,) = text.parse_nodes(lines, sinfo(("n1", reason, "2026-11-30T01:29:03", "kim(1000)")), MARK)
    assert (node.reason, node.extra, node.states) == (reason, "real", {"IDLE", "DRAIN"})
    assert (node.reason_user, node.reason_uid) == ("kim", 1000)


def test_forged_lines_are_refused() -> None:
    good = LINE.format(name="n1", state="IDLE", tail="")
    rows = sinfo(("n1", *CLEAN), ("n2", *CLEAN))
    with pytest.raises(ExternalError, match="twice"):
        text.parse_nodes(f"{good}\n{good}", rows, MARK)
    with pytest.raises(ExternalError, match="ghost"):
        text.parse_nodes(f"{good}\n{LINE.format(name='ghost', state='IDLE', tail='')}", rows, MARK)


@pytest.mark.parametrize("answer", ["bash: sinfo: crashed\n", f"{MARK}=n1{MARK}=x{MARK}.", f"{MARK}=a{MARK}=b"])
def test_stray_text_and_another_number_of_fields_are_refused(answer: str) -> None:
    with pytest.raises(ExternalError):
        text.split_marked(answer, 4, MARK)


def test_a_reason_of_the_word_none_is_a_reason() -> None:
    line = LINE.format(name="n1", state="IDLE+DRAIN", tail="Reason=none [root@2026-11-30T01:29:03]")
    (node,) = text.parse_nodes(line, sinfo(("n1", "none", "2026-11-30T01:29:03", "root(0)")), MARK)
    assert node.reason == "none"


def test_accounting_counts_runs_and_reads_signals() -> None:
    row = ("7", "NODE_FAIL", "a\nb", "kim", "acc", "main", "normal", "n[1-2]", "0:15", "key", "")
    last = ("7", "CANCELLED by 0", "a\nb", "kim", "acc", "main", "normal", "n3", "3:0", "key", "")
    answer = "\n".join("".join(v + MARK for v in r) for r in (row, last)) + "\n"
    first, second = text.parse_accounting(answer, MARK)
    assert (first.nodes, first.exit_code, first.restarts, first.name) == (("n1", "n2"), 143, 0, "a\nb")
    assert (second.state, second.exit_code, second.restarts) == ("CANCELLED", 3, 1)


@pytest.mark.parametrize(
    ("code", "signal", "result"), [("256", None, 1), ("9", None, 137), ("3", "0", 3), ("0", "9", 137)]
)
def test_exit_codes(code: str, signal: str | None, result: int) -> None:
    assert text._exit(code, signal) == result


# ---- JSON


def answer_of(**top: Any) -> str:
    return json.dumps({"last_update": {"set": True, "infinite": False, "number": 5}, "errors": [], **top})


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "warning: stray\n{}",
        "[]",
        "{}",
        '{"nodes": {}}',
        '{"nodes": [3]}',
        answer_of(nodes=[{"name": "n1"}]),
        answer_of(nodes=[{"name": "n1", "state": "IDLE", "cpus": "many"}]),
        answer_of(nodes=[{"name": "n1", "state": ["IDLE"], "cpus": float("nan")}]),
        answer_of(nodes=[{"name": "n1", "state": ["IDLE"], "boot_time": {"set": True, "number": float("-inf")}}]),
        answer_of(nodes=[{"name": "n1", "state": 7}]),
        answer_of(nodes=[], errors=[{"description": "no"}]),
        "[" * 100_000,
    ],
)
def test_another_schema_or_stray_text_is_refused(answer: str) -> None:
    with pytest.raises(ExternalError):
        jsonform.nodes(answer)


def test_an_empty_list_that_was_never_updated_means_that_nobody_answered() -> None:
    """24.11 prints exactly this, with exit status 0, while its controller is down."""
    with pytest.raises(UnavailableError):
        jsonform.jobs(json.dumps({"jobs": [], "last_update": {"set": True, "infinite": False, "number": 0}}))
    assert jsonform.jobs(answer_of(jobs=[])) == []


def test_old_and_new_numbers_are_read() -> None:
    for cpus in (16, {"set": True, "infinite": False, "number": 16}):
        (node,) = jsonform.nodes(answer_of(nodes=[{"name": "n1", "state": ["IDLE"], "cpus": cpus}]))
        assert (node.cpus, node.boot_time_s, node.reason_uid) == (16, None, None)
    (node,) = jsonform.nodes(answer_of(nodes=[{"name": "n1", "state": ["IDLE"], "boot_time": float("inf")}]))
    assert node.boot_time_s is None, "no end is no time"


def test_fields_that_a_later_release_adds_or_drops_do_not_matter() -> None:
    """26.05 adds cert_flags and topology to nodes and drops power and tres_weighted."""
    row = {"name": "n1", "state": ["IDLE"], "cert_flags": [], "topology": "x", "tls_cert_last_renewal": {"set": False}}
    assert jsonform.nodes(answer_of(nodes=[row]))[0].states == {"IDLE"}


# ---- commands


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("slurm_update error: Invalid node name specified", NotFoundError),
        ("delete_reservation reservationname=x: Requested reservation is invalid", NotFoundError),
        ("Invalid job id specified for job 4242", NotFoundError),
        ("slurm_update error: Invalid node state specified", StateError),
        ("Job is pending execution for job 1", StateError),
        ("slurm_load_node error: Unable to contact slurm controller (connect failure)", UnavailableError),
        ("slurm_load_jobs error: Socket timed out on send/recv operation", UnavailableError),
        ("scontrol: error: something new", ExternalError),
        ("", ExternalError),
    ],
)
def test_what_went_wrong_has_a_kind(words: str, kind: type[KinemillError]) -> None:
    found = failure(("scontrol", "update"), Answer(1, "", words))
    assert type(found) is kind


def tool(tmp_path: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_a_command_that_hangs_is_ended_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mej/nhc#161, #9: marking hangs on sinfo; the caller learns it in bounded time."""
    tool(tmp_path, "scontrol", "sleep 600 & echo $! >$0.pid; wait", monkeypatch)
    started = time.monotonic()
    with pytest.raises(DeadlineError, match="scontrol"):
        CliSlurm(timeout_s=4).nodes()  # time for the shell to come to its child
    assert time.monotonic() - started < 200, "it was waited for to its end"
    child = int((tmp_path / "scontrol.pid").read_text())
    until = time.monotonic() + 60
    while ProcessId.of(child) is not None:
        assert time.monotonic() < until, f"child {child} of the command outlived it"
        time.sleep(0.01)


def test_a_command_that_prints_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_BYTES", 1 << 20)
    tool(tmp_path, "scontrol", "yes", monkeypatch)
    with pytest.raises(ExternalError, match="MiB"):
        run_here(["scontrol"], {}, 200)


def test_a_missing_command_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="no-such-command"):
        run_here(["no-such-command"], {}, 5)


def test_a_users_environment_does_not_change_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool(tmp_path, "squeue", "env", monkeypatch)
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    out = run_here(["squeue"], {"WORD": "x"}, 30).out
    assert "SQUEUE_FORMAT" not in out
    assert "SLURM_JOB_ID" not in out
    assert {"WORD=x", "TZ=UTC", "LC_ALL=C"} <= set(out.splitlines())


def scripted(*answers: Answer) -> tuple[CliSlurm, list[list[str]]]:
    calls: list[list[str]] = []
    left = list(answers)

    def fake(argv: Any, extra: Any, timeout_s: float) -> Answer:
        calls.append(list(argv))
        return left.pop(0)

    return CliSlurm(fake, json=False), calls


@pytest.mark.parametrize("name", ["ALL", "n[1-9]", "n1,n2", "", "-n1", "n1 state=idle", "n" * 300])
def test_only_one_node_by_its_plain_name_is_touched(name: str) -> None:
    slurm, calls = scripted()
    for call in (lambda: slurm.drain(name, "x"), lambda: slurm.resume(name), lambda: slurm.set_extra(name, "x")):
        with pytest.raises(UsageError):
            call()
    assert calls == []


@pytest.mark.parametrize("reason", ["", "  ", "two\nlines", "bell\x07", "x" * 4001])
def test_a_reason_that_could_forge_lines_is_never_written(reason: str) -> None:
    slurm, calls = scripted()
    with pytest.raises(UsageError):
        slurm.drain("n1", reason)
    assert calls == []


def test_a_release_without_extra_gets_the_comment_and_is_not_asked_again() -> None:
    no = Answer(1, "", "Update of this parameter is not supported: extra=x")
    slurm, calls = scripted(no, Answer(0, "", ""), Answer(0, "", ""))
    slurm.set_extra("n1", "x")
    slurm.set_extra("n1", "y")
    assert [c[-1] for c in calls] == ["Extra=x", "Comment=x", "Comment=y"]


def test_a_controller_that_is_down_is_not_taken_for_a_release_without_json() -> None:
    down = Answer(1, "", "slurm_load_node error: Unable to contact slurm controller (connect failure)")
    calls = 0

    def fake(argv: Any, extra: Any, timeout_s: float) -> Answer:
        nonlocal calls
        calls += 1
        return down

    slurm = CliSlurm(fake)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            slurm.nodes()
    assert calls == 2


def test_finding_out_about_json_costs_no_call_of_its_own() -> None:
    calls: list[list[str]] = []
    node = json.dumps({"nodes": [{"name": "n1", "state": ["IDLE"]}], "last_update": 5})

    def fake(argv: Any, extra: Any, timeout_s: float) -> Answer:
        calls.append(list(argv))
        return Answer(0, node, "")

    CliSlurm(fake).nodes(["n1"])
    assert calls == [["scontrol", "--json", "show", "node", "n1"]]


def test_json_in_an_unknown_form_is_left_for_text(caplog: pytest.LogCaptureFixture) -> None:
    line = LINE.format(name="n1", state="IDLE", tail="")

    def fake(argv: Any, extra: Any, timeout_s: float) -> Answer:
        if "--json" in argv:
            return Answer(0, '{"nodes": "moved to another key"}', "")
        if argv[0] == "sinfo":
            mark = argv[-1].split("=")[0]
            return Answer(0, sinfo(("n1", *CLEAN)).replace(MARK, mark), "")
        return Answer(0, line, "")

    assert [n.name for n in CliSlurm(fake).nodes()] == ["n1"]
    assert "not in a form that is known here" in caplog.text


def test_sbatch_that_prints_no_id_is_refused(tmp_path: Path) -> None:
    slurm, _ = scripted(Answer(0, "Submitted, I think", ""))
    with pytest.raises(ExternalError, match="instead of a job id"):
        slurm.submit(JobRequest(tmp_path / "x.sh", "name"))
