"""Whether a packet of foreign video can be decoded by itself: where to start anew behind a hole.

Only the first bytes of the packet's units are read. Sources: ITU-T H.265 (7.4.2.2, table 7-1), the VP9 bitstream
specification (6.2), the AV1 bitstream specification (5.3.2; writers put a sequence header before each key frame).
"""

from __future__ import annotations

import re
from typing import Final

from kinemill.episode.h264 import first_slice_is_idr

__all__ = ["is_keyframe"]

_START: Final = re.compile(b"\0\0\x01(.)", re.DOTALL)
_SEQUENCE_HEADER: Final = 1


def is_keyframe(codec: str, data: bytes) -> bool | None:
    """Whether nothing before this packet is needed to decode it; None for a codec that is not known.

    Args:
        codec: h264, hevc, vp9 or av1.
        data: A whole access unit; H.264 and H.265 as Annex B.
    """
    if codec == "h264":
        return first_slice_is_idr(data)
    if codec == "hevc":
        return _hevc(data)
    if codec == "vp9":
        return _vp9(data)
    if codec == "av1":
        return _av1(data)
    return None


def _hevc(data: bytes) -> bool:
    for unit in _START.finditer(data):
        kind = unit[1][0] >> 1 & 63
        if kind < 32:  # the first slice: 16 to 23 are random access points
            return 16 <= kind <= 23
    return False


def _vp9(data: bytes) -> bool:
    if not data or data[0] >> 6 != 2:  # the frame marker
        return False
    high_profile = data[0] >> 4 & 3 == 3  # which has a reserved bit more
    show_existing, not_key = (
        (data[0] >> 2 & 1, data[0] >> 1 & 1) if high_profile else (data[0] >> 3 & 1, data[0] >> 2 & 1)
    )
    return not show_existing and not not_key


def _av1(data: bytes) -> bool:
    at = 0
    while at < len(data):
        head = data[at]
        if head >> 3 & 15 == _SEQUENCE_HEADER:
            return True
        at += 2 if head & 4 else 1  # the extension
        if not head & 2:  # without a size it goes to the end
            return False
        size = shift = 0
        while at < len(data) and shift < 56:
            byte = data[at]
            at += 1
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        at += size
    return False
