"""What messages of unusual topics hold, and how much of them one call takes."""

from __future__ import annotations

import io

import pytest
from mcap.writer import Writer

from kinemill.episode import EpisodeReader, Window, reader
from kinemill.errors import LimitError
from kinemill.store.memory import MemoryStore


def test_a_camera_that_is_no_foxglove_protobuf_gives_its_messages_as_they_are() -> None:
    # given a recording whose video is a ROS message, of which nothing here knows the H.264
    sink = io.BytesIO()
    writer = Writer(sink)
    writer.start()
    schema = writer.register_schema("foxglove_msgs/msg/CompressedVideo", "ros2msg", b"")
    channel = writer.register_channel("/cam", "cdr", schema)
    for k in range(3):
        writer.add_message(channel, log_time=10 + k, publish_time=10 + k, data=b"\0\1\0\0" + bytes((k,)) * 9)
    writer.finish()
    store = MemoryStore()
    store.put_if_absent("stock.mcap", sink.getvalue())
    # when a window of it is read
    answer = EpisodeReader.open(store, "stock.mcap").read([Window.at("/cam", [11, 12])])
    # then the messages come as bytes, and no IDR is looked for in them
    assert answer["/cam"][1] == [b"\0\1\0\0" + bytes((k,)) * 9 for k in (1, 2)]


def test_chunks_of_one_call_share_one_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    # given three chunks that are small only as long as they are packed
    sink = io.BytesIO()
    writer = Writer(sink, chunk_size=1)
    writer.start()
    channel = writer.register_channel("/zeros", "", writer.register_schema("x", "", b""))
    for k in range(3):
        writer.add_message(channel, log_time=10 + k, publish_time=10 + k, data=bytes(500_000))
    writer.finish()
    store = MemoryStore()
    store.put_if_absent("bomb.mcap", sink.getvalue())
    episode = EpisodeReader.open(store, "bomb.mcap")
    assert len(sink.getvalue()) < 10_000
    monkeypatch.setattr(reader, "MAX_UNPACKED", 1_200_000)
    # when, then: two are within the bound, three are not
    assert len(episode.read([Window.at("/zeros", [10, 11])])["/zeros"][1]) == 2
    with pytest.raises(LimitError, match="would unpack to 500"):
        episode.read([Window.at("/zeros", [10, 11, 12])])
