"""The umbrella command `kinemill`: finds sub-commands by entry point, loads one when it runs.

Only entry points of the kinemill distributions count, so that no other package can slip a command
into a program that runs as root. Listing the groups imports none of them.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any

import click

from kinemill.entry import allow_cleanup
from kinemill.errors import KinemillError

__all__ = ["GROUPS", "KinemillGroup", "cli", "main", "run", "was_interrupted"]

GROUPS: dict[str, tuple[str, str]] = {
    "cache": ("core", "look at and clear the local cache"),
    "catalog": ("pipelines", "the system of record: set up, check, show, rebuild"),
    "config": ("core", "show settings and where each came from"),
    "deploy": ("control", "run the playbook for an inventory, checked before anything is touched"),
    "episode": ("core", "look at, verify, repack and convert episode files"),
    "fleet": ("agents", "the cluster's health: drains, resumes, reservations"),
    "ingest": ("pipelines", "plan and run the way from vendor files to episodes"),
    "load": ("loaders", "pull, measure and show what a training job would read"),
    "manifest": ("pipelines", "plan, build and compare manifests"),
    "node": ("agents", "this node's health: check, explain, acknowledge"),
    "sandbox": ("control", "a real cluster on one machine, for tests"),
    "store": ("core", "prove that an object store keeps its promises"),
    "train": ("training", "run the training job; choose the optimizer's sharding"),
    "warehouse": ("pipelines", "sync and query the warehouse tables"),
}
"""Group -> (floor that owns it, one line); shown without importing the group."""

_FLOORS = ("core", "control", "agents", "pipelines", "loaders", "training")


def _entry_points() -> dict[str, str]:
    """Group -> `module:object`, of the installed kinemill distributions only."""
    from importlib.metadata import PackageNotFoundError, distribution  # 50 ms that `kinemill-node` does not owe

    found: dict[str, str] = {}
    for floor in _FLOORS:
        try:
            dist = distribution(f"kinemill-{floor}")
        except PackageNotFoundError:
            continue
        for point in dist.entry_points.select(group="kinemill.commands"):
            if GROUPS.get(point.name, ("", ""))[0] == floor:
                found[point.name] = point.value
    return found


def _installed(floor: str) -> bool:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        distribution(f"kinemill-{floor}")
    except PackageNotFoundError:
        return False
    return True


class KinemillGroup(click.Group):
    """A group whose sub-commands come from entry points and are imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the groups that are installed here."""
        return sorted({*super().list_commands(ctx), *_entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the group that owns `cmd_name`."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        value = _entry_points().get(cmd_name)
        if value is None:
            if cmd_name in GROUPS:
                floor = GROUPS[cmd_name][0]
                if _installed(floor):
                    raise click.UsageError(
                        f"the kinemill-{floor} installed here has no '{cmd_name}': it needs a newer one"
                    )
                raise click.UsageError(f"'{cmd_name}' is part of kinemill-{floor}, which is not installed here")
            return None
        module, _, attribute = value.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List groups with the lines of `GROUPS`, importing nothing."""
        rows = [(name, GROUPS[name][1]) for name in self.list_commands(ctx) if name in GROUPS]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


@click.command(cls=KinemillGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kinemill-core", prog_name="kinemill")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """The data and compute platform for physical AI.

    Example: kinemill episode info recording.mcap
    """
    allow_cleanup()
    # A program that calls a command keeps its own logging; `config` has to run where the settings are broken.
    if ctx.obj is _OWN_PROCESS and ctx.invoked_subcommand != "config":
        from kinemill.logs import logs_from_settings

        logs_from_settings()


_OWN_PROCESS = object()
_FULL = (errno.ENOSPC, errno.EDQUOT)


def run(command: click.Command, prog_name: str, args: list[str] | None = None, *, own_process: bool = False) -> int:
    """Run a click command and turn every ending into an exit code.

    A `KinemillError` is one line on stderr and its own exit code; Ctrl-C is 130; a broken pipe is
    quiet; a full disk is one line and 1. Anything else is a bug: its traceback is shown and the code is 1.

    Args:
        command: What to run.
        prog_name: What it is called, in its own words.
        args: Instead of `sys.argv`.
        own_process: The process is there for this command alone, so `kinemill` sets logging up.
    """
    return _printed(_run(command, prog_name, args, own_process=own_process), prog_name)


def _printed(code: int, prog_name: str) -> int:
    """Print what is left, before the interpreter tries to, and fails in its own words with its own exit code."""
    try:
        sys.stdout.flush()
    except OSError as exc:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if code == 0 and not isinstance(exc, BrokenPipeError):
            click.echo(f"{prog_name}: standard output: {exc.strerror}", err=True)
        return code or 1
    return code


def _run(command: click.Command, prog_name: str, args: list[str] | None, *, own_process: bool) -> int:
    try:
        result: Any = command.main(
            args=args, prog_name=prog_name, standalone_mode=False, obj=_OWN_PROCESS if own_process else None
        )
    except click.exceptions.Exit as exc:
        return exc.exit_code
    except click.ClickException as exc:
        exc.show()
        return exc.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"{prog_name}: interrupted", err=True)
        return 130
    except BrokenPipeError:
        return 1
    except KinemillError as exc:
        click.echo(f"{prog_name}: {exc}", err=True)
        return exc.exit_code
    except Exception as exc:
        if was_interrupted(exc):
            click.echo(f"{prog_name}: interrupted", err=True)
            return 130
        if isinstance(exc, OSError) and exc.errno in _FULL:
            where = f"{exc.filename}: " if isinstance(exc.filename, str) else ""
            click.echo(f"{prog_name}: {where}{exc.strerror}; make room there, or name another place", err=True)
            return 1
        raise
    return result if isinstance(result, int) else 0


def was_interrupted(error: BaseException, by: tuple[type[BaseException], ...] = (KeyboardInterrupt,)) -> bool:
    """Whether Ctrl-C is behind an error: where it strikes as a lock is let go, another error comes out of it."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, by):
        found = found.__context__
    return found is not None


def main() -> None:
    """What the `kinemill` script runs once this module is imported."""
    sys.exit(run(cli, "kinemill", own_process=True))
