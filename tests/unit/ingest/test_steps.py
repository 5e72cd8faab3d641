"""The registry of steps, the digests that say what is done, and the fake ledger."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from kinemill.contracts import StepSpec
from kinemill.errors import ConfigError, UsageError
from kinemill.pipelines.adapters import load_vendor
from kinemill.pipelines.ingest import MemoryLedger, plan_drop
from kinemill.pipelines.steps import Step, steps
from kinemill.pipelines.steps.convert import episode_id_of
from kinemill.pipelines.steps.registry import order
from support.ingest import ledger_contract

VENDOR = load_vendor("twinarm_aloha")


def make(name: str, *requires: str, critical: bool = True) -> Step:
    return Step(StepSpec(name, 1, requires=requires, critical=critical), lambda ctx: None)  # type: ignore[arg-type,return-value]  # never run


def test_the_steps_stand_in_the_order_of_what_they_require() -> None:
    assert [s.spec.name for s in steps()] == ["pre_gate", "convert", "post_gate", "publish"]


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ([make("a", "b")], "'b', which is no step"),
        ([make("a", "b"), make("b", "a")], "circle"),
        ([make("a", "b"), make("b", critical=False)], "which may fail"),
    ],
)
def test_steps_that_cannot_be_ordered_are_refused(found: list[Step], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        order({s.spec.name: s for s in found})


def test_the_fake_ledger_keeps_the_contract() -> None:
    ledger = MemoryLedger()

    ledger_contract(lambda: ledger)


def drop_of(tmp_path: Path) -> Path:
    drop = tmp_path / "drop 7"
    drop.mkdir()
    (drop / "a.hdf5").write_bytes(b"one")
    (drop / "b.hdf5").write_bytes(b"two")
    (drop / "notes.txt").write_text("hello")
    return drop


def digests(drop: Path, work: Path, vendor: object = VENDOR, **more: object) -> dict[str, str]:
    plan = plan_drop(drop, vendor, ledger=MemoryLedger(), work_dir=work, **more)  # type: ignore[arg-type]
    return {i.source.key: i.input_digest for i in plan.items}


def test_a_digest_changes_with_bytes_vendor_and_profile_and_with_nothing_else(tmp_path: Path) -> None:
    drop = drop_of(tmp_path)
    before = digests(drop, tmp_path / "w")

    shutil.copytree(drop, tmp_path / "other" / "drop 7")
    (drop / "a.hdf5").touch()
    assert digests(drop, tmp_path / "w") == before
    assert digests(tmp_path / "other" / "drop 7", tmp_path / "w2") == before
    assert digests(drop, tmp_path / "w", profile="world") != before
    assert digests(drop, tmp_path / "w", replace(VENDOR, fps=25.0)) != before

    (drop / "a.hdf5").write_bytes(b"One")
    after = digests(drop, tmp_path / "w")
    assert after["a.hdf5"] != before["a.hdf5"]
    assert after["b.hdf5"] == before["b.hdf5"]


def test_a_broken_digest_cache_is_made_anew(tmp_path: Path) -> None:
    drop = drop_of(tmp_path)
    before = digests(drop, tmp_path / "w")

    (tmp_path / "w" / "digests.json").write_text("{not json")

    assert digests(drop, tmp_path / "w") == before


def test_files_that_nobody_knows_are_named(tmp_path: Path) -> None:
    plan = plan_drop(drop_of(tmp_path), VENDOR, ledger=MemoryLedger(), work_dir=tmp_path / "w")

    assert plan.unclaimed == ("notes.txt",)
    assert plan.batch == "twinarm_aloha/drop 7"


@pytest.mark.parametrize("name", ["../x", "a/b", "\n", "x" * 300])
def test_a_delivery_that_cannot_be_a_key_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="delivery"):
        plan_drop(drop_of(tmp_path), VENDOR, ledger=MemoryLedger(), work_dir=tmp_path / "w", delivery=name)


def test_an_episodes_id_follows_from_vendor_and_key() -> None:
    assert episode_id_of("v", "d/a") == episode_id_of("v", "d/a")
    assert episode_id_of("v", "d/a") != episode_id_of("v", "d/b")
    assert episode_id_of("v", "d/a") != episode_id_of("w", "d/a")
