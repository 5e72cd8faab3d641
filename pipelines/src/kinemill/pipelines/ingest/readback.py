"""Pictures of a finished file, read by the stock MCAP reader and a stock decoder, against what was written."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["undecodable", "worst_psnr"]


def worst_psnr(path: Path, samples: Mapping[str, Sequence[tuple[int, NDArray[Any]]]]) -> dict[str, float]:
    """By topic, the lowest PSNR (dB) of any sample against the picture of that time in the file.

    Args:
        path: The finished file.
        samples: By camera topic, pictures (h, w, 3) RGB and their times.

    A sample that is not in the file counts as 0 dB.
    """
    import av
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap.reader import make_reader

    wanted = {topic: dict(given) for topic, given in samples.items() if given}
    worst = dict.fromkeys(wanted, math.inf)
    found: dict[str, set[int]] = {topic: set() for topic in wanted}
    if not wanted:
        return {}
    decoders: dict[str, Any] = {}
    last = {topic: max(times) for topic, times in wanted.items()}
    with path.open("rb") as file:
        for _, channel, message in make_reader(file, validate_crcs=True).iter_messages(topics=list(wanted)):
            topic = channel.topic
            if message.log_time > last[topic]:
                continue
            if topic not in decoders:
                decoders[topic] = _decoder()
            packet = av.Packet(CompressedVideo.FromString(message.data).data)
            packet.pts = message.log_time
            for frame in decoders[topic].decode(packet):
                _compare(frame, topic, wanted, worst, found)
    for topic, decoder in decoders.items():
        for frame in decoder.decode(None):
            _compare(frame, topic, wanted, worst, found)
    return {topic: value if found[topic] == set(wanted[topic]) else 0.0 for topic, value in worst.items()}


def undecodable(path: Path, expected: Mapping[str, int]) -> dict[str, int]:
    """By camera topic, how many of the `expected` pictures do not come out of a stock decoder whole.

    Args:
        path: The finished file.
        expected: Pictures by topic.
    """
    import av
    from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
    from mcap.reader import make_reader

    decoders: dict[str, Any] = {}
    good = dict.fromkeys(expected, 0)
    with path.open("rb") as file:
        for _, channel, message in make_reader(file, validate_crcs=True).iter_messages(topics=list(expected)):
            if channel.topic not in decoders:
                decoders[channel.topic] = _decoder()
            try:
                frames = decoders[channel.topic].decode(av.Packet(CompressedVideo.FromString(message.data).data))
            except av.error.FFmpegError:
                continue
            good[channel.topic] += sum(not frame.is_corrupt for frame in frames)
    for topic, decoder in decoders.items():
        try:
            good[topic] += sum(not frame.is_corrupt for frame in decoder.decode(None))
        except av.error.FFmpegError:
            continue
    return {topic: max(0, number - good[topic]) for topic, number in expected.items()}


def _decoder() -> Any:
    import av

    decoder: Any = av.CodecContext.create("h264", "r")
    decoder.thread_count = 1
    decoder.options = {"flags": "low_delay", "err_detect": "explode"}
    return decoder


def _compare(
    frame: Any,
    topic: str,
    wanted: Mapping[str, Mapping[int, NDArray[Any]]],
    worst: dict[str, float],
    found: dict[str, set[int]],
) -> None:
    import numpy as np

    original = wanted[topic].get(frame.pts)
    if original is None:
        return
    found[topic].add(frame.pts)
    back = frame.to_ndarray(format="rgb24")
    if back.shape != original.shape:
        worst[topic] = 0.0
        return
    error = float(np.mean((back.astype(np.float32) - original.astype(np.float32)) ** 2))
    worst[topic] = min(worst[topic], 99.0 if error == 0 else 10 * math.log10(255.0**2 / error))
