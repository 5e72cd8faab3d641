"""Frames to another size, by FFmpeg's scaler: area averaging, planes or RGB in, planes or RGB out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["resize_frames"]

_local = threading.local()


def resize_frames(
    frames: npt.NDArray[np.uint8], source: str, target: str, size: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """Convert and resize in one pass.

    Args:
        frames: (n, ...) in format `source`: rgb24 (H, W, 3), yuv420p (H * 3 / 2, W) or gray (H, W).
        source: FFmpeg's name of the format.
        target: The same for the result.
        size: (height, width) of the result.

    Returns:
        (n, ...) in format `target`.
    """
    import av
    from av.video.reformatter import VideoReformatter

    convert: Any = getattr(_local, "convert", None)
    if convert is None:
        convert = _local.convert = VideoReformatter()
    height, width = size
    shape = {"rgb24": (height, width, 3), "yuv420p": (height * 3 // 2, width), "gray": (height, width)}[target]
    out = np.empty((len(frames), *shape), np.uint8)
    for i, picture in enumerate(frames):
        frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format=source)
        small = convert.reformat(
            frame, width=width, height=height, format=target, interpolation="AREA", threads=1
        )  # one thread: workers share the cores already
        out[i] = small.to_ndarray()
    return out
