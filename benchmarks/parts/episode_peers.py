"""What benchmarks/episode_format.py measures with: a counting proxy, the bare decoder, stock readers."""

from __future__ import annotations

import contextlib
import io
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

import av
import numpy as np
import zstandard
from mcap.reader import make_reader

from kinemill.episode.proto import video_bytes
from kinemill.store.embedded import S3Server
from kinemill.store.s3 import S3Store
from parts.episode_recording import HEIGHT, STATE_STEP, WIDTH, Packets, stamp

# ---- requests, counted outside


@dataclass
class Proxy:
    """A TCP proxy that counts HTTP requests and the bytes that come back."""

    target: tuple[str, int]
    requests: int = 0
    bytes_back: int = 0
    port: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _open: list[socket.socket] = field(default_factory=list)

    def serve(self) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self._open += [client, server]
            threading.Thread(target=self._up, args=(client, server), daemon=True).start()
            threading.Thread(target=self._down, args=(server, client), daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                with self._lock:
                    self.requests += data.count(b" HTTP/1.1\r\n")
                server.sendall(data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    def _down(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 18):
                with self._lock:
                    self.bytes_back += len(data)
                client.sendall(data)
        client.close()
        server.close()

    def close(self) -> None:
        """End all connections."""
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def take(self) -> tuple[int, int]:
        """Requests and bytes since the last call."""
        with self._lock:
            found = (self.requests, self.bytes_back)
            self.requests = self.bytes_back = 0
        return found


@contextlib.contextmanager
def counted_store() -> Iterator[tuple[S3Store, Proxy]]:
    """A store on a real S3 server, through the proxy."""
    with S3Server() as server:
        host, port = server.endpoint.removeprefix("http://").split(":")
        proxy = Proxy((host, int(port)))
        listener = proxy.serve()
        address = replace(server.address, endpoint=f"http://127.0.0.1:{proxy.port}")
        try:
            yield S3Store(address, server.credentials), proxy
        finally:
            listener.close()
            proxy.close()
            server.kill()  # what it holds is thrown away, and told to stop it sometimes takes 20 s


# ---- decoders and readers


class BareDecoder:
    """The decoder alone, on packets that are already at hand: the physical bound."""

    def __init__(self, streams: list[Packets]) -> None:
        self._streams = streams
        self._contexts = []
        for _ in streams:
            context = av.VideoCodecContext.create("h264", "r")
            context.thread_count = 1
            context.thread_type = "NONE"
            context.options = {"flags": "+low_delay"}
            self._contexts.append(context)

    def clip(self, out: list[np.ndarray]) -> None:
        """Every frame of every camera."""
        for stream, context, pictures_out in zip(self._streams, self._contexts, out, strict=True):
            context.flush_buffers()
            for (_, data, _), picture in zip(stream, pictures_out, strict=True):
                (frame,) = context.decode(av.Packet(data))
                planes(frame, picture)


def planes(frame: Any, out: np.ndarray) -> None:
    """A frame's planes into one array; the copy that any user of a decoder makes."""
    at = out.reshape(-1)
    done = 0
    for plane, (height, width) in zip(
        frame.planes, ((HEIGHT, WIDTH), (HEIGHT // 2, WIDTH // 2), (HEIGHT // 2, WIDTH // 2)), strict=True
    ):
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)[:height, :width]
        at[done : done + height * width].reshape(height, width)[:] = lines
        done += height * width


class NoDecoder:
    """Takes packets and makes no picture: what is left of a read is not decoding."""

    def __init__(self, *_: object) -> None:
        pass

    def reset(self) -> None:
        """Nothing to forget."""

    def decode(self, packets: Any, wanted: Any, out: Any) -> None:
        """Nothing."""


class TimedZstd:
    """A decompressor that keeps what its unpacking costs, so that it can be taken off.

    Attributes:
        cpu_ns: CPU time inside the library since it was set to 0.
    """

    def __init__(self) -> None:
        self._library = zstandard.ZstdDecompressor()
        self._stream: Any = None
        self.cpu_ns = 0

    def stream_reader(self, data: memoryview) -> Self:
        """As the library's; one stream at a time."""
        self._stream = self._library.stream_reader(data)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def readinto(self, room: memoryview) -> int:
        """As the library's."""
        start = time.thread_time_ns()
        count: int = self._stream.readinto(room)
        self.cpu_ns += time.thread_time_ns() - start
        return count


class Slices:
    """A store that hands out slices of a file in memory: transport costs nothing."""

    url = "slices://"

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> memoryview:
        """As a store."""
        return self._data[start : start + length]

    def get_ranges(self, key: str, ranges: list[tuple[int, int]]) -> list[memoryview]:
        """As a store."""
        return [self._data[start : start + length] for start, length in ranges]


class StockReader:
    """The mcap package's reader, its summary already loaded, and decoder contexts that are kept."""

    def __init__(self, data: bytes, codec: str, cameras: int) -> None:
        from mcap_ros2.decoder import DecoderFactory

        self._reader = make_reader(io.BytesIO(data))
        summary = self._reader.get_summary()
        assert summary is not None
        self._summary = summary
        self._codec = codec
        self._contexts = {f"/cam/{c}": self._context() for c in range(cameras)}
        schemas = {s.name: s for s in summary.schemas.values()}
        decode = DecoderFactory().decoder_for("cdr", schemas["sensor_msgs/msg/JointState"])
        assert decode is not None
        self.decode_state: Callable[[bytes], Any] = decode

    def _context(self) -> Any:
        context = av.VideoCodecContext.create("h264" if self._codec == "h264" else "mjpeg", "r")
        context.thread_count = 1
        context.thread_type = "NONE"
        context.options = {"flags": "+low_delay"}
        return context

    def messages(self, topics: list[str], start: int, end: int) -> Iterator[tuple[Any, Any, Any]]:
        """Raw messages with start <= t < end."""
        return iter(self._reader.iter_messages(topics, starting_at=start, ending_before=end))

    def samples(self, frames: list[int], gop: int) -> None:
        """Many samples."""
        for k in frames:
            self.sample(k, gop)

    def sample(self, k: int, gop: int) -> None:
        """A frame of each camera and 50 steps of two states."""
        t = stamp(k)
        start = stamp(k // gop * gop)
        topics = list(self._contexts)
        if self._codec == "h264":
            for context in self._contexts.values():
                context.flush_buffers()
        last = {}
        for _, channel, message in self._reader.iter_messages(topics, starting_at=start, ending_before=t + 1):
            payload, _ = video_bytes(memoryview(message.data)) if self._codec == "h264" else (still(message.data), "")
            last[channel.topic] = self._contexts[channel.topic].decode(av.Packet(bytes(payload)))[0]
        for frame in last.values():
            planes(frame, np.empty((HEIGHT * 3 // 2, WIDTH), np.uint8))
        rows = [
            self.decode_state(message.data).position
            for _, _, message in self._reader.iter_messages(
                ["/state/0", "/state/1"], starting_after=t - STATE_STEP, ending_before=t + 50 * STATE_STEP
            )
        ]
        np.array(rows)


def still(data: bytes) -> memoryview:
    """The picture of a CompressedImage."""
    from kinemill.episode.proto import top_fields

    return next(v for n, v in top_fields(data) if n == 2 and isinstance(v, memoryview))
