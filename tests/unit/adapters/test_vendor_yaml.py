"""A vendor's YAML says what it says, or is refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.errors import ConfigError, ContractError, LimitError, NotFoundError, UnknownKeyError
from kinemill.pipelines.adapters import builtin_vendors, load_vendor
from kinemill.pipelines.adapters.rosbag2_metadata import read_metadata
from kinemill.pipelines.adapters.vendor import JointMap

GOOD = """
vendor: acme
adapter: ros2
cameras:
  /front: {topic: /cam/front}
states:
  /joints:
    topic: /joint_states
    columns: [{name: a, source: j1, unit: deg}]
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "acme.yaml"
    path.write_text(text)
    return path


def test_every_vendor_that_comes_with_kinemill_loads() -> None:
    assert {"auto", "gantry_ros2", "twinarm_aloha", "deskarm_lerobot", "robosuite"} <= set(builtin_vendors())
    for name in builtin_vendors():
        assert load_vendor(name).adapter


@pytest.mark.parametrize(
    ("broken", "error", "says"),
    [
        (GOOD.replace("vendor:", "vendr:"), UnknownKeyError, "did you mean 'vendor'"),
        (GOOD.replace("unit: deg", "unti: deg"), UnknownKeyError, "did you mean 'unit'"),
        (GOOD.replace("unit: deg", "unit: degrees"), ContractError, "not one of"),
        (GOOD + "time_base: rows\n", ContractError, "needs fps"),
        (GOOD + "fps: 0\n", ContractError, "fps must be"),
        (GOOD + "fps: .nan\n", ContractError, "finite"),
        (GOOD.replace("/joint_states", "/cam/front"), ContractError, "several sources"),
        (GOOD.replace("/cam/front", "cam"), ContractError, "starts with '/'"),
        (GOOD + "vendor: other\n", ConfigError, "given twice"),
        (GOOD + "robot: &a x\ntask: *a\n", ConfigError, "anchors and aliases"),
        ("a: [" * 3000, ConfigError, "not valid YAML"),
        ("vendor: !!python/object/apply:os.system ['true']\nadapter: x\n", ConfigError, "not valid YAML"),
        ("- 1\n- 2\n", ContractError, "expected a table"),
    ],
)
def test_a_wrong_file_is_refused_with_its_reason(
    tmp_path: Path, broken: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        load_vendor(write(tmp_path, broken))


@pytest.mark.parametrize(
    "text",
    ["? [a]\n: 1\n", "? {a: b}\n: 1\n", "a: !!int ''\n", "a: !!bool maybe\n", "a: !!timestamp x\n", "a: !!map [b]\n"],
)
def test_yaml_that_its_library_trips_over_is_refused_like_any_other(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"not valid YAML|as a key"):
        load_vendor(write(tmp_path, GOOD + text))


@pytest.mark.parametrize("value", ["5", "x", "{a: b}", "[[1], {c: d}, null]", "null"])
@pytest.mark.parametrize("key", ["relative_file_paths", "topics_with_message_count", "starting_time", "duration"])
def test_a_bags_own_metadata_of_any_shape_is_read(tmp_path: Path, key: str, value: str) -> None:
    """A vendor's file: what is of no use in it is left out."""
    path = tmp_path / "metadata.yaml"
    path.write_text(f"rosbag2_bagfile_information:\n  message_count: 7\n  {key}: {value}\n")
    found = read_metadata(path)
    assert (found.messages, found.topics, found.start_ns) == (7, {}, None)


def test_a_good_file_loads(tmp_path: Path) -> None:
    vendor = load_vendor(write(tmp_path, GOOD))

    assert vendor.states is not None
    assert vendor.states["/joints"].columns[0].factor == pytest.approx(0.0174532925)


def test_a_huge_file_is_not_even_read(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="256 KiB"):
        load_vendor(write(tmp_path, GOOD + "#" * (300 << 10)))


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(NotFoundError, match="did you mean 'gantry_ros2'"):
        load_vendor("gantry_ross2")


@pytest.mark.parametrize(
    ("unit", "scale", "given", "wanted"),
    [("deg", 1.0, 180.0, 3.14159265), ("mm", 1.0, 80.0, 0.08), ("percent", 0.08, 50.0, 0.04), ("rad", -1.0, 1.0, -1.0)],
)
def test_units_become_rad_and_m(unit: str, scale: float, given: float, wanted: float) -> None:
    assert given * JointMap("x", 0, unit=unit, scale=scale).factor == pytest.approx(wanted)  # type: ignore[arg-type]
