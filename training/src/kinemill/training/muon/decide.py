"""Node, world or replicated: one decision, with its reason, that the checkpoint remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kinemill.errors import UsageError
from kinemill.training.muon import cost
from kinemill.training.muon.site import MuonSettings

__all__ = ["STRATEGIES", "Decision", "changed", "choose"]

STRATEGIES = ("auto", "node", "world", "replicated")


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen, and why."""

    strategy: str
    reason: str
    asked: str
    nodes: int
    ranks: int
    node_threshold: int | None = None
    """The threshold that was given, if one was."""
    implied_threshold: int | None = None
    """The threshold that the cost model would give; None without a fabric figure."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data for checkpoints and logs."""
        return asdict(self)


def choose(
    asked: str,
    *,
    nodes: int,
    ranks: int,
    shapes: Sequence[tuple[int, int]],
    node_threshold: int | None,
    site: MuonSettings,
    origin: str = "the inventory",
    steps: int = 5,
    bucket_bytes: int = 64 << 20,
) -> Decision:
    """Decide. Pure: the same arguments give the same answer, on resume too.

    Args:
        asked: One of `STRATEGIES`.
        nodes: N.
        ranks: Ranks of the largest node.
        shapes: (rows, cols) of every matrix.
        node_threshold: World up to this many nodes; None asks the site.
        site: The inventory's facts.
        origin: Where the site's threshold comes from, for the reason.
        steps: Newton-Schulz iterations.
        bucket_bytes: Size of an exchange.
    """
    if asked not in STRATEGIES:
        raise UsageError(f"strategy '{asked}': one of {', '.join(STRATEGIES)}")
    if node_threshold is not None and (isinstance(node_threshold, bool) or node_threshold < 0):
        raise UsageError(f"node_threshold {node_threshold}: 0 (never over the world) or more nodes")
    rates = cost.Rates.from_site(site)
    implied = None
    if rates is not None and shapes:
        implied = cost.implied_threshold(shapes, ranks, rates, steps=steps, bucket_bytes=bucket_bytes)
    given, source = (node_threshold, "the caller") if node_threshold is not None else (site.node_threshold, origin)

    def decided(strategy: str, reason: str) -> Decision:
        return Decision(strategy, reason, asked, nodes, ranks, given, implied)

    if asked != "auto":
        return decided(asked, "asked for")
    if nodes == 1:
        return decided("node", "one node: node and world are the same")
    if given is not None:
        sign, strategy = ("<=", "world") if nodes <= given else (">", "node")
        return decided(strategy, f"{nodes} nodes {sign} node_threshold {given} of {source}")
    if rates is None:
        return decided(
            "node",
            "no node_threshold and no fabric_gbps in the inventory; node sends nothing over the fabric. "
            "Measure once with: kinemill train strategy --measure",
        )
    if not shapes:
        return decided("node", "no matrices")
    guess = cost.estimate(shapes, nodes, ranks, rates, steps=steps, bucket_bytes=bucket_bytes)
    return decided(
        guess.faster,
        f"cost model at {nodes} nodes and {site.fabric_gbps:g} Gbit/s: node {guess.node_s * 1e3:.3g} ms, "
        f"world {guess.world_s * 1e3:.3g} ms (world has to win by {cost.MARGIN:.0%})",
    )


def changed(before: dict[str, Any], now: Decision) -> str | None:
    """A sentence if a resumed run shards in another way than the run that wrote the checkpoint."""
    if before.get("strategy") == now.strategy:
        return None
    return (
        f"strategy changes on resume: {before.get('strategy')} on {before.get('nodes')} nodes ({before.get('reason')}) "
        f"-> {now.strategy} on {now.nodes} nodes ({now.reason})"
    )
