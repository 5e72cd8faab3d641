"""`kinemill train strategy`: where the optimizer's work should be shared, by model or by measurement."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from kinemill.errors import UsageError
from kinemill.records import dumps
from kinemill.settings import load_settings
from kinemill.training.muon import cost
from kinemill.training.muon.models import PRESETS, Shapes, parse_shape, read_shapes
from kinemill.training.muon.plan import Matrix, make_plan
from kinemill.training.muon.site import MuonSettings

__all__ = ["strategy"]


@click.command()
@click.option("--model", type=click.Choice(sorted(PRESETS)), help="A preset list of matrices.")
@click.option("--shape", "shapes", multiple=True, metavar="ROWSxCOLS[xCOUNT]", help="Matrices; may be repeated.")
@click.option(
    "--shapes-file", type=click.Path(path_type=Path), help="JSON list of [rows, cols] or [rows, cols, count]."
)
@click.option("--nodes", default="2,4,8,16,32,64,128", show_default=True, help="Node counts to show.")
@click.option("--ranks", default=8, show_default=True, type=click.IntRange(1, 1024), help="Ranks (GPUs) of a node.")
@click.option("--fabric-gbps", type=float, help="Gbit/s of a node to the fabric, one way. Default: the inventory's.")
@click.option("--tflops", type=float, help="bf16 TFLOP/s a rank reaches in Newton-Schulz. Default: the inventory's.")
@click.option("--link-gbytes", type=float, help="GB/s from GPU to GPU in the node. Default: the inventory's.")
@click.option("--latency-us", type=float, help="Microseconds a hop of a collective. Default: the inventory's.")
@click.option("--ns-steps", default=5, show_default=True, type=click.IntRange(1, 99))
@click.option("--bucket-mb", default=64.0, show_default=True, type=click.FloatRange(min=0.001))
@click.option(
    "--measure", "measured", is_flag=True, help="Time both strategies on this job's nodes; run it by torchrun."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def strategy(  # noqa: PLR0917 - click passes every option
    model: str | None,
    shapes: tuple[str, ...],
    shapes_file: Path | None,
    nodes: str,
    ranks: int,
    fabric_gbps: float | None,
    tflops: float | None,
    link_gbytes: float | None,
    latency_us: float | None,
    ns_steps: int,
    bucket_mb: float,
    measured: bool,
    as_json: bool,
) -> None:
    """Show from which node count on Muon should share work inside the node only.

    With --measure it is run on every rank of a cluster, times both, and prints the `node_threshold` for the inventory.

    \b
    Exit: 0 shown, 2 wrong arguments, 75 a rank was lost, 78 a settings file is wrong.
    Example: kinemill train strategy --model 7b --fabric-gbps 3200
    Example: srun torchrun ... --no-python kinemill train strategy --measure --model 7b
    """
    matrices = _matrices(model, shapes, shapes_file)
    if measured:
        _measure(matrices, ns_steps, bucket_mb, as_json)
        return
    overrides = {
        "fabric_gbps": fabric_gbps,
        "rank_tflops": tflops,
        "link_gbytes_per_s": link_gbytes,
        "fabric_latency_us": latency_us,
    }
    loaded = load_settings(MuonSettings, plane="muon", overrides=overrides)
    site, origin = loaded.value, loaded.origins.get("node_threshold")
    rates = cost.Rates.from_site(site)
    if rates is None:
        raise UsageError("no fabric figure: give --fabric-gbps, or fabric_gbps in /etc/kinemill/muon.toml")
    bucket = max(2, int(bucket_mb * (1 << 20)))
    rows = [cost.estimate(matrices, n, ranks, rates, steps=ns_steps, bucket_bytes=bucket) for n in _counts(nodes)]
    threshold = cost.implied_threshold(matrices, ranks, rates, steps=ns_steps, bucket_bytes=bucket)
    plan = make_plan([Matrix(i, str(i), r, c, 0) for i, (r, c) in enumerate(matrices)], ranks, bucket)
    if as_json:
        click.echo(
            dumps(
                {
                    "matrices": len(matrices),
                    "parameters": sum(r * c for r, c in matrices),
                    "ranks": ranks,
                    "node_imbalance": plan.imbalance,
                    "implied_threshold": threshold,
                    "site_threshold": site.node_threshold,
                    "site_threshold_origin": origin,
                    "rows": [_row(r) for r in rows],
                }
            )
        )
        return
    click.echo(
        f"{len(matrices)} matrices, {sum(r * c for r, c in matrices) / 1e9:.2f} billion parameters, "
        f"{ranks} ranks a node, imbalance {plan.imbalance:.1%}"
    )
    _table(rows)
    click.echo(f"implied node_threshold = {threshold}   (model, not a measurement; --measure on the cluster decides)")
    if site.node_threshold is not None:
        click.echo(f"{origin} says node_threshold = {site.node_threshold}, and that is what auto follows")
    if sys.stderr.isatty():
        click.echo(picture(cost.scan(matrices, ranks, rates, steps=ns_steps, bucket_bytes=bucket)), err=True)


def _matrices(model: str | None, shapes: tuple[str, ...], shapes_file: Path | None) -> Shapes:
    found: Shapes = list(PRESETS[model]) if model else []
    for text in shapes:
        found += parse_shape(text)
    if shapes_file is not None:
        found += read_shapes(shapes_file)
    if not found:
        raise UsageError(f"no matrices: give --model ({', '.join(sorted(PRESETS))}), --shape or --shapes-file")
    return found


def _counts(text: str) -> list[int]:
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1 or found[-1] > 100_000:
        raise UsageError(f"--nodes '{text}': node counts from 1 to 100000 with commas between them")
    return found


def _row(one: cost.Estimate) -> dict[str, Any]:
    return {
        "nodes": one.nodes,
        "node_ms": one.node_s * 1e3,
        "world_ms": one.world_s * 1e3,
        "world_fabric_bytes_per_node": one.world_fabric_bytes,
        "faster": one.faster,
    }


def _table(rows: list[cost.Estimate]) -> None:
    click.echo(f"{'nodes':>6}  {'node ms':>9}  {'world ms':>9}  {'fabric MB/node':>15}  faster")
    for r in rows:
        size = r.world_fabric_bytes / 1e6
        click.echo(f"{r.nodes:>6}  {r.node_s * 1e3:>9.1f}  {r.world_s * 1e3:>9.1f}  {size:>15.1f}  {r.faster}")


def picture(rows: list[cost.Estimate], height: int = 12) -> str:
    """Both curves over the node count, which doubles every two columns: n is node, w is world, X is both."""
    shown = {2**k for k in range(1, 11)} | {3 * 2**k for k in range(9)}
    columns = [r for r in rows if r.nodes in shown]
    top = max(max(r.node_s, r.world_s) for r in columns) * 1e3
    grid = [[" "] * (4 * len(columns)) for _ in range(height)]

    def level(ms: float) -> int:
        return height - 1 - min(height - 1, round(ms / top * (height - 1)))

    for i, r in enumerate(columns):
        node, world = level(r.node_s * 1e3), level(r.world_s * 1e3)
        grid[node][4 * i + 1] = "n"
        grid[world][4 * i + 1] = "X" if world == node else "w"
    lines = [f"{top * (height - 1 - y) / (height - 1):>9.1f} |{''.join(line).rstrip()}" for y, line in enumerate(grid)]
    lines.append(" " * 10 + "+" + "-" * (4 * len(columns)))
    lines[0] += "   n node, w world"
    lines.append(" ms / nodes " + "".join(f"{r.nodes:<4}" for r in columns).rstrip())
    return "\n".join(lines)


def _measure(matrices: Shapes, ns_steps: int, bucket_mb: float, as_json: bool) -> None:
    if "RANK" not in os.environ:
        raise UsageError(
            "--measure runs on every rank of a cluster: srun torchrun ... --no-python kinemill train strategy --measure"
        )
    import torch
    import torch.distributed as dist

    from kinemill.training.muon.measure import measure

    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        first = dist.get_rank() == 0
        found = measure(
            matrices,
            device=device,
            bucket_mb=bucket_mb,
            ns_steps=ns_steps,
            say=lambda text: click.echo(text, err=True) if first else None,
        )
    finally:
        dist.destroy_process_group()
    if not first:
        return
    if as_json:
        rates = found.rates
        click.echo(
            dumps(
                {
                    "topology": found.topology,
                    "node_threshold": found.node_threshold,
                    "open_ended": found.open_ended,
                    "modelled_threshold": found.modelled_threshold,
                    "rows": [
                        {"nodes": r.nodes, "node_ms": r.node_s * 1e3, "world_ms": r.world_s * 1e3} for r in found.rows
                    ],
                    "rank_tflops": rates.flops / 1e12,
                    "fabric_gbytes_per_s": rates.fabric / 1e9,
                    "link_gbytes_per_s": rates.link / 1e9,
                    "latency_us": rates.latency_s * 1e6,
                }
            )
        )
        return
    click.echo(f"# {found.topology}; reached {found.rates.flops / 1e12:.3g} TFLOP/s a rank, ")
    click.echo(
        f"# fabric {found.rates.fabric / 1e9:.3g} GB/s a node, inside the node {found.rates.link / 1e9:.3g} GB/s"
    )
    for r in found.rows:
        click.echo(f"# {r.nodes:>5} nodes: node {r.node_s * 1e3:.1f} ms, world {r.world_s * 1e3:.1f} ms")
    click.echo(f"# the cost model with these rates says {found.modelled_threshold}")
    if found.open_ended:
        click.echo("# the world still wins on all nodes of this job: measure again when the cluster grows")
    click.echo(f"node_threshold = {found.node_threshold}")
