"""A finished chunk in memory, and the building of one from messages."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.episode import wire
from kinemill.episode.checksum import crc32

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BuiltChunk", "Compressor", "build_chunk", "build_flat"]


@dataclass(frozen=True, slots=True)
class BuiltChunk:
    """A Chunk record with the MessageIndex records that follow it.

    Attributes:
        head: The Chunk record up to its records.
        data: The records, compressed or not.
        index: Its message indexes.
        index_at: (channel id, offset inside `index`) of each.
        counts: Messages of each channel of the group, in the group's order.
        gops: (first time, frames) of each GOP that starts in it; empty without video.
    """

    head: bytes
    data: bytes
    index: bytes
    index_at: tuple[tuple[int, int], ...]
    t_first_ns: int
    t_last_ns: int
    counts: tuple[int, ...]
    crc: int
    raw_size: int
    compression: bytes
    data_size: int
    skew_ns: int
    """How much later than the chunk itself its last topic starts."""
    gops: tuple[tuple[int, int], ...] = ()


class Compressor:
    """zstd, with its context kept; gives up where it does not pay."""

    __slots__ = ("_zstd",)

    def __init__(self, level: int) -> None:
        import zstandard

        self._zstd: Any = zstandard.ZstdCompressor(level=level)

    def __call__(self, raw: bytes) -> tuple[bytes, bytes]:
        """(name of the compression, data); the data as it was where less than 3 % would be saved."""
        small: bytes = self._zstd.compress(raw)
        return (b"zstd", small) if len(small) < 0.97 * len(raw) else (b"", raw)


def build_chunk(
    pieces: Sequence[bytes | memoryview],
    entries: Sequence[list[int]],
    channels: Sequence[int],
    *,
    t_first_ns: int,
    t_last_ns: int,
    compress: Compressor | None,
    gops: tuple[tuple[int, int], ...] = (),
) -> BuiltChunk:
    """Put a chunk together.

    Args:
        pieces: The message records, in pieces, in file order.
        entries: Per channel `time, offset, time, offset, ...` for its message index.
        channels: Channel ids, in the group's order.
        t_first_ns: Earliest log time.
        t_last_ns: Latest log time.
        compress: None to store as it is.
        gops: As in `BuiltChunk`.
    """
    raw = b"".join(pieces)
    index = bytearray()
    index_at = []
    for channel, pairs in zip(channels, entries, strict=True):
        if pairs:
            index_at.append((channel, len(index)))
            index += wire.message_index(channel, pairs, len(pairs) // 2)
    counts = tuple(len(pairs) // 2 for pairs in entries)
    skew = max(pairs[0] for pairs in entries if pairs) - t_first_ns
    return _finish(
        raw, bytes(index), tuple(index_at), counts, times=(t_first_ns, t_last_ns, skew), compress=compress, gops=gops
    )


def _finish(
    raw: bytes,
    index: bytes,
    index_at: tuple[tuple[int, int], ...],
    counts: tuple[int, ...],
    *,
    times: tuple[int, int, int],
    compress: Compressor | None,
    gops: tuple[tuple[int, int], ...],
) -> BuiltChunk:
    t_first_ns, t_last_ns, skew = times
    crc = crc32(raw)
    name, data = compress(raw) if compress is not None else (b"", raw)
    head = wire.chunk_record(t_first_ns, t_last_ns, raw_size=len(raw), crc=crc, compression=name, data_size=len(data))
    return BuiltChunk(
        head, data, index, index_at, t_first_ns, t_last_ns, counts, crc, len(raw), name, len(data), skew, gops
    )


def build_flat(
    blocks: Sequence[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]],
    channels: Sequence[int],
    first_sequence: Sequence[int],
    compress: Compressor | None,
) -> BuiltChunk:
    """A chunk of many small messages, without a Python loop over them.

    Args:
        blocks: Per channel: payloads back to back (uint8), length of each (int64 [n]), and log
            times, non-decreasing (int64 [n]). All may be empty, but not of all channels.
        channels: Channel ids, in the group's order.
        first_sequence: Sequence number of the first message of each channel.
        compress: None to store as it is.
    """
    heads = []
    for channel, start, (_, sizes, times) in zip(channels, first_sequence, blocks, strict=True):
        head = np.empty((len(sizes), wire.MESSAGE_HEAD.size), np.uint8)
        head[:, 0] = wire.Op.MESSAGE
        head[:, 1:9] = (sizes + wire.MESSAGE_FIXED).astype("<u8")[:, None].view(np.uint8)
        head[:, 9:11] = np.frombuffer(struct.pack("<H", channel), np.uint8)
        head[:, 11:15] = np.arange(start, start + len(sizes)).astype("<u4")[:, None].view(np.uint8)
        stamp = times.astype("<u8")[:, None].view(np.uint8)
        head[:, 15:23] = stamp
        head[:, 23:31] = stamp
        heads.append(head)
    size = np.concatenate([sizes for _, sizes, _ in blocks])
    time = np.concatenate([times for _, _, times in blocks])
    owner = np.repeat(np.arange(len(blocks)), [len(sizes) for _, sizes, _ in blocks])
    order = np.argsort(time, kind="stable")
    full = size + wire.MESSAGE_HEAD.size
    offset = np.empty(len(full), np.int64)  # where each message goes, still in channel order
    ends = np.cumsum(full[order])
    offset[order] = ends - full[order]
    raw = np.empty(int(ends[-1]), np.uint8)
    _scatter(raw, offset, np.full(len(full), wire.MESSAGE_HEAD.size), np.concatenate(heads).reshape(-1))
    _scatter(raw, offset + wire.MESSAGE_HEAD.size, size, np.concatenate([payload for payload, _, _ in blocks]))
    index = bytearray()
    index_at = []
    counts = []
    for i, channel in enumerate(channels):
        mine = owner == i
        n = int(mine.sum())
        counts.append(n)
        if n:
            index_at.append((channel, len(index)))
            pairs = np.stack([time[mine], offset[mine]], axis=1)
            index += struct.pack("<BQHI", wire.Op.MESSAGE_INDEX, 6 + 16 * n, channel, 16 * n)
            index += pairs.astype("<u8").tobytes()
    t_first = int(time.min())
    skew = max(int(times[0]) for _, _, times in blocks if len(times)) - t_first
    span = (t_first, int(time.max()), skew)
    return _finish(raw.tobytes(), bytes(index), tuple(index_at), tuple(counts), times=span, compress=compress, gops=())


def _scatter(
    out: NDArray[np.uint8], offset: NDArray[np.int64], size: NDArray[np.int64], data: NDArray[np.uint8]
) -> None:
    """Copy `data`, pieces of `size` back to back, to `offset` in `out`."""
    if not len(size) or not len(data):
        return
    if (size == size[0]).all():
        out[offset[:, None] + np.arange(size[0])] = data.reshape(len(size), int(size[0]))
        return
    at = 0
    for start, length in zip(offset.tolist(), size.tolist(), strict=True):
        out[start : start + length] = data[at : at + length]
        at += length
