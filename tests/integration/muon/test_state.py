"""Checkpoints: complete, written once, loadable on any node and rank count and strategy, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.muon import Fleet
from support.muon_work import SHAPES, complete_state, files_of, resume, round_trip, save

ONE_NODE = {"nodes": ((0, 1, 2, 3),)}


@pytest.fixture(scope="module")
def saved(four: Fleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]]]:
    """Two nodes of two, node strategy."""
    folder = str(tmp_path_factory.mktemp("checkpoint"))
    return folder, four.run(save, folder, {"strategy": "node"}, {})


@pytest.mark.parametrize(
    ("kwargs", "options"),
    [
        ({"strategy": "node"}, {}),
        ({"strategy": "world"}, {}),
        ({"strategy": "node"}, ONE_NODE),
        ({"strategy": "replicated"}, {}),
        ({"strategy": "node"}, {"sharded": True}),
        ({"strategy": "world"}, {"sharded": True}),
    ],
    ids=["same", "world", "1x4", "replicated", "HSDP", "HSDP world"],
)
def test_four_ranks_go_on_in_any_shape(
    four: Fleet, saved: tuple[str, list[dict[str, Any]]], kwargs: dict[str, Any], options: dict[str, Any]
) -> None:
    folder, before = saved

    after = four.run(resume, folder, kwargs, options)

    assert all(a["middle"] == before[0]["middle"] for a in after)
    assert all(a["end"] == before[0]["end"] for a in after)
    assert all(a["digests"] >= 1 for a in after), "no digest after load"
    flipped = kwargs["strategy"] != "node"
    assert ("strategy changes on resume" in after[0]["reason"]) == flipped


@pytest.mark.parametrize("strategy", ["node", "world"])
def test_nodes_of_three_and_two_go_on_from_two_and_two(
    five: Fleet, saved: tuple[str, list[dict[str, Any]]], strategy: str
) -> None:
    folder, before = saved

    after = five.run(resume, folder, {"strategy": strategy}, {})

    assert all(a["end"] == before[0]["end"] for a in after)


def test_sharded_rows_and_world_states_load_elsewhere_too(four: Fleet, tmp_path: Path) -> None:
    for number, (kwargs, options) in enumerate(
        [({"strategy": "world"}, {}), ({"strategy": "node"}, {"sharded": True})]
    ):
        folder = str(tmp_path / str(number))
        before = four.run(save, folder, kwargs, options)

        after = four.run(resume, folder, {"strategy": "node"}, ONE_NODE)

        assert all(a["end"] == before[0]["end"] for a in after)


def test_each_buffer_is_written_once(saved: tuple[str, list[dict[str, Any]]]) -> None:
    elements = sum(r * c for r, c in SHAPES)

    assert files_of(saved[0]) < 1.25 * 2 * 4 * elements  # parameters and momentum in fp32, and headers


def test_ranks_without_a_matrix_save_and_load(four: Fleet, tmp_path: Path) -> None:
    """NVIDIA/Megatron-LM#2625, #3885."""
    options = {"shapes": ((16, 24),)}
    before = four.run(save, str(tmp_path / "c"), {"strategy": "world"}, options)

    after = four.run(resume, str(tmp_path / "c"), {"strategy": "world"}, options)

    assert sorted(b["kept"] for b in before) == [0, 0, 0, 1]
    assert all(a["end"] == before[0]["end"] for a in after)


def test_a_checkpoint_of_another_dtype_is_cast(four: Fleet, tmp_path: Path) -> None:
    import torch

    four.run(save, str(tmp_path / "c"), {"strategy": "node"}, {"dtype": torch.bfloat16})

    after = four.run(resume, str(tmp_path / "c"), {"strategy": "world"}, {})

    assert {d for a in after for d in a["dtypes"]} == {"torch.float32"}
    assert all(a["end"] == after[0]["end"] for a in after)


def test_a_flipped_byte_in_the_checkpoint_is_caught(four: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "c"
    four.run(save, str(folder), {"strategy": "node"}, {})
    largest = max(folder.glob("*.distcp"), key=lambda f: f.stat().st_size)
    content = bytearray(largest.read_bytes())
    for at in range(len(content) // 3, len(content) // 3 * 2, 512):
        content[at] ^= 1
    largest.write_bytes(content)

    found = four.outcomes(resume, str(folder), {"strategy": "node"}, {})

    assert all(f.kind in ("CorruptError", "CheckpointException") for f in found), found


@pytest.mark.parametrize("strategy", ["node", "world"])
def test_a_plain_state_dict_is_complete_on_every_rank(four: Fleet, strategy: str) -> None:
    """KellerJordan/Muon#46: rank 0 saved only the momentum that it owned."""
    found = four.run(complete_state, {"strategy": strategy}, {})
    alone = four.run(complete_state, {"strategy": "replicated"}, {})

    assert len(found[0]["state"]) == len(SHAPES)
    assert all(f == alone[0] for f in found), "buffers or digest depend on the strategy"


@pytest.mark.parametrize(("first", "second"), [("node", "world"), ("world", "node"), ("world", "replicated")])
def test_a_plain_state_dict_goes_from_strategy_to_strategy(four: Fleet, first: str, second: str) -> None:
    assert all(four.run(round_trip, {"strategy": first}, {"strategy": second}))
