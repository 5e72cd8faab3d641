"""Words on pictures: one small font, so that a contact sheet says which camera and when without any font installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["HEIGHT", "WIDTH", "write"]

WIDTH: Final = 6
"""Pixels from one letter to the next, at scale 1."""
HEIGHT: Final = 7
"""Pixels of a letter, at scale 1."""

_GLYPHS: Final = {
    "0": "ehjlphe", "1": "4c4444e", "2": "eh1248v", "3": "v2421he", "4": "26aiv22", "5": "vgu11he", "6": "68guhhe",
    "7": "v124888", "8": "ehhehhe", "9": "ehhf12c", "a": "00e1fhf", "b": "ggmphhu", "c": "00egghe", "d": "11djhhf",
    "e": "00ehvge", "f": "698s888", "g": "0fhhf1e", "h": "ggmphhh", "i": "40c444e", "j": "20622ic", "k": "ggikoki",
    "l": "c44444e", "m": "00qllhh", "n": "00mphhh", "o": "00ehhhe", "p": "00uhugg", "q": "00djf11", "r": "00mpggg",
    "s": "00ege1u", "t": "88s8896", "u": "00hhhjd", "v": "00hhha4", "w": "00hhlla", "x": "00ha4ah", "y": "00hhf1e",
    "z": "00v248v", "/": "01248g0", "_": "000000v", "-": "000v000", ".": "00000cc", ":": "0cc0cc0", " ": "0000000",
    "?": "eh12404",
}  # fmt: skip
"""Seven rows of five pixels each; a row is a digit in base 32."""


def write(
    picture: NDArray[np.uint8], text: str, x: int, y: int, *, scale: int = 1, colour: tuple[int, int, int]
) -> None:
    """Write on a picture; what does not fit is left out.

    Args:
        picture: uint8 [H, W, 3]; changed.
        text: Capitals come as small letters, unknown signs as question marks.
        x: Left edge of the first letter, pixels.
        y: Its upper edge.
        scale: Pixels for one of the font's.
        colour: Red, green, blue.
    """
    rows, columns = picture.shape[:2]
    for letter in text.lower():
        glyph = _GLYPHS.get(letter, _GLYPHS["?"])
        dots = np.array([[int(row, 32) >> bit & 1 for bit in range(4, -1, -1)] for row in glyph], np.bool_)
        mask = dots.repeat(scale, axis=0).repeat(scale, axis=1)
        if x + mask.shape[1] > columns or y + mask.shape[0] > rows:
            return
        picture[y : y + mask.shape[0], x : x + mask.shape[1]][mask] = colour
        x += WIDTH * scale
