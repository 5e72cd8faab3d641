"""The report's pictures as inline SVG: loss curve, file layout, bars. Plain text out, no library in."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bar", "Message", "Piece", "bars", "layout_picture", "loss_curve"]

WIDTH = 960


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of a file."""

    label: str
    """Group or record name; decides the colour."""
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Message:
    """One frame inside a chunk."""

    topic: str
    chunk: int
    length: int
    idr: bool


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a bar chart."""

    label: str
    value: float
    text: str
    strong: bool = False


def _text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> str:
    css = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{css}>{html.escape(words)}</text>'


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{html.escape(title, quote=True)}">'
        f"<title>{html.escape(title)}</title>{''.join(parts)}</svg>"
    )


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that cover low..high."""
    span = max(high - low, 1e-9)
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def loss_curve(attempts: Sequence[tuple[int, Sequence[tuple[int, float]]]], *, killed_at: dict[int, int]) -> str:
    """Loss over steps, one line an attempt, its restart marked.

    Args:
        attempts: (attempt number, (step, loss) in order) of each attempt that made steps.
        killed_at: Attempt number -> last step before it died.
    """
    steps = [s for _, rows in attempts for s, _ in rows]
    losses = [v for _, rows in attempts for _, v in rows]
    if not steps:
        return "<p>No step was made.</p>"
    left, right, top, height = 52, 16, 34, 306
    bottom = height - 40
    last, peak = max(steps), max(losses) * 1.05

    def x(step: float) -> float:
        return left + (WIDTH - left - right) * step / max(last, 1)

    def y(loss: float) -> float:
        return bottom - (bottom - top) * loss / peak

    parts = []
    for tick in _ticks(0, peak):
        parts.append(f'<line class="grid" x1="{left}" x2="{WIDTH - right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(_text(left - 8, y(tick) + 4, f"{tick:g}", anchor="end"))
    parts += [_text(x(t), bottom + 18, f"{t:g}", anchor="middle") for t in _ticks(0, last, 8)]
    parts.append(_text(WIDTH - right, height - 4, "step", anchor="end"))
    parts.append(_text(8, 14, "training loss"))
    for index, (_number, rows) in enumerate(attempts):
        line = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in rows)
        parts.append(f'<polyline class="raw a{index % 2}" points="{line}"/>')
        smooth = " ".join(f"{x(s):.1f},{y(v):.1f}" for s, v in _smoothed(rows))
        parts.append(f'<polyline class="line a{index % 2}" points="{smooth}"/>')
    for index, (number, _rows) in enumerate(attempts):
        if number in killed_at:
            at = killed_at[number]
            parts.append(f'<line class="mark" x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{top - 6}" y2="{bottom}"/>')
            following = attempts[index + 1] if index + 1 < len(attempts) else None
            back = f", attempt {following[0]} goes on from step {following[1][0][0] - 1}" if following else ""
            anchor = "end" if x(at) > WIDTH * 0.6 else "start"
            shift = -6 if anchor == "end" else 6
            words = f"rank killed after step {at}{back}"
            parts.append(_text(x(at) + shift, top + 6, words, anchor=anchor, kind="markword"))
            if following:
                start = following[1][0][0] - 1
                parts.append(
                    f'<line class="mark soft" x1="{x(start):.1f}" x2="{x(start):.1f}" y1="{top - 6}" y2="{bottom}"/>'
                )
    return _svg(height, parts, "Training loss by step, with the restart marked")


def _smoothed(rows: Sequence[tuple[int, float]], span: int = 15) -> list[tuple[int, float]]:
    """Mean over the last `span` steps."""
    found = []
    for i, (step, _) in enumerate(rows):
        window = [v for _, v in rows[max(0, i - span + 1) : i + 1]]
        found.append((step, sum(window) / len(window)))
    return found


