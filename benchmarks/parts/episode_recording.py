"""The recording that benchmarks/episode_format.py measures on, as files of ours and as stock MCAP and JPEG."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import av
import numpy as np
from av.video.frame import VideoFrame
from mcap.writer import Writer

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import EpisodeWriter, Layout, Profile, TopicSpec, profile_of
from kinemill.episode.encode import CameraEncoder, Ticks

NS = 1_000_000_000
WIDTH, HEIGHT, CAMERAS, RATE = 640, 480, 4, 30
JOINTS = tuple(f"arm_joint_{i}" for i in range(14))
STATE_STEP = 5_000_000
SCALES = (2, 3, 5, 8, 12, 18, 26)  # of JPEG's quantizer
CONTRAST = 25  # so that JPEG at scale 3 takes 110 to 120 KB a frame, as it does for busy real scenes
PLAIN = replace(profile_of("vla"), tune=None)
LONG = replace(profile_of("vla"), name="plain30", gop_frames=30, tune=None, lookahead=20, x264=())
CLIP = replace(profile_of("world"), name="world")


# ---- pictures


def texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """1/f noise, 0..255."""
    spectrum = np.fft.rfft2(rng.normal(size=(height, width)))
    radius = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)[None, :])
    radius[0, 0] = 1
    image = np.fft.irfft2(spectrum / radius, s=(height, width))
    found: np.ndarray = (128 + CONTRAST * image / image.std()).clip(0, 255)
    return found


def pictures(camera: int, frames: int) -> Iterator[np.ndarray]:
    """Frames of a camera as yuv420p [H * 3 / 2, W]."""
    rng = np.random.default_rng(camera)
    world = texture(rng, HEIGHT, WIDTH + 400)
    chroma = (128 + (texture(rng, HEIGHT // 2, WIDTH // 2) - 128) / 4).astype(np.uint8)
    noise = [rng.normal(0, 2, (HEIGHT, WIDTH)).astype(np.float32) for _ in range(16)]
    patch = texture(rng, 96, 96)
    for k in range(frames):
        shift = (k * 2) % 400 if camera >= 2 else 0
        luma = world[:, shift : shift + WIDTH].copy()
        y, x = 60 + (k * 3) % 300, 80 + (k * 5 + camera * 50) % 440
        luma[y : y + 96, x : x + 96] = patch
        luma += np.roll(noise[k % 16], k * 7, axis=1)
        out = np.empty((HEIGHT * 3 // 2, WIDTH), np.uint8)
        out[:HEIGHT] = luma.clip(0, 255)
        out[HEIGHT:] = np.concatenate([chroma.reshape(-1, WIDTH), chroma.reshape(-1, WIDTH)])
        yield out


def stamp(k: int) -> int:
    """Time of frame k."""
    return NS + k * NS // RATE


Packets = list[tuple[int, bytes, bool]]


def encode(images: list[list[np.ndarray]], profile: Profile) -> list[Packets]:
    """Access units of each camera."""
    encoders = []
    for camera, _ in enumerate(images):
        spec = TopicSpec(f"/cam/{camera}", rate_hz=RATE, pixel_format="yuv420p")
        encoders.append(CameraEncoder(spec, profile, Ticks(RATE, profile.gop_frames)))
    out: list[Packets] = [[] for _ in images]
    for k in range(len(images[0])):
        for camera, encoder in enumerate(encoders):
            encoder.submit(stamp(k), images[camera][k])
            out[camera] += [(p.t_ns, p.data, p.idr) for p in encoder.take()]
    for camera, encoder in enumerate(encoders):
        out[camera] += [(p.t_ns, p.data, p.idr) for p in encoder.finish()]
    return out


def luma_psnr(packets: Packets, images: list[np.ndarray]) -> float:
    """PSNR of Y over the frames."""
    errors = []
    context = av.VideoCodecContext.create("h264", "r")
    context.thread_count = 1
    decoded = [f for _, data, _ in packets for f in context.decode(av.Packet(data))] + context.decode(None)
    for frame, image in zip(decoded, images, strict=True):
        luma = frame.to_ndarray()[:HEIGHT].astype(np.float64)
        errors.append(((luma - image[:HEIGHT]) ** 2).mean())
    return float(10 * np.log10(255**2 / np.mean(errors)))


def jpeg(image: np.ndarray, quality: int) -> bytes:
    """FFmpeg's JPEG at a quantizer scale."""
    context: Any = av.VideoCodecContext.create("mjpeg", "w")
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
    context.options = {"qmin": str(quality), "qmax": str(quality)}
    context.time_base = Fraction(1, RATE)
    context.color_range = 2
    frame = VideoFrame.from_ndarray(image, format="yuv420p")
    given = VideoFrame(WIDTH, HEIGHT, "yuvj420p")
    for plane, source in zip(given.planes, frame.planes, strict=True):
        plane.update(bytes(source))
    given.pts = 0
    return b"".join(bytes(p) for p in [*context.encode(given), *context.encode(None)])


