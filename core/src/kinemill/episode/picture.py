"""Pictures for people: an episode's groups and chunks over time as text, frames as a contact sheet."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill.contracts.episode import GroupReceipt, Receipt, TopicKind, TopicReceipt
from kinemill.episode.edge import size_text
from kinemill.episode.lettering import HEIGHT, write
from kinemill.episode.reader import EpisodeReader
from kinemill.episode.window import Window
from kinemill.errors import NotFoundError, UsageError
from kinemill.records import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Sheet", "contact_sheet", "draw", "png"]

_SHADES: Final = " ▁▂▃▄▅▆▇█"
_ASCII: Final = " .:-=+*#@"
_SHOWN: Final = 0.02
"""Part of a column of the file's bar that a group has to fill to be shown."""
_MAX_SHEET: Final = 64 << 20
_GAP: Final = 4
_LETTERS: Final = 120
"""Pixels of picture for each pixel of the font."""
_DARK, _GREY, _LIGHT, _WHITE = (18, 18, 20), (44, 44, 48), (170, 170, 175), (255, 255, 255)


def draw(receipt: Receipt, *, width: int = 72, plain: bool = False) -> str:
    """Bytes of each group over time, chunk borders, and where the groups lie in the file.

    Args:
        receipt: Of the episode.
        width: Columns for the time axis; 16 at least.
        plain: ASCII alone, for terminals and pipes that know nothing else.
    """
    shades, border, nothing = (_ASCII, "|", ".") if plain else (_SHADES, "│", "·")
    width = max(width, 16)
    span = max(1, receipt.t_last_ns - receipt.t_first_ns)
    wide = max([len(g.name) for g in receipt.groups] + [5])
    end = f"{span / 1e9:.1f} s"
    lines = [f"{'time':<{wide}} 0 s{end:>{width - 3}}"]
    for group in receipt.groups:
        table = group.chunks
        if not len(table):
            lines.append(f"{group.name:<{wide}} (no message)")
            continue
        load = np.zeros(width)
        scale = width / span
        for first, last, length in zip(table.t_first_ns, _ends(group), table.length, strict=True):
            _spread(load, (first - receipt.t_first_ns) * scale, (last - receipt.t_first_ns) * scale, length)
        level = np.ceil(load / load.max() * (len(shades) - 1)).astype(int)
        lines.append(f"{group.name:<{wide}} " + "".join(shades[i] for i in level))
        if len(table) <= width // 2:
            marks = [" "] * width
            for first in table.t_first_ns:
                marks[min(width - 1, (first - receipt.t_first_ns) * width // span)] = border
            lines.append(f"{'':<{wide}} " + "".join(marks).rstrip())
        sizes = sorted(table.length)
        lines.append(
            f"{'':<{wide}} {_many(len(table), 'chunk')} of {size_text(sizes[0])} to {size_text(sizes[-1])}, "
            f"{_many(len(group.topics), 'topic')}, {_many(group.messages, 'message')}"
            + (f", {group.late_messages} late" if group.late_messages else "")
        )
    lines.append(f"{'file':<{wide}} {_file_bar(receipt, width, nothing)} {size_text(receipt.size_bytes)}")
    return "\n".join(lines)


def _ends(group: GroupReceipt) -> list[int]:
    """Where each chunk's time ends: at the next one's start, unless that is further away than the chunk is long."""
    table = group.chunks
    ends = list(table.t_last_ns)
    for k, (first, last, following) in enumerate(
        zip(table.t_first_ns, table.t_last_ns, table.t_first_ns[1:], strict=False)
    ):
        if last < following <= last + (last - first):
            ends[k] = following
    return ends


def _spread(row: NDArray[np.float64], first: float, last: float, amount: float) -> None:
    """Add an amount evenly from `first` to `last`, both in columns."""
    first = min(first, len(row) - 1e-6)
    last = min(max(last, first + 1e-6), len(row))
    for i in range(int(first), math.ceil(last)):
        row[i] += amount * (min(last, i + 1) - max(first, i)) / (last - first)


def _file_bar(receipt: Receipt, width: int, nothing: str) -> str:
    """Which group most of each part of the file belongs to, by the first letter of its name."""
    scale = width / max(1, receipt.size_bytes)
    shares = np.zeros((len(receipt.groups) + 1, width))
    shares[-1] = _SHOWN
    starts = sorted((offset, g) for g, group in enumerate(receipt.groups) for offset in group.chunks.offset)
    # what lies between two chunks is the first one's message indexes, and padding
    ends = [offset for offset, _ in starts[1:]] + [max((g.offset + g.length for g in receipt.groups), default=0)]
    for (start, g), end in zip(starts, ends, strict=True):
        _spread(shares[g], start * scale, end * scale, (end - start) * scale)
    letters = [g.name[0] for g in receipt.groups] + [nothing]
    return "".join(letters[g] for g in shares.argmax(axis=0).tolist())


def _many(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


@dataclass(frozen=True, slots=True, eq=False)
class Sheet:
    """A contact sheet, and what it shows."""

    picture: NDArray[np.uint8]
    """uint8 [H, W, 3]"""
    cameras: tuple[str, ...]
    """One a row."""
    seconds: tuple[float, ...]
    """Of each column, from the episode's start."""
    empty: int
    """Places where the camera has no frame near that time."""


def contact_sheet(reader: EpisodeReader, *, columns: int = 8, height: int = 120, topics: tuple[str, ...] = ()) -> Sheet:
    """One row a camera under its name, one column a time, spread evenly over the episode.

    A place stays empty where a camera has no frame as near as the columns lie apart: a frame shown
    there would be another column's.

    Args:
        reader: With pixel format rgb24.
        columns: Frames a camera.
        height: Pixels of one picture in the sheet.
        topics: Cameras; all where empty.

    Raises:
        UsageError: The episode has no such camera, or the sheet would be too large.
        NotFoundError: No camera has a frame.
    """
    all_cameras = [t for t in reader.topics.values() if t.kind is TopicKind.VIDEO]
    cameras = [c for c in (_sized(reader, t) for t in all_cameras) if c.width and c.height]
    if topics:
        known = [t.topic for t in cameras]
        for name in topics:
            if name not in known:
                close = nearest(name, known)
                raise UsageError(
                    f"no camera {name} with frames"
                    + (f"; did you mean {close}?" if close else f"; there are {', '.join(known) or 'none'}")
                )
        cameras = [c for c in cameras if c.topic in topics]
    if not cameras:
        raise NotFoundError(
            f"episode {reader.key}: no camera with frames"
            + (f" (without any: {', '.join(t.topic for t in all_cameras)})" if all_cameras else "")
        )
    scale = max(1, height // _LETTERS)
    line = (HEIGHT + 4) * scale
    widths = [_width(c.width or 0, c.height or 1, height) for c in cameras]
    cell = max(widths) + _GAP
    shape = (line + len(cameras) * (line + height + _GAP), columns * cell + _GAP, 3)
    if math.prod(shape) > _MAX_SHEET:
        raise UsageError(f"a sheet of {shape[1]} x {shape[0]} pixels; ask for fewer or smaller pictures")
    sheet = np.full(shape, _DARK, np.uint8)
    first, last = reader.layout.t_first_ns, reader.layout.t_last_ns
    times = [first + (last - first) * (2 * i + 1) // (2 * columns) for i in range(columns)]
    near = max((last - first) // columns, 1)
    seconds = tuple((t - first) / 1e9 for t in times)
    for i, second in enumerate(seconds):
        write(sheet, f"{second:.2f} s", i * cell + _GAP, 2 * scale, scale=scale, colour=_LIGHT)
    empty = 0
    y = line
    for camera, width in zip(cameras, widths, strict=True):
        words = f"{camera.topic}  {camera.width}x{camera.height}"
        words += f"  {camera.rate_hz:g} hz" if camera.rate_hz else ""
        write(sheet, words, _GAP, y + 2 * scale, scale=scale, colour=_WHITE)
        y += line
        for i, t in enumerate(times):
            x = i * cell + _GAP
            _, pictures, pad = reader.read([Window.at(camera.topic, [t], tolerance_ns=near)])[camera.topic]
            place = sheet[y : y + height, x : x + width]
            if pad[0]:
                empty += 1
                place[:] = _GREY
                write(place, "no frame", 2 * scale, (height - HEIGHT * scale) // 2, scale=scale, colour=_LIGHT)
            else:
                place[:] = _shrink(pictures[0], width, height)
        y += height + _GAP
    return Sheet(sheet, tuple(c.topic for c in cameras), seconds, empty)


def _sized(reader: EpisodeReader, camera: TopicReceipt) -> TopicReceipt:
    """The camera with the size of its pictures; a stock MCAP does not tell it, its first frame does."""
    if camera.width or not len(reader.layout.groups[0]):
        return camera if camera.messages else replace(camera, width=None)
    _, pictures, _ = reader.read([Window.at(camera.topic, reader.layout.t_first_ns, pick="nearest")])[camera.topic]
    return replace(camera, width=pictures.shape[2] or None, height=pictures.shape[1] or None)


def _width(width: int, height: int, shown: int) -> int:
    return max(2, width * shown // height // 2 * 2)


def _shrink(image: NDArray[np.uint8], width: int, height: int) -> NDArray[np.uint8]:
    from av.video.frame import VideoFrame

    frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    return frame.reformat(width=width, height=height).to_ndarray().astype(np.uint8, copy=False)


def png(image: NDArray[np.uint8]) -> bytes:
    """An RGB picture as PNG."""
    import av
    from av.video.frame import VideoFrame

    context: Any = av.VideoCodecContext.create("png", "w")
    context.width, context.height, context.pix_fmt = image.shape[1], image.shape[0], "rgb24"
    from fractions import Fraction

    context.time_base = Fraction(1, 1)
    frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    frame.pts = 0
    packets = [*context.encode(frame), *context.encode(None)]
    return b"".join(bytes(p) for p in packets)
