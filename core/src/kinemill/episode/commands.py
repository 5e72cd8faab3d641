"""`kinemill episode`: look at, verify, repack and convert episode files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kinemill.errors import NotFoundError, UsageError
from kinemill.records import dumps, encode

if TYPE_CHECKING:
    from kinemill.contracts.episode import Receipt
    from kinemill.contracts.store import Store
    from kinemill.episode.scan import FileSource, StoreSource

__all__ = ["episode"]


@click.group()
def episode() -> None:
    """Look at, verify, repack and convert episode files.

    FILE is a path, or the URL of an object: s3://bucket/key?endpoint=...

    Example: kinemill episode info recording.mcap --picture
    """


def _place(name: str) -> tuple[Store, str]:
    """Store and key of a path or URL."""
    from kinemill.store.opening import open_store

    if "://" not in name:
        path = Path(name).absolute()
        if not path.is_file():
            raise NotFoundError(f"{name}: no such file")
        return open_store(f"file://{_quoted(path.parent)}"), path.name
    head, _, query = name.partition("?")
    folder, _, key = head.rpartition("/")
    return open_store(folder + (f"?{query}" if query else "")), key


def _quoted(path: Path) -> str:
    from urllib.parse import quote

    return quote(str(path))


@contextmanager
def _source(name: str) -> Iterator[FileSource | StoreSource]:
    from kinemill.episode.scan import FileSource, StoreSource

    if "://" in name:
        with StoreSource(*_place(name)) as opened:
            yield opened
        return
    path = Path(name)
    if not path.is_file():
        raise NotFoundError(f"{name}: no such file")
    with FileSource(path) as found:
        yield found


def _sha256(name: str) -> str:
    from kinemill.episode.hashing import StreamHash

    digest = StreamHash()
    with _source(name) as source:
        for start in range(0, source.size, 8 << 20):
            digest.update(bytes(source.read(start, min(8 << 20, source.size - start))))
    return digest.hexdigest()


def _receipt(name: str, *, hashed: bool) -> Receipt:
    from kinemill.episode.source import read_receipt

    store, key = _place(name)
    found = read_receipt(store, key)
    return replace(found, sha256=_sha256(name)) if hashed else found


@episode.command()
@click.argument("file")
@click.option("--picture", is_flag=True, help="Draw groups and chunks over time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(file: str, picture: bool, as_json: bool) -> None:
    """Show what an episode holds, from its index alone.

    \b
    Exit: 0 shown, 1 damaged, not there, or not an MCAP, 2 wrong call, 75 store does not answer.
    Example: kinemill episode info recording.mcap --picture
    """
    from kinemill.errors import UnsupportedError

    try:
        found = _receipt(file, hashed=False)
    except UnsupportedError:
        _stock_info(file, as_json=as_json)
        return
    if as_json:
        click.echo(dumps({**encode(replace(found, groups=())), "groups": [_brief(g) for g in found.groups]}))
        return
    seconds = (found.t_last_ns - found.t_first_ns) / 1e9
    click.echo(f"episode {found.episode_id}  profile {found.profile}  {found.size_bytes / 1e6:.2f} MB  {seconds:.2f} s")
    if found.missing:
        click.echo(f"missing {', '.join(found.missing)}")
    for what, n in found.counts.items():
        click.echo(f"counted {what}: {n}")
    for group in found.groups:
        click.echo(f"\n{group.name}: {len(group.chunks)} chunks, {group.length / 1e6:.2f} MB from byte {group.offset}")
        for topic in group.topics:
            size = f"{topic.width}x{topic.height}" if topic.width else ""
            rate = f"{topic.rate_hz:g} Hz" if topic.rate_hz else ""
            columns = f"{len(topic.names)} names" if topic.names else ""
            words = [topic.kind.value, topic.codec or topic.schema, size, columns, rate, topic.units or ""]
            click.echo(f"  {topic.topic:<32} {topic.messages:>9} x {' '.join(w for w in words if w)}")
    if picture:
        from kinemill.episode.picture import draw

        click.echo("\n" + draw(found))


def _brief(group: Any) -> dict[str, Any]:
    plain: dict[str, Any] = encode(replace(group, gops=None))
    plain["chunks"] = len(group.chunks)
    plain["gops"] = None if group.gops is None else len(group.gops)
    return plain


def _stock_info(file: str, *, as_json: bool) -> None:
    from kinemill.episode.source import find_layout

    store, key = _place(file)
    layout, _ = find_layout(store, key)
    topics = [encode(t) for t in layout.topics.values()]
    if as_json:
        click.echo(dumps({"stock": True, "chunks": len(layout.groups[0]), "topics": topics}))
        return
    click.echo(f"a stock MCAP of {len(layout.groups[0])} chunks; `kinemill episode repack` makes an episode of it")
    for topic in layout.topics.values():
        click.echo(f"  {topic.topic:<32} {topic.messages:>9} x {topic.schema or '(no schema)'} {topic.encoding}")


@episode.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--deep", is_flag=True, help="Also check each camera frame NAL by NAL.")
@click.option("--sha256", "expected", help="What the file's sha256 should be; 12 digits are enough.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file and line.")
def verify(files: tuple[str, ...], deep: bool, expected: str | None, as_json: bool) -> None:
    """Check every byte of files: checksums, indexes, sequence numbers, frames.

    A file whose name ends in -HASH12.mcap, as in a store, is also checked against that hash.

    \b
    Exit: 0 all sound, 1 something is wrong, 2 wrong call, 75 store does not answer.
    Example: kinemill episode verify vla-0123456789ab.mcap --deep
    """
    from kinemill.episode.verify import verify as check

    sound = True
    for file in files:
        with _source(file) as source:
            report = check(source, deep=deep, sha256=expected or _hash_in_name(file))
        sound = sound and report.ok
        if as_json:
            click.echo(dumps({"file": file, "ok": report.ok, **encode(report)}))
            continue
        kind = "episode" if report.own else "stock MCAP"
        click.echo(
            f"{'ok ' if report.ok else 'BAD'} {file}: {kind}, {report.chunks} chunks, {report.messages} messages, "
            f"{report.size_bytes / 1e6:.2f} MB, sha256 {report.sha256[:12] or '-'}"
        )
        for finding in report.findings:
            click.echo(f"    {finding.code}: {finding.text}")
    if not sound:
        sys.exit(1)


def _hash_in_name(file: str) -> str | None:
    import re

    found = re.search(r"/?[a-z][a-z0-9_]*-([0-9a-f]{12})\.mcap$", file.partition("?")[0])
    return found[1] if found else None


@episode.command()
@click.argument("file")
@click.argument("target", type=click.Path(path_type=Path))
@click.option("--profile", help="vla or world; default: the file's own, or vla.")
@click.option("--episode-id", help="UUID; default: the file's own, or a new one.")
@click.option(
    "--transcode",
    type=click.Choice(["needed", "never", "always"]),
    default="needed",
    show_default=True,
    help="Encode anew what does not meet the rules for video.",
)
@click.option("--rename-clashes", is_flag=True, help="Rename the second of two topics of one name, unlike in schema.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with the receipt.")
def repack(
    *,
    file: str,
    target: Path,
    profile: str | None,
    episode_id: str | None,
    transcode: Any,
    rename_clashes: bool,
    as_json: bool,
) -> None:
    """Write FILE anew as TARGET, in order: convert a stock MCAP, save a cut one, lay out a live one.

    The new file is read back and verified before it gets its name. Nothing is overwritten.

    \b
    Exit: 0 written, 1 it cannot be converted (says why), 2 wrong call, 75 store does not answer.
    Example: kinemill episode repack bag.mcap episode.mcap --profile world
    """
    import uuid

    from kinemill.episode.repack import repack as work

    if episode_id is not None:
        try:
            uuid.UUID(episode_id)
        except ValueError as exc:
            raise UsageError(f"--episode-id {episode_id!r} is no UUID") from exc
    with _source(file) as source, _progress("repack", as_json=as_json) as progress:
        report = work(
            source,
            target,
            profile=profile,
            episode_id=episode_id,
            transcode=transcode,
            clashes="rename" if rename_clashes else "refuse",
            progress=progress,
        )
    if as_json:
        click.echo(dumps(report))
        return
    for note in report.notes:
        click.echo(f"note: {note}", err=True)
    for what, n in report.counts.items():
        click.echo(f"counted {what}: {n}")
    click.echo(
        f"{target}: {report.messages_out} of {report.messages_in} messages, {report.receipt.size_bytes / 1e6:.2f} MB, "
        f"sha256 {report.receipt.sha256[:12]}"
    )


@contextmanager
def _progress(what: str, *, as_json: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on a terminal, nothing elsewhere."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@episode.command()
@click.argument("file")
@click.option("--receipt", is_flag=True, help="Also hash the file, so that the receipt is whole.")
def index(file: str, receipt: bool) -> None:
    """Print an episode's receipt as JSON: chunk tables, GOP tables, counts.

    \b
    Exit: 0 printed, 1 damaged or a stock MCAP, 2 wrong call, 75 store does not answer.
    Example: kinemill episode index recording.mcap --receipt > receipt.json
    """
    click.echo(dumps(_receipt(file, hashed=receipt)))


@episode.command()
@click.argument("file")
@click.argument("picture", type=click.Path(path_type=Path), metavar="PICTURE.png")
@click.option("--columns", default=8, show_default=True, type=click.IntRange(1, 64), help="Frames a camera.")
@click.option("--height", default=120, show_default=True, type=click.IntRange(16, 1080), help="Pixels of each frame.")
@click.option("--camera", "cameras", multiple=True, help="Only this topic; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def frames(*, file: str, picture: Path, columns: int, height: int, cameras: tuple[str, ...], as_json: bool) -> None:
    """Write a contact sheet: a row for each camera, frames spread over the episode.

    \b
    Exit: 0 written, 1 damaged or no camera, 2 wrong call, 75 store does not answer.
    Example: kinemill episode frames recording.mcap sheet.png --columns 6
    """
    from kinemill.episode.picture import contact_sheet, png
    from kinemill.episode.reader import EpisodeReader

    store, key = _place(file)
    sheet = contact_sheet(EpisodeReader.open(store, key), columns=columns, height=height, topics=cameras)
    try:
        with picture.open("xb") as out:
            out.write(png(sheet))
    except FileExistsError as exc:
        raise UsageError(f"{picture}: exists already; nothing is overwritten") from exc
    if as_json:
        click.echo(dumps({"picture": str(picture), "width": sheet.shape[1], "height": sheet.shape[0]}))
    else:
        click.echo(f"{picture}: {sheet.shape[1]} x {sheet.shape[0]} pixels")
