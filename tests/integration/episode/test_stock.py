"""Stock MCAPs of all shapes, read in place: what is there is read, and what the summary leaves out is said."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from mcap.writer import CompressionType, IndexType, Writer

from kinemill.episode import EpisodeReader, Window
from kinemill.episode.commands import episode
from kinemill.errors import UnsupportedError
from support.episode import KEY, stored


def stock(messages: int = 40, **options: Any) -> bytes:
    """Messages 0, 1, ... of one topic at 0, 1, ... ns, in many chunks."""
    out = io.BytesIO()
    writer = Writer(out, chunk_size=200, **options)
    writer.start()
    channel = writer.register_channel("/a", "json", writer.register_schema("T", "jsonschema", b"{}"))
    for k in range(messages):
        writer.add_message(channel, k, str(k).encode(), k)
    writer.finish()
    return out.getvalue()


@pytest.mark.parametrize(
    "options",
    [
        *({"compression": c} for c in CompressionType),
        {"index_types": IndexType.CHUNK},
        {"use_statistics": False},
        {"use_summary_offsets": False},
        {"enable_crcs": False},
        {"enable_data_crcs": True},
    ],
    ids=str,
)
def test_files_of_any_shape_are_read(options: dict[str, Any]) -> None:
    reader = EpisodeReader.open(stored(stock(**options)), KEY)
    t_ns, data, pad = reader.read([Window.at("/a", [0, 17, 39])])["/a"]
    assert (t_ns.tolist(), data, pad.any()) == ([0, 17, 39], [b"0", b"17", b"39"], False)
    assert reader.read([Window.between("/a", 0, 100)])["/a"][1] == [str(k).encode() for k in range(40)]


@pytest.mark.parametrize(
    ("options", "lack"),
    [
        ({"use_chunking": False}, "lists no chunk"),
        ({"index_types": IndexType.NONE}, "lists no chunk"),
        ({"index_types": IndexType.MESSAGE}, "lists no chunk"),
        ({"use_statistics": False, "use_chunking": False}, "lists no chunk"),
        ({"repeat_channels": False}, "lists 0 of 1 channels"),
        ({"repeat_channels": False, "use_statistics": False}, "lists 0 of 0 channels"),
        ({"repeat_schemas": False}, "does not repeat the schemas"),
    ],
    ids=str,
)
def test_messages_that_the_summary_does_not_tell_of_are_not_called_missing(
    options: dict[str, Any], lack: str, tmp_path: Path
) -> None:
    """Answers would be padding, as if the topic had no message."""
    data = stock(**options)
    with pytest.raises(UnsupportedError, match=f"{lack}.*repack"):
        EpisodeReader.open(stored(data), KEY)
    # and people are told what is there, and why it is not read
    (tmp_path / "a.mcap").write_bytes(data)
    result = CliRunner().invoke(episode, ["info", str(tmp_path / "a.mcap")])
    assert (result.exit_code, lack in result.output) == (0, True)
    told = json.loads(CliRunner().invoke(episode, ["info", str(tmp_path / "a.mcap"), "--json"]).output)
    assert lack in told["lack"]


def test_a_summary_that_lists_some_chunks_is_not_believed() -> None:
    # given a file whose summary has lost one chunk index, and no checksum
    import struct

    from kinemill.episode import wire

    data = bytearray(stock(enable_crcs=False))
    at = 8
    while data[at] != wire.Op.CHUNK_INDEX:
        at += 9 + struct.unpack_from("<Q", data, at + 1)[0]
    data[at] = 0x80  # a private record, which readers skip
    # when / then
    with pytest.raises(UnsupportedError, match="lists 5 of 6 chunks"):
        EpisodeReader.open(stored(bytes(data)), KEY)


def test_an_empty_file_has_no_topic_and_no_lack() -> None:
    reader = EpisodeReader.open(stored(stock(0)), KEY)
    t_ns, data, pad = reader.read([Window.at("/a", 5)])["/a"]
    assert (t_ns.tolist(), data, pad.tolist()) == ([0], [None], [True])
    assert reader.read([Window.between("/a", 0, 5)])["/a"][0].tolist() == []
