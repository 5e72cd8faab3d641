"""`kinemill catalog`: the system of record, from an empty database to a restored one."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from kinemill.contracts import ExitCode
from kinemill.errors import UsageError
from kinemill.pipelines.parts import answer, open_catalog, open_corpus, open_iceberg, options, settings_of

__all__ = ["catalog"]


@click.group()
def catalog() -> None:
    """The system of record: set up, check, show, rebuild.

    Example: kinemill catalog init
    """


def _shown(text: object) -> str:
    """Text of a vendor's on a terminal: no control characters, no escape sequences."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in str(text))


def _up(catalog_url: str | None, *, as_json: bool) -> None:
    with open_catalog(settings_of(catalog_url=catalog_url)) as opened:
        before = opened.status()
        after = opened.upgrade()

    def lines() -> Iterator[str]:
        if before.current == after.current:
            yield f"up to date: {after.current} on PostgreSQL {after.postgres}"
        else:
            yield f"from {before.current or 'nothing'} to {after.current} on PostgreSQL {after.postgres}"

    answer({"before": before.current, "after": after.current, "postgres": after.postgres}, lines, as_json=as_json)


@catalog.command()
@options("catalog", "json")
def init(catalog_url: str | None, as_json: bool) -> None:
    """Create the catalog's schema in an empty database; a second time changes nothing.

    \b
    Exit: 0 done, 75 database not reachable or another migration at work, 78 no catalog set.
    Example: kinemill catalog init --catalog postgresql://kinemill@db/kinemill
    """
    _up(catalog_url, as_json=as_json)


@catalog.command()
@options("catalog", "json")
def upgrade(catalog_url: str | None, as_json: bool) -> None:
    """Bring the schema up to this program's version; each step all or nothing.

    \b
    Exit: 0 done, 75 database not reachable or another migration at work, 78 no catalog set.
    Example: kinemill catalog upgrade
    """
    _up(catalog_url, as_json=as_json)


@catalog.command()
@click.option("--sample", default=200, show_default=True, type=click.IntRange(0, 1_000_000), help="Objects to look at.")
@click.option("--metrics", type=click.Path(path_type=Path), help="Also write the export's lag as Prometheus text.")
@options("catalog", "store", "warehouse", "json")
def check(
    *,
    sample: int,
    metrics: Path | None,
    catalog_url: str | None,
    store_url: str | None,
    warehouse_url: str | None,
    as_json: bool,
) -> None:
    """Check schema, server, guards and rows; with a store its objects, with a warehouse every row of it.

    \b
    Exit: 0 sound (warnings are told), 1 something is wrong, 75 database not reachable.
    Example: kinemill catalog check --json
    """
    from kinemill.pipelines.catalog.health import Health, check_catalog, export_metrics

    settings = settings_of(catalog_url=catalog_url, store_url=store_url, warehouse_url=warehouse_url)
    with ExitStack() as held:
        opened = held.enter_context(open_catalog(settings))
        ready = opened.status().up_to_date
        store = open_corpus(settings) if settings.store_url else None
        target = held.enter_context(open_iceberg(settings, opened)) if settings.warehouse_url and ready else None
        found = check_catalog(opened, store=store, target=target, sample=sample)
        if metrics is not None and target is not None:
            from kinemill.pipelines.warehouse.export import export_lag

            fresh = metrics.with_name(f".{metrics.name}.new")
            fresh.write_text(export_metrics(export_lag(opened, target.watermark())), encoding="utf-8")
            fresh.replace(metrics)
    sound = all(one.health is not Health.FAIL for one in found)

    def lines() -> Iterator[str]:
        for one in found:
            yield f"{one.health.value:<4}  {one.check:<10}  {_shown(one.detail)}"

    answer({"ok": sound, "findings": found}, lines, as_json=as_json)
    sys.exit(ExitCode.OK if sound else ExitCode.FINDING)


@catalog.command()
@click.argument("episode", required=False)
@options("catalog", "json")
def show(episode: str | None, catalog_url: str | None, as_json: bool) -> None:
    """Show what the catalog holds, or all it knows of one EPISODE.

    \b
    Exit: 0 shown, 1 no such episode.
    Example: kinemill catalog show 0192f0c1-7c4e-7a51-8d5e-3f1f2a0b9c55
    """
    with open_catalog(settings_of(catalog_url=catalog_url)) as opened:
        if episode is None:
            counts = opened.counts()
            answer(counts, lambda: (f"{name:<16} {count}" for name, count in counts.items()), as_json=as_json)
            return
        row = opened.episode(_id(episode))
        renditions = opened.renditions([row.card.episode_id], all_versions=True)
        manifests = opened.manifests_of(row.card.episode_id)
    objects = [
        {"key": r.key, "profile": r.profile, "size_bytes": r.receipt.size_bytes, "sha256": r.receipt.sha256}
        for r in renditions
    ]

    def lines() -> Iterator[str]:
        card = row.card
        yield f"episode      {card.episode_id}, version {row.row_version}"
        yield f"state        {row.state.value}{', purged' if row.purged else ''}"
        yield f"vendor       {_shown(card.vendor)} / {_shown(card.vendor_key)}"
        yield f"delivery     {_shown(row.delivery or '-')}, batch {_shown(row.batch or '-')}"
        yield f"robot, task  {_shown(card.robot)}, {_shown(card.task or '-')}: {_shown(card.instruction or '-')}"
        yield f"length       {row.duration_ns / 1e9:.1f} s, {row.frames} frames at {row.fps:g}/s"
        if row.degraded_steps:
            yield f"degraded     {_shown(', '.join(row.degraded_steps))}"
        for one in objects:
            yield f"object       {one['key']}  {one['size_bytes']} bytes"
        for manifest in manifests:
            yield f"manifest     {_shown(manifest)}"

    answer({"episode": row, "objects": objects, "manifests": manifests}, lines, as_json=as_json)


