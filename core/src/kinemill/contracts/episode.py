"""The receipt that a writer returns, and the rendition row that points at its object.

A receipt says everything a reader needs to fetch any window with one ranged read per topic
group, so it rides catalog, warehouse and manifest, and no loader ever reads a file's footer.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

__all__ = ["ChunkTable", "GopTable", "GroupReceipt", "Receipt", "Rendition", "TopicKind", "TopicReceipt"]


class TopicKind(enum.StrEnum):
    """What a topic's messages are; decides its group and its decoder."""

    VIDEO = "video"
    STATE = "state"
    DEPTH = "depth"
    LIDAR = "lidar"
    AUDIO = "audio"
    TACTILE = "tactile"
    TEXT = "text"
    EVENT = "event"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class TopicReceipt:
    """One channel of the file."""

    topic: str
    kind: TopicKind
    channel_id: int
    """MCAP channel id, from 1."""
    schema: str
    """MCAP schema name, such as `foxglove.CompressedVideo`."""
    encoding: str
    """MCAP message encoding: `protobuf`, `cdr`, ..."""
    messages: int
    rate_hz: float | None = None
    """Nominal rate; None where none is known. Never used to find a message."""
    codec: str | None = None
    width: int | None = None
    height: int | None = None
    names: tuple[str, ...] = ()
    """Joint or column names of a state topic, in storage order."""
    units: str | None = None
    fields: tuple[str, ...] = ()
    """Arrays of a JointState that hold values; a row is `names` for the first, then for the next, ..."""


@dataclass(frozen=True, slots=True)
class ChunkTable:
    """The chunks of one group, in file order; every column has the same length.

    `vla` video chunks hold exactly one GOP of all cameras, so there this is the GOP table too.
    """

    offset: tuple[int, ...]
    """Byte offset of the Chunk record's opcode."""
    length: tuple[int, ...]
    """Bytes of the whole record, opcode and length prefix included."""
    t_first_ns: tuple[int, ...]
    t_last_ns: tuple[int, ...]
    messages: tuple[int, ...]
    crc32: tuple[int, ...]
    """CRC-32 of the uncompressed records, as in the Chunk record."""
    runs: tuple[tuple[int, ...], ...] = ()
    """Per topic of the group, its messages in each chunk as run-length pairs: messages, chunks, messages, chunks, ...
    From it follow the sequence numbers that a chunk must hold. Empty where nobody counted."""

    def __post_init__(self) -> None:
        sizes = {len(self.offset), len(self.length), len(self.t_first_ns), len(self.t_last_ns)}
        sizes |= {len(self.messages), len(self.crc32)}
        if len(sizes) != 1:
            raise ValueError("chunk table columns differ in length")
        for run in self.runs:
            if len(run) % 2 or sum(run[1::2]) != len(self.offset):
                raise ValueError("a topic's runs do not cover the chunk table")

    def __len__(self) -> int:
        return len(self.offset)


@dataclass(frozen=True, slots=True)
class GopTable:
    """The GOPs of a video group whose chunks hold several; columns of equal length."""

    chunk: tuple[int, ...]
    """Index into the chunk table."""
    t_first_ns: tuple[int, ...]
    frames: tuple[int, ...]
    """Frames in this GOP, over all cameras."""

    def __post_init__(self) -> None:
        if not len(self.chunk) == len(self.t_first_ns) == len(self.frames):
            raise ValueError("GOP table columns differ in length")

    def __len__(self) -> int:
        return len(self.chunk)


@dataclass(frozen=True, slots=True)
class GroupReceipt:
    """One topic group: a contiguous byte range of whole chunks."""

    name: str
    """`cameras`, `state`, `depth`, `lidar`, `audio`, ..."""
    topics: tuple[TopicReceipt, ...]
    offset: int
    length: int
    """First chunk's first byte to the last one's last, message indexes and padding between them included."""
    messages: int
    t_first_ns: int
    t_last_ns: int
    chunks: ChunkTable
    gops: GopTable | None = None
    """None where a chunk is one GOP, and for groups without video."""
    late_messages: int = 0
    """Messages that came later than the reorder window and lie in a later chunk."""
    skew_ns: int = 0
    """How much later than its chunk a topic may start: a query so near a chunk's start may need the one before."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What `EpisodeWriter.close()` returns: the whole file, described.

    Invariants: groups lie inside the file and do not overlap; times are ns on the episode's own
    clock, which need not be the epoch; `sha256` and `size_bytes` are those of the finished file.
    """

    episode_id: str
    """UUID text, version 7 preferred."""
    profile: str
    size_bytes: int
    sha256: str
    t_first_ns: int
    t_last_ns: int
    groups: tuple[GroupReceipt, ...]
    gop_frames: int | None = None
    """Frames per GOP of the reference (fastest) camera; None without video."""
    missing: tuple[str, ...] = ()
    """Topics that the source promised and did not have."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was set right or noticed on the way: late, repeated_stamps, dropped_frames, ..."""
    writer: str = ""
    """Name and version of the writer."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Rendition:
    """One object of an episode: a profile, its key and its receipt."""

    episode_id: str
    profile: str
    key: str
    receipt: Receipt
    etag: str | None = None
    version: int = 1
