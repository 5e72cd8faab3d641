"""What the agent remembers, and that only root's own files are believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinemill.agents import state
from kinemill.agents.facts import Facts
from kinemill.agents.files import private_dir, read_json, write_json, write_text
from kinemill.agents.metrics import count, write_metrics
from kinemill.agents.runner import Report
from kinemill.agents.settings import AgentsSettings, CheckSettings
from kinemill.agents.state import DAY_S, Memory
from kinemill.agents.toggles import disabled_checks, observe_only
from kinemill.agents.verdict import StoredVerdict, read_verdict, write_verdict
from kinemill.agents.xids import XidEvent
from kinemill.contracts.checks import CheckResult, CheckStatus
from kinemill.errors import EnvironmentFault

UNKNOWN, OK, FAIL, SKIP = CheckStatus.UNKNOWN, CheckStatus.OK, CheckStatus.FAIL, CheckStatus.SKIP


def memory(tmp_path: Path, boot: str = "boot-1", now: int = 1_000_000) -> Memory:
    return Memory(tmp_path / "agents", boot, now)


def test_unknowns_are_counted_in_a_row_and_forgotten_by_a_measurement_or_a_reboot(tmp_path: Path) -> None:
    seen = [CheckResult("a", UNKNOWN)]
    assert memory(tmp_path).count_unknowns(seen) == {"a": 1}
    assert memory(tmp_path).count_unknowns(seen) == {"a": 2}
    assert memory(tmp_path).count_unknowns([CheckResult("a", SKIP)]) == {"a": 2}
    assert memory(tmp_path).count_unknowns([CheckResult("a", OK)]) == {}
    memory(tmp_path).count_unknowns(seen)
    assert memory(tmp_path, "boot-2").count_unknowns(seen) == {"a": 1}


def test_one_fault_keeps_its_event_and_a_new_one_gets_another(tmp_path: Path) -> None:
    first = memory(tmp_path).open(CheckResult("gpu.ecc", FAIL, code="ecc_vol_unc"), "T")
    passed = memory(tmp_path).clean_pass(first)
    assert (passed.passes, passed.last_pass_s) == (1, 1_000_000)
    again = memory(tmp_path, "boot-2").open(CheckResult("gpu.ecc", FAIL, code="ecc_vol_unc"), "T")
    assert (again.event, again.passes, again.boot_id) == (first.event, 0, "boot-2")
    other = memory(tmp_path).open(CheckResult("mounts", FAIL, code="not_mounted"), "T")
    assert other.event != first.event
    memory(tmp_path).close()
    assert memory(tmp_path).open_fault() is None


def test_slow_facts_age_and_die_with_the_boot_and_with_a_clock_that_went_back(tmp_path: Path) -> None:
    memory(tmp_path).keep_facts(Facts({"nvme.devices": [], "gpu.0": 1}, {"disk_health": "ok", "nvml": "ok"}))
    later = memory(tmp_path, now=1_000_060).cached_facts()
    assert later is not None
    assert (later.values, later.age_s) == ({"nvme.devices": []}, {"disk_health": 60.0})
    back = memory(tmp_path, now=999_000).cached_facts()
    assert back is not None
    assert back.age_s == {}
    assert memory(tmp_path, "boot-2").cached_facts() is None


def xid(at_s: float, pci: str = "0000:3b:00", number: int = 31) -> XidEvent:
    return XidEvent(at_s, pci, number)


def test_application_xids_are_counted_by_distinct_job_within_a_day(tmp_path: Path) -> None:
    """NVIDIA/NVSentinel#270: XID 13 in job after job on one GPU is hardware."""
    events = []
    for job in (1, 2, 3):
        memory(tmp_path).job_begins(job, 10.0 * job)
        events.append(xid(10.0 * job + 5))
        assert memory(tmp_path).job_ends(job, events) == events[-1:]
    assert memory(tmp_path, "boot-2").xid_jobs() == {"0000:3b:00": 3}
    assert memory(tmp_path, now=1_000_000 + DAY_S).xid_jobs() == {}


def test_an_old_xid_is_not_counted_again_for_later_jobs(tmp_path: Path) -> None:
    memory(tmp_path).job_begins(1, 10.0)
    memory(tmp_path).job_ends(1, [xid(15.0)])
    for job in (2, 3, 4):  # clean jobs on the same GPU; the line is still in the log
        memory(tmp_path).job_begins(job, 20.0)
        assert memory(tmp_path).job_ends(job, [xid(15.0)]) == []
    assert memory(tmp_path).xid_jobs() == {"0000:3b:00": 1}


