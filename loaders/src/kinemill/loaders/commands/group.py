"""The commands of the group; each is thin, the work lies in the modules it names."""

from __future__ import annotations

import dataclasses
import os
import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinemill.errors import UsageError
from kinemill.records import dumps

if TYPE_CHECKING:
    from kinemill.loaders.manifest import Manifest
    from kinemill.loaders.sparse import SparseWindows

__all__ = ["load"]

MANIFEST = click.argument("manifest")
STORE = click.option("--store", "store_url", default=None, help="URL of the store, such as s3://corpus.")
JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
WINDOW = click.option(
    "--window",
    "windows",
    multiple=True,
    metavar="TOPIC=STEPS",
    help="Such as /cam/front=0 or /action=0:50 (steps) or /state=-0.5s,0s (seconds). Default: all cameras and states.",
)


@click.group()
def load() -> None:
    """Pull, probe, measure and show what a training job would read.

    Example: kinemill load bench 7c1e9a --store s3://corpus --workers 8
    """


def _open(manifest: str, store_url: str | None) -> Manifest:
    """A local file's path, or an id in a store."""
    from kinemill.loaders.manifest import Manifest, open_manifest, resolve
    from kinemill.loaders.settings import LoaderSettings
    from kinemill.loaders.stores import store_for
    from kinemill.settings import load_settings

    if Path(manifest).is_file():
        return Manifest.from_file(manifest)
    if store_url is None:
        raise UsageError(f"'{manifest}' is no local file; say --store for a manifest's id")
    settings = load_settings(LoaderSettings, plane="loaders").value.manifest
    return open_manifest(
        resolve(store_for(store_url), manifest),
        mode=settings.mode,
        folder=Path(settings.dir) if settings.dir else None,
        wait_s=settings.wait_s,
        part_bytes=settings.part_mib << 20,
    )


def parse_window(text: str) -> tuple[str, Any]:
    """`TOPIC=0`, `TOPIC=-1,0`, `TOPIC=0:50` or `TOPIC=-0.5s,0s`.

    Raises:
        UsageError: Something else.
    """
    from kinemill.loaders.windows import seconds, steps

    topic, _, spec = text.partition("=")
    try:
        if not topic or not spec:
            raise ValueError
        if spec.endswith("s"):
            return topic, seconds([float(part.strip().removesuffix("s")) for part in spec.split(",")])
        if ":" in spec:
            return topic, steps(range(*(int(part) for part in spec.split(":"))))
        return topic, steps([int(part) for part in spec.split(",")])
    except (ValueError, TypeError) as exc:
        raise UsageError(f"--window {text!r}: expected TOPIC=0, TOPIC=0:50 or TOPIC=-0.5s,0s") from exc


def _data(manifest: Manifest, store_url: str | None, windows: tuple[str, ...], **options: Any) -> SparseWindows:
    from kinemill.loaders.fields import topic_facts
    from kinemill.loaders.sparse import SparseWindows
    from kinemill.loaders.windows import steps

    if windows:
        chosen = dict(parse_window(text) for text in windows)
    else:
        first = next((row for row in islice(manifest, 256) if row.frames), manifest[0]) if len(manifest) else None
        facts = topic_facts(first.topics).values() if first is not None else ()
        chosen = {
            f.topic: steps(range(50)) if "action" in f.topic else steps(0)
            for f in facts
            if f.kind in ("video", "state")
        }
    return SparseWindows(manifest, chosen, store=store_url or manifest.store_url, **options)


