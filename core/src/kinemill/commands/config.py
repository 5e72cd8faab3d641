"""`kinemill config`: what is set, to what, and by whom."""

from __future__ import annotations

import sys
from typing import Any

import click

from kinemill.errors import ConfigError
from kinemill.records import dumps, encode, nearest
from kinemill.settings import Loaded, hide_secrets, load_settings, settings_classes

__all__ = ["config"]


@click.group()
def config() -> None:
    """Show settings and where each came from.

    Example: kinemill config show agents
    """


@config.command()
@click.argument("planes", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def show(planes: tuple[str, ...], as_json: bool) -> None:
    """Print each setting, its value and its origin; all planes unless PLANES are named.

    A password inside a URL is shown as ***.

    \b
    Exit: 0 shown, 2 unknown plane, 78 a settings file is wrong.
    Example: kinemill config show core agents --json
    """
    classes = settings_classes()
    for plane in planes:
        if plane not in classes:
            close = nearest(plane, classes)
            known = f"did you mean '{close}'?" if close else f"known: {', '.join(classes)}"
            raise click.UsageError(f"no plane '{plane}'; {known}")
    rows: list[dict[str, object]] = []
    broken: list[str] = []
    for plane in planes or tuple(classes):
        try:
            loaded: Loaded[object] = load_settings(classes[plane], plane=plane)
        except ConfigError as exc:
            if str(exc) not in broken:  # several planes ask core where the cache is
                broken.append(str(exc))
            continue
        for name, value, origin in loaded.rows():
            rows.append({"plane": plane, "name": name, "value": _shown(encode(value)), "origin": origin})
    if as_json:
        click.echo(dumps({"settings": rows, "errors": broken}))
    else:
        _table(rows)
        for line in broken:
            click.echo(f"kinemill: {line}", err=True)
    if broken:
        sys.exit(ConfigError.exit_code)


def _shown(value: Any) -> Any:
    """Plain data without the passwords of URLs."""
    if isinstance(value, str):
        return hide_secrets(value)
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list) else value


def _table(rows: list[dict[str, object]]) -> None:
    names = [f"{r['plane']}.{r['name']}" for r in rows]
    values = [dumps(r["value"]) for r in rows]
    wide = max((len(n) for n in names), default=0)
    high = min(max((len(v) for v in values), default=0), 48)
    for name, value, row in zip(names, values, rows, strict=True):
        click.echo(f"{name:<{wide}}  {value:<{high}}  {row['origin']}")
