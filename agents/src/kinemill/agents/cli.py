"""`kinemill-node`: the direct entry for Slurm hooks and timers, and `kinemill node` for people.

Its start-up is part of the prolog's budget, so it imports nothing but click until a command runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from kinemill.cli import run
from kinemill.entry import allow_cleanup

if TYPE_CHECKING:
    from kinemill.agents.node import Outcome
    from kinemill.agents.settings import AgentsSettings

__all__ = ["main", "node"]


def _settings() -> AgentsSettings:
    from kinemill.agents.settings import AgentsSettings
    from kinemill.settings import load_settings

    return load_settings(AgentsSettings, plane="agents").value


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kinemill-agents", prog_name="kinemill-node")
@click.pass_context
def node(ctx: click.Context) -> None:
    """This node's health: what its hooks and timers run, and what a person looks at.

    Example: kinemill-node check
    """
    allow_cleanup()
    if ctx.invoked_subcommand != "hook":  # which logs only where it has something to say
        from kinemill.agents.lines import set_up

        set_up()


@node.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def facts(as_json: bool) -> None:
    """Print what identifies this node and its boot.

    \b
    Exit: 0 printed, 1 something could not be read.
    Example: kinemill-node facts --json
    """
    from kinemill.agents.identity import node_facts, print_facts

    sys.exit(print_facts(node_facts(_settings().probe_root), as_json=as_json))


@node.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def check(names: tuple[str, ...], as_json: bool) -> None:
    """Run all checks, or only NAMES, and show each result. Nothing is refused or drained.

    \b
    Exit: 0 all well, 1 something failed or could not be measured, 2 no such check.
    Example: kinemill-node check gpu.ecc --json
    """
    from kinemill.agents.node import run_node
    from kinemill.agents.show import show_outcome
    from kinemill.contracts.checks import CheckContext

    _refuse_unknown(names)
    outcome: Outcome = run_node(CheckContext.CLI, _settings(), names=names)
    show_outcome(outcome, as_json=as_json)
    sys.exit(int(outcome.verdict.refuse))


@node.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of text.")
def explain(name: str, as_json: bool) -> None:
    """Show one check: what it looks at, its limits and their sources, and what it sees now.

    \b
    Exit: 0 shown, 2 no such check.
    Example: kinemill-node explain gpu.ecc
    """
    from kinemill.agents.node import run_node
    from kinemill.agents.show import show_explanation
    from kinemill.contracts.checks import CheckContext

    _refuse_unknown((name,))
    show_explanation(run_node(CheckContext.CLI, _settings(), names=(name,)), name, as_json=as_json)


@node.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
def ack(as_json: bool) -> None:
    """Say that the kernel messages so far have been dealt with; they count no more in this boot.

    \b
    Exit: 0 remembered.
    Example: kinemill-node ack
    """
    import json
    import time

    from kinemill.agents.context import context_for
    from kinemill.agents.runner import run_probes
    from kinemill.agents.state import Memory
    from kinemill.contracts.checks import CheckContext

    settings = _settings()
    ctx = context_for(CheckContext.CLI, settings)
    seen = run_probes(ctx, ["kernel_log"]).get("kernel.last_s")  # the log's own clock, which may run apart from others
    at = float(seen) if isinstance(seen, int | float) else time.clock_gettime(time.CLOCK_MONOTONIC)
    memory = Memory(settings.state_dir / "agents", ctx.boot_id, int(time.time()))
    with memory.turn():
        memory.acknowledge(at)
    text = f"kernel messages of the first {at:.0f} s of this boot are acknowledged"
    click.echo(json.dumps({"acknowledged_s": at}) if as_json else text)


@node.command()
@click.argument("context", type=click.Choice(["prolog", "epilog", "periodic", "boot", "injob"]))
def hook(context: str) -> None:
    """Run as a hook or timer: check, write the verdict, and refuse with exit 100 on a measured fault.

    \b
    Exit: 0 let through, 100 refused. Any other code is a crash, which the shims let through.
    Example: kinemill-node hook prolog
    """
    from kinemill.agents.hook import run_hook

    sys.exit(run_hook(context))


@node.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
def report(as_json: bool) -> None:
    """Tell Slurm what the last checks found: our reason in place of Slurm's own text, notes for jobs, clean passes.

    Never overwrites a reason that a person wrote. The timer runs it after each round of checks.

    \b
    Exit: 0 told or nothing to tell, 75 Slurm does not answer, 1 anything else that it refused.
    Example: kinemill-node report
    """
    import json
    import time

    from kinemill.agents.context import read_boot_id
    from kinemill.agents.identity import node_name
    from kinemill.agents.metrics import count
    from kinemill.agents.reporter import Act, report_node
    from kinemill.agents.state import Memory
    from kinemill.slurm.cli import CliSlurm

    settings = _settings()
    boot_id = read_boot_id(settings.probe_root)
    memory = Memory(settings.state_dir / "agents", boot_id, int(time.time()))
    name = node_name(settings.node_name)
    fault = memory.open_fault()
    move = report_node(name, CliSlurm(timeout_s=settings.slurm_timeout_s), memory, boot_id)
    if fault is not None and move.act in (Act.DRAIN, Act.EXPLAIN):
        cls = {"T": "transient", "H": "hard"}[fault.letter]
        labels = (("check", fault.check), ("class", cls), ("owner", "agent"))
        with memory.turn():
            count(settings.state_dir / "agents", {("kinemill_drains_total", labels): 1.0})
    click.echo(json.dumps({"node": name, "act": move.act.value, "why": move.why}) if as_json else f"{name}: {move.why}")


@node.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a sentence.")
def ask(as_json: bool) -> None:
    """Ask root to check this node now; for jobs that suspect it. Root decides by its own checks.

    \b
    Exit: 0 asked, 1 this node has no agents.
    Example: kinemill-node ask
    """
    import json

    from kinemill.agents.requests import ask as put

    put(_settings().run_dir)
    click.echo(json.dumps({"asked": True}) if as_json else "asked; root checks this node now")


def _refuse_unknown(names: tuple[str, ...]) -> None:
    from kinemill.agents.checks import all_checks
    from kinemill.records import nearest

    known = all_checks()
    for name in names:
        if name not in known:
            close = nearest(name, known)
            raise click.UsageError(
                f"no check '{name}'; " + (f"did you mean '{close}'?" if close else f"known: {', '.join(known)}")
            )


def main() -> None:
    """What the `kinemill-node` script runs once this module is imported."""
    sys.exit(run(node, "kinemill-node"))


if __name__ == "__main__":
    main()
