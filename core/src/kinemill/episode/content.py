"""What messages hold, as arrays: pictures, rows, depth, text."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kinemill.contracts.episode import TopicKind, TopicReceipt
from kinemill.episode.cdr import JointTemplate, decode_one, joint_template
from kinemill.episode.choose import Frames
from kinemill.episode.decode import Lent, StreamKind
from kinemill.episode.gathered import Messages, Run
from kinemill.episode.h264 import check_packet
from kinemill.episode.messages import read_image, read_text
from kinemill.episode.pixels import PixelFormat, picture_shape
from kinemill.episode.schemas import JOINT_STATE, STRING, VIDEO
from kinemill.errors import CorruptError, UnsupportedError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VideoOptions", "decode_rows", "read_content"]


class VideoOptions(NamedTuple):
    """How pictures are made."""

    decoders: Lent
    decoder: str
    pixel_format: PixelFormat


def has_pictures(topic: TopicReceipt) -> bool:
    """Whether messages of the topic are decoded to pictures."""
    return topic.kind is TopicKind.VIDEO and topic.schema in (VIDEO, "") and topic.codec == "h264"


def read_content(
    topic: TopicReceipt,
    messages: Messages,
    picked: NDArray[np.int64],
    answers: int,
    *,
    where: str,
    video: VideoOptions,
    frames: Frames | None = None,
    out: NDArray[np.uint8] | None = None,
) -> Any:
    """Content of the picked messages; zeros (or None in lists) where a topic has no message at all.

    Args:
        topic: Whose messages.
        messages: At hand.
        picked: Indices of the wanted ones.
        answers: Number of answers, where nothing is picked.
        where: For error messages.
        video: How pictures are made.
        frames: Of a camera: the picked ones, and what they depend on.
        out: Of a camera: what the pictures are written into.
    """
    if has_pictures(topic):
        return _pictures(topic, messages, picked, frames, answers, where=where, video=video, out=out)
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
    frames: Frames | None,
    answers: int,
    *,
    where: str,
    video: VideoOptions,
    out: NDArray[np.uint8] | None,
) -> NDArray[np.uint8]:
    width, height = topic.width or 0, topic.height or 0
    if (not width or not height) and frames is not None:  # a stock file does not tell; the stream does
        width, height = _size_of(messages, frames, where)
    shape = picture_shape(video.pixel_format, width, height)
    if frames is None:
        return np.zeros((answers, *shape), np.uint8)
    wanted, starts = frames
    count = len(wanted)
    as_picked = count == len(picked) and (count == 1 or wanted == picked.tolist())
    target = out if as_picked else None
    if target is None:
        target = np.empty((count, *shape), np.uint8)
    elif target.shape != (count, *shape) or target.dtype != np.uint8:
        raise UsageError(f"{where}: out is {target.dtype} {target.shape}, wanted is uint8 {(count, *shape)}")
    kind = StreamKind(video.decoder, "h264", video.pixel_format, width, height)
    decoder = video.decoders.take(kind)
    done = 0
    while done < count:
        start = starts[done]
        if start is None:
            raise CorruptError(f"{where}: the frame of {int(messages.time[wanted[done]])} ns has no IDR before it")
        stop = done + 1
        while stop < count and starts[stop] == start:
            stop += 1
        try:
            packets = messages.packets(start, wanted[stop - 1] + 1)
            decoder.decode(packets, [index - start for index in wanted[done:stop]], target[done:stop])
        except CorruptError as exc:
            raise CorruptError(f"{where}: GOP of {int(messages.time[start])} ns is rejected: {exc}") from exc
        done = stop
    if as_picked:
        return target
    return np.take(target, np.searchsorted(wanted, picked), axis=0, out=out)


def _size_of(messages: Messages, frames: Frames, where: str) -> tuple[int, int]:
    """(width, height) by the parameter set of the IDR that the first frame depends on."""
    start = frames.starts[0]
    if start is not None:
        info = check_packet(bytes(messages.packets(start, start + 1)[0]), where=where)
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
    for run in messages.by_chunk(picked):
        rows = _bulk(topic, run)
        out.append(_one_by_one(topic, messages, run.picked, where) if rows is None else rows)
    return out[0] if len(out) == 1 else np.concatenate(out)


def _bulk(topic: TopicReceipt, run: Run) -> NDArray[np.float64] | None:
    """Rows of messages that all equal the template in its constant bytes; None where any does not."""
    n = len(run.picked)
    if run.even is not None:
        first, step, length = run.even
        template = _template_at(topic, run.data, first, length)
        return None if template is None else template.read(run.data, first, step, n)
    start, end = run.places
    length = int(end[0] - start[0])
    if np.count_nonzero(end - start != length):
        return None
    template = _template_at(topic, run.data, int(start[0]), length)
    if template is None:
        return None
    table = np.frombuffer(run.data, np.uint8)[start[:, None] + np.arange(length)]
    return template.read(table, 0, length, n)


def _template_at(topic: TopicReceipt, data: memoryview, first: int, length: int) -> JointTemplate | None:
    """The topic's template with the frame_id of a message, if that has the template's length."""
    if not topic.names or not topic.fields or length < 20:
        return None
    text = int.from_bytes(data[first + 12 : first + 16], "little")
    if not 1 <= text <= length - 16:
        return None
    try:
        template = _template(topic.names, topic.fields, str(data[first + 16 : first + 15 + text], "utf-8"))
    except UnicodeDecodeError:
        return None
    return template if len(template.data) == length else None


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
