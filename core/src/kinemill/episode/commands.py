"""`kinemill episode`: look at, verify, repack and convert episode files."""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kinemill.episode.edge import EdgeGroup, create, new_file, opened, place, progress_bar, say, size_text
from kinemill.errors import KinemillError, UsageError
from kinemill.records import dumps, encode

if TYPE_CHECKING:
    from kinemill.contracts.episode import Receipt
    from kinemill.episode.verify import VerifyReport

__all__ = ["episode"]


_FULL: Final = 96
"""Columns that a drawing takes at most."""
_BESIDE: Final = 24
"""Of these, what stands beside the time axis: names and the file's size."""


@click.group(cls=EdgeGroup)
def episode() -> None:
    """Look at, verify, repack and convert episode files.

    FILE is a path, or the URL of an object: s3://bucket/key?endpoint=...

    Example: kinemill episode info recording.mcap --picture
    """


def _sha256(name: str, progress: Callable[[int, int], None] | None) -> str:
    from kinemill.episode.hashing import StreamHash

    digest = StreamHash()
    with opened(name) as source:
        for start in range(0, source.size, 8 << 20):
            digest.update(bytes(source.read(start, min(8 << 20, source.size - start))))
            if progress is not None:
                progress(start, source.size)
    return digest.hexdigest()


def _receipt(name: str, *, hashed: bool) -> Receipt:
    from kinemill.episode.source import read_receipt

    store, key = place(name)
    found = read_receipt(store, key)
    if not hashed:
        return found
    with progress_bar("hash") as progress:
        return replace(found, sha256=_sha256(name, progress))