def jpeg_curve(images: list[np.ndarray]) -> list[tuple[float, float]]:
    """(PSNR, bytes a frame) of JPEG over its qualities."""
    points = []
    context = av.VideoCodecContext.create("mjpeg", "r")
    for quality in SCALES:
        size, error = 0, []
        for image in images:
            data = jpeg(image, quality)
            size += len(data)
            (frame,) = context.decode(av.Packet(data))
            luma = np.frombuffer(bytes(frame.planes[0]), np.uint8).reshape(HEIGHT, -1)[:, :WIDTH].astype(np.float64)
            error.append(((luma - image[:HEIGHT]) ** 2).mean())
        points.append((float(10 * np.log10(255**2 / np.mean(error))), size / len(images)))
    return sorted(points)


def jpeg_bytes_at(curve: list[tuple[float, float]], psnr: float) -> float:
    """Bytes of a JPEG frame at a PSNR, by interpolation of log size."""
    return float(np.exp(np.interp(psnr, [p for p, _ in curve], [np.log(b) for _, b in curve])))


def repeat(stream: Packets, seconds: float) -> Packets:
    """A stream again and again, with times that go on; it starts with an IDR, so that is a valid stream."""
    frames = int(seconds * RATE)
    return [(stamp(k), stream[k % len(stream)][1], stream[k % len(stream)][2]) for k in range(frames)]


