"""Recordings as other people's writers make them, and what the tests of repack ask of the result."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
from mcap.writer import Writer

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeReader
from kinemill.episode.cdr import joint_template
from kinemill.episode.proto import video_prefix, video_suffix
from kinemill.episode.scan import FileSource
from kinemill.episode.schemas import schema_for
from kinemill.episode.topics import TopicSpec
from kinemill.episode.verify import verify
from support.episode import KEY, picture, row, stamp, stored

NAMES = tuple(f"joint{i}" for i in range(7))


def video_message(t_ns: int, data: bytes, codec: str = "h264") -> bytes:
    return video_prefix(t_ns, b"", len(data)) + data + video_suffix(codec)


def stock(
    path: Path,
    cameras: dict[str, list[bytes]],
    *,
    schema: str = "foxglove.CompressedVideo",
    encoding: str = "protobuf",
    make: Callable[[int, bytes], bytes] = video_message,
    **options: object,
) -> Path:
    """A file by the mcap package's own writer: cameras, and a JointState at 100 Hz."""
    with path.open("wb") as out:
        writer = Writer(out, **options)  # type: ignore[arg-type]  # passed through as given
        writer.start()
        known = schema_for(TopicSpec("/x", rate_hz=30))
        video = writer.register_schema(schema, known.encoding if encoding == "protobuf" else "", known.data)
        state = schema_for(TopicSpec("/s", TopicKind.STATE, names=NAMES))
        joint = writer.register_schema(state.name, state.encoding, state.data)
        channels = {topic: writer.register_channel(topic, encoding, video) for topic in cameras}
        channels["/joint_states"] = writer.register_channel("/joint_states", "cdr", joint)
        frames = max((len(v) for v in cameras.values()), default=30)
        template = joint_template(NAMES, ("position",), "base")
        events = [(stamp(k), topic, k) for topic, stream in cameras.items() for k in range(len(stream))]
        events += [(stamp(0) + k * 10_000_000, "/joint_states", k) for k in range(frames * 10 // 3)]
        for t, topic, k in sorted(events):
            if topic == "/joint_states":
                data = template.encode(np.array([t]), row(0, t)[None])[0].tobytes()
            else:
                data = make(t, cameras[topic][k])
            writer.add_message(channels[topic], t, data, t + 5)
        writer.add_attachment(0, 0, "robot.urdf", "application/xml", b"<robot/>")
        writer.add_metadata("site", {"building": "7"})
        writer.finish()
    return path


def read(path: Path) -> EpisodeReader:
    return EpisodeReader.open(stored(path.read_bytes()), KEY)


def sound(path: Path) -> None:
    with FileSource(path) as source:
        assert verify(source, deep=True).findings == []


def is_frame(image: np.ndarray, camera: int, frame: int, frames: int) -> bool:
    errors = [np.abs(image.astype(int) - picture(camera, k)).mean() for k in range(frames)]
    return int(np.argmin(errors)) == frame


def json_message(t: int, data: bytes) -> bytes:
    return json.dumps(
        {"timestamp": {"sec": 1, "nsec": 0}, "data": base64.b64encode(data).decode(), "format": "h264"}
    ).encode()
