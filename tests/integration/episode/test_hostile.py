"""Files made to do harm, records moved, cut and changed under right checksums: typed errors, little memory."""

from __future__ import annotations

import functools
import io
import random
import resource
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType, Writer

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeReader, TopicSpec, Window
from kinemill.episode.cdr import joint_template
from kinemill.episode.proto import video_prefix, video_suffix
from kinemill.episode.repack import repack
from kinemill.episode.schemas import schema_for
from kinemill.episode.verify import verify
from kinemill.errors import DataError
from support.episode import KEY, encode, row, small_episode, stamp, stored
from support.episode_records import Bytes, Records, joined, records_of, sealed

NAMES = ("a", "b", "c")
LIMIT_KIB = 150_000
"""More than the small files need, far less than any length in them may claim."""


@functools.cache
def stock(compression: CompressionType | None) -> bytes:
    """A camera and a JointState by the stock writer; None: without chunks."""
    out = io.BytesIO()
    writer = Writer(
        out, chunk_size=3000, use_chunking=compression is not None, compression=compression or CompressionType.NONE
    )
    writer.start()
    video, state = schema_for(TopicSpec("/x", rate_hz=30)), schema_for(TopicSpec("/s", TopicKind.STATE, names=NAMES))
    camera = writer.register_channel(
        "/front", "protobuf", writer.register_schema(video.name, video.encoding, video.data)
    )
    joints = writer.register_channel("/joints", "cdr", writer.register_schema(state.name, state.encoding, state.data))
    template = joint_template(NAMES, ("position",), "base")
    for k, data in enumerate(encode(10)):
        t = stamp(k)
        writer.add_message(camera, t, video_prefix(t, b"", len(data)) + data + video_suffix("h264"), t, k)
        writer.add_message(joints, t, template.encode(np.array([t]), row(0, t, 3)[None])[0].tobytes(), t, k)
    writer.add_attachment(0, 0, "a.urdf", "application/xml", b"<robot/>")
    writer.add_metadata("site", {"building": "7"})
    writer.finish()
    return out.getvalue()


def base(kind: str) -> bytes:
    if kind == "ours":
        return small_episode(1, 1, 10)[0]
    return stock(None if kind == "unchunked" else CompressionType[kind.upper()])


def harmed(rng: random.Random, records: Records) -> bytes:
    """A file after one or two changes of its records."""
    for _ in range(rng.choice([1, 1, 2])):
        at = rng.randrange(len(records))
        op, body = records[at]
        kind = rng.choice(["drop", "repeat", "swap", "cut", "grow", "retype", "number", "number", "number"])
        if kind == "drop":
            del records[at]
        elif kind == "repeat":
            records.insert(rng.randrange(len(records)), (op, bytearray(body)))
        elif kind == "swap":
            other = rng.randrange(len(records))
            records[at], records[other] = records[other], records[at]
        elif kind == "cut":
            records[at] = (op, body[: rng.randrange(len(body) + 1)])
        elif kind == "grow":
            records[at] = (op, body + rng.randbytes(rng.randrange(1, 40)))
        elif kind == "retype":
            records[at] = (rng.choice([*range(17), 0x80, 0xFF]), body)
        elif body:
            size = rng.choice([1, 2, 4, 8])
            low = rng.randrange(max(1, len(body) - size + 1))
            number = rng.choice([b"\xff" * 8, bytes(8), bytes(7) + b"\x7f", b"\1" + bytes(7), rng.randbytes(8)])
            body[low : low + size] = number[: min(size, len(body) - low)]
    data = rng.choice([joined, sealed, sealed])(records)
    return data[: rng.randrange(len(data))] if rng.random() < 0.1 else data


def read_all(data: bytes) -> None:
    """Each topic by time and as a whole; a typed error is an answer."""
    try:
        reader = EpisodeReader.open(stored(data), KEY)
    except DataError:
        return
    for topic in list(reader.topics)[:4]:
        for window in (Window.at(topic, stamp(3)), Window.between(topic, 0, 1 << 62)):
            try:
                reader.read([window])
            except DataError:
                continue


@pytest.mark.parametrize("kind", ["ours", "none", "lz4", "zstd", "unchunked"])
@pytest.mark.parametrize("seeds", [range(40), range(40, 80)], ids=str)
def test_harmed_files_end_in_typed_errors_and_little_memory(kind: str, seeds: range, tmp_path: Path) -> None:
    whole = base(kind)
    read_all(whole)
    verify(Bytes(whole), deep=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in seeds:
        # given
        rng = random.Random(f"{kind} {seed}")
        data = harmed(rng, records_of(whole))
        # when / then: a report, an answer or a typed error; never another exception
        verify(Bytes(data), deep=True)
        read_all(data)
        if seed % 4 == 0:
            target = tmp_path / f"{seed}.mcap"
            try:
                repack(Bytes(data), target)
            except DataError:
                assert not target.exists()
            else:
                assert verify(Bytes(target.read_bytes()), deep=True).ok
                target.unlink()
            assert list(tmp_path.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < LIMIT_KIB
