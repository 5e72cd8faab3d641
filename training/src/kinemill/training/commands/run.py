"""`kinemill train run`: the reference job on this node, restarted in place, its loss on the terminal."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress

__all__ = ["run"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--nproc", type=click.IntRange(1), help="Ranks on this node, instead of the file's.")
@click.option("--max-restarts", type=click.IntRange(0), help="Restarts in place, instead of the file's.")
@click.option("--json", "as_json", is_flag=True, help="Every metrics row and the result as JSON lines on stdout.")
def run(config: Path, nproc: int | None, max_restarts: int | None, as_json: bool) -> int:
    """Train as CONFIG says, from the last published checkpoint of its run folder if there is one.

    Exit codes: 0 finished; 75 stopped or failed, and the same command may go on; 78 a wrong setting; 1 a fault that a
    person must look at (the message names the evidence).

    Example: kinemill train run job.toml --nproc 8
    """
    from kinemill.training.job.config import load_config
    from kinemill.training.launcher import LaunchPlan, launch

    job = load_config(config)
    plan = LaunchPlan(
        run=Path(job.run),
        command=(sys.executable, "-m", "kinemill.training.job.rank", str(config.resolve())),
        nproc=nproc or job.launch.nproc,
        nnodes=job.launch.nnodes,
        rdzv_endpoint=job.launch.rdzv_endpoint,
        max_restarts=job.launch.max_restarts if max_restarts is None else max_restarts,
        hang_s=job.launch.hang_s,
        grace_s=job.launch.grace_s,
    )
    with _shown(job.train.steps, as_json=as_json) as on_row:
        result = launch(plan, on_row=on_row)
    if as_json:
        answer = {"exit_code": int(result.exit_code), "message": result.message, "attempts": list(result.attempts)}
        click.echo(json.dumps({"event": "result", **answer}))
    else:
        click.echo(f"{result.message} ({len(result.attempts)} attempts, evidence in {job.run}/attempts)", err=True)
    return int(result.exit_code)


@contextlib.contextmanager
def _shown(steps: int, *, as_json: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """How rows are shown: JSON lines, a progress bar on a terminal, or a line for every event and tenth of the way."""
    if as_json:
        yield lambda row: click.echo(json.dumps(row))
        return
    if not sys.stderr.isatty():
        yield lambda row: _line(row, steps)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("train"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=Console(stderr=True)) as progress:
        task = progress.add_task("starting", total=steps)
        yield lambda row: _bar(progress, task, row)


def _bar(progress: Progress, task: Any, row: dict[str, Any]) -> None:
    if "loss" in row:
        progress.update(task, completed=row["step"], description=f"loss {row['loss']:.3f}")
    elif (text := _event(row)) is not None:
        progress.console.print(text, markup=False, highlight=False)


def _line(row: dict[str, Any], steps: int) -> None:
    if "loss" in row and (row["step"] % max(1, steps // 10) == 0 or row["step"] == steps):
        click.echo(f"step {row['step']}/{steps} loss {row['loss']:.3f}", err=True)
    elif (text := _event(row)) is not None:
        click.echo(text, err=True)


def _event(row: dict[str, Any]) -> str | None:
    """A row that is no step, in words; None for those that nobody needs to see."""
    match row.get("event"):
        case "start" if row.get("resume_step") is not None:
            return f"attempt {row['attempt']}: goes on from step {row['resume_step']} with {row['world_size']} ranks"
        case "start":
            return f"attempt {row['attempt']}: begins with {row['world_size']} ranks, {row['parameters']:,} parameters"
        case "evaluation":
            return (
                f"held out: error {row['error']:.3f}, {row['against_mean']:.2f} of predicting the mean; "
                f"{row['blank_against_seeing']:.2f} times that with blank frames ({row['samples']} samples)"
            )
        case "stopped":
            return f"stopped at step {row['step']}, saved"
        case _:
            return None