def _id(text: str) -> str:
    import uuid

    try:
        return str(uuid.UUID(text))
    except ValueError as exc:
        raise UsageError(f"{text!r} is no episode id") from exc


@catalog.command()
@click.option("--from-store", "from_store", is_flag=True, required=True, help="From the receipts inside the objects.")
@options("catalog", "store", "json")
def rebuild(from_store: bool, catalog_url: str | None, store_url: str | None, as_json: bool) -> None:
    """Register every episode file of the store that the catalog does not know; what it knows stays as it is.

    States, labels, quality and manifests are not in the files: rebuilt episodes are `ingested`.

    \b
    Exit: 0 all registered, 1 some were refused, 75 database or store not reachable.
    Example: kinemill catalog rebuild --from-store --store s3://corpus
    """
    from kinemill.pipelines.catalog.rebuild import rebuild as run

    assert from_store  # noqa: S101 - required
    settings = settings_of(catalog_url=catalog_url, store_url=store_url)
    tty = sys.stderr.isatty()

    def progress(seen: int) -> None:
        if tty:
            click.echo(f"\r\x1b[2K{seen} objects ...", err=True, nl=False)

    with open_catalog(settings) as opened:
        opened.upgrade()
        report = run(opened, open_corpus(settings), progress=progress)
    if tty:
        click.echo("\r\x1b[2K", err=True, nl=False)

    def lines() -> Iterator[str]:
        told = ", ".join(f"{count} {name}" for name, count in report.outcomes.items()) or "nothing to do"
        yield f"{report.objects} episode files: {told}; {report.foreign} other objects"
        for key, why in report.refused.items():
            yield f"refused  {_shown(key)}: {_shown(why)}"

    answer(report, lines, as_json=as_json)
    sys.exit(ExitCode.FINDING if report.refused else ExitCode.OK)


@catalog.command()
@click.argument("episode")
@click.option("--reason", default="", help="Why, such as the number of the request; kept for ever. Needed with --yes.")
@click.option("--actor", default="", help="Who decided; else your login name.")
@click.option("--yes", is_flag=True, help="Do it; without this it is only shown.")
@options("catalog", "store", "json")
def purge(
    *,
    episode: str,
    reason: str,
    actor: str,
    yes: bool,
    catalog_url: str | None,
    store_url: str | None,
    as_json: bool,
) -> None:
    """Withdrawn consent: retire EPISODE for ever, delete its objects, name every manifest that holds it.

    Without --yes nothing is changed. A purge that was cut short is finished by running it again.

    \b
    Exit: 0 shown or done, 1 no such episode, 75 not all is deleted yet.
    Example: kinemill catalog purge 0192f0c1-7c4e-7a51-8d5e-3f1f2a0b9c55 --reason "request 4711" --yes
    """
    from kinemill.pipelines.catalog.purge import plan_purge
    from kinemill.pipelines.catalog.purge import purge as run

    if yes and not reason:
        raise UsageError("--reason is needed: it is what an auditor will read")
    settings = settings_of(catalog_url=catalog_url, store_url=store_url)
    with open_catalog(settings) as opened:
        store = open_corpus(settings)
        if not yes:
            plan = plan_purge(opened, store, _id(episode))
            answer(plan, lambda: _purge_lines("would delete", plan.objects, plan.manifests), as_json=as_json)
            return
        report = run(opened, store, _id(episode), reason=reason, actor=actor or getpass.getuser())
    verb = "was done before; deleted" if report.already_done else "deleted"
    answer(report, lambda: _purge_lines(verb, report.deleted, report.manifests), as_json=as_json)


def _purge_lines(verb: str, objects: tuple[str, ...], manifests: tuple[str, ...]) -> Iterator[str]:
    for key in objects:
        yield f"{verb}  {key}"
    for manifest in manifests:
        yield f"held by manifest  {_shown(manifest)}"
    yield f"{len(objects)} objects, {len(manifests)} manifests"


@catalog.command()
@click.argument("folder", type=click.Path(path_type=Path))
@options("catalog", "json")
def backup(folder: Path, catalog_url: str | None, as_json: bool) -> None:
    """Take a verified base backup of the catalog's whole server into FOLDER, which must not exist.

    \b
    Exit: 0 done, 1 FOLDER exists or a program failed, 75 database not reachable.
    Example: kinemill catalog backup /backup/catalog-2026-11-30
    """
    from kinemill.pipelines.catalog.backup import base_backup
    from kinemill.pipelines.catalog.embedded import binaries_of

    with open_catalog(settings_of(catalog_url=catalog_url)) as opened:
        major = opened.status().postgres
        made = base_backup(opened.libpq_url, folder, binaries_of(major).bin)
    answer({"backup": str(made)}, lambda: iter([f"verified backup in {made}"]), as_json=as_json)
