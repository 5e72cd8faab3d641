"""CRC-32 as MCAP uses it, by the fastest implementation at hand.

ISA-L reaches the speed of memory on x86 and Arm; the standard library's zlib is about ten times
slower, which would cost more than all of a reader's other work. Both give the same number.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

__all__ = ["crc32"]


def _choose() -> Callable[..., int]:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    found: Callable[..., int] = isal_zlib.crc32
    return found


crc32: Callable[..., int] = _choose()
"""`crc32(data, value=0)`: the CRC-32 (IEEE 802.3) of a buffer, continued from `value`."""
