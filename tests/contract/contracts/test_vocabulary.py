"""Names and grammars that other machines rely on."""

from __future__ import annotations

import enum
import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill import contracts
from kinemill.clock import FakeClock, SystemClock
from kinemill.contracts import (
    EPISODE_TRANSITIONS,
    MANIFEST_COLUMNS,
    METRICS,
    REASON_MAX,
    CheckClass,
    Clock,
    DrainEvent,
    EpisodeState,
    ExitCode,
    episode_key,
    format_reason,
    may_follow,
    parse_episode_key,
    parse_reason,
)
from kinemill.contracts.metrics import RESERVED_METRICS
from kinemill.errors import ContractError, KinemillError

SHA = "ab" * 32
REPO = Path(__file__).resolve().parents[3]


def test_exit_codes_never_move() -> None:
    assert {e.name: e.value for e in ExitCode} == {"OK": 0, "FINDING": 1, "USAGE": 2, "TRANSIENT": 75, "CONFIG": 78}


def _vocabulary() -> dict[str, Any]:
    """Every word that stands in stored records, files or other programs' queries."""
    named = {name: getattr(contracts, name) for name in contracts.__all__}
    return {
        "enums": {
            name: {member.name: member.value for member in kind}
            for name, kind in named.items()
            if isinstance(kind, type) and issubclass(kind, enum.Enum)
        },
        "manifest_columns": [[col.name, col.type, col.nullable] for col in MANIFEST_COLUMNS],
        "manifest_modes": list(contracts.ManifestMode),
        "episode_transitions": [[old.value, new.value] for old, new in EPISODE_TRANSITIONS],
        "metrics": {name: [metric.kind, list(metric.labels)] for name, metric in METRICS.items()},
    }


def _lost(old: Any, new: Any, where: str = "") -> list[str]:
    """What an older vocabulary has and the present one has not, or has otherwise; additions are no loss."""
    if isinstance(old, dict):
        gone = [f"{where}.{key}" for key in old if key not in new]
        return gone + [one for key in old if key in new for one in _lost(old[key], new[key], f"{where}.{key}")]
    return [] if old == new else [f"{where}: {old} is {new}"]


def test_no_word_of_an_older_release_is_lost_moved_or_retyped() -> None:
    now = _vocabulary()
    for path in sorted((Path(__file__).parent / "golden" / "vocabulary").glob("*.json")):
        old = json.loads(path.read_text(encoding="utf-8"))
        columns = old.pop("manifest_columns")
        assert now["manifest_columns"][: len(columns)] == columns, "columns are appended, never moved or re-typed"
        for name in ("manifest_modes", "episode_transitions"):
            assert [one for one in old.pop(name) if one not in now[name]] == [], name
        assert old
        assert _lost(old, now) == []


def test_a_lost_word_is_noticed() -> None:
    old = {"enums": {"A": {"X": "x", "Y": "y"}}, "metrics": {"m": ["gauge", []]}}
    assert _lost(old, {"enums": {"A": {"X": "x", "Y": "y", "Z": "z"}, "B": {}}, "metrics": {"m": ["gauge", []]}}) == []
    assert _lost(old, {"enums": {"A": {"X": "x"}}, "metrics": {"m": ["counter", []]}}) == [
        ".enums.A.Y",
        ".metrics.m: ['gauge', []] is ['counter', []]",
    ]


def _tree(cls: type[KinemillError]) -> list[type[KinemillError]]:
    return [cls, *(s for c in cls.__subclasses__() for s in _tree(c))]


def test_every_error_has_an_exit_code_and_transient_means_75() -> None:
    for cls in _tree(KinemillError):
        assert cls.exit_code in list(ExitCode)
        assert (cls.exit_code == ExitCode.TRANSIENT) == cls.transient, cls


def test_the_drawn_tree_of_errors_is_the_real_one() -> None:
    import kinemill.errors as module

    drawn = set(re.findall(r"^.*?[├└]── (\w+)|^    (\w+Error)$", module.__doc__ or "", re.MULTILINE))
    names = {a or b for a, b in drawn}
    assert names == set(module.__all__)


@given(st.uuids(), st.sampled_from(["vla", "world", "site_x"]))
def test_keys_round_trip_and_shard_by_the_ids_last_digits(episode_id: uuid.UUID, profile: str) -> None:
    key = episode_key(episode_id, profile, SHA)
    assert key == f"episodes/{str(episode_id)[-2:]}/{episode_id}/{profile}-{SHA[:12]}.mcap"
    parsed = parse_episode_key(key)
    assert (parsed.episode_id, parsed.profile, parsed.hash12) == (episode_id, profile, SHA[:12])