def _tell(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        click.echo(dumps(told))
        return
    for name, value in told.items():
        if isinstance(value, dict):
            click.echo(f"{name}:")
            for key, one in value.items():
                click.echo(f"  {key:<24} {one:.4g}" if isinstance(one, float) else f"  {key:<24} {one}")
        else:
            click.echo(f"{name:<26} {value:.4g}" if isinstance(value, float) else f"{name:<26} {value}")


@load.command()
@click.argument("manifest", required=False)
@STORE
@click.option("--dir", "folder", type=click.Path(path_type=Path), default=None, help="Default: from the settings.")
@click.option("--verify", is_flag=True, help="Hash a copy that is already there, and fetch it again if it rotted.")
@click.option("--gc", is_flag=True, help="Remove local manifests that nobody uses, but the last --keep.")
@click.option("--keep", type=click.IntRange(0), default=None, help="With --gc; default from the settings.")
@click.option("--dry-run", is_flag=True, help="With --gc: only say what would go.")
@JSON
def pull(
    *,
    manifest: str | None,
    store_url: str | None,
    folder: Path | None,
    verify: bool,
    gc: bool,
    keep: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Fetch MANIFEST to this node, once, as a job's ranks would; or collect old copies with --gc.

    \b
    Exit: 0 there, 1 refused (hash, room), 75 store or lock not available in time.
    Example: kinemill load pull 7c1e9a --store s3://corpus
    """
    from kinemill.loaders.manifest import collect, resolve
    from kinemill.loaders.manifest import pull as fetch
    from kinemill.loaders.manifest.manifest import default_folder
    from kinemill.loaders.settings import LoaderSettings
    from kinemill.loaders.stores import store_for
    from kinemill.settings import load_settings

    settings = load_settings(LoaderSettings, plane="loaders").value.manifest
    folder = folder or (Path(settings.dir) if settings.dir else default_folder())
    if gc:
        gone = collect(folder, keep=settings.keep if keep is None else keep, dry_run=dry_run) if folder.exists() else []
        _tell({"folder": str(folder), "removed": [str(path) for path in gone], "dry_run": dry_run}, as_json=as_json)
        if manifest is None:
            return
    if manifest is None or store_url is None:
        raise UsageError("name a manifest and its --store, or --gc")
    store = store_for(store_url)
    ref = resolve(store, manifest)

    def progress(done: int, total: int) -> None:
        if sys.stderr.isatty() and not as_json:
            click.echo(f"\r{done >> 20} of {total >> 20} MiB", err=True, nl=done == total)

    path, use = fetch(
        ref, store, folder, wait_s=settings.wait_s, part_bytes=settings.part_mib << 20, verify=verify, progress=progress
    )
    os.close(use)
    _tell({"path": str(path), "rows": ref.rows, "size_bytes": ref.size_bytes, "sha256": ref.sha256}, as_json=as_json)


@load.command()
@MANIFEST
@STORE
@WINDOW
@click.option("--samples", type=click.IntRange(1), default=32, help="Spread over the whole set.")
@click.option("--overfit", is_flag=True, help="Also fit a small network to one episode.")
@JSON
def probe(
    *, manifest: str, store_url: str | None, windows: tuple[str, ...], samples: int, overfit: bool, as_json: bool
) -> None:
    """Read a few samples from everywhere and say what is wrong with which.

    \b
    Exit: 0 all whole, 1 some were masked, or the network did not fit.
    Example: kinemill load probe 7c1e9a --store s3://corpus --samples 100
    """
    from kinemill.loaders.probe import overfit_episode, probe_samples

    data = _data(_open(manifest, store_url), store_url, windows, seed=1)
    told = probe_samples(data, samples)
    bad = bool(told["masked"])
    if overfit:
        fitted = overfit_episode(data)
        told["overfit"] = dataclasses.asdict(fitted)
        bad = bad or not fitted.fits
    _tell(told, as_json=as_json)
    sys.exit(1 if bad else 0)


@load.command()
@MANIFEST
@STORE
@WINDOW
@click.option("--batch-size", type=click.IntRange(1), default=8)
@click.option("--workers", type=click.IntRange(0), default=0)
@click.option("--samples", type=click.IntRange(1), default=256)
@JSON
def bench(
    *,
    manifest: str,
    store_url: str | None,
    windows: tuple[str, ...],
    batch_size: int,
    workers: int,
    samples: int,
    as_json: bool,
) -> None:
    """Measure reading: samples/s, requests and bytes a sample, where the time goes, and what limits it.

    \b
    Exit: 0 measured, 1 some samples were masked.
    Example: kinemill load bench 7c1e9a --store s3://corpus --workers 8 --samples 2000
    """
    from kinemill.loaders.probe import measure

    data = _data(_open(manifest, store_url), store_url, windows)
    told = measure(data, batch_size=batch_size, workers=workers, samples=samples)
    _tell(told, as_json=as_json)
    sys.exit(1 if told["masked"] else 0)


@load.command()
@click.argument("manifest", required=False)
@STORE
@WINDOW
@click.option("--count", type=click.IntRange(1, 64), default=4, help="Samples in the picture.")
@click.option("--out", type=click.Path(path_type=Path), default=Path("batch.png"), help="The picture.")
@click.option(
    "--quarantine",
    metavar="RUN",
    help="List the records of a run folder: a path, or a URL such as s3://runs/vla-7.",
)
@JSON
def show(
    *,
    manifest: str | None,
    store_url: str | None,
    windows: tuple[str, ...],
    count: int,
    out: Path,
    quarantine: str | None,
    as_json: bool,
) -> None:
    """Draw a batch as a picture, and print what is in it; or list what a run put aside.

    \b
    Exit: 0 shown, 1 the run has quarantine records.
    Example: kinemill load show 7c1e9a --store s3://corpus --out batch.png
    Example: kinemill load show --quarantine /runs/vla-7
    """
    if quarantine is not None:
        from kinemill.loaders.quarantine import read_quarantine

        if "://" not in quarantine and not Path(quarantine).is_dir():
            raise UsageError(f"--quarantine {quarantine}: no such run folder")
        records = read_quarantine(quarantine)
        if as_json:
            click.echo(dumps({"records": records}))
        else:
            for record in records:
                click.echo(f"{record.code:<12} {record.source}  {record.message}")
            click.echo(f"{len(records)} records")
        sys.exit(1 if records else 0)
    if manifest is None:
        raise UsageError("name a manifest, or --quarantine RUN_FOLDER")
    from kinemill.loaders.picture import draw_batch

    data = _data(_open(manifest, store_url), store_url, windows, seed=1)
    batch = next(iter(data.loader(min(count, max(1, len(data))))), None)
    if batch is None:
        raise UsageError(f"'{manifest}' has no sample")
    draw_batch(batch, [one.key for one in data.fields if one.video], out)
    shapes = {key: f"{tuple(value.shape)} {value.dtype}" for key, value in batch.items() if hasattr(value, "shape")}
    _tell(
        {
            "picture": str(out),
            "samples": len(data),
            "fields": shapes,
            "instructions": batch["instruction"],
            "episodes": batch["episode_id"],
        },
        as_json=as_json,
    )


@load.command("export-lerobot")
@MANIFEST
@STORE
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--fps", type=float, default=None, help="Default: the first episode's.")
@click.option("--episodes", type=click.IntRange(1), default=None, help="Only the first so many.")
@click.option("--state", default=None, help="Topic that becomes observation.state; default: the first state topic.")
@click.option("--action", default=None, help="Topic that becomes action; default: the first with 'action' in its name.")
@JSON
def export_lerobot(
    *,
    manifest: str,
    store_url: str | None,
    target: Path,
    fps: float | None,
    episodes: int | None,
    state: str | None,
    action: str | None,
    as_json: bool,
) -> None:
    """Write a LeRobot v3 data set at TARGET: the videos as they are, tables at the frames' times.

    \b
    Exit: 0 written, 1 an episode could not be read.
    Example: kinemill load export-lerobot 7c1e9a ./out --store s3://corpus --episodes 100
    """
    from kinemill.loaders.export_lerobot import export

    opened = _open(manifest, store_url)
    told = export(opened, store_url or opened.store_url, target, fps=fps, episodes=episodes, state=state, action=action)
    _tell(told, as_json=as_json)
