"""Whether a camera's packets follow each other without a hole: H.264 counts its reference frames.

A P-frame that was lost before it was recorded leaves no trace in sequence numbers or checksums, and a decoder
invents its content without a word. Its successor's `frame_num` (ITU-T H.264, 7.4.3) tells.
"""

from __future__ import annotations

from kinemill.episode.h264 import _HIGH_PROFILES, IDR, SLICE, SPS, _Bits, _skip_scaling, _unescape, nal_units
from kinemill.errors import CorruptError

__all__ = ["FrameOrder"]

_LOOKED_AT = 32
"""Bytes of a slice that hold its header's first four fields, whatever their values."""


class FrameOrder:
    """Follows one camera's packets, in decode order."""

    def __init__(self) -> None:
        self._bits: int | None = None
        """Of `frame_num`; None before an SPS, or where the stream allows gaps."""
        self._last: int | None = None
        """`frame_num` of the last reference frame; None where nothing can be expected."""

    def reset(self) -> None:
        """Packets are known to be missing here: expect nothing of the next one."""
        self._last = None

    def missing(self, packet: bytes) -> int:
        """How many reference frames are missing before this packet; 0 where it follows, or where nobody can tell.

        Args:
            packet: One frame that `check_packet` has passed.
        """
        for start, end in nal_units(packet):
            kind, reference = packet[start] & 31, packet[start] >> 5 & 3
            if kind == SPS:
                try:
                    self._bits = _frame_num_bits(packet[start:end])
                except CorruptError:
                    self._bits = None
            elif kind in (SLICE, IDR):
                return self._slice(packet[start + 1 : min(end, start + _LOOKED_AT)], kind == IDR, reference > 0)
        return 0

    def _slice(self, data: bytes, idr: bool, reference: bool) -> int:
        if self._bits is None:
            return 0
        bits = _Bits(_unescape(data))
        for _ in range(3):  # first macroblock, slice type, parameter set
            bits.ue()
        number = bits.take(self._bits)
        lost = 0
        if not idr and self._last is not None:
            lost = (number - self._last - 1) % (1 << self._bits)
        if idr or reference:
            self._last = number
        return lost


def _frame_num_bits(sps: bytes) -> int | None:
    """Bits of `frame_num` in a sequence parameter set (7.3.2.1); None where gaps in it are allowed."""
    bits = _Bits(_unescape(sps[1:]))
    profile = bits.take(8)
    bits.take(16)
    bits.ue()
    if profile in _HIGH_PROFILES:
        chroma = bits.ue()
        if chroma == 3:
            bits.take(1)
        bits.ue()
        bits.ue()
        bits.take(1)
        if bits.take(1):
            for i in range(8 if chroma != 3 else 12):
                if bits.take(1):
                    _skip_scaling(bits, 16 if i < 6 else 64)
    found = 4 + bits.ue()
    poc_type = bits.ue()
    if poc_type == 0:
        bits.ue()
    elif poc_type == 1:
        bits.take(1)
        bits.ue()
        bits.ue()
        for _ in range(min(bits.ue(), 255)):
            bits.ue()
    bits.ue()
    return None if bits.take(1) or found > 16 else found