def test_a_node_where_slurm_names_gpus_is_known_after_the_first_job(tmp_path: Path) -> None:
    memory(tmp_path).job_begins(1, 1.0, has_list=False)
    assert not memory(tmp_path).lists_seen()
    memory(tmp_path).job_begins(2, 2.0, has_list=True)
    memory(tmp_path).job_begins(3, 3.0, has_list=False)
    memory(tmp_path).job_ends(3, [])
    assert memory(tmp_path).lists_seen()
    assert not memory(tmp_path, "boot-2").lists_seen()


def test_without_a_prologs_mark_an_event_still_counts_once(tmp_path: Path) -> None:
    assert memory(tmp_path).job_ends(1, [xid(15.0), xid(16.0)]) == [xid(15.0), xid(16.0)]
    assert memory(tmp_path).job_ends(2, [xid(15.0), xid(16.0)]) == []
    assert memory(tmp_path).xid_jobs() == {"0000:3b:00": 1}


def test_xids_of_this_boot_outlive_the_kernels_buffer(tmp_path: Path) -> None:
    memory(tmp_path).keep_kernel_events([(5.0, "NVRM: Xid a")])
    memory(tmp_path).keep_kernel_events([(5.0, "NVRM: Xid a"), (9.0, "NVRM: Xid b")])
    assert memory(tmp_path).kernel_events() == [[5.0, "NVRM: Xid a"], [9.0, "NVRM: Xid b"]]
    assert memory(tmp_path, "boot-2").kernel_events() == []


def test_a_mount_that_is_silent_again_and_again_is_dated_and_one_that_answers_forgotten(tmp_path: Path) -> None:
    memory(tmp_path).keep_hung_mounts(["/a", "/b"])
    memory(tmp_path, now=1_000_030).keep_hung_mounts(["/a"])
    assert memory(tmp_path, now=1_000_060).hung_mounts() == {"/a": 60}
    assert memory(tmp_path, "boot-2").hung_mounts() == {}


def test_notes_wait_until_they_are_brought(tmp_path: Path) -> None:
    memory(tmp_path).add_note(7, "a")
    memory(tmp_path).add_note(7, "b")
    memory(tmp_path).add_note(8, "c")
    assert memory(tmp_path, "boot-2", now=1_000_060).notes() == [(7, "b", 60), (8, "c", 60)]
    memory(tmp_path).drop_note(7)
    assert memory(tmp_path).notes() == [(8, "c", 0)]


def test_a_run_that_holds_the_lock_for_ever_does_not_stop_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "_LOCK_S", 0.05)
    with memory(tmp_path).turn(), memory(tmp_path).turn():
        memory(tmp_path).acknowledge(1.0)
    assert memory(tmp_path).acknowledged_s() == 1.0


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    os.close(private_dir(tmp_path / "agents"))
    victim = tmp_path / "victim"
    (tmp_path / "agents" / "lock").symlink_to(victim)
    with memory(tmp_path).turn():
        memory(tmp_path).acknowledge(1.0)
    assert not victim.exists()


def test_acknowledgement_holds_for_its_boot(tmp_path: Path) -> None:
    memory(tmp_path).acknowledge(55.0)
    assert memory(tmp_path).acknowledged_s() == 55.0
    assert memory(tmp_path, "boot-2").acknowledged_s() == 0.0


@pytest.mark.parametrize("content", ["", "{", "[]", '{"boot": "boot-1", "fault": {"event": 1}}', "\x00" * 100])
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, content: str) -> None:
    memory(tmp_path).close()
    (tmp_path / "agents" / "fault.json").write_text(content)
    assert memory(tmp_path).open_fault() is None


