"""Pictures for people: an episode's groups and chunks over time as text, frames as a contact sheet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode.reader import EpisodeReader
from kinemill.episode.window import Window
from kinemill.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["contact_sheet", "draw", "png"]

_SHADES: Final = " ▁▂▃▄▅▆▇█"
_MAX_SHEET: Final = 64 << 20


def draw(receipt: Receipt, *, width: int = 72) -> str:
    """Bytes of each group over time, chunk borders, and where the groups lie in the file.

    Args:
        receipt: Of the episode.
        width: Columns for the time axis.
    """
    span = max(1, receipt.t_last_ns - receipt.t_first_ns)
    wide = max([len(g.name) for g in receipt.groups] + [5])
    lines = [
        f"{'time':<{wide}} 0 s{' ' * (width - 8)}{span / 1e9:.1f} s",
    ]
    for group in receipt.groups:
        table = group.chunks
        if not len(table):
            lines.append(f"{group.name:<{wide}} (no message)")
            continue
        load = np.zeros(width)
        for first, last, length in zip(table.t_first_ns, table.t_last_ns, table.length, strict=True):
            low = min(width - 1, (first - receipt.t_first_ns) * width // span)
            high = min(width - 1, (last - receipt.t_first_ns) * width // span)
            load[low : high + 1] += length / (high - low + 1)
        level = np.ceil(load / load.max() * (len(_SHADES) - 1)).astype(int)
        lines.append(f"{group.name:<{wide}} " + "".join(_SHADES[i] for i in level))
        if len(table) <= width // 2:
            marks = [" "] * width
            for first in table.t_first_ns:
                marks[min(width - 1, (first - receipt.t_first_ns) * width // span)] = "│"
            lines.append(f"{'':<{wide}} " + "".join(marks))
        sizes = sorted(table.length)
        lines.append(
            f"{'':<{wide}} {len(table)} chunks of {_size(sizes[0])} to {_size(sizes[-1])}, "
            f"{len(group.topics)} topics, {group.messages} messages"
            + (f", {group.late_messages} late" if group.late_messages else "")
        )
    bar = ["·"] * width
    for group in receipt.groups:
        if group.length and receipt.size_bytes:
            low = group.offset * width // receipt.size_bytes
            high = max(low + 1, (group.offset + group.length) * width // receipt.size_bytes)
            for i in range(low, min(width, high)):
                bar[i] = group.name[0]
    lines.append(f"{'file':<{wide}} " + "".join(bar) + f" {_size(receipt.size_bytes)}")
    return "\n".join(lines)


def _size(n: int) -> str:
    size = float(n)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


def contact_sheet(
    reader: EpisodeReader, *, columns: int = 8, height: int = 120, topics: tuple[str, ...] = ()
) -> NDArray[np.uint8]:
    """One row a camera, frames spread evenly over the episode: uint8 [rows * height, columns * w, 3].

    Args:
        reader: With pixel format rgb24.
        columns: Frames a camera.
        height: Pixels of one picture in the sheet.
        topics: Cameras; all where empty.

    Raises:
        UsageError: The episode has no such camera, or none at all.
    """
    cameras = [t for t in reader.topics.values() if t.kind is TopicKind.VIDEO and t.messages and t.width and t.height]
    if topics:
        cameras = [c for c in cameras if c.topic in topics]
    if not cameras or (topics and len(cameras) != len(set(topics))):
        known = [t.topic for t in reader.topics.values() if t.kind is TopicKind.VIDEO]
        raise UsageError(f"no such camera with frames; the episode's cameras: {', '.join(known) or 'none'}")
    first, last = reader.layout.t_first_ns, reader.layout.t_last_ns
    times = [first + (last - first) * (2 * i + 1) // (2 * columns) for i in range(columns)]
    rows = []
    for camera in cameras:
        pictures = [_shrink(reader.read([Window.at(camera.topic, [t])])[camera.topic][1][0], height) for t in times]
        rows.append(np.concatenate(pictures, axis=1))
    wide = max(row.shape[1] for row in rows)
    if wide * height * len(rows) * 3 > _MAX_SHEET:
        raise UsageError(f"a sheet of {wide} x {height * len(rows)} pixels; ask for fewer or smaller pictures")
    padded = [np.pad(row, ((0, 0), (0, wide - row.shape[1]), (0, 0))) for row in rows]
    return np.concatenate(padded, axis=0)


def _shrink(image: NDArray[np.uint8], height: int) -> NDArray[np.uint8]:
    from av.video.frame import VideoFrame

    width = max(2, image.shape[1] * height // image.shape[0] // 2 * 2)
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
