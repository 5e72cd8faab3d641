"""The decoder of torchcodec, on the CPU or on a GPU (NVDEC). Optional.

torchcodec wants a container, so the packets of a GOP are put into one in memory, without being
re-encoded. It needs libraries of FFmpeg that fit its build; where they are missing, or torchcodec
itself, making the decoder says so.

It makes pictures of a cut P-frame, and of two frames in one packet, where `pyav` refuses both: against those, the
checksums that a reader compares before it decodes are all that guards.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.episode.pixels import PixelFormat
from kinemill.errors import CorruptError, MissingToolError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["TorchcodecDecoder", "mux"]


class TorchcodecDecoder:
    """`Decoder` by torchcodec's VideoDecoder; pictures come as rgb24 only."""

    def __init__(self, codec: str, pixel_format: PixelFormat, width: int, height: int, *, device: str) -> None:
        if pixel_format != "rgb24":
            raise UnsupportedError(f"torchcodec gives rgb24, not {pixel_format}; use decoder 'pyav'")
        try:
            module: Any = importlib.import_module("torchcodec.decoders")
        except (ImportError, OSError, RuntimeError) as exc:
            raise MissingToolError(
                f"torchcodec does not load ({str(exc).splitlines()[0]}); install it with FFmpeg's libraries, or use "
                "decoder 'pyav'"
            ) from exc
        self._make = module.VideoDecoder
        self._codec = codec
        self._size = (width, height)
        self._device = device

    def reset(self) -> None:
        """Nothing is kept between calls."""

    def decode(self, packets: Sequence[memoryview], wanted: Sequence[int], out: NDArray[np.uint8]) -> None:
        """As `Decoder.decode`."""
        try:
            decoder = self._make(
                mux(packets, self._codec), device=self._device, seek_mode="exact", dimension_order="NHWC"
            )
            if decoder.metadata.num_frames != len(packets):
                raise CorruptError(f"{len(packets)} packets gave {decoder.metadata.num_frames} pictures")
            pictures = decoder.get_frames_at(list(wanted)).data.cpu().numpy()
        except (RuntimeError, ValueError, IndexError) as exc:
            raise CorruptError(f"{len(packets)} packets do not decode ({str(exc).splitlines()[0]})") from exc
        if pictures.shape != out.shape:
            raise CorruptError(f"pictures of shape {pictures.shape[1:]} in a stream of {out.shape[1:]}")
        np.copyto(out, pictures)


def mux(packets: Sequence[memoryview], codec: str) -> bytes:
    """The packets as a Matroska file, one picture each 1/30 s."""
    import av

    sink = io.BytesIO()
    try:
        with av.open(io.BytesIO(b"".join(packets)), format=codec) as source, av.open(sink, "w", "matroska") as target:
            stream = target.add_stream_from_template(source.streams.video[0])
            for i, data in enumerate(packets):
                packet = av.Packet(bytes(data))
                packet.stream = stream
                packet.time_base = Fraction(1, 30)
                packet.pts = packet.dts = i
                packet.is_keyframe = i == 0
                target.mux(packet)
    except av.FFmpegError as exc:
        raise CorruptError(f"{len(packets)} packets cannot be put into a container ({exc})") from exc
    return sink.getvalue()
