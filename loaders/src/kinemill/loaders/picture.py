"""A batch as one picture: a row a sample, a column a camera and moment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from kinemill.errors import UsageError

__all__ = ["draw_batch"]

CELL = 160
MOMENTS = 4


def draw_batch(batch: Mapping[str, Any], cameras: Sequence[str], out: Path) -> None:
    """Write a PNG; padding is red, masked samples are black.

    Args:
        batch: Of rgb frames.
        cameras: Keys to draw.
        out: Where to.

    Raises:
        UsageError: No camera among the windows.
    """
    import av

    from kinemill.loaders.resize import resize_frames

    if not cameras:
        raise UsageError("nothing to draw: no camera among the windows")
    rows = []
    for i in range(len(batch["valid"])):
        cells = []
        for key in cameras:
            frames = batch[key][i].numpy()
            pads = batch[f"{key}_is_pad"][i].tolist()
            picks = sorted({round(k) for k in np.linspace(0, len(frames) - 1, min(MOMENTS, len(frames)))})
            height = max(2, CELL * frames.shape[1] // frames.shape[2] // 2 * 2)
            small = resize_frames(np.ascontiguousarray(frames[picks]), "rgb24", "rgb24", (height, CELL))
            for cell, pick in zip(small, picks, strict=True):
                if pads[pick]:
                    cell[:3] = cell[-3:] = (220, 30, 30)
                cells.append(cell)
        high = max(cell.shape[0] for cell in cells)
        rows.append(np.concatenate([np.pad(c, ((0, high - c.shape[0]), (0, 2), (0, 0))) for c in cells], axis=1))
    image = np.concatenate([np.pad(row, ((0, 2), (0, 0), (0, 0))) for row in rows])
    context = av.VideoCodecContext.create("png", "w")
    context.width, context.height, context.pix_fmt = image.shape[1], image.shape[0], "rgb24"
    context.time_base = Fraction(1, 1)
    packets = context.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24"))
    packets += context.encode(None)
    temp = out.with_name(f".{out.name}.part")
    temp.write_bytes(b"".join(bytes(packet) for packet in packets))
    temp.rename(out)
