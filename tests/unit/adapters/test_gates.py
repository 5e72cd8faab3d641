"""Every gate flags its fault and passes the clean twin."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kinemill.contracts import ChunkTable, GroupReceipt, Receipt, TopicKind, TopicReceipt
from kinemill.pipelines.adapters import EpisodeFacts, Finding, Level, SourceFacts, TopicFacts, load_vendor
from kinemill.pipelines.gates import Converted, TopicMeasure, judge_converted, judge_facts, worst
from kinemill.pipelines.gates.measure import PictureMeter, measure_state
from support.ingest import codes

VENDOR = load_vendor("gantry_ros2")
CAMERA, STATE, ACTION = "/cam/scene", "/joint_states", "/action"


def facts(**changes: Any) -> EpisodeFacts:
    sources = [*(VENDOR.cameras or {}), *(VENDOR.states or {})]
    topics = tuple(TopicFacts(s, "t", 100, 0, 5_000_000_000) for s in sources)
    return replace(EpisodeFacts("", 0, topics), **changes)


def converted(*measures: TopicMeasure, written: int = 100) -> Converted:
    empty = ChunkTable((), (), (), (), (), ())

    def topic(name: str, kind: TopicKind) -> TopicReceipt:
        return TopicReceipt(name, kind, 1, "s", "e", written)

    cameras = tuple(topic(name, TopicKind.VIDEO) for name in (CAMERA, "/cam/wrist"))
    states = tuple(topic(name, TopicKind.STATE) for name in (STATE, ACTION))
    groups = (
        GroupReceipt("cameras", cameras, 0, 1, 1, 0, 1, empty),
        GroupReceipt("state", states, 1, 1, 1, 0, 1, empty),
    )
    receipt = Receipt("00000000-0000-0000-0000-000000000007", "vla", 2, "0" * 64, 0, 1, groups)
    base = {n: TopicMeasure(n, 100, 0, 5_000_000_000) for n in (CAMERA, "/cam/wrist", STATE, ACTION)}
    base |= {m.topic: m for m in measures}
    return Converted(0, "", receipt.episode_id, "e.mcap", receipt, topics=tuple(base.values()))


def test_a_clean_episode_passes_both_gates_without_a_word() -> None:
    whole, each = judge_facts(SourceFacts("ros2", (facts(),)), VENDOR, "x")

    assert whole == []
    assert each == {0: []}
    assert judge_converted(converted(), facts(), VENDOR, "x") == []


@pytest.mark.parametrize(
    ("episode", "code"),
    [
        (facts(topics=facts().topics[1:]), "topic_missing"),
        (facts(topics=(replace(facts().topics[0], messages=0), *facts().topics[1:])), "topic_missing"),
        (facts(topics=(TopicFacts("/other", "t", 5, 0, 9_000_000_000),)), "nothing_mapped"),
        (facts(topics=tuple(replace(t, t_last_ns=100) for t in facts().topics)), "too_short"),
        (facts(topics=tuple(replace(t, t_last_ns=10**15) for t in facts().topics)), "too_long"),
        (facts(topics=tuple(replace(t, t_first_ns=-5) for t in facts().topics)), "negative_time"),
    ],
)
def test_the_pre_gate_flags(episode: EpisodeFacts, code: str) -> None:
    _, each = judge_facts(SourceFacts("ros2", (episode,)), VENDOR, "x")

    assert code in codes(each[0], "fail")


@pytest.mark.parametrize(
    ("measure", "code"),
    [
        (TopicMeasure(STATE, 100, not_finite=3, first_bad_row=7), "nan_in_state"),
        (TopicMeasure(STATE, 100, largest=180.0, largest_rad=180.0), "angle_out_of_range"),
        (TopicMeasure(STATE, 100, largest=1e9), "value_out_of_range"),
        (TopicMeasure(STATE, 100, quaternion_error=0.5), "quaternion_norm"),
        (TopicMeasure(STATE, 100, repeated_stamps=50), "repeated_stamps"),
        (TopicMeasure(STATE, 100, max_gap_ns=900_000_000), "gap"),
        (TopicMeasure(CAMERA, 100, frozen=99), "frozen_camera"),
        (TopicMeasure(CAMERA, 100, psnr_db=15.0), "pictures_differ"),
        (TopicMeasure(CAMERA, 100, undecodable=1), "undecodable"),
        (TopicMeasure(CAMERA, 120), "messages_lost"),
        (TopicMeasure(ACTION, 0), "no_action"),
        (TopicMeasure(STATE, 60), "messages_lost"),
    ],
)
def test_the_post_gate_flags(measure: TopicMeasure, code: str) -> None:
    found = judge_converted(converted(measure), facts(), VENDOR, "x")

    assert code in codes(found, "fail"), found


def test_a_few_repeated_stamps_are_no_fault() -> None:
    found = judge_converted(converted(TopicMeasure(STATE, 100, repeated_stamps=5)), facts(), VENDOR, "x")

    assert codes(found) == {"repeated_stamps"}
    assert worst(found) == found[0]
    assert found[0].level is Level.INFO


def test_no_cameras_is_a_fault_only_where_the_vendor_says_so() -> None:
    blind = replace(converted(), topics=(TopicMeasure(STATE, 100), TopicMeasure(ACTION, 100)))
    assert blind.receipt is not None
    blind = replace(blind, receipt=replace(blind.receipt, groups=blind.receipt.groups[1:]))
    lax = replace(VENDOR, gates=replace(VENDOR.gates, require_cameras=False))

    assert "no_cameras" in codes(judge_converted(blind, None, VENDOR, "x"), "fail")
    assert codes(judge_converted(blind, None, lax, "x"), "fail") == set()


def test_findings_of_the_adapter_stand_for_the_gate_too() -> None:
    told = Finding("bad_video", Level.FAIL, "cut off", {"camera": next(iter(VENDOR.cameras or {}))})
    _, each = judge_facts(SourceFacts("ros2", (facts(topics=facts().topics[1:], findings=(told,)),)), VENDOR, "x")

    assert codes(each[0], "fail") == {"bad_video"}, "one fault is told once"


def test_measures_of_a_state_topic() -> None:
    values = np.array([[0.1, 100.0], [np.nan, 2.0], [-3.0, np.inf]])

    found = measure_state("/s", t_ns=np.array([0, 5, 5]), values=values, units="rad,m")

    assert (found.not_finite, found.first_bad_row, found.repeated_stamps, found.max_gap_ns) == (2, 1, 1, 5)
    assert (found.largest, found.largest_rad) == (100.0, 3.0)


def test_measures_of_a_camera() -> None:
    meter = PictureMeter("/c")
    dark, light = np.zeros((8, 8, 3), np.uint8), np.full((8, 8, 3), 200, np.uint8)
    for t_ns, image in ((0, dark), (10, dark), (30, light)):
        meter.add(t_ns, image, None)

    found = meter.result()

    assert (found.messages, found.frozen, found.max_gap_ns, found.t_last_ns) == (3, 1, 20, 30)
