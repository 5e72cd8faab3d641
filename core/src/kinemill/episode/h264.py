"""H.264 at the NAL level: is this packet one frame, is it an IDR, may it stand in an episode.

Syntax elements and their order are those of ITU-T H.264 (7.3.1, 7.3.2.1, 7.3.3, E.1.1). Nothing
is decoded; only the head of the SPS and of each slice is read.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Final

from kinemill.errors import CorruptError, UnsupportedError

__all__ = ["PacketInfo", "Sps", "check_packet", "first_slice_is_idr", "nal_units", "parse_sps"]

SLICE: Final = 1
PARTITION_A: Final = 2
IDR: Final = 5
SEI: Final = 6
SPS: Final = 7
PPS: Final = 8
AUD: Final = 9
_HIGH_PROFILES: Final = frozenset({100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135})
_START: Final = b"\0\0\1"
_EXTENDED_SAR: Final = 255


@dataclass(frozen=True, slots=True)
class Sps:
    """What a reader must know of a sequence parameter set."""

    profile_idc: int
    chroma_format: int
    bit_depth: int
    width: int
    height: int
    frame_mbs_only: bool
    poc_type: int
    max_reorder: int | None
    """max_num_reorder_frames; None where the stream does not say."""
    frame_num_bits: int | None
    """Of `frame_num` in a slice's head; None where the stream may leave numbers out."""


@dataclass(frozen=True, slots=True)
class PacketInfo:
    """One checked access unit."""

    idr: bool
    sps: Sps | None


class _Bits:
    """Most significant bit first, Exp-Golomb as in 9.1."""

    __slots__ = ("_at", "_size", "_value")

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data, "big")
        self._size = 8 * len(data)
        self._at = 0

    def take(self, n: int) -> int:
        if self._at + n > self._size:
            raise CorruptError("H.264: a parameter set or slice header ends too early")
        self._at += n
        return (self._value >> (self._size - self._at)) & ((1 << n) - 1)

    def ue(self) -> int:
        zeros = 0
        while not self.take(1):
            zeros += 1
            if zeros > 32:
                raise CorruptError("H.264: an Exp-Golomb code longer than 32 bits")
        return (1 << zeros) - 1 + (self.take(zeros) if zeros else 0)

    def se(self) -> int:
        k = self.ue()
        return (k + 1) // 2 if k % 2 else -(k // 2)


def nal_units(data: bytes) -> list[tuple[int, int]]:
    """The NAL units of an Annex B packet as (start, end) of header byte to last byte.

    Raises:
        UnsupportedError: It does not start with a start code, so it is not Annex B.
    """
    at = data.find(_START, 0, 5)
    if at not in (0, 1) or (at == 1 and data[0]):
        raise UnsupportedError(
            f"H.264 packet starts with {bytes(data[:4]).hex(' ')}: not Annex B (a start code 00 00 01); "
            "convert length-prefixed (avcC) packets first"
        )
    starts = []
    while at >= 0:
        starts.append(at + 3)
        at = data.find(_START, at + 3)
    units = []
    for i, start in enumerate(starts):
        end = starts[i + 1] - 3 if i + 1 < len(starts) else len(data)
        while end > start and data[end - 1] == 0:  # trailing_zero_8bits and the long start code's first byte
            end -= 1
        units.append((start, end))
    return units


def first_slice_is_idr(data: bytes | memoryview) -> bool:
    """Whether the first coded slice of a packet is an IDR's. Reads only the first NAL units."""
    head = bytes(data[:5])
    if head[:4] == b"\0\0\0\1" and len(head) == 5 and head[4] & 31 in (SLICE, IDR):
        return head[4] & 31 == IDR
    for looked_at in (256, 4096):  # parameter sets alone, or with what an encoder tells of itself
        view = bytes(data[:looked_at])
        at = view.find(_START)
        while 0 <= at < len(view) - 3:
            kind = view[at + 3] & 31
            if kind == IDR:
                return True
            if kind in (SLICE, PARTITION_A):
                return False
            at = view.find(_START, at + 3)
    if len(data) > len(view):  # parameter sets or SEI of more than 4 KiB
        return any(bytes(data)[s] & 31 == IDR for s, _ in nal_units(bytes(data)))
    return False


def _unescape(data: bytes) -> bytes:
    return data.replace(b"\0\0\3", b"\0\0") if b"\0\0\3" in data else data


def _skip_scaling(bits: _Bits, size: int) -> None:
    last = after = 8
    for _ in range(size):
        if after:
            after = (last + bits.se()) % 256
        last = after or last


def _max_reorder(bits: _Bits) -> int | None:
    """max_num_reorder_frames out of the VUI (E.1.1), or None."""
    if bits.take(1) and bits.take(8) == _EXTENDED_SAR:  # aspect ratio
        bits.take(32)
    if bits.take(1):  # overscan
        bits.take(1)
    if bits.take(1):  # video signal type
        bits.take(4)
        if bits.take(1):
            bits.take(24)
    if bits.take(1):  # chroma location
        bits.ue()
        bits.ue()
    if bits.take(1):  # timing
        bits.take(65)
    hrd = 0
    for _ in range(2):
        if bits.take(1):
            hrd = 1
            count = bits.ue() + 1
            if count > 32:
                raise CorruptError("H.264: SPS with more than 32 HRD schedules")
            bits.take(8)
            for _ in range(count):
                bits.ue()
                bits.ue()
                bits.take(1)
            bits.take(20)
    if hrd:
        bits.take(1)
    bits.take(1)
    if not bits.take(1):  # bitstream restriction
        return None
    bits.take(1)
    for _ in range(4):
        bits.ue()
    return bits.ue()


