"""The storages of ROS bags, row by row: MCAP and sqlite3 of ROS 2, and the bag files of ROS 1.

Stock bag readers join metadata and tables by name, type and QoS, and yield nothing at all where those
differ; here the rows are read as they lie and the metadata are only compared with them.
"""

from __future__ import annotations

import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kinemill.errors import CorruptError, DataError, TruncatedError, UnsupportedError

__all__ = ["Channel", "Row", "rows", "unpack"]

MAX_RECORD_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Channel:
    """One topic of one file."""

    topic: str
    type: str
    """Message type, always in the form `package/msg/Name`."""
    encoding: str
    """`cdr`, `ros1`, `protobuf`, `json`, ..."""
    definition: str | None
    """The type's text where the file has one."""
    definition_kind: str
    """`ros2msg`, `protobuf`, ..."""
    raw_definition: bytes = b""


class Row(NamedTuple):
    """One message as stored."""

    channel: Channel
    log_ns: int
    publish_ns: int
    data: bytes


def full_type(name: str) -> str:
    """`std_msgs/String` and `std_msgs/msg/String` are one type; the second form is the one in use."""
    package, _, rest = name.partition("/")
    return name if not rest or "/" in rest or "." in name else f"{package}/msg/{rest}"


def rows(path: Path, channels: dict[str, Channel] | None = None, notes: set[str] | None = None) -> Iterator[Row]:
    """Every message of one storage file, as it lies there.

    Args:
        path: An `.mcap`, `.db3` or `.bag` file.
        channels: Filled with every topic on the way, those without a message included.
        notes: Gets `no_checksums` where the file has none, so that damage in it could not be noticed.

    Raises:
        TruncatedError: It ends too early (after all messages that are whole).
        CorruptError: A checksum or a table is wrong.
        UnsupportedError: None of these.
    """
    if path.suffix == ".mcap":
        yield from _mcap(path, {} if channels is None else channels, set() if notes is None else notes)
    elif path.suffix == ".db3":
        yield from _sqlite(path, {} if channels is None else channels)
    elif path.suffix == ".bag":
        yield from _rosbag1(path, {} if channels is None else channels)
    else:
        raise UnsupportedError(f"{path.name}: storage '{path.suffix}' is none of .mcap, .db3, .bag")


def _rosbag1(path: Path, found: dict[str, Channel]) -> Iterator[Row]:
    """In order of time, which need not be that of the file."""
    from rosbags.rosbag1 import Reader, ReaderError

    count = 0
    try:
        with Reader(path) as reader:
            topics: dict[int, Channel] = {}
            for connection in reader.connections:
                text = connection.msgdef.data
                topics[connection.id] = Channel(connection.topic, connection.msgtype, "ros1", text, "ros1msg")
                found.setdefault(connection.topic, topics[connection.id])
            expected = reader.message_count
            for connection, stamp, data in reader.messages():
                count += 1
                yield Row(topics[connection.id], stamp, stamp, bytes(data))
    except ReaderError as exc:
        text = str(exc)
        if "index" in text.lower() or "Header" in text:
            raise TruncatedError(
                f"{path.name}: its index is not there or damaged, as after a recorder that was cut off: "
                "run `rosbag reindex` on it and send it again"
            ) from exc
        raise CorruptError(f"{path.name}: not a sound ROS 1 bag ({text})") from exc
    except (
        struct.error,
        EOFError,
        ValueError,
        RuntimeError,
        OSError,
        AssertionError,
        ArithmeticError,
        LookupError,
    ) as exc:
        raise CorruptError(f"{path.name}: a record is damaged after {count} messages ({exc})") from exc
    if count != expected:
        raise DataError(f"{path.name}: {count} messages read, its index names {expected}")


