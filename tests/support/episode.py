"""Small recordings for the tests of episodes: pictures that can be told apart, states that follow a formula."""

from __future__ import annotations

import functools
import io
from fractions import Fraction
from pathlib import Path

import numpy as np

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode.encode import CameraEncoder, Ticks
from kinemill.episode.topics import Profile, TopicSpec, profile_of
from kinemill.episode.writer import EpisodeWriter
from kinemill.store.memory import MemoryStore

EPISODE = "0192f0c1-7b1e-7c3a-9d2e-5a0f3c1b2d4e"
NS = 1_000_000_000
KEY = "an/episode.mcap"


def picture(camera: int, frame: int, width: int = 64, height: int = 48) -> np.ndarray:
    """A picture whose brightness and moving bar tell camera and frame number: uint8 [H, W, 3]."""
    y, x = np.mgrid[0:height, 0:width]
    image = np.empty((height, width, 3), np.uint8)
    image[..., 0] = 40 + (camera * 37 + y) % 120
    image[..., 1] = 60 + x * 100 // width
    image[..., 2] = 90
    at = frame * 3 % (width - 8)
    image[8 : height - 8, at : at + 8] = (220, 200 - 10 * (frame % 10), 30)
    for bit in range(8):  # the frame number in black and white blocks, which any codec keeps
        image[:8, 8 * bit : 8 * bit + 8] = 255 * (frame >> bit & 1)
    return image


def stamp(frame: int, rate_hz: float = 30.0, t0: int = 5 * NS) -> int:
    """Nominal time of a frame, ns."""
    return t0 + round(frame * NS / rate_hz)


def specs(cameras: int = 2, states: int = 2, *, width: int = 64, height: int = 48, joints: int = 7) -> list[TopicSpec]:
    """Cameras at 30 Hz, states at 200 Hz."""
    names = tuple(f"joint{i}" for i in range(joints))
    found = [TopicSpec(f"/cam/{i}", rate_hz=30, width=width, height=height) for i in range(cameras)]
    return found + [
        TopicSpec(f"/state/{i}", TopicKind.STATE, rate_hz=200, names=names, units="rad") for i in range(states)
    ]


def row(topic: int, t_ns: int, joints: int = 7) -> np.ndarray:
    """The values of a state topic at a time."""
    return topic * 100 + np.arange(joints) + (t_ns % (1000 * NS)) / NS


@functools.cache
def packets(
    camera: int, frames: int, profile: str | Profile = "vla", rate_hz: float = 30.0, width: int = 64, height: int = 48
) -> tuple[tuple[int, bytes, bool], ...]:
    """(time, access unit, idr) of a camera, as the writer would encode it."""
    spec = TopicSpec(f"/cam/{camera}", rate_hz=rate_hz, width=width, height=height)
    chosen = profile_of(profile)
    ticks = Ticks(rate_hz, chosen.gop_frames)
    encoder = CameraEncoder(spec, chosen, ticks)
    out = []
    for k in range(frames):
        encoder.submit(stamp(k, rate_hz), picture(camera, k, width, height))
        out += encoder.take()
    out += encoder.finish()
    return tuple((p.t_ns, p.data, p.idr) for p in out)


def fill(
    writer: EpisodeWriter, *, cameras: int = 2, states: int = 2, frames: int = 30, as_packets: bool = True
) -> None:
    """Write `frames` pictures a camera, and state at 200 Hz over the same time."""
    streams = [packets(c, frames, writer.profile) for c in range(cameras)] if as_packets else []
    end = stamp(frames)
    t_state = stamp(0)
    for k in range(frames):
        t = stamp(k)
        while t_state <= t:
            for i in range(states):
                writer.rows(f"/state/{i}", t_state, row(i, t_state))
            t_state += 5_000_000
        for c in range(cameras):
            if as_packets:
                writer.packet(f"/cam/{c}", streams[c][k][0], streams[c][k][1])
            else:
                writer.frame(f"/cam/{c}", t, picture(c, k))
    while t_state < end:
        for i in range(states):
            writer.rows(f"/state/{i}", t_state, row(i, t_state))
        t_state += 5_000_000


@functools.cache
def small_episode(
    cameras: int = 2, states: int = 2, frames: int = 30, profile: str = "vla", live: bool = False
) -> tuple[bytes, Receipt]:
    """A finished file in memory, and its receipt."""
    sink = io.BytesIO()
    writer = EpisodeWriter(sink, episode_id=EPISODE, profile=profile, topics=specs(cameras, states), live=live)
    fill(writer, cameras=cameras, states=states, frames=frames)
    receipt = writer.close()
    return sink.getvalue(), receipt


def stored(data: bytes, key: str = KEY) -> MemoryStore:
    """A store that holds one object."""
    store = MemoryStore()
    store.put_if_absent(key, data)
    store.requests.clear()
    return store


def written(path: Path, topics: list[TopicSpec], profile: str | Profile = "vla", **options: bool) -> EpisodeWriter:
    """A writer to a file."""
    return EpisodeWriter(path, episode_id=EPISODE, profile=profile, topics=topics, **options)


def encode(
    frames: int, *, width: int = 64, height: int = 48, pixel_format: str = "yuv420p", annexb: bool = True, **x264: str
) -> list[bytes]:
    """Access units straight from x264, with any options: what other recorders write."""
    import av
    from av.video.frame import VideoFrame

    context = av.VideoCodecContext.create("libx264", "w")
    context.width, context.height, context.pix_fmt = width, height, pixel_format
    context.framerate = Fraction(30)
    context.time_base = Fraction(1, 30)
    params = {
        "keyint": "10",
        "scenecut": "0",
        "bframes": "0",
        "repeat-headers": "1",
        "annexb": str(int(annexb)),
        **x264,
    }
    context.options = {"preset": "veryfast", "x264-params": ":".join(f"{k}={v}" for k, v in params.items())}
    out = []
    for k in range(frames):
        frame = VideoFrame.from_ndarray(picture(0, k, width, height), format="rgb24").reformat(format=pixel_format)
        frame.pts = k
        out += [bytes(p) for p in context.encode(frame)]
    return out + [bytes(p) for p in context.encode(None)]


def jpeg(image: np.ndarray) -> bytes:
    """A picture as JPEG."""
    import av
    from av.video.frame import VideoFrame

    context = av.VideoCodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt = image.shape[1], image.shape[0], "yuvj420p"
    context.time_base = Fraction(1, 30)
    context.color_range = 2
    frame = VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuvj420p")
    frame.pts = 0
    return b"".join(bytes(p) for p in [*context.encode(frame), *context.encode(None)])