def layout_picture(
    pieces: Sequence[Piece], size: int, messages: Sequence[Message], chunks: Sequence[tuple[int, int]]
) -> str:
    """A file on its byte axis, and its first chunks opened up into frames.

    Args:
        pieces: Runs of bytes, in order.
        size: Bytes of the file.
        messages: Frames of the first chunks of the camera group, in order.
        chunks: (start, length) in bytes of those chunks.
    """
    left, right = 12, 12
    scale = (WIDTH - left - right) / size

    def x(byte: float) -> float:
        return left + byte * scale

    parts = [_text(left, 16, f"the file: {size / 1e6:.2f} MB, one contiguous range per group")]
    for i, piece in enumerate(pieces):
        css = f"g-{piece.label}" + (" odd" if i % 2 else "")
        width = max(piece.length * scale, 0.6)
        parts.append(f'<rect class="{css}" x="{x(piece.start):.2f}" y="46" width="{width:.2f}" height="38"/>')
    groups: dict[str, list[int]] = {}
    for piece in pieces:
        span = groups.setdefault(piece.label, [piece.start, piece.start])
        span[1] = piece.start + piece.length
    for label, span in groups.items():
        start, end = span
        if (end - start) * scale > 60:
            count = sum(p.label == label for p in pieces)
            what = f"{label}: {count} chunks, {(end - start) / 1e3:,.0f} kB"
            parts.append(_text(min(x((start + end) / 2), WIDTH - 120), 40, what, anchor="middle"))
    if not chunks:
        return _svg(100, parts, "Layout of one episode file")
    first, last = chunks[0][0], chunks[-1][0] + chunks[-1][1]
    zoom = (WIDTH - left - right) / (last - first)
    top = 160
    corners = f"{x(first):.1f},84 {x(last):.1f},84 {WIDTH - right},{top - 18} {left},{top - 18}"
    parts.append(f'<polygon class="lens" points="{corners}"/>')
    parts.append(
        _text(left, top - 24, f"the first {len(chunks)} chunks: one GOP of every camera each, IDR frames first")
    )
    topics = list(dict.fromkeys(m.topic for m in messages))
    for index, (start, length) in enumerate(chunks):
        at = left + (start - first) * zoom
        width = length * zoom
        parts.append(f'<rect class="chunk" x="{at + 1:.1f}" y="{top - 12}" width="{width - 2:.1f}" height="68"/>')
        mine = [m for m in messages if m.chunk == index]
        used = sum(m.length for m in mine) or 1
        inner = at + 4
        for m in mine:
            wide = (width - 8) * m.length / used
            row = topics.index(m.topic)
            css = f"t{row % 3}" + (" idr" if m.idr else "")
            parts.append(
                f'<rect class="{css}" x="{inner:.2f}" y="{top - 7}" width="{max(wide - 0.8, 0.5):.2f}" height="58"/>'
            )
            if m.idr and wide > 22:
                parts.append(_text(inner + wide / 2, top + 26, "I", anchor="middle", kind="on"))
            inner += wide
    for row, topic in enumerate(topics):
        at = left + row * 200
        parts.append(f'<rect class="t{row % 3} idr" x="{at}" y="{top + 70}" width="12" height="12"/>')
        parts.append(f'<rect class="t{row % 3}" x="{at + 14}" y="{top + 70}" width="12" height="12"/>')
        parts.append(_text(at + 32, top + 80, f"{topic}: I, P"))
    return _svg(top + 92, parts, "Layout of one episode file: groups, chunks and GOPs")


def bars(rows: Sequence[Bar], *, title: str) -> str:
    """Horizontal bars from zero."""
    left, right, high = 250, 130, 30
    peak = max((b.value for b in rows), default=1.0) or 1.0
    parts = []
    for i, bar in enumerate(rows):
        y = 8 + i * high
        width = (WIDTH - left - right) * bar.value / peak
        parts.append(_text(left - 10, y + 16, bar.label, anchor="end"))
        css = "bar strong" if bar.strong else "bar"
        parts.append(f'<rect class="{css}" x="{left}" y="{y + 3}" width="{max(width, 1):.1f}" height="18" rx="2"/>')
        parts.append(_text(left + width + 8, y + 17, bar.text))
    return _svg(16 + high * len(rows), parts, title)