@episode.command()
@click.argument("file")
@click.option("--picture", is_flag=True, help="Draw groups and chunks over time.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def info(file: str, picture: bool, as_json: bool) -> None:
    """Show what an episode holds, from its index alone.

    \b
    Exit: 0 shown, 1 damaged, not there, or no MCAP, 2 wrong call, 75 store does not answer, 78 settings.
    Example: kinemill episode info recording.mcap --picture
    """
    from kinemill.errors import UnsupportedError

    try:
        found = _receipt(file, hashed=False)
    except UnsupportedError:
        _stock_info(file, picture=picture, as_json=as_json)
        return
    if as_json:
        click.echo(dumps({**encode(replace(found, groups=())), "groups": [_brief(g) for g in found.groups]}))
    else:
        say("\n".join(_lines(found)))
    if picture:
        from kinemill.episode.picture import draw

        width = shutil.get_terminal_size((_FULL, 24)).columns - _BESIDE
        stream = sys.stderr if as_json else sys.stdout
        drawing = draw(found, width=min(width, _FULL - _BESIDE), plain=not _draws_boxes(stream))
        say(("" if as_json else "\n") + drawing, err=as_json)


def _draws_boxes(stream: Any) -> bool:
    try:
        "█│·".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def _lines(found: Receipt) -> Iterator[str]:
    """What `info` tells people."""
    seconds = (found.t_last_ns - found.t_first_ns) / 1e9
    yield f"episode {found.episode_id}  profile {found.profile}  {size_text(found.size_bytes)}  {seconds:.2f} s"
    spans = sorted((g.offset, g.offset + g.length) for g in found.groups if g.length)
    if any(b[0] < a[1] for a, b in itertools.pairwise(spans)):
        yield "live: its groups lie interleaved; `kinemill episode repack` puts them in order"
    if found.missing:
        yield f"missing {', '.join(found.missing)}"
    for what, n in found.counts.items():
        yield f"counted {what}: {n}"
    names = [t.topic for g in found.groups for t in g.topics]
    wide = min(max(map(len, names), default=0), 32)
    for group in found.groups:
        chunks = f"{len(group.chunks)} chunk{'' if len(group.chunks) == 1 else 's'}"
        yield f"\n{group.name}: {chunks}, {size_text(group.length)} from byte {group.offset}"
        for topic in group.topics:
            size = f"{topic.width}x{topic.height}" if topic.width else ""
            rate = f"{topic.rate_hz:g} Hz" if topic.rate_hz else ""
            columns = f"{len(topic.names)} name{'' if len(topic.names) == 1 else 's'}" if topic.names else ""
            words = [topic.kind.value, topic.codec or topic.schema, size, columns, rate, topic.units or ""]
            yield f"  {topic.topic:<{wide}} {topic.messages:>9} x {' '.join(w for w in words if w)}"


def _brief(group: Any) -> dict[str, Any]:
    plain: dict[str, Any] = encode(replace(group, gops=None))
    plain["chunks"] = len(group.chunks)
    plain["gops"] = None if group.gops is None else len(group.gops)
    return plain


def _stock_info(file: str, *, picture: bool, as_json: bool) -> None:
    from kinemill.episode.source import look_at_stock

    store, key = place(file)
    layout, lack = look_at_stock(store, key)
    topics = [encode(t) for t in layout.topics.values()]
    chunks = len(layout.groups[0])
    if as_json:
        click.echo(dumps({"stock": True, "chunks": chunks, "topics": topics, "lack": lack}))
    else:
        say(
            f"a stock MCAP of {chunks} chunk{'' if chunks == 1 else 's'}; `kinemill episode repack` makes an episode "
            "of it"
        )
        if lack:
            say(f"not to be read in place: {lack}")
        for topic in layout.topics.values():
            say(f"  {topic.topic:<32} {topic.messages:>9} x {topic.schema or '(no schema)'} {topic.encoding}")
    if picture:
        say("--picture draws episodes alone: a stock MCAP has no groups", err=True)


@episode.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--deep", is_flag=True, help="Also check each camera frame NAL by NAL.")
@click.option("--sha256", "expected", help="What the file's sha256 should be; 12 digits are enough.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a file and line.")
def verify(files: tuple[str, ...], deep: bool, expected: str | None, as_json: bool) -> None:
    """Check every byte of files: checksums, indexes, sequence numbers, frames.

    A file whose name ends in -HASH12.mcap, as in a store, is also checked against that hash.

    \b
    Exit: 0 all sound, 1 something is wrong or not there, 2 wrong call, 75 store does not answer, 78 settings.
    Example: kinemill episode verify vla-0123456789ab.mcap --deep
    """
    expected = None if expected is None else _checked_hash(expected)
    codes = []
    for file in files:
        try:
            report = _verified(file, deep=deep, sha256=expected or _hash_in_name(file))
        except (KinemillError, OSError) as exc:
            # the others are looked at all the same; what could not be read is neither sound nor bad
            codes.append(exc.exit_code if isinstance(exc, KinemillError) else 1)
            why = str(exc) if isinstance(exc, KinemillError) else f"{file}: {exc.strerror or exc}"
            if as_json:
                click.echo(dumps({"file": file, "ok": None, "error": why}))
            else:
                say(f"??? {why}", err=True)
            continue
        codes += [] if report.ok else [1]
        if as_json:
            click.echo(dumps({"file": file, "ok": report.ok, **encode(report)}))
            continue
        kind = "episode" if report.own else "stock MCAP" if report.mcap else "no MCAP"
        live = ", live" if report.live else ""
        say(
            f"{'ok ' if report.ok else 'BAD'} {file}: {kind}{live}, {report.chunks} chunks, "
            f"{report.messages} messages, {size_text(report.size_bytes)}, sha256 {report.sha256[:12] or '-'}"
        )
        for finding in report.findings:
            say(f"    {finding.code}: {finding.text}")
    if codes:
        sys.exit(min(codes))


def _verified(file: str, *, deep: bool, sha256: str | None) -> VerifyReport:
    from kinemill.episode.verify import verify as check

    with opened(file) as source, progress_bar("verify") as progress:
        return check(source, deep=deep, sha256=sha256, progress=progress)


def _checked_hash(text: str) -> str:
    import re

    if not re.fullmatch(r"[0-9a-f]{12,64}", text.lower()):
        raise UsageError(f"--sha256 {text!r}: 12 to 64 hexadecimal digits")
    return text.lower()


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
    Exit: 0 written, 1 it cannot be (says why), 2 wrong call, 75 store does not answer, 78 settings.
    Example: kinemill episode repack bag.mcap episode.mcap --profile world
    """
    import uuid

    from kinemill.episode.repack import repack as work
    from kinemill.episode.topics import PROFILES

    if episode_id is not None:
        try:
            uuid.UUID(episode_id)
        except ValueError as exc:
            raise UsageError(f"--episode-id {episode_id!r} is no UUID") from exc
    if profile is not None and profile not in PROFILES:
        raise UsageError(f"--profile {profile!r}: {' or '.join(PROFILES)}")
    with opened(file) as source, progress_bar("repack") as progress:
        new_file(target)
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
        say(f"note: {note}", err=True)
    for what, n in report.counts.items():
        say(f"counted {what}: {n}")
    say(
        f"{target}: {report.messages_out} of {report.messages_in} messages, {size_text(report.receipt.size_bytes)}, "
        f"sha256 {report.receipt.sha256[:12]}"
    )


@episode.command()
@click.argument("file")
@click.option("--receipt", is_flag=True, help="Also hash the file, so that the receipt is whole.")
@click.option("--json", "as_json", is_flag=True, help="As without it: the receipt is JSON always.")
def index(file: str, receipt: bool, as_json: bool) -> None:  # all commands take --json
    """Print an episode's receipt as JSON: chunk tables, GOP tables, counts.

    \b
    Exit: 0 printed, 1 damaged or a stock MCAP, 2 wrong call, 75 store does not answer, 78 settings.
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
    Exit: 0 written, 1 damaged or no camera in it, 2 wrong call, 75 store does not answer, 78 settings.
    Example: kinemill episode frames recording.mcap sheet.png --columns 6
    """
    from kinemill.episode.picture import contact_sheet, png
    from kinemill.episode.reader import EpisodeReader

    new_file(picture)
    sheet = contact_sheet(EpisodeReader.open(*place(file)), columns=columns, height=height, topics=cameras)
    create(picture, png(sheet.picture))
    high, wide = sheet.picture.shape[:2]
    if as_json:
        told = {"cameras": sheet.cameras, "columns_s": sheet.seconds, "empty": sheet.empty}
        click.echo(dumps({"picture": str(picture), "width": wide, "height": high, **told}))
        return
    empty = f", {sheet.empty} of {columns * len(sheet.cameras)} places without a frame" if sheet.empty else ""
    say(f"{picture}: {wide} x {high} pixels, {columns} frames of {', '.join(sheet.cameras)}{empty}")
