"""`kinemill train strategy`: the table, the JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kinemill.errors import ConfigError, UsageError
from kinemill.training.commands.strategy import picture
from kinemill.training.commands.train import train
from kinemill.training.muon import cost
from kinemill.training.muon.models import PRESETS, parse_shape, read_shapes
from kinemill.training.muon.site import MuonSettings


def call(*args: str) -> Result:
    return CliRunner().invoke(train, ["strategy", *args], catch_exceptions=True)


@pytest.fixture(autouse=True)
def _no_inventory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KINEMILL_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("RANK", raising=False)


def test_the_table_shows_both_and_the_threshold() -> None:
    found = call("--model", "2b", "--fabric-gbps", "1600", "--nodes", "2,16")

    assert found.exit_code == 0, found.output
    lines = [line.split() for line in found.output.splitlines()]
    assert ["2", "world"] in [[x[0], x[-1]] for x in lines if x]
    assert ["16", "node"] in [[x[0], x[-1]] for x in lines if x]
    assert "implied node_threshold = 8" in found.output


def test_json_holds_the_same() -> None:
    found = json.loads(call("--shape", "64x128x10", "--fabric-gbps", "100", "--nodes", "4", "--json").output)

    assert found["matrices"] == 10
    assert found["rows"][0]["world_fabric_bytes_per_node"] == pytest.approx(2 * 10 * 64 * 128 * 3 / 4)


def test_the_inventorys_figures_are_used_and_where_they_stand_is_said(tmp_path: Path) -> None:
    path = tmp_path / "muon.toml"
    path.write_text("fabric_gbps = 100.0\nnode_threshold = 3\n")

    assert f"{path} says node_threshold = 3" in call("--model", "7b").output
    found = json.loads(call("--model", "7b", "--json").output)
    assert (found["site_threshold"], found["site_threshold_origin"]) == (3, str(path))


def test_a_threshold_of_the_environment_is_not_called_the_inventorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "muon.toml").write_text("fabric_gbps = 100.0\nnode_threshold = 3\n")
    monkeypatch.setenv("KINEMILL_MUON_NODE_THRESHOLD", "5")

    assert "$KINEMILL_MUON_NODE_THRESHOLD says node_threshold = 5" in call("--model", "7b").output


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        (["--model", "7b"], UsageError, "no fabric figure"),
        (["--fabric-gbps", "100"], UsageError, "no matrices"),
        (["--shape", "12", "--fabric-gbps", "100"], UsageError, "ROWSxCOLS"),
        (["--shape", "1x1x999999", "--fabric-gbps", "100"], UsageError, "at most"),
        (["--model", "7b", "--fabric-gbps", "1", "--nodes", "2,x"], UsageError, "--nodes"),
        (["--model", "7b", "--fabric-gbps", "-1"], ConfigError, "fabric_gbps"),
        (["--model", "7b", "--measure"], UsageError, "torchrun"),
    ],
)
def test_what_makes_no_sense_is_refused(args: list[str], error: type[Exception], words: str) -> None:
    found = call(*args)

    assert isinstance(found.exception, error)
    assert words in str(found.exception)


@pytest.mark.parametrize(
    "text", ["{}", "[]", "[[1]]", "[[0, 2]]", "[[1, 2, 3, 4]]", '[["a", 2]]', "nonsense", "[[1, 2, 999999]]"]
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "shapes.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match=r"shapes\.json"):
        read_shapes(path)


def test_a_file_of_shapes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "shapes.json"
    path.write_text("[[4, 8], [2, 2, 3]]")

    assert read_shapes(path) == [(4, 8), *[(2, 2)] * 3]
    assert parse_shape("4x8") == [(4, 8)]


def test_the_picture_shows_where_the_curves_cross() -> None:
    rates = cost.Rates.from_site(MuonSettings(fabric_gbps=1600.0))
    assert rates is not None

    text = picture(cost.scan(PRESETS["2b"], 8, rates))

    assert {"n", "w"} <= set(text)
    assert "ms / nodes 2" in text


def test_the_group_lists_its_folder_and_knows_no_other_command() -> None:
    context = click.Context(train)

    assert "strategy" in train.list_commands(context)
    assert train.get_command(context, "train") is None
    assert train.get_command(context, "nonsense") is None
    assert "Example:" in CliRunner().invoke(train, ["strategy", "--help"]).output
