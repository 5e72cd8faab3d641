"""Videos in containers: how many pictures there are and when, and the pictures themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill.errors import CorruptError, LimitError, TruncatedError, UnsupportedError
from kinemill.pipelines.adapters.images import MAX_PIXELS, even

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VideoIndex", "index_video", "packets", "pictures"]


@dataclass(frozen=True, slots=True)
class VideoIndex:
    """The packets of the first video stream, in presentation order."""

    codec: str
    pixel_format: str
    width: int
    height: int
    t_s: NDArray[Any]
    """(n,) presentation times as the container has them."""
    key: NDArray[Any]
    """(n,) bool: a key frame."""
    reordered: bool
    """Packets are stored in another order than they are shown: there are B-frames."""

    def between(self, first_s: float, last_s: float) -> NDArray[Any]:
        """Indices of the pictures in [first_s, last_s), each bound half a picture early."""
        import numpy as np

        half = float(np.median(np.diff(self.t_s))) / 2 if len(self.t_s) > 1 else 0.0
        inside = (self.t_s >= first_s - half) & (self.t_s < last_s - half)
        return np.flatnonzero(inside)


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Any]]:
    import av

    try:
        with av.open(str(path), "r", metadata_errors="replace") as container:
            if not container.streams.video:
                raise TruncatedError(f"{path.name}: no video stream inside; the file is cut off or something else")
            stream = container.streams.video[0]
            if stream.codec_context is None:
                raise UnsupportedError(f"{path.name}: a video of a kind that nobody here can decode")
            if stream.codec_context.width * stream.codec_context.height > MAX_PIXELS:
                raise LimitError(f"{path.name}: pictures of {stream.codec_context.width}x{stream.codec_context.height}")
            stream.thread_type = "NONE"
            stream.codec_context.thread_count = 1
            yield container, stream
    except av.error.FFmpegError as exc:
        raise CorruptError(f"{path.name}: the video cannot be read ({exc})") from exc


def index_video(path: Path) -> VideoIndex:
    """What the container holds, without decoding a picture.

    Raises:
        TruncatedError: No video stream.
        CorruptError: The container is damaged.
    """
    import numpy as np

    with _opened(path) as (container, stream):
        times: list[float] = []
        keys: list[bool] = []
        for packet in container.demux(stream):
            if packet.size and packet.pts is not None:
                times.append(float(packet.pts * packet.time_base))
                keys.append(packet.is_keyframe)
        context = stream.codec_context
        t_s = np.array(times)
        order = np.argsort(t_s, kind="stable")
        return VideoIndex(
            codec=context.codec.canonical_name,
            pixel_format=str(context.pix_fmt),
            width=context.width,
            height=context.height,
            t_s=t_s[order],
            key=np.array(keys, dtype=bool)[order],
            reordered=bool((np.diff(t_s) < 0).any()) or bool(context.has_b_frames),
        )


def pictures(path: Path, index: VideoIndex, chosen: NDArray[Any], *, swap: bool = False) -> Iterator[NDArray[Any]]:
    """The chosen pictures (a run of neighbours) as (h, w, 3) uint8 RGB, in order.

    Raises:
        CorruptError: One of them does not decode.
    """
    import numpy as np

    if len(chosen) == 0:
        return
    wanted = index.t_s[chosen]
    half = float(np.median(np.diff(index.t_s))) / 2 if len(index.t_s) > 1 else 1.0
    with _opened(path) as (container, stream):
        if chosen[0] > 0:
            container.seek(int(max(0.0, wanted[0]) / stream.time_base), stream=stream, backward=True)
        given = 0
        for frame in container.decode(stream):
            if frame.pts is None:
                continue
            t_s = float(frame.pts * frame.time_base)
            if t_s < wanted[given] - half:
                continue
            if t_s > wanted[given] + half:
                raise CorruptError(f"{path.name}: the picture at {wanted[given]:.3f} s does not decode")
            image = even(frame.to_ndarray(format="bgr24" if swap else "rgb24"))
            yield image
            given += 1
            if given == len(wanted):
                return
    raise CorruptError(f"{path.name}: {len(wanted) - given} of {len(wanted)} pictures do not decode")


def packets(path: Path, index: VideoIndex, chosen: NDArray[Any]) -> Iterator[bytes]:
    """The chosen pictures (a run that starts with a key frame) as H.264 Annex B access units."""
    from av.bitstream import BitStreamFilterContext

    with _opened(path) as (container, stream):
        annexb = BitStreamFilterContext("h264_mp4toannexb", stream)
        first, last, number = int(chosen[0]), int(chosen[-1]), 0
        for packet in container.demux(stream):
            if not packet.size or packet.pts is None:
                continue
            if number > last:
                return
            for out in annexb.filter(packet):
                if number >= first:
                    yield bytes(out)
            number += 1