def _mcap(path: Path, found: dict[str, Channel], notes: set[str]) -> Iterator[Row]:
    import zstandard
    from mcap import exceptions as mcap_errors
    from mcap import records
    from mcap.stream_reader import StreamReader, breakup_chunk

    schemas: dict[int, records.Schema] = {}
    channels: dict[int, Channel] = {}
    count = 0
    finished = False
    with path.open("rb") as file:
        try:
            reader = StreamReader(file, emit_chunks=True, validate_crcs=True, record_size_limit=MAX_RECORD_BYTES)

            def unpacked() -> Iterator[object]:
                for record in reader.records:
                    if isinstance(record, records.Chunk):
                        if record.uncompressed_size > MAX_RECORD_BYTES:
                            raise CorruptError(f"{path.name}: a chunk claims {record.uncompressed_size} bytes")
                        if not record.uncompressed_crc:
                            notes.add("no_checksums")
                        yield from breakup_chunk(record, validate_crc=True)
                    else:
                        yield record

            for record in unpacked():
                if isinstance(record, records.Schema):
                    schemas[record.id] = record
                elif isinstance(record, records.Channel):
                    channels[record.id] = _channel(record, schemas.get(record.schema_id))
                    found.setdefault(record.topic, channels[record.id])
                elif isinstance(record, records.Message):
                    if record.channel_id not in channels:
                        raise CorruptError(f"{path.name}: a message of undeclared channel {record.channel_id}")
                    count += 1
                    yield Row(channels[record.channel_id], record.log_time, record.publish_time, record.data)
                elif isinstance(record, records.Footer):
                    finished = True
        except mcap_errors.InvalidMagic as exc:
            if finished or count or channels:
                raise TruncatedError(f"{path.name}: it ends without its closing bytes after {count} messages") from exc
            raise CorruptError(f"{path.name}: it does not start like an MCAP file") from exc
        except (mcap_errors.EndOfFile, struct.error, EOFError) as exc:
            raise TruncatedError(
                f"{path.name}: it ends in the middle of a record after {count} whole messages: "
                "the copy or the recorder was cut off; send the file again"
            ) from exc
        except (
            mcap_errors.McapError,
            zstandard.ZstdError,
            RuntimeError,
            ValueError,
            ArithmeticError,
            LookupError,
        ) as exc:
            raise CorruptError(f"{path.name}: a record is damaged after {count} messages ({exc})") from exc
        except MemoryError as exc:
            text = f"{path.name}: a record claims more bytes than can be had, after {count} messages"
            raise CorruptError(text) from exc
    if not finished:
        raise TruncatedError(f"{path.name}: it has no footer after {count} messages: the recorder was cut off")


def _channel(record: object, schema: object) -> Channel:
    from mcap import records

    assert isinstance(record, records.Channel)  # noqa: S101 - for the type checker
    name, kind, data = "", "", b""
    if isinstance(schema, records.Schema):
        name, kind, data = schema.name, schema.encoding, schema.data
    text = data.decode("utf-8", "replace") if kind == "ros2msg" else None
    return Channel(record.topic, full_type(name), record.message_encoding, text, kind, data)


def _sqlite(path: Path, found: dict[str, Channel]) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="kinemill-bag-") as scratch:
        journal = path.with_name(path.name + "-wal")
        if journal.is_file() and journal.stat().st_size:
            # Rows may still stand in the journal only. The drop is never written to, so read a copy.
            copy = Path(scratch) / path.name
            shutil.copyfile(path, copy)
            shutil.copyfile(journal, copy.with_name(journal.name))
            target, mode = copy, "mode=rw"
        else:
            target, mode = path, "mode=ro&immutable=1"
        from urllib.parse import quote

        try:
            with closing(sqlite3.connect(f"file:{quote(str(target.absolute()))}?{mode}", uri=True)) as base:
                yield from _table_rows(base, path, found)
        except sqlite3.DatabaseError as exc:
            raise CorruptError(f"{path.name}: not a sound sqlite3 file ({exc})") from exc


def _table_rows(base: sqlite3.Connection, path: Path, found: dict[str, Channel]) -> Iterator[Row]:
    tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"topics", "messages"} <= tables:
        raise CorruptError(f"{path.name}: no tables 'topics' and 'messages': not a ROS 2 bag")
    definitions: dict[str, tuple[str, str]] = {}
    if "message_definitions" in tables:
        query = "SELECT topic_type, encoding, encoded_message_definition FROM message_definitions"
        definitions = {full_type(t): (e, d) for t, e, d in base.execute(query)}
    topics: dict[int, Channel] = {}
    for key, name, kind, encoding in base.execute("SELECT id, name, type, serialization_format FROM topics"):
        how, text = definitions.get(full_type(kind), ("", None))
        topics[key] = Channel(name, full_type(kind), encoding, text or None, how)
        found.setdefault(name, topics[key])
    (expected,) = base.execute("SELECT count(*) FROM messages").fetchone()
    read = 0
    for topic_id, stamp, data in base.execute("SELECT topic_id, timestamp, data FROM messages ORDER BY timestamp, id"):
        if topic_id not in topics:
            raise CorruptError(f"{path.name}: a message of topic id {topic_id}, which the table does not name")
        read += 1
        yield Row(topics[topic_id], stamp, stamp, bytes(data))
    if read != expected:
        raise DataError(f"{path.name}: {read} messages read, the table holds {expected}")


def unpack(data: bytes, where: str, *, limit: int = MAX_RECORD_BYTES) -> bytes:
    """A message that was compressed on its own (rosbag2's compression mode MESSAGE).

    Raises:
        CorruptError: Not zstd, or larger than `limit` when unpacked.
    """
    import zstandard

    try:
        reader = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True)
        out = reader.read(limit + 1)
    except zstandard.ZstdError as exc:
        raise CorruptError(f"{where}: a compressed message does not unpack ({exc})") from exc
    if len(out) > limit:
        raise CorruptError(f"{where}: a compressed message unpacks to more than {limit} bytes")
    return out
