"""The group `kinemill train`: every other module in this folder is a command of the same name.

A new command is a new file here that holds a click command named like the file; nothing else changes.
"""

from __future__ import annotations

import importlib
import pkgutil

import click

from kinemill.training import commands

__all__ = ["train"]


class _Folder(click.Group):
    """A group whose commands are the modules beside it, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the modules, without importing one."""
        names = [m.name for m in pkgutil.iter_modules(commands.__path__)]
        return sorted(n.replace("_", "-") for n in names if n != "train" and not n.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that holds `cmd_name`."""
        if cmd_name not in self.list_commands(ctx):
            return None
        name = cmd_name.replace("-", "_")
        found = getattr(importlib.import_module(f"{commands.__name__}.{name}"), name, None)
        return found if isinstance(found, click.Command) else None


@click.command(cls=_Folder, context_settings={"help_option_names": ["-h", "--help"]})
def train() -> None:
    """Run the training job; choose the optimizer's sharding.

    Example: kinemill train strategy --model 7b --nodes 2,8,32 --fabric-gbps 400
    """
