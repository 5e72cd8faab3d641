"""Messages of one topic out of verified chunks, and their content as arrays."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from kinemill.contracts.episode import TopicKind, TopicReceipt
from kinemill.episode import wire
from kinemill.episode.cdr import JointTemplate, decode_one, joint_template
from kinemill.episode.decode import DecoderPool, PixelFormat, StreamKind, picture_shape
from kinemill.episode.h264 import check_packet, first_slice_is_idr
from kinemill.episode.messages import read_image, read_text
from kinemill.episode.opened import OpenChunk
from kinemill.episode.proto import video_bytes
from kinemill.episode.schemas import JOINT_STATE, STRING, VIDEO
from kinemill.errors import CorruptError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Messages", "VideoOptions", "decode_rows", "read_content"]

_HEAD = wire.MESSAGE_HEAD.size


class VideoOptions(NamedTuple):
    """How pictures are made."""

    pool: DecoderPool
    decoder: str
    pixel_format: PixelFormat
    out: NDArray[np.uint8] | None = None
    one_gop: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Messages:
    """One topic's messages in the chunks at hand, in file order.

    Attributes:
        chunk: Number of the chunk of each, int64 [n].
        start: Where its payload starts in that chunk's records.
        end: Where it ends.
        time: Log times, int64 [n].
        sequence: Sequence numbers.
        data: Records of each chunk.
        in_order: Times do not go back inside any chunk.
    """

    chunk: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    time: NDArray[np.int64]
    sequence: NDArray[np.int64]
    data: dict[int, memoryview]
    in_order: bool = False
    _idr: dict[int, bool] = field(default_factory=dict)

    @classmethod
    def gather(cls, channel: int, numbers: Sequence[int], chunks: Sequence[OpenChunk]) -> Self:
        """Those of one channel.

        Args:
            channel: Channel id.
            numbers: Chunk numbers, increasing.
            chunks: The chunks.
        """
        if len(chunks) == 1:
            c, mask = chunks[0], chunks[0].of(channel)
            start = c.offset[mask]
            number = np.full(len(start), numbers[0], np.int64)
            return cls(
                number, start + _HEAD, c.end[mask], c.time[mask], c.sequence[mask], {numbers[0]: c.data}, c.in_order
            )
        masks = [c.of(channel) for c in chunks]
        empty = [np.empty(0, np.int64)]
        return cls(
            np.repeat(np.array(numbers, np.int64), [len(c.time[m]) for c, m in zip(chunks, masks, strict=True)]),
            np.concatenate([c.offset[m] for c, m in zip(chunks, masks, strict=True)] or empty) + _HEAD,
            np.concatenate([c.end[m] for c, m in zip(chunks, masks, strict=True)] or empty),
            np.concatenate([c.time[m] for c, m in zip(chunks, masks, strict=True)] or empty),
            np.concatenate([c.sequence[m] for c, m in zip(chunks, masks, strict=True)] or empty),
            {k: c.data for k, c in zip(numbers, chunks, strict=True)},
            all(c.in_order for c in chunks),
        )

    def payload(self, index: int) -> memoryview:
        """Of one message."""
        return self.data[int(self.chunk[index])][int(self.start[index]) : int(self.end[index])]

    def is_idr(self, index: int) -> bool:
        """Whether a camera's message is an IDR frame."""
        found = self._idr.get(index)
        if found is None:
            found = self._idr[index] = first_slice_is_idr(video_bytes(self.payload(index))[0])
        return found

    def gop_starts(self, indices: Sequence[int], *, one_gop: bool) -> list[int | None]:
        """For each index, increasing, the IDR that the frame depends on; None where that is not at hand.

        With `one_gop`, chunks hold one GOP, so that it is the topic's first frame in the chunk.
        """
        if one_gop and self.chunk[0] == self.chunk[-1]:
            return [0 if self.is_idr(0) else None] * len(indices)
        if one_gop:
            firsts = np.searchsorted(self.chunk, self.chunk[np.asarray(indices, np.int64)]).tolist()
            return [first if self.is_idr(first) else None for first in firsts]
        found: list[int | None] = []
        start: int | None = None
        looked = -1
        for index in indices:
            at = index
            while at > looked:
                if self.is_idr(at):
                    start = at
                    break
                if at == 0 or int(self.chunk[at]) - int(self.chunk[at - 1]) > 1:  # chunks between are not at hand
                    start = None
                    break
                at -= 1
            looked = index
            found.append(start)
        return found


