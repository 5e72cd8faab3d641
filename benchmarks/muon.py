"""Muon: bytes on the fabric by the cards' own counters, balance, the digest's cost, one process against torch's.

Bytes are counted on network namespaces (root); without root those figures are left out. Arithmetic is emulated by
sleeping there, because up to 16 ranks share this machine's cores; transport and optimizer are the real ones.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frame import Bench, Rounds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import torch
from torch import nn

from kinemill.training import Muon
from kinemill.training.muon.models import PRESETS
from kinemill.training.muon.plan import Matrix, make_plan
from support.muon import Fleet, fleet
from support.muon_fabric import Fabric, drop, fabric, flat_parameter_gather, hold, quiet_steps, steps, why_not

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

bench: Bench
Shapes = list[tuple[int, int]]
POLICY: Shapes = ([(256, 256)] * 4 + [(1024, 256), (256, 1024)]) * 6 + (
    [(512, 512)] * 4 + [(2048, 512), (512, 2048)]
) * 2
LARGE: Shapes = [(1024, 1024)] * 4
WIRE: Shapes = [(256, 256)] * 128
"""16.8 MB of bf16 updates."""


def stepper(make: Callable[[Sequence[nn.Parameter]], Any], shapes: Shapes) -> tuple[Callable[[], object], Any]:
    """A step of a fresh optimizer over fresh parameters."""
    seed = torch.Generator().manual_seed(0)
    params = [nn.Parameter(torch.randn(s, generator=seed)) for s in shapes]
    for p in params:
        p.grad = torch.randn(p.shape, generator=seed)
    optimizer = make(params)
    return optimizer.step, optimizer


def one_process() -> None:
    """Against torch.optim.Muon, CPU time, in turns."""
    torch.set_num_threads(1)
    for figure, shapes in (("one_process", POLICY), ("one_process_large", LARGE)):
        theirs, _ = stepper(torch.optim.Muon, shapes)
        ours, _ = stepper(lambda ps: Muon(ps, check_every=0), shapes)
        rounds: Rounds = bench.interleave({"torch": theirs, "ours": ours}, repeats=bench.pick(quick=5, full=15))
        bench.record(figure, rounds.ratio("torch", "ours"))
    step, optimizer = stepper(lambda ps: Muon(ps, check_every=0), POLICY)
    digests = bench.pick(quick=4, full=10)
    digest = bench.interleave(
        {"digest": lambda: [optimizer.check() for _ in range(digests)], "step": step},
        repeats=bench.pick(quick=2, full=9),
    )
    bench.record("digest_share", digest.ratio("digest", "step") / digests / 200)


def balance() -> None:
    """Longest processing time first on a 7B model's matrices."""
    plan = make_plan([Matrix(i, str(i), r, c, 0) for i, (r, c) in enumerate(PRESETS["7b"])], 8, 64 << 20)
    bench.record("imbalance_7b", plan.imbalance)


def layout(nodes: int, ranks: int) -> tuple[tuple[int, ...], ...]:
    """Consecutive ranks on each node."""
    return tuple(tuple(range(n * ranks, (n + 1) * ranks)) for n in range(nodes))


def bytes_a_step(
    network: Fabric, workers: Fleet, *, strategy: str, nodes: int, ranks: int, count: int
) -> tuple[float, dict[str, Any]]:
    """(bytes that the busiest node sent a step, what the plan says)."""
    workers.run(hold, WIRE, {"strategy": strategy}, layout(nodes, ranks), None)
    workers.run(quiet_steps, 1)
    before = network.sent()
    told: dict[str, Any] = workers.run(quiet_steps, count)[0]
    sent = max(b - a for a, b in zip(before, network.sent(), strict=True))
    workers.run(drop)
    return sent / count, told


