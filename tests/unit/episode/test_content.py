"""What messages of unusual topics hold."""

from __future__ import annotations

import io

from mcap.writer import Writer

from kinemill.episode import EpisodeReader, Window
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
