"""Drops of three vendors become episodes; what is broken lies aside with its reason; a second run does nothing."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinemill.contracts import RunStatus, StepStatus
from kinemill.errors import ConflictError, CorruptError, EnvironmentFault, UnavailableError
from kinemill.pipelines.adapters import load_vendor
from kinemill.pipelines.ingest import Event, IngestReport, MemoryLedger
from kinemill.store import MemoryStore
from support.ingest import EPISODES, ingest, messages_of, receipt_messages, shared_drops

VENDORS = ("gantry_ros2", "twinarm_aloha", "deskarm_lerobot")


class Ground:
    """One store and one ledger, and the three drops ingested into them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.store, self.ledger = MemoryStore(), MemoryLedger()
        self.events: list[Event] = []
        self.reports = {v: self.run(v) for v in VENDORS}

    def run(self, vendor: str) -> IngestReport:
        drop = shared_drops()[vendor]
        return ingest(drop.path, vendor, self.work, store=self.store, ledger=self.ledger, on_event=self.events.append)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return Ground(tmp_path_factory.mktemp("work"))


def test_every_good_episode_is_published(ground: Ground) -> None:
    assert {v: r.published for v, r in ground.reports.items()} == dict.fromkeys(VENDORS, EPISODES)
    assert {r.status for r in ground.reports.values()} == {RunStatus.SUCCESS}
    assert len(list(ground.store.list("episodes/"))) == 3 * EPISODES


def test_every_broken_one_lies_aside_with_the_reason_that_was_planted(ground: Ground) -> None:
    for vendor in VENDORS:
        planted = shared_drops()[vendor].broken
        found = ground.reports[vendor].quarantined
        assert [r.code for r in found] == [b.code for b in planted]
        assert all(r.source.endswith(b.key) for r, b in zip(found, planted, strict=True))
        assert all(len(r.message) > 20 for r in found)


def test_nothing_is_left_in_the_work_folder(ground: Ground) -> None:
    left = [p for p in ground.work.rglob("*") if p.is_file() and p.suffix != ".lock" and p.name != "digests.json"]

    assert left == []


def test_objects_are_what_their_receipts_say_and_stock_readers_read_them(ground: Ground, tmp_path: Path) -> None:
    import hashlib

    for entry in ground.ledger.episodes.values():
        data = ground.store.get(entry.rendition.key)
        receipt = entry.rendition.receipt
        assert (len(data), hashlib.sha256(data).hexdigest()) == (receipt.size_bytes, receipt.sha256)
        path = tmp_path / "e.mcap"
        path.write_bytes(data)
        assert messages_of(path) == receipt_messages(receipt)


def test_all_vendors_speak_of_the_same_robot_in_the_same_way(ground: Ground) -> None:
    tables = set()
    for entry in ground.ledger.episodes.values():
        assert (entry.robot, entry.task) == ("planar_arm", "reach")
        assert "disc" in entry.instruction
        tables.add(
            tuple(
                sorted((t.topic, t.names, t.units) for g in entry.rendition.receipt.groups for t in g.topics if t.names)
            )
        )
    joints = ("shoulder", "elbow", "wrist", "gripper")
    assert tables == {(("/action", joints, "rad,rad,rad,m"), ("/joint_states", joints, "rad,rad,rad,m"))}


def test_the_fastest_camera_is_the_reference(ground: Ground) -> None:
    assert {(e.frames, e.fps) for e in ground.ledger.episodes.values()} == {(60, 20.0)}


def test_h264_that_meets_the_rules_is_passed_through_and_the_rest_is_encoded(ground: Ground) -> None:
    passed = {v: r.counts["convert.passthrough"] for v, r in ground.reports.items()}

    assert passed == {"gantry_ros2": 0, "twinarm_aloha": 0, "deskarm_lerobot": EPISODES}
    scores = [e.scores for (v, _), e in ground.ledger.episodes.items() if v != "deskarm_lerobot"]
    assert all(min(s.values()) > 30 for s in scores)