def wires() -> None:
    """Bytes by the cards' counters."""
    update = 2.0 * sum(r * c for r, c in WIRE)
    with fabric(2) as network, fleet(8, 8, network=network) as workers:
        ours, _ = bytes_a_step(network, workers, strategy="world", nodes=2, ranks=8, count=2)
        before = network.sent()
        workers.run(flat_parameter_gather, int(update / 2))
        theirs = max(b - a for a, b in zip(before, network.sent(), strict=True))
        bench.say(f"N=2 R=8: ours {ours / 1e6:.2f} MB a node and step, flat fp32 parameters {theirs / 1e6:.2f} MB")
        bench.record("fewer_bytes_than_reference", theirs / ours)
    with fabric(4) as network, fleet(2, 2, 2, 2, network=network) as workers:
        sent, _ = bytes_a_step(network, workers, strategy="node", nodes=4, ranks=2, count=3)
        bench.record("node_fabric_bytes", sent)
        for nodes in (2, 3, 4):
            sent, told = bytes_a_step(network, workers, strategy="world", nodes=nodes, ranks=2, count=2)
            bound = update * (nodes - 1) / nodes
            bench.say(
                f"N={nodes} R=2: {sent / 1e6:.2f} MB, bound {bound / 1e6:.2f} MB, padding {told['padding']:.2%}, "
                f"imbalance {told['imbalance']:.2%}"
            )
            bench.record(f"world_bytes_n{nodes}", sent / bound)
            if nodes == 3:
                bench.record("padding_n3", told["padding"])
        choices(network, workers)


def choices(network: Fabric, workers: Fleet) -> None:
    """Five fabrics: does auto, from the inventory's figure, take what turns out faster?"""
    shapes, flops = [(256, 256)] * 32, 2e10
    right = 0
    for mbit, nodes in ((20, 2), (40, 4), (200, 2), (200, 4), (400, 3)):
        network.limit(mbit)
        took: dict[str, float] = {}
        site = {"fabric_gbps": mbit / 1e3, "rank_tflops": flops / 1e12, "link_gbytes_per_s": 0.5, "efficiency": 0.9}
        chosen = ""
        for strategy in ("node", "world", "auto"):
            kwargs = {"strategy": strategy, "bucket_mb": 1, "site": site}
            decided = str(workers.run(hold, shapes, kwargs, layout(nodes, 2), flops)[0])
            if strategy == "auto":
                chosen = decided
            else:
                took[strategy] = min(workers.run(steps, bench.pick(quick=2, full=6))[0])
            workers.run(drop)
        faster = min(took, key=lambda s: took[s])
        apart = max(took.values()) / min(took.values()) - 1
        right += chosen == faster and apart > 0.15
        bench.say(
            f"{mbit} Mbit/s, {nodes} nodes: node {took['node'] * 1e3:.0f} ms, world {took['world'] * 1e3:.0f} ms, "
            f"{apart:.0%} apart; auto took {chosen}"
        )
    network.limit(None)
    bench.record("auto_right", right)


def main() -> None:
    """Declare, measure, report. Workers import this file too, so nothing runs at import."""
    global bench  # noqa: PLW0603 - one benchmark a process
    bench = Bench("muon", __doc__)
    bench.declare(
        "node_fabric_bytes", unit="B", better="lower", bar=0, against="the cards' counters, 4 nodes of 2, 3 steps"
    )
    for n in (2, 4):
        bench.declare(
            f"world_bytes_n{n}", unit="x", better="lower", bar=1.05, against=f"2 bytes x parameters x (N-1)/N, N={n}"
        )
    bench.declare(
        "world_bytes_n3", unit="x", better="lower", against="2 bytes x parameters x (N-1)/N, N=3, with its padding"
    )
    bench.declare("padding_n3", unit="share", better="lower", against="the exchanged elements, 128 matrices on 6 ranks")
    bench.declare(
        "fewer_bytes_than_reference",
        unit="x",
        better="higher",
        bar=3.5,
        against="the reference's flat fp32 parameter all-gather, N=2, R=8, same run, same counters",
    )
    bench.declare("imbalance_7b", unit="share", better="lower", bar=0.05, against="a perfect split of the FLOPs, R=8")
    bench.declare("digest_share", unit="share", better="lower", bar=0.01, against="200 steps between two digests, CPU")
    bench.declare(
        "one_process", unit="x", better="higher", bar=1.0, against="torch.optim.Muon, one core, policy of 256/512"
    )
    bench.declare(
        "one_process_large", unit="x", better="higher", against="torch.optim.Muon, one core, matrices of 1024"
    )
    bench.declare(
        "auto_right", unit="of 5", better="higher", bar=5, against="the faster of node and world, both measured"
    )
    one_process()
    balance()
    reason = why_not()
    if reason is None:
        wires()
    else:
        for name in (
            *("node_fabric_bytes", "world_bytes_n2", "world_bytes_n3", "world_bytes_n4", "padding_n3"),
            *("fewer_bytes_than_reference", "auto_right"),
        ):
            bench.leave_out(name, f"{reason[0]}; to measure it: {reason[1]}")
    bench.finish()


if __name__ == "__main__":
    main()
