"""Whether a camera's packets follow each other without a hole: H.264 counts its reference frames.

A P-frame that was lost before it was recorded leaves no trace in sequence numbers or checksums, and a decoder
invents its content without a word. Its successor's `frame_num` (ITU-T H.264, 7.4.3) tells.
"""

from __future__ import annotations

from typing import Final

from kinemill.episode.h264 import _START, IDR, SLICE, SPS, _Bits, _unescape, parse_sps
from kinemill.errors import CorruptError

__all__ = ["FrameOrder"]

_LOOKED_AT: Final = 32
"""Bytes of a slice that hold its header's first four fields, whatever their values."""
_MOST: Final = 1024
"""Bytes of a parameter set that are looked at."""


class FrameOrder:
    """Follows one camera's packets, in decode order."""

    def __init__(self) -> None:
        self._bits: int | None = None
        """Of `frame_num`; None before an SPS, or where the stream allows gaps."""
        self._last: int | None = None
        """`frame_num` of the last reference frame; None where nothing can be expected."""
        self._quick: tuple[int, int, int] | None = None
        """Of the first two bytes of a slice, as this stream has them: bits behind what comes before `frame_num`, that,
        and bits behind `frame_num`."""

    def reset(self) -> None:
        """Packets are known to be missing here: expect nothing of the next one."""
        self._last = None

    def missing(self, packet: bytes) -> int:
        """How many reference frames are missing before this packet; 0 where it follows, or where nobody can tell.

        Args:
            packet: One frame that `check_packet` has passed.
        """
        if packet[:4] == b"\0\0\0\1" and packet[4] & 31 == SLICE:  # the commonest
            if self._quick is not None and packet[4] & 0x60 and len(packet) > 6:
                behind, before, rest = self._quick
                head = packet[5] << 8 | packet[6]
                if head >> behind == before:
                    return self._step((head & (1 << behind) - 1) >> rest, reference=True)
            return self._slice(packet[5 : 4 + _LOOKED_AT], False, packet[4] & 0x60 > 0)
        at = packet.find(_START)
        while 0 <= at < len(packet) - 3:
            start = at + 3
            kind = packet[start] & 31
            if kind in (SLICE, IDR):
                return self._slice(packet[start + 1 : start + _LOOKED_AT], kind == IDR, packet[start] & 0x60 > 0)
            at = packet.find(_START, start)
            if kind == SPS:
                bits = _frame_num_bits(bytes(packet[start : at if at > 0 else len(packet)][:_MOST]))
                if bits != self._bits:
                    self._bits, self._quick = bits, None
        return 0

    def _slice(self, data: bytes, idr: bool, reference: bool) -> int:
        if self._bits is None:
            return 0
        at, number = _frame_num(data, self._bits)
        if idr:
            self._last = number
            return 0
        rest = 16 - at - self._bits
        if rest >= 0 and data[0]:  # no byte against emulation among the first two
            self._quick = 16 - at, (data[0] << 8 | data[1]) >> 16 - at, rest
        return self._step(number, reference=reference)

    def _step(self, number: int, *, reference: bool) -> int:
        lost = 0 if self._last is None else number - self._last - 1 & (1 << (self._bits or 0)) - 1
        if reference:
            self._last = number
        return lost


def _frame_num(data: bytes, size: int) -> tuple[int, int]:
    """Where `frame_num` of so many bits starts, behind a slice's first macroblock, type and parameter set; and it."""
    value, left = int.from_bytes(data[:8], "big"), 64
    for _ in range(3):  # codes of Exp-Golomb: as many zeros as bits behind the first one
        left -= 2 * (left - value.bit_length()) + 1
        value &= (1 << max(left, 0)) - 1
    if left >= size and len(data) >= 8 and b"\0\0\3" not in data[:8]:
        return 64 - left, value >> (left - size)
    bits = _Bits(_unescape(data))
    for _ in range(3):
        bits.ue()
    return len(data) * 8, bits.take(size)


def _frame_num_bits(sps: bytes) -> int | None:
    """What a parameter set says; None where it is damaged."""
    try:
        return parse_sps(sps).frame_num_bits
    except CorruptError:
        return None