def read_content(
    topic: TopicReceipt,
    messages: Messages,
    picked: NDArray[np.int64],
    answers: int,
    *,
    where: str,
    video: VideoOptions,
) -> Any:
    """Content of the picked messages; zeros (or None in lists) where a topic has no message at all."""
    if topic.kind is TopicKind.VIDEO and topic.schema in (VIDEO, "") and topic.codec == "h264":
        return _pictures(topic, messages, picked, answers, where=where, video=video)
    if topic.schema == JOINT_STATE and topic.encoding == "cdr":
        if len(picked) == 0:
            return np.zeros((answers, len(topic.names) * max(1, len(topic.fields))))
        return decode_rows(topic, messages, picked, where)
    try:
        if topic.schema == "foxglove.RawImage" and topic.encoding == "protobuf":
            if len(picked) == 0:
                kind = np.uint16 if topic.codec == "16UC1" else np.uint8
                return np.zeros((answers, topic.height or 0, topic.width or 0), kind)
            return np.stack([read_image(messages.payload(i)) for i in picked.tolist()])
        if topic.schema == STRING and topic.encoding == "cdr":
            return [read_text(messages.payload(i)) for i in picked.tolist()] or [None] * answers
    except (CorruptError, UnsupportedError, ValueError) as exc:
        raise CorruptError(f"{where}: {exc}") from exc
    return [bytes(messages.payload(i)) for i in picked.tolist()] or [None] * answers


# ---- pictures


def _pictures(
    topic: TopicReceipt,
    messages: Messages,
    picked: NDArray[np.int64],
    answers: int,
    *,
    where: str,
    video: VideoOptions,
) -> NDArray[np.uint8]:
    width, height = topic.width or 0, topic.height or 0
    if (not width or not height) and len(picked):  # a stock file does not tell; the stream does
        width, height = _size_of(messages, int(picked.min()), where)
    shape = picture_shape(video.pixel_format, width, height)
    if len(picked) == 0:
        return np.zeros((answers, *shape), np.uint8)
    todo = picked.tolist()
    inverse = None
    if any(b <= a for a, b in itertools.pairwise(todo)):
        unique, inverse = np.unique(picked, return_inverse=True)
        todo = unique.tolist()
    target = video.out if inverse is None else None
    if target is None:
        target = np.empty((len(todo), *shape), np.uint8)
    elif target.shape != (len(todo), *shape) or target.dtype != np.uint8:
        raise UsageError(f"{where}: out is {target.dtype} {target.shape}, wanted is uint8 {(len(todo), *shape)}")
    starts = messages.gop_starts(todo, one_gop=video.one_gop)
    kind = StreamKind(video.decoder, "h264", video.pixel_format, width, height)
    decoder = video.pool.take(kind)
    done = 0
    while done < len(todo):
        start = starts[done]
        if start is None:
            raise CorruptError(f"{where}: the frame of {int(messages.time[todo[done]])} ns has no IDR before it")
        stop = done + 1
        while stop < len(todo) and starts[stop] == start:
            stop += 1
        last = todo[stop - 1]
        packets = []
        for index in range(start, last + 1):
            data, codec = video_bytes(messages.payload(index))
            if codec != "h264":
                raise CorruptError(f"{where}: format {codec!r} in a stream of h264")
            packets.append(data)
        try:
            decoder.decode(packets, [i - start for i in todo[done:stop]], target[done:stop])
        except CorruptError as exc:
            raise CorruptError(f"{where}: GOP of {int(messages.time[start])} ns is rejected: {exc}") from exc
        done = stop
    video.pool.give(decoder, kind)
    if inverse is None:
        return target
    if video.out is None:
        return target[inverse]
    return np.take(target, inverse, axis=0, out=video.out)


