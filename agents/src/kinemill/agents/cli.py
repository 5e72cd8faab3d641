"""`kinemill-node`: the direct entry for Slurm hooks and timers.

Its start-up is part of the prolog's budget, so it imports nothing but click until a command runs.
"""

from __future__ import annotations

import sys

import click

from kinemill.cli import run

__all__ = ["main", "node"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kinemill-agents", prog_name="kinemill-node")
def node() -> None:
    """This node's health: what its hooks and timers run.

    Example: kinemill-node facts --json
    """


@node.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of lines.")
def facts(as_json: bool) -> None:
    """Print what identifies this node and its boot.

    \b
    Exit: 0 printed, 1 something could not be read.
    Example: kinemill-node facts --json
    """
    from kinemill.agents.facts import node_facts, print_facts

    sys.exit(print_facts(node_facts(), as_json=as_json))


def main() -> None:
    """Entry of the `kinemill-node` script."""
    sys.exit(run(node, "kinemill-node"))