OF_ANOTHER_VERSION = [
    7,
    "x",
    [[1]],
    [["a", "b", "c"]],
    {"a": "x"},
    {"a": [1]},
    {"a": ["b", "c", "d"]},
    {"a": {"b": 1}},
]
FILES = {
    "facts": ("at", "values"),
    "unknowns": ("streaks",),
    "acknowledged": ("kernel_s",),
    "events": ("rows",),
    "told": ("at", "text"),
    "hung": ("first",),
    "jobs": ("marks", "taken"),
    "xids": ("rows",),
    "notes": ("rows",),
    "fault": ("fault",),
    "counters": ("kinemill_drains_total",),
    "series": ("results", "seconds"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_another_version_left_stop_no_run(tmp_path: Path, name: str) -> None:
    settings = AgentsSettings(state_dir=tmp_path, run_dir=tmp_path / "run", textfile_dir=tmp_path / "metrics")
    report = Report((CheckResult("a", OK),), Facts({}, {"disk_health": "ok"}), 0.1)
    for content in OF_ANOTHER_VERSION:
        for whole in (content, *({"boot": "boot-1", key: content} for key in FILES[name])):
            write_json(tmp_path / "agents", f"{name}.json", whole)
            mine = memory(tmp_path)
            mine.cached_facts(), mine.kernel_events(), mine.acknowledged_s(), mine.told(), mine.hung_mounts()
            mine.notes(), mine.xid_jobs(), mine.open_fault(), mine.lists_seen()
            mine.count_unknowns([CheckResult("a", UNKNOWN)])
            mine.keep_facts(report.facts)
            mine.keep_kernel_events([(5.0, "NVRM: Xid a")])
            mine.keep_hung_mounts(["/a"])
            mine.job_begins(1, 5.0)
            mine.job_ends(1, [xid(15.0)])
            mine.add_note(1, "x")
            mine.open(CheckResult("a", FAIL), "T")
            count(tmp_path / "agents", {("kinemill_drains_total", (("check", "a"),)): 1.0})
            write_metrics(settings, report, 1_000_000)
            assert [note[0] for note in memory(tmp_path).notes()] == [1]
            assert memory(tmp_path).kernel_events() == [[5.0, "NVRM: Xid a"]]
            for file in (tmp_path / "agents").iterdir():
                file.unlink()


def test_a_folder_that_others_may_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    with pytest.raises(EnvironmentFault, match="others may write"):
        private_dir(folder)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(EnvironmentFault, match="no folder of ours"):
        private_dir(link)


def test_a_link_in_place_of_our_file_is_replaced_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "state"
    os.close(private_dir(folder))
    (folder / "x.json").symlink_to(victim)
    assert read_json(folder, "x.json") is None
    write_json(folder, "x.json", {"a": 1})
    assert victim.read_text() == "precious"
    assert read_json(folder, "x.json") == {"a": 1}
    assert not (folder / "x.json").is_symlink()
    assert [p.name for p in folder.iterdir()] == ["x.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write a file as somebody else; run as root")
def test_a_file_that_a_user_planted_is_not_believed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_json(folder, "observe_only.json", {"gpu.ecc": {"until": 2_000_000, "by": "x", "why": "y"}})
    settings = AgentsSettings(run_dir=folder)
    assert list(observe_only(settings, 1_000_000)) == ["gpu.ecc"]
    os.chown(folder / "observe_only.json", 1234, 1234)
    assert observe_only(settings, 1_000_000) == {}


def test_observe_only_ends_at_its_time(tmp_path: Path) -> None:
    write_json(tmp_path / "run", "observe_only.json", {"a": {"until": 100}, "b": {"until": 300}, "c": "junk", "d": {}})
    settings = AgentsSettings(run_dir=tmp_path / "run")
    assert list(observe_only(settings, 200)) == ["b"]
    assert observe_only(AgentsSettings(run_dir=tmp_path / "none"), 200) == {}


def test_each_way_of_turning_a_check_off_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "disable.d"
    folder.mkdir()
    (folder / "mounts").touch()
    (folder / "..evil name").touch()
    settings = AgentsSettings(checks=CheckSettings(disabled=("gpu.ecc",)))
    env = {"KINEMILL_DISABLE_CHECKS": "host.cpus, ;rm"}
    found = disabled_checks(settings, env, folder)
    assert found == {"gpu.ecc": "the inventory", "mounts": f"{folder}/mounts", "host.cpus": "KINEMILL_DISABLE_CHECKS"}


def test_a_verdict_is_read_back_and_a_strange_one_is_none(tmp_path: Path) -> None:
    verdict = StoredVerdict("9f31c2aa", "r", "prolog", 7, "b", 5, 0.1, ("x",), {"xid_31": "d"})
    write_verdict(tmp_path / "run", verdict)
    assert read_verdict(tmp_path / "run") == verdict
    write_text(tmp_path / "run", "verdict.json", '{"event": 5}')
    assert read_verdict(tmp_path / "run") is None
    assert read_verdict(tmp_path / "nowhere") is None
