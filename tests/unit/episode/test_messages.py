"""Messages against the libraries that viewers use: what we write, they read, and the other way round."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from foxglove_schemas_protobuf.CompressedVideo_pb2 import CompressedVideo
from foxglove_schemas_protobuf.Log_pb2 import Log
from foxglove_schemas_protobuf.PointCloud_pb2 import PointCloud
from foxglove_schemas_protobuf.RawAudio_pb2 import RawAudio
from foxglove_schemas_protobuf.RawImage_pb2 import RawImage
from hypothesis import given, settings
from hypothesis import strategies as st
from mcap.records import Schema
from mcap_ros2.decoder import DecoderFactory

from kinemill.contracts.episode import TopicKind
from kinemill.episode.cdr import decode_one, joint_template
from kinemill.episode.messages import (
    audio_message,
    depth_message,
    event_message,
    points_message,
    read_image,
    read_text,
    text_message,
)
from kinemill.episode.proto import _video_bytes_slow, text_field, video_bytes, video_prefix, video_suffix
from kinemill.episode.schemas import schema_for
from kinemill.episode.topics import TopicSpec
from kinemill.errors import CorruptError, UnsupportedError, UsageError

T = 1_234_567_890_123_456_789


@given(st.integers(0, (1 << 63) - 1), st.binary(max_size=400), st.booleans())
@settings(max_examples=200, deadline=None)
def test_a_camera_message_is_byte_for_byte_protobuf_s(t_ns: int, data: bytes, framed: bool) -> None:
    # given the same message by the generated code
    frame_id = text_field(2, b"wrist") if framed else b""
    ours = video_prefix(t_ns, frame_id, len(data)) + data + video_suffix("h264")
    theirs = CompressedVideo(frame_id="wrist" if framed else "", data=data, format="h264")
    theirs.timestamp.FromNanoseconds(t_ns)
    # then it parses the same, and (but for empty data, which protobuf leaves out) is the same bytes
    assert CompressedVideo.FromString(ours) == theirs
    if data:
        assert ours == theirs.SerializeToString(deterministic=True)
        assert bytes(video_bytes(memoryview(ours))[0]) == data


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_the_short_way_through_a_camera_message_agrees_with_the_long_one(data: st.DataObject) -> None:
    # given a message, whole or with some of its head or tail changed
    frame_id = data.draw(st.sampled_from([b"", text_field(2, b"wrist"), text_field(2, b"w" * 101)]))
    size = data.draw(st.sampled_from([0, 1, 100, 127, 128, 129, 300, 16383, 16384, 20000]))
    t_ns = data.draw(st.integers(0, (1 << 63) - 1))
    raw = bytearray(video_prefix(t_ns, frame_id, size) + bytes(size) + video_suffix("h264"))
    for _ in range(data.draw(st.integers(0, 2))):
        at = data.draw(st.integers(-12, 40)) % len(raw)
        raw[at] ^= data.draw(st.integers(1, 255))
    view = memoryview(raw)
    # when the general reader takes it
    try:
        payload, codec = _video_bytes_slow(view)
    except CorruptError:
        # then the quick one refuses it as well
        with pytest.raises(CorruptError):
            video_bytes(view)
        return
    # or gives the same
    found = video_bytes(view)
    assert (bytes(found[0]), found[1]) == (bytes(payload), codec)


@pytest.mark.parametrize("fields", [("position",), ("position", "velocity", "effort"), ("velocity",)])
@pytest.mark.parametrize("frame_id", ["", "base", "b"])
def test_rows_are_read_by_the_stock_ros_decoder(fields: tuple[str, ...], frame_id: str) -> None:
    # given
    names = ("a", "joint two", "Gelenk ä")
    template = joint_template(names, fields, frame_id)
    t = np.array([T, T + 5_000_000])
    values = np.arange(2 * template.columns, dtype=np.float64).reshape(2, -1) / 7
    rows = template.encode(t, values)
    # when the stock decoder reads one
    schema = schema_for(TopicSpec("/s", TopicKind.STATE, names=names, fields=fields))
    decode = DecoderFactory().decoder_for(
        "cdr", Schema(1, data=schema.data, encoding=schema.encoding, name=schema.name)
    )
    message = decode(rows[1].tobytes())
    # then
    assert message.header.frame_id == frame_id
    assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == T + 5_000_000
    assert list(message.name) == list(names)
    assert np.concatenate([getattr(message, f) for f in fields]).tolist() == values[1].tolist()
    # and our own two readers agree
    found = template.read(rows.reshape(-1), 0, rows.shape[1], len(rows))
    assert found is not None
    np.testing.assert_array_equal(found, values)
    assert np.concatenate(decode_one(rows[0].tobytes())[2]).tolist() == values[0].tolist()


def test_a_changed_name_is_seen_by_the_template() -> None:
    template = joint_template(("a", "b"), ("position",))
    rows = template.encode(np.array([1, 2]), np.zeros((2, 2)))
    assert template.read(rows.reshape(-1), 0, rows.shape[1], 2) is not None
    rows[1, 30] ^= 1
    assert template.read(rows.reshape(-1), 0, rows.shape[1], 2) is None


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_any_bytes_as_cdr_end_in_a_typed_error_or_an_answer(data: bytes) -> None:
    for read in (decode_one, read_text):
        with contextlib.suppress(CorruptError, UnsupportedError):
            read(b"\0\1\0\0" + data)


def test_absurd_lengths_in_cdr_take_no_memory() -> None:
    with pytest.raises(CorruptError, match="declares"):
        decode_one(b"\0\1\0\0" + bytes(8) + b"\1\0\0\0\0\0\0\0" + b"\xff\xff\xff\x7f")


@pytest.mark.parametrize(
    ("image", "encoding"),
    [
        (np.arange(48 * 64, dtype=np.uint16).reshape(48, 64) * 21, "16UC1"),
        (np.linspace(0, 9, 48 * 64, dtype=np.float32).reshape(48, 64), "32FC1"),
        (np.arange(48 * 64, dtype=np.uint8).reshape(48, 64), "mono8"),
        (np.arange(48 * 64 * 3, dtype=np.uint8).reshape(48, 64, 3), "rgb8"),
    ],
)
def test_depth_is_lossless_and_a_raw_image(image: np.ndarray, encoding: str) -> None:
    data, size = depth_message(TopicSpec("/d", TopicKind.DEPTH, frame_id="cam"), T, image)
    message = RawImage.FromString(data)
    assert (message.width, message.height, message.encoding, message.frame_id) == (64, 48, encoding, "cam")
    assert size == (64, 48)
    assert message.timestamp.ToNanoseconds() == T
    np.testing.assert_array_equal(read_image(data), image)


def test_depth_of_another_type_is_refused() -> None:
    with pytest.raises(UsageError, match="float64"):
        depth_message(TopicSpec("/d", TopicKind.DEPTH), 0, np.zeros((4, 4)))


def test_a_depth_message_that_lies_about_its_size_is_refused() -> None:
    data, _ = depth_message(TopicSpec("/d", TopicKind.DEPTH), 0, np.zeros((4, 4), np.uint16))
    message = RawImage.FromString(data)
    message.height = 1 << 30
    with pytest.raises(CorruptError, match="RawImage"):
        read_image(message.SerializeToString())


def test_audio_lidar_events_and_text() -> None:
    sound = RawAudio.FromString(
        audio_message(TopicSpec("/a", TopicKind.AUDIO), T, np.arange(8, dtype=np.int16), 16_000)
    )
    assert (sound.format, sound.sample_rate, sound.number_of_channels, len(sound.data)) == ("pcm-s16", 16_000, 1, 16)
    cloud = PointCloud.FromString(
        points_message(
            TopicSpec("/l", TopicKind.LIDAR, frame_id="lidar"), T, np.arange(12, dtype=np.float32).reshape(3, 4)
        )
    )
    assert [(f.name, f.offset, f.type) for f in cloud.fields] == [
        ("x", 0, 7),
        ("y", 4, 7),
        ("z", 8, 7),
        ("intensity", 12, 7),
    ]
    assert (cloud.point_stride, cloud.pose.orientation.w, len(cloud.data)) == (16, 1.0, 48)
    log = Log.FromString(event_message(TopicSpec("/e", TopicKind.EVENT), T, "grasp"))
    assert (log.message, log.name, log.level) == ("grasp", "/e", 2)
    assert read_text(text_message("pick up the Würfel")) == "pick up the Würfel"