def shuffled(stream: Packets, seconds: float, seed: int) -> Packets:
    """A longer stream of a short one's GOPs in any order, so that lengths of chunks do not repeat."""
    starts = [i for i, packet in enumerate(stream) if packet[2]]
    gops = [stream[a:b] for a, b in zip(starts, [*starts[1:], len(stream)], strict=True)]
    order = np.random.default_rng(seed).integers(0, len(gops), int(seconds * RATE) // len(gops[0]))
    packets = [packet for k in order.tolist() for packet in gops[k]]
    return [(stamp(k), data, idr) for k, (_, data, idr) in enumerate(packets)]


def jpeg_psnr(image: np.ndarray, quality: int) -> float:
    """PSNR of Y of one picture at one quality."""
    (frame,) = av.VideoCodecContext.create("mjpeg", "r").decode(av.Packet(jpeg(image, quality)))
    luma = np.frombuffer(bytes(frame.planes[0]), np.uint8).reshape(HEIGHT, -1)[:, :WIDTH].astype(np.float64)
    return float(10 * np.log10(255**2 / ((luma - image[:HEIGHT]) ** 2).mean()))


# ---- files


def state_rows(seconds: float, step: int = STATE_STEP) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, state rows [n, 42], action rows [n, 14]: smooth motion, noisy sensors, float32 as drivers give it."""
    rng = np.random.default_rng(5)
    t = NS + np.arange(int(seconds * NS / step)) * step
    phase = (t[:, None] / NS) * (1 + np.arange(14) / 7)
    state = np.concatenate([np.sin(phase), np.cos(phase), np.sin(2 * phase)], axis=1)
    state += rng.normal(0, 1e-3, state.shape)
    return t, state.astype(np.float32).astype(np.float64), np.sin(phase + 0.1).astype(np.float32).astype(np.float64)


@dataclass
class Episode:
    """A finished file of ours."""

    data: bytes
    receipt: Receipt

    @property
    def layout(self) -> Layout:
        """As a manifest carries it."""
        return Layout.from_columns(*Layout.from_receipt(self.receipt).columns())


def specs(cameras: int, states: int) -> list[TopicSpec]:
    """Topics: cameras, one full JointState, the others positions only."""
    found = [TopicSpec(f"/cam/{c}", rate_hz=RATE, width=WIDTH, height=HEIGHT) for c in range(cameras)]
    for i in range(states):
        fields = ("position", "velocity", "effort") if i == 0 else ("position",)
        found.append(TopicSpec(f"/state/{i}", TopicKind.STATE, rate_hz=200, names=JOINTS, fields=fields, units="rad"))
    return found


def ours(streams: list[Packets], seconds: float, profile: str | Profile, cameras: int = 4, states: int = 2) -> Episode:
    """An episode of ready packets, cameras repeated where more are asked for than there are."""
    sink = io.BytesIO()
    writer = EpisodeWriter(sink, episode_id=uuid.UUID(int=7), profile=profile, topics=specs(cameras, states))
    t, state, action = state_rows(seconds)
    writer_rows = [state] + [action] * (states - 1)
    for start in range(0, len(t), 20):
        for i in range(states):
            writer.rows(f"/state/{i}", t[start : start + 20], writer_rows[i][start : start + 20])
    for k in range(len(streams[0])):
        for c in range(cameras):
            writer.packet(f"/cam/{c}", streams[c % len(streams)][k][0], streams[c % len(streams)][k][1])
    receipt = writer.close()
    return Episode(sink.getvalue(), receipt)


def stock(streams: list[Packets], seconds: float, *, image: str = "h264") -> bytes:
    """The same messages by the mcap package's own writer: all topics mixed, 1 MiB zstd chunks."""
    from kinemill.episode.cdr import joint_template
    from kinemill.episode.proto import text_field, timestamp, video_prefix, video_suffix
    from kinemill.episode.schemas import schema_for

    sink = io.BytesIO()
    writer = Writer(sink)
    writer.start()
    channels = {}
    for spec in specs(len(streams), 2):
        schema = schema_for(spec)
        name = schema.name if image == "h264" or spec.kind is TopicKind.STATE else "foxglove.CompressedImage"
        number = writer.register_schema(name, schema.encoding, schema.data)
        channels[spec.topic] = writer.register_channel(spec.topic, schema.message_encoding, number)
    t, state, action = state_rows(seconds)
    rows = {
        "/state/0": joint_template(JOINTS, ("position", "velocity", "effort")).encode(t, state),
        "/state/1": joint_template(JOINTS, ("position",)).encode(t, action),
    }
    events = [(int(x), topic, i) for topic in rows for i, x in enumerate(t)]
    events += [(packet[0], f"/cam/{c}", k) for c, stream in enumerate(streams) for k, packet in enumerate(stream)]
    for sequence, (time, topic, i) in enumerate(sorted(events)):
        if topic in rows:
            data = rows[topic][i].tobytes()
        else:
            packet = streams[int(topic[5:])][i][1]
            if image == "h264":
                data = video_prefix(time, b"", len(packet)) + packet + video_suffix("h264")
            else:
                data = timestamp(time) + text_field(2, packet) + text_field(3, b"jpeg")
        writer.add_message(channels[topic], time, data, time, sequence)
    writer.finish()  # type: ignore[no-untyped-call]  # the mcap package leaves it untyped
    return sink.getvalue()
