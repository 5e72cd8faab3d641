"""Lists of matrices to reason about: three presets, or what the user writes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from kinemill.errors import ConfigError, UsageError

__all__ = ["PRESETS", "Shapes", "parse_shape", "read_shapes"]

Shapes = list[tuple[int, int]]


def _transformer(layers: int, width: int, feed: int, *, gated: bool) -> Shapes:
    one = [(width, width)] * 4 + [(feed, width)] * (2 if gated else 1) + [(width, feed)]
    return one * layers


PRESETS: dict[str, Shapes] = {
    "2b": _transformer(40, 2048, 8192 * 2 // 3, gated=True),
    "7b": _transformer(32, 4096, 11008, gated=True),
    "vla-2b": _transformer(18, 2048, 16384, gated=True),
}
"""Hidden matrices of common sizes; vla-2b is an 18-layer action model with a wide feed-forward."""

_SHAPE = re.compile(r"(\d+)x(\d+)(?:x(\d+))?")
_MOST = 100_000


def parse_shape(text: str) -> Shapes:
    """`4096x11008` or `4096x11008x64`: rows, columns, how many.

    Raises:
        UsageError: It is neither.
    """
    match = _SHAPE.fullmatch(text.strip())
    rows, cols, count = (int(g) if g else 1 for g in match.groups()) if match else (0, 0, 0)
    if min(rows, cols, count) < 1 or count > _MOST:
        raise UsageError(f"shape '{text}': ROWSxCOLS or ROWSxCOLSxCOUNT with at most {_MOST} matrices")
    return [(rows, cols)] * count


def read_shapes(path: Path) -> Shapes:
    """A JSON list of [rows, cols] or [rows, cols, count].

    Raises:
        ConfigError: Unreadable, or something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path}: cannot read a list of shapes: {exc}") from exc
    found: Shapes = []
    for row in data if isinstance(data, list) else [None]:
        values = row if isinstance(row, list) else []
        if len(values) not in (2, 3) or not all(type(v) is int and v > 0 for v in values) or values[2:] > [_MOST]:
            raise ConfigError(f"{path}: {row!r} is not [rows, cols] or [rows, cols, count]")
        found += [(values[0], values[1])] * (values[2] if len(values) == 3 else 1)
    if not found or len(found) > _MOST:
        raise ConfigError(f"{path}: {len(found)} matrices; 1 to {_MOST} make sense")
    return found
