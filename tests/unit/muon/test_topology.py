"""Nodes and ranks: uneven ones too, impossible ones refused."""

from __future__ import annotations

import pytest
import torch

from kinemill.errors import UsageError
from kinemill.training.muon.topology import Topology, discover, host_id


def test_uneven_nodes_are_described_and_indexed() -> None:
    topology = Topology(((0, 1, 2), (3, 4)))

    assert topology.describe() == "2 nodes of 3+2 ranks"
    assert not topology.even
    assert (topology.node_of(4), topology.local_of(4), topology.world_size) == (1, 1, 5)
    assert topology.first(1).nodes == ((0, 1, 2),)


@pytest.mark.parametrize("nodes", [(), ((),), ((0, 1), (1, 2)), ((1, 0),), ((2, 3), (0, 1))])
def test_impossible_topologies_are_refused(nodes: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(UsageError, match="topology"):
        Topology(nodes)


def test_one_rank_needs_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMILL_NODE_ID", "here")

    assert discover(0, 1, torch.device("cpu")) == Topology(((0,),), ("here",))
    monkeypatch.delenv("KINEMILL_NODE_ID")
    assert ":" in host_id()
