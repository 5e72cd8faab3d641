"""How a decoded picture lies in memory."""

from __future__ import annotations

from typing import Literal

from kinemill.errors import UsageError

__all__ = ["PixelFormat", "picture_shape"]

PixelFormat = Literal["rgb24", "yuv420p", "gray"]


def picture_shape(pixel_format: PixelFormat, width: int, height: int) -> tuple[int, ...]:
    """Shape of one picture: rgb24 [H, W, 3], yuv420p [H * 3 / 2, W] (Y, then U, then V), gray [H, W]."""
    if pixel_format == "rgb24":
        return (height, width, 3)
    if pixel_format == "yuv420p":
        return (height * 3 // 2, width)
    if pixel_format == "gray":
        return (height, width)
    raise UsageError(f"pixel format {pixel_format!r}: rgb24, yuv420p or gray")
