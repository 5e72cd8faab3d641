"""The crossover on an emulated fabric: where bandwidth a node falls as nodes join, the node strategy takes over."""

from __future__ import annotations

import pytest

from support.layers import skip
from support.muon import fleet
from support.muon_fabric import drop, fabric, hold, quiet_steps, steps, why_not

SHAPES = [(256, 256)] * 32
FLOPS_PER_S = 1e10  # a node of two ranks then takes 0.8 s a step
CORE_MBIT = 100.0  # shared: each of N nodes gets 1/N of it


@pytest.mark.full("muon")
def test_world_wins_on_few_nodes_node_on_many_and_auto_follows() -> None:
    reason = why_not()
    if reason is not None:
        skip(reason[0], run=reason[1])
    times: dict[tuple[int, str], float] = {}
    auto: dict[int, str] = {}
    fabric_bytes: dict[tuple[int, str], int] = {}
    with fabric(4) as network, fleet(2, 2, 2, 2, network=network) as ranks:
        for nodes in (2, 4):
            network.limit(CORE_MBIT / nodes)
            layout = tuple((2 * n, 2 * n + 1) for n in range(nodes))
            for strategy in ("node", "world", "auto"):
                site = {
                    "fabric_gbps": CORE_MBIT / nodes / 1e3,
                    "rank_tflops": FLOPS_PER_S / 1e12,
                    "link_gbytes_per_s": 0.5,
                    "efficiency": 0.9,
                }
                kwargs = {"strategy": strategy, "bucket_mb": 1, "site": site}
                decided = ranks.run(hold, SHAPES, kwargs, layout, FLOPS_PER_S)
                if strategy == "auto":
                    auto[nodes] = str(decided[0])
                else:
                    before = network.sent()
                    ranks.run(quiet_steps, 1)
                    fabric_bytes[nodes, strategy] = max(b - a for a, b in zip(before, network.sent(), strict=True))
                    times[nodes, strategy] = min(ranks.run(steps, 4)[0])
                ranks.run(drop)

    assert fabric_bytes[2, "node"] == fabric_bytes[4, "node"] == 0
    assert fabric_bytes[2, "world"] > 2_000_000
    assert times[2, "world"] < times[2, "node"], times
    assert times[4, "world"] > times[4, "node"], times
    assert auto == {2: "world", 4: "node"}
