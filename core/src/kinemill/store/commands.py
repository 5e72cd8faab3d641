"""`kinemill store`: prove that an object store keeps its promises before anything is trusted to it."""

from __future__ import annotations

import sys

import click

from kinemill.contracts import ExitCode
from kinemill.records import dumps

__all__ = ["store"]


@click.group()
def store() -> None:
    """Prove that an object store keeps its promises.

    Example: kinemill store check s3://corpus?endpoint=https://s3.example.org
    """


@store.command()
@click.argument("url")
@click.option(
    "--racers", default=32, show_default=True, type=click.IntRange(2, 256), help="Creators of one key at once."
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1, 100), help="Races.")
@click.option("--objects", default=250, show_default=True, type=click.IntRange(101, 5000), help="Objects for paging.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object instead of a table.")
def check(url: str, racers: int, rounds: int, objects: int, as_json: bool) -> None:
    """Write, race, replace, page and delete under a prefix of its own at URL, and judge.

    URL is s3://BUCKET/PREFIX?endpoint=...&region=... or file:///FOLDER. Credentials come from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, or from the file of mode 0600 that KINEMILL_S3_CREDENTIALS_FILE names; never from URL.

    \b
    Exit: 0 all promises kept, 1 one broken (do not use this store), 75 not reachable, 78 no credentials.
    Example: kinemill store check s3://corpus?endpoint=https://s3.example.org --json
    """
    from kinemill.store import open_store
    from kinemill.store.check import check_store

    opened = open_store(url)
    tty = sys.stderr.isatty()

    def progress(name: str) -> None:
        if tty:
            click.echo(f"\r\x1b[2Kchecking {name} ...", err=True, nl=False)

    findings = check_store(opened, racers=racers, rounds=rounds, objects=objects, progress=progress)
    if tty:
        click.echo("\r\x1b[2K", err=True, nl=False)
    kept = all(finding.ok for finding in findings)
    if as_json:
        click.echo(dumps({"url": opened.url, "ok": kept, "findings": findings}))
    else:
        for finding in findings:
            click.echo(
                f"{'ok  ' if finding.ok else 'FAIL'}  {finding.check:<18} {finding.seconds:7.2f} s  {finding.detail}"
            )
        click.echo(f"{opened.url}: {'all promises kept' if kept else 'do not use this store'}")
    sys.exit(ExitCode.OK if kept else ExitCode.FINDING)