@functools.lru_cache(maxsize=256)
def parse_sps(nal: bytes) -> Sps:
    """A sequence parameter set, header byte included.

    Raises:
        CorruptError: It ends too early or holds impossible values.
    """
    bits = _Bits(_unescape(nal[1:]))
    profile = bits.take(8)
    bits.take(16)
    bits.ue()
    chroma, depth = 1, 8
    if profile in _HIGH_PROFILES:
        chroma = bits.ue()
        if chroma == 3:
            bits.take(1)
        depth = 8 + max(bits.ue(), bits.ue())
        bits.take(1)
        if bits.take(1):
            for i in range(8 if chroma != 3 else 12):
                if bits.take(1):
                    _skip_scaling(bits, 16 if i < 6 else 64)
    number_bits = 4 + bits.ue()
    poc_type = bits.ue()
    if poc_type == 0:
        bits.ue()
    elif poc_type == 1:
        bits.take(1)
        bits.se()
        bits.se()
        cycle = bits.ue()
        if cycle > 255:
            raise CorruptError("H.264: SPS with a picture order cycle over 255")
        for _ in range(cycle):
            bits.se()
    bits.ue()
    gaps = bits.take(1)
    width = 16 * (bits.ue() + 1)
    units = bits.ue() + 1
    frame_mbs_only = bool(bits.take(1))
    height = 16 * units * (1 if frame_mbs_only else 2)
    if not frame_mbs_only:
        bits.take(1)
    bits.take(1)
    if bits.take(1):
        left, right, top, bottom = bits.ue(), bits.ue(), bits.ue(), bits.ue()
        step_x = 1 if chroma in (0, 3) else 2
        step_y = (2 if chroma == 1 else 1) * (1 if frame_mbs_only else 2)
        width -= step_x * (left + right)
        height -= step_y * (top + bottom)
    if not 0 < width <= 16384 or not 0 < height <= 16384:
        raise CorruptError(f"H.264: SPS with a picture of {width} x {height}")
    reorder = _max_reorder(bits) if bits.take(1) else None
    frame_num_bits = None if gaps or number_bits > 16 else number_bits
    return Sps(profile, chroma, depth, width, height, frame_mbs_only, poc_type, reorder, frame_num_bits)


def check_packet(data: bytes, *, where: str) -> PacketInfo:
    """Check that a packet is one frame by the rules of the episode format.

    The rules: Annex B; exactly one picture; SPS and PPS before each IDR; no B slices; progressive
    8-bit 4:2:0.

    Args:
        data: One access unit.
        where: Topic and time, for messages.

    Raises:
        UnsupportedError: Sound H.264 that breaks a rule; the message names it.
        CorruptError: Not H.264.
    """
    try:
        return _check_quick(data) or _check(data)
    except (CorruptError, UnsupportedError) as exc:
        raise type(exc)(f"{where}: {exc}") from None


_FIND_START = re.compile(_START).search  # twice as fast as bytes.find for three bytes
_NO_PARAMETERS = PacketInfo(False, None)


def _check_quick(data: bytes) -> PacketInfo | None:
    """The most common packet, one NAL unit with a P or I slice that starts at the first macroblock; else None."""
    if data[:4] != b"\0\0\0\1" or len(data) < 16 or data[4] & 0x9F != SLICE:
        return None
    first = data[5]
    # '1' is first_mb_in_slice 0; then slice_type: '1' P, '00110' P, '011' I, '0001000' I
    if first & 0xC0 != 0xC0 and first & 0xFC != 0x98 and first & 0xF0 != 0xB0 and first & 0xFF != 0x88:
        return None
    return None if _FIND_START(data, 5) else _NO_PARAMETERS


def _check(data: bytes) -> PacketInfo:
    if not data:
        raise UnsupportedError("an empty packet; leave the frame out instead")
    sps: Sps | None = None
    pps = idr = seen = False
    for start, end in nal_units(data):
        if end <= start or data[start] & 0x80:
            raise CorruptError("a NAL unit is empty or has its forbidden bit set")
        kind = data[start] & 31
        if kind == SPS:
            sps = parse_sps(bytes(data[start:end]))
            _check_sps(sps)
        elif kind == PPS:
            pps = True
        elif kind in (SLICE, IDR):
            bits = _Bits(_unescape(bytes(data[start + 1 : min(end, start + 24)])))
            first_mb, slice_type = bits.ue(), bits.ue() % 5
            if first_mb == 0 and seen:
                raise UnsupportedError("holds more than one frame; write each frame as a message of its own")
            if first_mb != 0 and not seen:
                raise UnsupportedError("starts in the middle of a frame; write whole frames, not pieces of the stream")
            if seen and (kind == IDR) is not idr:
                raise UnsupportedError("mixes IDR and other slices in one frame")
            if slice_type == 1:
                raise UnsupportedError("has a B slice; re-encode with bframes=0")
            seen, idr = True, kind == IDR
        elif kind in (2, 3, 4):
            raise UnsupportedError("uses data partitioning; re-encode")
    if not seen:
        raise UnsupportedError("holds no picture (parameter sets or SEI alone); prepend them to the frame that follows")
    if idr and (sps is None or not pps):
        raise UnsupportedError("an IDR without SPS and PPS before it; encode with repeat-headers=1")
    return PacketInfo(idr, sps)


def _check_sps(sps: Sps) -> None:
    if sps.bit_depth != 8 or sps.chroma_format != 1:
        raise UnsupportedError(
            f"{sps.bit_depth}-bit with chroma format {sps.chroma_format}; only 8-bit 4:2:0 (yuv420p) plays everywhere"
        )
    if not sps.frame_mbs_only:
        raise UnsupportedError("interlaced video; de-interlace and re-encode")
    if sps.max_reorder:
        raise UnsupportedError(f"the stream reorders {sps.max_reorder} frames (B-frames); re-encode with bframes=0")
