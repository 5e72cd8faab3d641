"""`kinemill ingest`: look at a drop, ingest it, see what became of it."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click

from kinemill.contracts import ExitCode
from kinemill.pipelines.parts import answer, open_catalog, open_corpus, options, settings_of

__all__ = ["ingest"]


@click.group()
def ingest() -> None:
    """Plan and run the way from vendor files to episodes.

    Example: kinemill ingest run drops/acme-7 --vendor acme.yaml
    """


_DROP = click.argument("drop", type=click.Path(exists=True, path_type=Path))
_VENDOR = click.option("--vendor", required=True, help="Name of a vendor that comes with kinemill, or a YAML file.")
_PROFILE = click.option("--profile", default="vla", show_default=True, help="Rendition profile to make.")
_DELIVERY = click.option("--delivery", help="What to call the drop; its folder's name if not given.")


@ingest.command()
@_DROP
@_VENDOR
@_PROFILE
@_DELIVERY
@click.option("--inspect", "deep", is_flag=True, help="Also parse each recording (in the sandbox) and judge it.")
@options("catalog", "work_dir", "json")
def plan(
    *,
    drop: Path,
    vendor: str,
    profile: str,
    delivery: str | None,
    deep: bool,
    catalog_url: str | None,
    work_dir: Path | None,
    as_json: bool,
) -> None:
    """Show what a run of DROP would ingest; nothing is started.

    \b
    Exit: 0 shown, 1 with --inspect: something would be put aside, 78 the vendor YAML is wrong.
    Example: kinemill ingest plan drops/acme-7 --vendor acme.yaml --inspect
    """
    from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
    from kinemill.pipelines.ingest.look import look_at
    from kinemill.pipelines.ingest.plan import plan_drop

    settings = settings_of(catalog_url=catalog_url, work_dir=work_dir and str(work_dir))
    with open_catalog(settings) as catalog:
        ledger = CatalogLedger(catalog)
        found = plan_drop(drop, vendor, ledger=ledger, work_dir=settings.work_dir, profile=profile, delivery=delivery)
    looks = [look_at(item.source, found.vendor) for item in found.to_do] if deep else []
    refused = sum(look.refused for look in looks)

    def lines() -> Iterator[str]:
        yield f"batch {found.batch}: {len(found.items)} recordings, {len(found.to_do)} to do"
        for item in found.items:
            state = "done before" if item.done else "to do"
            yield f"  {state:<12} {item.size_bytes / 1e6:>10.1f} MB  {item.source.adapter:<8} {item.source.key}"
        for finding in found.findings:
            yield f"  {finding.level.value}: {finding.message}"
        if found.unclaimed:
            yield f"  {len(found.unclaimed)} files that no format knows, such as {found.unclaimed[0]}"
        for look in looks:
            yield from look.lines()

    data = {
        "batch": found.batch,
        "items": [
            {
                "key": i.source.key,
                "adapter": i.source.adapter,
                "size_bytes": i.size_bytes,
                "input_digest": i.input_digest,
                "done": i.done,
            }
            for i in found.items
        ],
        "findings": found.findings,
        "unclaimed": found.unclaimed,
        "looks": looks,
    }
    answer(data, lines, as_json=as_json)
    click.get_current_context().exit(ExitCode.FINDING if refused else ExitCode.OK)


@ingest.command()
@_DROP
@_VENDOR
@_PROFILE
@_DELIVERY
@click.option("--workers", type=click.IntRange(1), help="Recordings side by side; one per core if not given.")
@options("catalog", "store", "work_dir", "json")
def run(
    *,
    drop: Path,
    vendor: str,
    profile: str,
    delivery: str | None,
    workers: int | None,
    catalog_url: str | None,
    store_url: str | None,
    work_dir: Path | None,
    as_json: bool,
) -> None:
    """Ingest what is not ingested yet of DROP. A run that was stopped is simply started again.

    \b
    Exit: 0 all published, 1 something was put aside, 75 try again, 78 the vendor YAML is wrong.
    Example: kinemill ingest run drops/acme-7 --vendor acme.yaml --json
    """
    from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
    from kinemill.pipelines.ingest.progress import watching
    from kinemill.pipelines.ingest.runner import ingest_drop
    from kinemill.pipelines.ingest.sandbox import SandboxLimits

    settings = settings_of(
        catalog_url=catalog_url, store_url=store_url, work_dir=work_dir and str(work_dir), workers=workers
    )
    limits = SandboxLimits(memory_bytes=settings.parser_memory_mib << 20, cpu_s=settings.parser_cpu_s)
    store = open_corpus(settings)
    # A batch system says SIGTERM: end as after Ctrl-C, with claims given back and nothing left in the work folder.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with open_catalog(settings) as catalog, watching(quiet=as_json) as on_event:
        report = ingest_drop(
            drop,
            vendor,
            store=store,
            ledger=CatalogLedger(catalog),
            work_dir=settings.work_dir,
            profile=profile,
            delivery=delivery,
            workers=settings.workers or None,
            limits=limits,
            on_event=on_event,
        )

    def lines() -> Iterator[str]:
        if report.done_before == report.recordings:
            yield f"batch {report.batch}: nothing to do, all {report.recordings} recordings were ingested before"
        else:
            yield (
                f"batch {report.batch}: {report.published} episodes published "
                f"({report.bytes_published / 1e6:.1f} MB) in {report.seconds:.1f} s, "
                f"{report.done_before} of {report.recordings} recordings were ingested before"
            )
        for record in report.quarantined:
            yield f"  put aside: {record.source} [{record.code}] {record.message}"
        for text in report.warnings:
            yield f"  note: {text}"
        for text in report.failed:
            yield f"  failed, will be tried again: {text}"

    answer(report, lines, as_json=as_json)
    click.get_current_context().exit(
        ExitCode.TRANSIENT if report.failed else ExitCode.FINDING if report.put_aside else ExitCode.OK
    )


@ingest.command()
@click.argument("batch")
@options("catalog", "json")
def status(batch: str, catalog_url: str | None, as_json: bool) -> None:
    """Show what became of BATCH (vendor/delivery).

    \b
    Exit: 0 nothing lies aside, 1 something does, 2 no such batch.
    Example: kinemill ingest status acme/acme-7
    """
    settings = settings_of(catalog_url=catalog_url)
    with open_catalog(settings) as catalog:
        state = catalog.run_status(batch)
        steps = catalog.steps(batch)
        aside = catalog.quarantined(batch=batch)
        episodes = catalog.episodes(batch=batch)
    if state is None and not steps and not aside:
        raise click.UsageError(f"no batch '{batch}'; its name is <vendor>/<delivery>, as `ingest plan` shows it")
    by_state: dict[str, int] = {}
    for episode in episodes:
        by_state[episode.state.value] = by_state.get(episode.state.value, 0) + 1

    def lines() -> Iterator[str]:
        yield f"batch {batch}: {state.value if state else 'never run'}"
        yield "  episodes: " + (", ".join(f"{n} {s}" for s, n in sorted(by_state.items())) or "none")
        for name in dict.fromkeys(s.step for s in steps):
            results = [s for s in steps if s.step == name]
            counted = ", ".join(f"{n} {s}" for s, n in sorted(Counter(r.status.value for r in results).items()))
            yield f"  {name:<10} {counted}, {sum(r.seconds for r in results):.1f} s"
        for record in aside:
            yield f"  put aside: {record.source} [{record.code}] {record.message}"

    data = {"batch": batch, "status": state, "episodes": by_state, "steps": steps, "quarantined": aside}
    answer(data, lines, as_json=as_json)
    click.get_current_context().exit(ExitCode.FINDING if aside else ExitCode.OK)