def test_a_second_run_does_nothing_and_says_so(ground: Ground) -> None:
    before = list(ground.store.requests)
    for vendor in VENDORS:
        report = ground.run(vendor)
        assert report.published == 0
        assert report.done_before == report.recordings
        assert [r.code for r in report.quarantined] == [b.code for b in shared_drops()[vendor].broken]
        assert report.put_aside == 0
    assert ground.store.requests == before
    assert ground.events[-2].kind == "skip"


def test_drops_are_not_changed(ground: Ground) -> None:
    import hashlib

    drop = shared_drops()["gantry_ros2"].path
    before = {
        p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in sorted(drop.rglob("*.mcap"))
    }

    ground.run("gantry_ros2")

    assert before == {p: (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mtime_ns) for p in before}


def test_progress_is_told_and_ends(ground: Ground) -> None:
    kinds = [e.kind for e in ground.events]

    assert kinds[0] == "plan"
    assert "progress" in kinds
    assert kinds.count("quarantine") == 3
    assert kinds.count("episode") == 3 * EPISODES
    frames = [e.data["frames"] for e in ground.events if e.kind == "progress" and e.source == "run_000"]
    assert frames == sorted(frames)


@pytest.fixture
def one(tmp_path: Path) -> Path:
    """A drop of one good recording."""
    drop = tmp_path / "drop"
    drop.mkdir()
    shutil.copyfile(shared_drops()["twinarm_aloha"].path / "episode_1.hdf5", drop / "a.hdf5")
    return drop


def test_a_changed_vendor_yaml_makes_a_new_object_and_keeps_the_old(one: Path, tmp_path: Path) -> None:
    vendor = load_vendor("twinarm_aloha")
    store, ledger = MemoryStore(), MemoryLedger()
    ingest(one, vendor, tmp_path / "w", store=store, ledger=ledger)
    first = next(iter(ledger.episodes.values()))

    report = ingest(one, replace(vendor, color_order="rgb"), tmp_path / "w", store=store, ledger=ledger)

    second = next(iter(ledger.episodes.values()))
    assert report.published == 1
    assert second.rendition.episode_id == first.rendition.episode_id
    assert second.rendition.key != first.rendition.key
    assert len(list(store.list("episodes/"))) == 2


def test_the_same_recording_gives_the_same_bytes(one: Path, tmp_path: Path) -> None:
    ledgers = [MemoryLedger(), MemoryLedger()]
    for ledger in ledgers:
        ingest(one, "twinarm_aloha", tmp_path / "w", ledger=ledger)

    assert len({next(iter(x.episodes.values())).rendition.key for x in ledgers}) == 1


class Flaky(MemoryStore):
    """Fails the first `faults` writes, or damages what it keeps."""

    def __init__(self, faults: int = 0, *, damage: bool = False) -> None:
        super().__init__()
        self.faults, self.damage = faults, damage

    def put_if_absent(self, key, data):  # type: ignore[no-untyped-def]
        if self.faults:
            self.faults -= 1
            raise UnavailableError("the store is away")
        content = data.read_bytes() if isinstance(data, Path) else data
        return super().put_if_absent(key, content[:-1] + b"?" if self.damage else content)


def test_a_store_that_was_away_is_tried_again_by_the_next_run(one: Path, tmp_path: Path) -> None:
    store, ledger = Flaky(1), MemoryLedger()

    first = ingest(one, "twinarm_aloha", tmp_path / "w", store=store, ledger=ledger)
    second = ingest(one, "twinarm_aloha", tmp_path / "w", store=store, ledger=ledger)

    assert (first.status, first.published, len(first.failed)) == (RunStatus.FAILED, 0, 1)
    assert "the store is away" in first.failed[0]
    assert first.quarantined == (), "a fault of ours is not the vendor's"
    assert (second.status, second.published) == (RunStatus.SUCCESS, 1)


def test_what_does_not_read_back_the_same_is_never_published(one: Path, tmp_path: Path) -> None:
    ledger = MemoryLedger()

    report = ingest(one, "twinarm_aloha", tmp_path / "w", store=Flaky(damage=True), ledger=ledger)

    assert report.published == 0
    assert "read back" in report.failed[0]
    assert ledger.episodes == {}
    assert CorruptError.transient is False