def _size_of(messages: Messages, index: int, where: str) -> tuple[int, int]:
    """(width, height) by the parameter set of the IDR that a frame depends on."""
    (start,) = messages.gop_starts([index], one_gop=False)
    if start is not None:
        info = check_packet(bytes(video_bytes(messages.payload(start))[0]), where=where)
        if info.sps is not None:
            return info.sps.width, info.sps.height
    raise CorruptError(f"{where}: no parameter set that tells the picture's size")


# ---- rows


@functools.lru_cache(maxsize=256)
def _template(names: tuple[str, ...], fields: tuple[str, ...], frame_id: str) -> JointTemplate:
    return joint_template(names, fields, frame_id)


def decode_rows(topic: TopicReceipt, messages: Messages, picked: NDArray[np.int64], where: str) -> NDArray[np.float64]:
    """Rows of a JointState topic: float64 [n, columns].

    Messages that equal the topic's template in all constant bytes are decoded together; where any
    differs, all of them go one by one.

    Raises:
        CorruptError: A message does not parse, or has other names or array lengths than the topic.
    """
    out: list[NDArray[np.float64]] = []
    at = 0
    chunk = messages.chunk[picked]
    edges = np.flatnonzero(np.diff(chunk)) + 1
    for part in np.split(picked, edges) if len(edges) else [picked]:
        rows = _bulk(topic, messages, part)
        if rows is None:
            rows = _one_by_one(topic, messages, part, where)
        out.append(rows)
        at += len(part)
    return out[0] if len(out) == 1 else np.concatenate(out)


def _bulk(topic: TopicReceipt, messages: Messages, part: NDArray[np.int64]) -> NDArray[np.float64] | None:
    start = messages.start[part]
    size = messages.end[part] - start
    length = int(size[0])
    if not topic.names or not topic.fields or length < 20 or not (size == length).all():
        return None
    data = messages.data[int(messages.chunk[part[0]])]
    first = data[int(start[0]) : int(start[0]) + length]
    text = int.from_bytes(first[12:16], "little")
    if not 1 <= text <= length - 16:
        return None
    try:
        template = _template(topic.names, topic.fields, str(first[16 : 16 + text - 1], "utf-8"))
    except UnicodeDecodeError:
        return None
    if len(template.data) != length:
        return None
    step = int(start[1] - start[0]) if len(start) > 1 else length
    if len(start) > 1 and step > 0 and (np.diff(start) == step).all():
        rows: NDArray[np.uint8] = np.ndarray(
            (len(start), length), np.uint8, buffer=data, offset=int(start[0]), strides=(step, 1)
        )
    else:
        rows = np.frombuffer(data, np.uint8)[start[:, None] + np.arange(length)]
    return template.decode(rows) if template.matches(rows) else None


def _one_by_one(topic: TopicReceipt, messages: Messages, part: NDArray[np.int64], where: str) -> NDArray[np.float64]:
    rows = []
    for index in part.tolist():
        try:
            _, names, arrays = decode_one(messages.payload(index))
        except (CorruptError, UnsupportedError) as exc:
            raise CorruptError(f"{where}: message at {int(messages.time[index])} ns: {exc}") from exc
        rows.append(_row(topic, names, arrays, f"{where}: message at {int(messages.time[index])} ns"))
    if len({len(row) for row in rows}) > 1:
        raise CorruptError(f"{where}: messages with different numbers of values")
    return np.stack(rows)


def _row(
    topic: TopicReceipt,
    names: tuple[str, ...],
    arrays: tuple[NDArray[np.float64], ...],
    where: str,
) -> NDArray[np.float64]:
    values = [array for array in arrays if len(array)]
    if not topic.names:
        return np.concatenate(values) if values else np.empty(0)
    if names != topic.names:
        if sorted(names) != sorted(topic.names):
            raise CorruptError(f"{where}: names {names[:4]}... are not the topic's {topic.names[:4]}...")
        place = [names.index(name) for name in topic.names]
        values = [array[place] for array in values if len(array) == len(names)]
    if any(len(array) != len(topic.names) for array in values) or (topic.fields and len(values) != len(topic.fields)):
        raise CorruptError(
            f"{where}: arrays of {[len(a) for a in arrays]} values; the topic has {len(topic.names)} names and "
            f"{', '.join(topic.fields) or 'no fields'}"
        )
    return np.concatenate(values)
