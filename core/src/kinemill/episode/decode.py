"""Video decoders: packets of one camera in, pictures out.

A `Decoder` is fed from an IDR on, one packet at a time, and gives one picture for each. FFmpeg
hides damage: it invents pictures for lost packets and flags only some. So the reader verifies
bytes before it decodes, and a decoder that flags anything, or gives another number of pictures
than packets, rejects the whole GOP.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np

from kinemill.episode.pixels import PixelFormat
from kinemill.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DECODERS", "Decoder", "DecoderPool", "Lent", "PyAvDecoder", "StreamKind"]

_RESTING: Final = 16


@runtime_checkable
class Decoder(Protocol):
    """Decodes one stream at a time; reused for others after `reset`. Not thread-safe."""

    def reset(self) -> None:
        """Forget the stream; the next packet is an IDR."""
        ...

    def decode(self, packets: Sequence[memoryview], wanted: Sequence[int], out: NDArray[np.uint8]) -> None:
        """Decode packets in order and write the pictures of some of them.

        Args:
            packets: Annex B access units. The first one is an IDR, or follows the last one of the
                call before.
            wanted: Indices into `packets`, increasing.
            out: uint8 [len(wanted), *picture_shape].

        Raises:
            CorruptError: A picture is missing, one too many, damaged, or of another size.
        """
        ...


class PyAvDecoder:
    """FFmpeg's software decoder through PyAV, one thread: the tested default."""

    def __init__(self, codec: str, pixel_format: PixelFormat, width: int, height: int) -> None:
        import av
        from av.video.reformatter import VideoReformatter

        self._codec = codec
        self._format = pixel_format
        self._size = (width, height)
        self._packet: Any = av.Packet
        self._convert = VideoReformatter()
        self._context = self._open()
        self._used = False

    def _open(self) -> Any:
        import av

        context = av.VideoCodecContext.create(self._codec, "r")
        context.thread_count = 1
        context.thread_type = "NONE"
        # explode: damage is an error, not a guess. low_delay: one packet in, one picture out.
        context.options = {"err_detect": "explode", "flags": "+low_delay", "flags2": "-showall"}
        return context

    def reset(self) -> None:
        """Forget the stream; the context is kept, which saves 0.5 ms a camera."""
        if self._used:
            self._context.flush_buffers()
            self._used = False

    def decode(self, packets: Sequence[memoryview], wanted: Sequence[int], out: NDArray[np.uint8]) -> None:
        """As `Decoder.decode`."""
        import av

        self._used = True
        place = {index: k for k, index in enumerate(wanted)}
        try:
            for i, packet in enumerate(packets):
                frames = self._context.decode(self._packet(packet))
                if len(frames) != 1:
                    raise CorruptError(f"packet {i} of {len(packets)} gave {len(frames)} pictures")
                frame = frames[0]
                if frame.is_corrupt:
                    raise CorruptError(f"packet {i} of {len(packets)} is flagged as damaged")
                if (frame.width, frame.height) != self._size:
                    raise CorruptError(
                        f"a picture of {frame.width} x {frame.height} in a stream of {self._size[0]} x {self._size[1]}"
                    )
                k = place.get(i)
                if k is not None:
                    self._write(frame, out[k])
        except av.FFmpegError as exc:
            self._context = self._open()
            raise CorruptError(f"packet {i} of {len(packets)} does not decode ({exc})") from exc
        except CorruptError:
            self._context = self._open()
            raise

    def _write(self, frame: Any, out: NDArray[np.uint8]) -> None:
        if self._format == "rgb24":
            picture = self._convert.reformat(frame, format="rgb24", threads=1)
            _copy_plane(picture.planes[0], out.reshape(out.shape[0], -1))
            return
        if frame.format.name not in ("yuv420p", "yuvj420p"):
            raise CorruptError(f"a picture in {frame.format.name}, expected yuv420p")
        height, width = self._size[1], self._size[0]
        _copy_plane(frame.planes[0], out[:height])
        if self._format == "yuv420p":
            quarter = (height // 2) * (width // 2)
            chroma = out[height:].reshape(2, quarter)
            _copy_plane(frame.planes[1], chroma[0].reshape(height // 2, width // 2))
            _copy_plane(frame.planes[2], chroma[1].reshape(height // 2, width // 2))


def _copy_plane(plane: Any, out: NDArray[np.uint8]) -> None:
    """Copy a plane whose lines may be padded."""
    lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
    out[:] = lines[: out.shape[0], : out.shape[1]]


def _torchcodec(codec: str, pixel_format: PixelFormat, width: int, height: int) -> Decoder:
    from kinemill.episode.decode_torchcodec import TorchcodecDecoder

    return TorchcodecDecoder(codec, pixel_format, width, height, device="cpu")


def _nvdec(codec: str, pixel_format: PixelFormat, width: int, height: int) -> Decoder:
    from kinemill.episode.decode_torchcodec import TorchcodecDecoder

    return TorchcodecDecoder(codec, pixel_format, width, height, device="cuda")


DECODERS: dict[str, Callable[[str, PixelFormat, int, int], Decoder]] = {
    "pyav": PyAvDecoder,
    "torchcodec": _torchcodec,
    "nvdec": _nvdec,
}
"""Decoders by name. `pyav` needs nothing else; the others need torchcodec, `nvdec` also a GPU."""


class StreamKind(NamedTuple):
    """What a decoder was made for; one at rest serves any stream of the same kind."""

    decoder: str
    codec: str
    pixel_format: PixelFormat
    width: int
    height: int


class DecoderPool:
    """Decoders at rest, kept for the next stream of the same kind; at most `limit` of them.

    Thread-safe. After a fork the child starts with an empty pool: a decoder is never used by two
    processes.
    """

    def __init__(self, limit: int = _RESTING) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._resting: list[tuple[StreamKind, Decoder]] = []  # that rested longest first
        self._pid = os.getpid()

    def take(self, key: StreamKind) -> Decoder:
        """A decoder, reset; give it back with `give`."""
        if key.decoder not in DECODERS:
            raise UsageError(f"decoder '{key.decoder}' is not known; there is {', '.join(DECODERS)}")
        decoder = None
        with self._lock_of_process():
            for at in range(len(self._resting) - 1, -1, -1):
                if self._resting[at][0] == key:
                    decoder = self._resting.pop(at)[1]
                    break
        if decoder is None:
            return DECODERS[key.decoder](key.codec, key.pixel_format, key.width, key.height)
        decoder.reset()
        return decoder

    def give(self, decoder: Decoder, key: StreamKind) -> None:
        """Let a decoder rest; the one that rested longest goes when there are too many."""
        with self._lock_of_process():
            self._resting.append((key, decoder))
            if len(self._resting) > self._limit:
                del self._resting[0]

    def __len__(self) -> int:
        return len(self._resting)

    def _lock_of_process(self) -> threading.Lock:
        if self._pid != os.getpid():
            # a lock that another thread held during the fork would never open again
            self._lock = threading.Lock()
            # freeing a codec waits for threads that the fork did not copy: the parent's are kept, unused, for good
            self._parents = self._resting
            self._resting = []
            self._pid = os.getpid()
        return self._lock

    def __reduce__(self) -> tuple[Any, ...]:
        return (DecoderPool, (self._limit,))


class Lent:
    """What one read has of a pool: a decoder for each kind of stream, which serves one stream after the other."""

    __slots__ = ("_held", "_pool")

    def __init__(self, pool: DecoderPool) -> None:
        self._pool = pool
        self._held: dict[StreamKind, Decoder] = {}

    def take(self, kind: StreamKind) -> Decoder:
        """A decoder, reset; it is the caller's until the next call."""
        found = self._held.get(kind)
        if found is None:
            found = self._held[kind] = self._pool.take(kind)
        else:
            found.reset()
        return found

    def give_back(self) -> None:
        """All of them, to rest; not those of a read that failed."""
        for kind, decoder in self._held.items():
            self._pool.give(decoder, kind)
        self._held.clear()


SHARED = DecoderPool()
"""The pool of this process, used by every reader that was given none."""