def test_an_object_of_a_killed_run_is_proven_and_used(one: Path, tmp_path: Path) -> None:
    store = MemoryStore()
    ingest(one, "twinarm_aloha", tmp_path / "w", store=store)
    objects = [m.key for m in store.list("episodes/")]
    fresh = MemoryLedger()  # the catalog never heard of it

    report = ingest(one, "twinarm_aloha", tmp_path / "w", store=store, ledger=fresh)

    assert report.published == 1
    assert [m.key for m in store.list("episodes/")] == objects


def test_a_work_folder_that_cannot_be_written_is_told(one: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")

    with pytest.raises(EnvironmentFault, match="work folder cannot be written"):
        ingest(one, "twinarm_aloha", blocked / "w")


def test_no_room_is_told_before_anything_is_written(one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1 << 20))

    with pytest.raises(EnvironmentFault, match=r"1 MiB free.*needs"):
        ingest(one, "twinarm_aloha", tmp_path / "w")


def test_two_runs_of_one_batch_on_one_machine_are_one_too_many(one: Path, tmp_path: Path) -> None:
    from kinemill.pipelines.ingest.runner import _scratch

    with (
        _scratch(tmp_path / "w", "twinarm_aloha/drop"),
        pytest.raises(ConflictError, match=r"process \d+ is ingesting it already"),
    ):
        ingest(one, "twinarm_aloha", tmp_path / "w")


def test_leftovers_of_a_killed_run_are_swept(one: Path, tmp_path: Path) -> None:
    from kinemill.pipelines.ingest.runner import _scratch

    with _scratch(tmp_path / "w", "twinarm_aloha/drop") as scratch:
        name = scratch.name.rpartition("-")[0]
    stale = scratch.parent / f"{name}-deadbeef"
    stale.mkdir()
    (stale / "episode-0.mcap").write_bytes(b"half")

    ingest(one, "twinarm_aloha", tmp_path / "w")

    assert not stale.exists()


def test_a_recording_without_cameras_is_a_valid_episode(tmp_path: Path) -> None:
    import h5py

    drop = tmp_path / "drop"
    drop.mkdir()
    with h5py.File(drop / "d.hdf5", "w") as file:
        demo = file.create_group("data").create_group("demo_1")
        demo["states"] = np.c_[np.arange(40) * 0.05, np.sin(np.arange(40))]
        demo["actions"] = np.cos(np.arange(40))[:, None]
    ledger = MemoryLedger()

    report = ingest(drop, "robosuite", tmp_path / "w", ledger=ledger)

    (entry,) = ledger.episodes.values()
    assert report.published == 1
    assert (entry.frames, entry.fps) == (0, 0.0)
    assert [g.name for g in entry.rendition.receipt.groups] == ["state"]


def test_an_empty_drop_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "drop").mkdir()

    report = ingest(tmp_path / "drop", "auto", tmp_path / "w")

    assert (report.recordings, report.published, report.status) == (0, 0, RunStatus.SUCCESS)


def test_a_step_that_may_fail_leaves_the_run_degraded(
    one: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from kinemill.contracts import StepSpec
    from kinemill.errors import ExternalError
    from kinemill.pipelines import steps as package

    def fails(ctx):  # type: ignore[no-untyped-def]
        raise ExternalError("the thumbnail service is away")

    ordered = list(package.steps())
    extra = package.Step(StepSpec("thumbnails", 1, critical=False, requires=("convert",)), fails)
    monkeypatch.setattr(package, "steps", lambda: (*ordered[:-1], extra, ordered[-1]))
    ledger = MemoryLedger()

    report = ingest(one, "twinarm_aloha", tmp_path / "w", ledger=ledger)

    assert (report.published, report.status) == (1, RunStatus.DEGRADED)
    failed = [r for r in ledger.results.values() if r.status is StepStatus.FAILED]
    assert [(r.step, r.messages) for r in failed] == [("thumbnails", ("the thumbnail service is away",))]
    told = [vars(record) for record in caplog.records if "the run is degraded" in record.message]
    assert [(fields["run_id"], fields["step"]) for fields in told] == [(report.batch, "thumbnails")]

    skipping = replace(load_vendor("twinarm_aloha"), skip_steps=("thumbnails",))
    assert ingest(one, skipping, tmp_path / "w").status is RunStatus.SUCCESS