@pytest.mark.parametrize("profile", ["", "VLA", "../x", "a/b", "x" * 33, "é"])
def test_a_profile_cannot_leave_its_folder(profile: str) -> None:
    with pytest.raises(ContractError, match="profile"):
        episode_key(uuid.UUID(int=1), profile, SHA)


def test_a_key_in_the_wrong_shard_is_refused() -> None:
    good = episode_key(uuid.UUID(int=0x42), "vla", SHA)
    with pytest.raises(ContractError, match="shard"):
        parse_episode_key(good.replace("episodes/42/", "episodes/43/"))
    with pytest.raises(ContractError, match="not an episode key"):
        parse_episode_key(good + "x")


def test_retired_is_final_and_published_is_reached_only_through_validated() -> None:
    assert not any(old is EpisodeState.RETIRED for old, _ in EPISODE_TRANSITIONS)
    assert [old for old, new in EPISODE_TRANSITIONS if new is EpisodeState.PUBLISHED] == [EpisodeState.VALIDATED]
    for state in set(EpisodeState) - {EpisodeState.RETIRED, EpisodeState.QUARANTINED}:
        assert may_follow(state, EpisodeState.QUARANTINED)


def test_only_transient_and_hard_have_a_letter() -> None:
    assert {c.value: c.letter for c in CheckClass} == {"transient": "T", "hard": "H", "config": None, "app": None}


@given(st.text(max_size=400))
def test_any_text_makes_a_short_reason_that_parses_back(text: str) -> None:
    event = DrainEvent("gpu.ecc", "H", "ecc_vol_unc", "0123abcd", text)
    reason = format_reason(event)
    assert len(reason) <= REASON_MAX
    assert reason.isprintable()
    parsed = parse_reason(reason + " : Node unexpectedly rebooted")
    assert parsed is not None
    assert (parsed.check, parsed.letter, parsed.code, parsed.event) == ("gpu.ecc", "H", "ecc_vol_unc", "0123abcd")


@pytest.mark.parametrize(
    "reason",
    ["", "bad disk, ask Kim", "Prolog error", "kinemill1|a|X|b|00000000|", "xkinemill1|a|T|b|00000000|t", "NHC: x"],
)
def test_a_reason_that_is_not_ours_is_nobodys_event(reason: str) -> None:
    assert parse_reason(reason) is None


def test_a_bad_event_never_reaches_slurm() -> None:
    with pytest.raises(ContractError, match="grammar"):
        format_reason(DrainEvent("gpu|ecc", "T", "x", "00000000", ""))


def test_metric_names_are_ours_and_counters_say_total() -> None:
    for name, metric in METRICS.items():
        assert re.fullmatch(r"kinemill_[a-z0-9_]+", name)
        assert metric.kind in ("counter", "gauge", "histogram")
        if metric.kind == "counter":
            assert name.endswith(("_total", "_seconds"))


def test_reserved_metrics_have_a_name_in_the_contract() -> None:
    assert set(METRICS) >= RESERVED_METRICS


def _told(name: str, suffixes: tuple[str, ...]) -> list[str]:
    """Files of the distributions and roles, the contract's own apart, that name a metric."""
    word = re.compile(rf"\b{name}\b")
    own = Path(contracts.__file__).parent
    folders = [REPO / floor / "src" for floor in ("core", "control", "agents", "pipelines", "loaders", "training")]
    files = (path for folder in [*folders, REPO / "roles"] for path in folder.rglob("*") if path.suffix in suffixes)
    return [str(path) for path in files if own not in path.parents and word.search(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_told_by_somebody_or_reserved(name: str) -> None:
    told = _told(name, (".py",))
    assert bool(told) is (name not in RESERVED_METRICS), told
    if name in RESERVED_METRICS:
        assert _told(name, (".yml", ".yaml", ".json", ".j2")) == [], "nothing may wait for what nobody tells"


def test_manifest_columns_are_unique_and_explained() -> None:
    names = [col.name for col in MANIFEST_COLUMNS]
    assert len(names) == len(set(names))
    assert all(col.help and col.type for col in MANIFEST_COLUMNS)


def test_both_clocks_are_clocks_and_the_fake_moves_only_when_told() -> None:
    assert isinstance(SystemClock(), Clock)
    fake = FakeClock(10)
    assert isinstance(fake, Clock)
    fake.sleep(1.5)
    assert (fake.now_ns(), fake.monotonic_ns()) == (1_500_000_010, 1_500_000_000)
    fake.jump(-1)
    assert (fake.now_ns(), fake.monotonic_ns()) == (500_000_010, 1_500_000_000)
    with pytest.raises(ValueError, match="back"):
        fake.advance(-1)
