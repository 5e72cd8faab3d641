"""The vendor's columns and topics become ours, and nothing is guessed."""

from __future__ import annotations

import numpy as np
import pytest

from kinemill.errors import DataError, UnsupportedError
from kinemill.pipelines.adapters import load_vendor
from kinemill.pipelines.adapters.base import topic_facts
from kinemill.pipelines.adapters.mapping import camera_topic, map_state, plan_topics, quaternion_norm
from kinemill.pipelines.adapters.vendor import JointMap, QuaternionMap, StateMap
from support.ingest import bag_vendor

T = np.arange(3, dtype=np.int64)
VALUES = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0], [9.0, 10.0, 11.0, 12.0]])


def test_columns_are_chosen_by_name_scaled_and_put_in_order() -> None:
    spec = StateMap("/s", (JointMap("b", "y", unit="deg"), JointMap("a", "x", unit="mm")))

    track = map_state("src", spec, ["x", "y", "z", "w"], t_ns=T, values=VALUES, where="f")

    assert track.names == ("b", "a")
    assert track.units == "rad,m"
    assert track.values[0] == pytest.approx([np.deg2rad(2.0), 0.001])


def test_a_column_that_is_not_there_is_named_with_those_that_are() -> None:
    spec = StateMap("/s", (JointMap("a", "elbow"),))

    with pytest.raises(DataError, match="no column 'elbow'; it has x, y"):
        map_state("src", spec, ["x", "y", "z", "w"], t_ns=T, values=VALUES, where="f")


@pytest.mark.parametrize("index", [4, -1])
def test_a_column_number_out_of_range_is_refused(index: int) -> None:
    with pytest.raises(DataError, match="no column"):
        map_state("src", StateMap("/s", (JointMap("a", index),)), [""] * 4, t_ns=T, values=VALUES, where="f")


def test_a_quaternion_is_stored_with_w_last_whatever_the_vendor_does() -> None:
    columns = tuple(JointMap(n, i, unit="one") for i, n in enumerate("abcd"))
    unit = np.array([[0.5, 0.5, -0.5, 0.5]] * 3)
    spec = StateMap("/s", columns, quaternions=(QuaternionMap("a", "wxyz"),))

    track = map_state("src", spec, [""] * 4, t_ns=T, values=unit, where="f")

    assert track.values[0].tolist() == [0.5, -0.5, 0.5, 0.5]
    assert quaternion_norm(track, spec) == pytest.approx(0.0)
    twice = map_state("src", spec, [""] * 4, t_ns=T, values=unit * 2, where="f")
    assert quaternion_norm(twice, spec) == pytest.approx(1.0)


def test_zero_width_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="at least one column"):
        map_state("src", StateMap("/s"), [], t_ns=T, values=np.zeros((3, 0)), where="f")


def test_two_cameras_never_share_a_topic() -> None:
    plan = plan_topics(load_vendor("auto"), ["/image", "/image/compressed"], [])

    assert [c.topic for c in plan.cameras.values()] == ["/cam/image", "/cam/image_2"]


def test_what_is_promised_and_what_is_left_over_are_told_apart() -> None:
    vendor = bag_vendor(ignore=("/diag*",))

    plan = plan_topics(vendor, ["/camera/front/image_raw/compressed"], ["/joint_states", "/other", "/diagnostics"])

    assert plan.missing == ("/cam/wrist", "/action")
    assert plan.unmapped == ("/other",)


@pytest.mark.parametrize(
    ("name", "topic"),
    [
        ("observation.images.top", "/cam/top"),
        ("/camera/front/image_raw/compressed", "/cam/camera_front"),
        ("/image", "/cam/image"),
        ("///", "/cam/main"),
    ],
)
def test_cameras_without_a_yaml_get_telling_names(name: str, topic: str) -> None:
    assert camera_topic(name) == topic


def test_facts_count_repeated_and_backward_stamps_apart() -> None:
    facts = topic_facts("/t", "x", np.array([10, 20, 20, 15, 40], dtype=np.int64))

    assert (facts.messages, facts.t_first_ns, facts.t_last_ns) == (5, 10, 40)
    assert (facts.repeated_stamps, facts.backward_steps, facts.max_gap_ns) == (1, 1, 20)
