"""Pictures as bytes to RGB arrays, with a bound on what a header may claim."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from kinemill.errors import CorruptError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_PIXELS", "decode_file", "even", "from_raw"]

MAX_PIXELS = 8192 * 8192
"""A picture that claims more is refused before it is decoded."""

_RAW = {
    "rgb8": (3, "rgb"),
    "bgr8": (3, "bgr"),
    "rgba8": (4, "rgb"),
    "bgra8": (4, "bgr"),
    "mono8": (1, "rgb"),
    "8UC1": (1, "rgb"),
    "8UC3": (3, "rgb"),
}
"""ROS encoding -> channels and their order."""


def even(image: NDArray[Any]) -> NDArray[Any]:
    """`image` in one piece, without its last row or column where their number is odd: 4:2:0 video needs pairs."""
    import numpy as np

    return np.ascontiguousarray(image[: image.shape[0] // 2 * 2, : image.shape[1] // 2 * 2])


def decode_file(data: bytes, where: str, *, swap: bool = False) -> NDArray[Any]:
    """A JPEG, PNG or WebP file as (h, w, 3) uint8 RGB.

    Args:
        data: The file; bytes after its end are ignored.
        where: What to name in an error.
        swap: Blue and red were swapped when it was written.

    Raises:
        CorruptError: It does not decode.
        LimitError: It claims more than `MAX_PIXELS`.
    """
    import numpy as np
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG", "WEBP")) as image:
            if image.width * image.height > MAX_PIXELS:
                raise LimitError(f"{where}: a picture claims {image.width}x{image.height} pixels")
            array = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as exc:
        raise CorruptError(f"{where}: a picture does not decode ({exc})") from exc
    return array[..., ::-1] if swap else array


def from_raw(
    data: NDArray[Any], *, width: int, height: int, step: int, encoding: str, where: str, swap: bool = False
) -> NDArray[Any]:
    """A raw picture (ROS encodings of 8 bits) as (h, w, 3) uint8 RGB.

    Raises:
        UnsupportedError: Another encoding, such as depth or a Bayer pattern.
        CorruptError: The bytes do not fill the picture.
        LimitError: It claims more than `MAX_PIXELS`.
    """
    import numpy as np

    if encoding not in _RAW:
        raise UnsupportedError(f"{where}: picture encoding '{encoding}' is not one of {', '.join(_RAW)}")
    if width * height > MAX_PIXELS:
        raise LimitError(f"{where}: a picture claims {width}x{height} pixels")
    channels, order = _RAW[encoding]
    step = step or width * channels
    if width < 1 or height < 1 or step < width * channels or len(data) < step * height:
        raise CorruptError(f"{where}: a {width}x{height} {encoding} picture has {len(data)} bytes")
    rows = np.asarray(data, dtype=np.uint8)[: step * height].reshape(height, step)[:, : width * channels]
    image = rows.reshape(height, width, channels)
    if channels == 1:
        return np.repeat(image, 3, axis=2)
    image = image[..., :3]
    return image[..., ::-1] if (order == "bgr") != swap else image
