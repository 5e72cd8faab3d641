"""Where every chunk of an episode lies, as a manifest carries it.

`Layout` is all that a reader needs to fetch any window. It comes from a receipt, and travels as
two manifest columns: `topics`, JSON that is the same for all episodes of one robot, and `layout`,
about 0.7 KB for a minute at GOP 5.

The packed form is one deflated stream of varints. Every column is stored as its difference from a
prediction that is exact for a regular recording, so most columns shrink to nothing:

====================  ==================================================================
column                stored as
====================  ==================================================================
length of a chunk     difference from the median, or from the chunk before
gap behind it         difference from what its message indexes take
first time            second difference
last time             difference of durations
messages of a topic   run lengths
====================  ==================================================================
"""

from __future__ import annotations

import functools
import itertools
import json
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill import records
from kinemill.contracts.episode import Receipt, TopicReceipt
from kinemill.episode.counts import Counts, index_bytes
from kinemill.episode.varints import Take, pack_varints, unpack_varints, zigzag
from kinemill.errors import CorruptError, LimitError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["GroupLayout", "Layout"]

VERSION: Final = 1
_DEFLATED: Final = 1
_WITH_CRC: Final = 2
_MAX_PACKED: Final = 32 << 20
_MAX_CHUNKS: Final = 1 << 22
_MAX_COUNTS: Final = 1 << 26
_MAX_LENGTH: Final = 1 << 40
_MAX_TIME: Final = (1 << 63) - 1
_NO_TIME: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class GroupLayout:
    """One group's topics and chunk table (int64 arrays of equal length).

    Attributes:
        name: `cameras`, `state`, ...
        topics: Of the group, by channel id. `messages` is 0 here; `Layout.topics` has the episode's.
        offset: Byte offset of each Chunk record.
        length: Its bytes.
        t_first_ns: First log time in the chunk.
        t_last_ns: Last log time.
        counted: Messages of each topic in each chunk; None for a file that nobody counted.
        crc32: Of the uncompressed records; None where only the chunk itself tells it.
        gop_chunk: Index of the chunk that each GOP starts in; None where every chunk is one GOP.
        skew_ns: How much later than its chunk a topic may start.
        in_order: No chunk starts before the one ahead of it ends.
    """

    name: str
    topics: tuple[TopicReceipt, ...]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    t_first_ns: NDArray[np.int64]
    t_last_ns: NDArray[np.int64]
    counted: Counts | None
    crc32: NDArray[np.int64] | None = None
    gop_chunk: NDArray[np.int64] | None = None
    in_order: bool = True
    skew_ns: int = 0

    @property
    def full(self) -> bool:
        """Every topic has messages in every chunk."""
        return self.counted is not None and self.counted.full

    @property
    def counts(self) -> NDArray[np.int64] | None:
        """Messages, int64 [topics, chunks]; None for a file that nobody counted."""
        return None if self.counted is None else self.counted.table

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def end_ns(self) -> int:
        """Last log time of the group; of one with chunks."""
        return int(self.t_last_ns[-1]) if self.in_order else int(self.t_last_ns.max())


def _length_column(length: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]]:
    """(median, differences from it), or (0, differences from the one before) where those are shorter."""
    base = int(np.median(length))
    by_base, by_step = length - base, np.diff(length, prepend=0)
    if base and np.log2(np.abs(by_base) + 1.0).sum() <= np.log2(np.abs(by_step) + 1.0).sum():
        return base, by_base
    return 0, by_step


# ---- topics as JSON


def _topic_json(topic: TopicReceipt) -> dict[str, Any]:
    plain = records.encode(topic)
    del plain["messages"]
    return {k: v for k, v in plain.items() if v not in (None, [], "")}


@functools.lru_cache(maxsize=256)
def _parse_topics(text: str) -> tuple[tuple[str, tuple[TopicReceipt, ...]], ...]:
    try:
        data = json.loads(text)
        groups = data["groups"]
        if data["v"] != VERSION:
            raise CorruptError(f"topic table of version {data['v']}; this reader knows {VERSION}")
        return tuple(
            (str(g["name"]), tuple(records.decode(TopicReceipt, {**t, "messages": 0}) for t in g["topics"]))
            for g in groups
        )
    except (ValueError, TypeError, KeyError, RecursionError) as exc:
        raise CorruptError(f"topic table is not what a writer wrote: {type(exc).__name__} {exc}") from exc


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """All groups of one episode, in file order."""

    groups: tuple[GroupLayout, ...]

    @classmethod
    def from_receipt(cls, receipt: Receipt) -> Layout:
        """The layout of the file that `receipt` describes."""
        groups = []
        for group in receipt.groups:
            table = group.chunks
            columns = [np.array(c, np.int64) for c in (table.offset, table.length, table.t_first_ns, table.t_last_ns)]
            groups.append(
                GroupLayout(
                    group.name,
                    tuple(replace(t, messages=0) for t in group.topics),
                    columns[0],
                    columns[1],
                    columns[2],
                    columns[3],
                    Counts(table.runs, len(table.offset)) if table.runs else None,
                    np.array(table.crc32, np.int64),
                    None if group.gops is None else np.array(group.gops.chunk, np.int64),
                    _in_order(columns[2], columns[3]),
                    group.skew_ns,
                )
            )
        return cls(tuple(groups))

    @property
    def topics(self) -> dict[str, TopicReceipt]:
        """Every topic by its name, the missing ones too (with no message)."""
        found = {}
        for group in self.groups:
            counted = group.counted
            for i, topic in enumerate(group.topics):
                found[topic.topic] = topic if counted is None else replace(topic, messages=counted.total(i))
        return found

    @property
    def t_first_ns(self) -> int:
        """First log time of the episode; 0 if it has no message."""
        return min((int(g.t_first_ns.min()) for g in self.groups if len(g)), default=0)

    @property
    def t_last_ns(self) -> int:
        """Last log time of the episode; 0 if it has no message."""
        return max((int(g.t_last_ns.max()) for g in self.groups if len(g)), default=0)

    def group_of(self, topic: str) -> GroupLayout | None:
        """The group that holds `topic`; None where no group does."""
        for group in self.groups:
            if any(t.topic == topic for t in group.topics):
                return group
        return None

    # -- the two manifest columns

    def columns(self) -> tuple[str, bytes]:
        """(`topics` JSON, packed `layout`).

        The JSON holds nothing that differs between episodes of one robot, so that a manifest
        stores it once.
        """
        return self.topics_json(), self.pack()

    def topics_json(self) -> str:
        """Canonical JSON of groups and topics."""
        groups = [{"name": g.name, "topics": [_topic_json(t) for t in g.topics]} for g in self.groups]
        return records.dumps({"v": VERSION, "groups": groups})

    def pack(self, *, crc: bool = False) -> bytes:
        """The chunk tables as bytes; with `crc`, also each chunk's CRC-32 (4 bytes a chunk)."""
        numbers: list[NDArray[np.uint64]] = []

        def unsigned(*values: int) -> None:
            numbers.append(np.array(values, np.uint64))

        end = 0
        unsigned(len(self.groups))
        for group in self.groups:
            n = len(group)
            unsigned(n)
            if n == 0:
                continue
            counts = group.counts
            runs = [] if group.counted is None else group.counted.runs
            unsigned(0 if counts is None else 1, *(len(run) // 2 for run in runs), *itertools.chain(*runs))
            offset, length = group.offset, group.length
            gaps = offset[1:] - offset[:-1] - length[:-1]
            if counts is not None:
                gaps = gaps - index_bytes(counts)[:-1]
            step = np.diff(group.t_first_ns, prepend=group.t_first_ns[:1])
            base, lengths = _length_column(length)
            gops = group.gop_chunk
            unsigned(base, group.skew_ns, 0 if gops is None else 1 + len(gops), int(group.t_first_ns[0]))
            signed = [
                np.array([offset[0] - end], np.int64),
                lengths,
                gaps,
                np.diff(step, prepend=0),
                np.diff(group.t_last_ns - group.t_first_ns, prepend=0),
                np.diff(gops, prepend=0) if gops is not None else _NO_TIME,
            ]
            numbers.append(zigzag(np.concatenate(signed)))
            if crc:
                if group.crc32 is None:
                    raise CorruptError("a layout without checksums cannot be packed with them")
                numbers.append(group.crc32.astype(np.uint64))
            end = int(offset[-1] + length[-1])
        body = pack_varints(np.concatenate(numbers))
        small = zlib.compressobj(9, zlib.DEFLATED, -15)
        deflated = small.compress(body) + small.flush()
        flags = _WITH_CRC if crc else 0
        if len(deflated) < len(body):
            return bytes((VERSION, flags | _DEFLATED)) + deflated
        return bytes((VERSION, flags)) + body

    @classmethod
    def from_columns(cls, topics_json: str, packed: bytes) -> Layout:
        """What `columns` gave.

        Raises:
            CorruptError: Bytes that no writer wrote.
            LimitError: It inflates to more than 32 MiB.
        """
        if len(packed) < 3 or packed[0] != VERSION or packed[1] & ~(_DEFLATED | _WITH_CRC):
            raise CorruptError(f"packed layout starts with {bytes(packed[:2]).hex(' ')}; this reader knows version 1")
        body = bytes(packed[2:])
        if packed[1] & _DEFLATED:
            body = _inflate(body)
        take = Take(unpack_varints(body))
        tables = _parse_topics(topics_json)
        if take.one(1 << 16) != len(tables):
            raise CorruptError(f"packed layout and topic table ({len(tables)} groups) differ in their groups")
        groups = []
        end = 0
        for name, topics in tables:
            group = _unpack_group(take, name, topics, end, crc=bool(packed[1] & _WITH_CRC))
            if len(group):
                end = int(group.offset[-1] + group.length[-1])
            groups.append(group)
        take.end()
        return cls(tuple(groups))


def _in_order(t_first: NDArray[np.int64], t_last: NDArray[np.int64]) -> bool:
    return not np.count_nonzero(t_first[1:] < t_last[:-1])


def _inflate(data: bytes) -> bytes:
    small = zlib.decompressobj(-15)
    try:
        body = small.decompress(data, _MAX_PACKED)
    except zlib.error as exc:
        raise CorruptError(f"packed layout does not inflate: {exc}") from exc
    if small.unconsumed_tail:
        raise LimitError(f"packed layout inflates to more than {_MAX_PACKED >> 20} MiB")
    if not small.eof or small.unused_data:
        raise CorruptError("packed layout is cut short, or has bytes behind its end")
    return body


_LEAST: Final = np.minimum.reduce
"""As `min`, and below as `cumsum`, of which the arrays' own methods are slower ways."""
_SUMS: Final = np.add.accumulate


def _unpack_group(take: Take, name: str, topics: tuple[TopicReceipt, ...], end: int, *, crc: bool) -> GroupLayout:
    """One group's tables; a loader does this for each episode that it opens, so the calls are counted."""
    n = take.one(_MAX_CHUNKS)
    if n == 0:
        return GroupLayout(name, topics, _NO_TIME, _NO_TIME, _NO_TIME, _NO_TIME, Counts([()] * len(topics), 0))
    if not topics:
        raise CorruptError(f"packed layout: group {name} has {n} chunks and no topic")
    if n * len(topics) > _MAX_COUNTS:
        raise LimitError(f"packed layout: group {name} has {n} chunks of {len(topics)} topics, too many for one table")
    counted: Counts | None = None
    extra: int | NDArray[np.int64] = 0
    if take.one(1):
        pairs_per_topic = take.counts(len(topics))
        pairs = take.counts(2 * min(sum(pairs_per_topic), _MAX_CHUNKS))
        counted = _counts(pairs, pairs_per_topic, n, name)
        if len(pairs) == 2 * len(topics):  # each topic has the same count in all chunks
            extra = sum([15 + 16 * count for count in pairs[::2] if count])
        else:
            extra = index_bytes(counted.table[:, :-1])
    base, skew, gops, t0 = take.several((_MAX_LENGTH, _MAX_TIME, _MAX_CHUNKS, _MAX_TIME))
    signed = take.signed(4 * n + max(gops - 1, 0))
    columns = signed[1 : 4 * n].copy()
    length, gap, t_first, duration = columns[:n], columns[n : 2 * n - 1], columns[2 * n - 1 : -n], columns[-n:]
    if base:
        length += base
    else:
        _SUMS(length, out=length)
    gap += extra
    _SUMS(t_first, out=t_first)  # so far the steps from one first time to the next
    _SUMS(duration, out=duration)
    offset = np.empty(n, np.int64)
    offset[0] = end + int(signed[0])
    np.add(length[:-1], gap, out=offset[1:])
    _SUMS(offset, out=offset)
    t_first[0] += t0
    _SUMS(t_first, out=t_first)
    # of the first times their sums are looked at, not their steps: a late message makes one go back
    if int(_LEAST(columns)) < 0 or int(_LEAST(length)) < 1 or offset[0] < 0 or int(offset[-1]) > _MAX_TIME // 2:
        raise CorruptError(f"packed layout: group {name} has chunks that overlap, or end before they start")
    t_last = t_first + duration
    gop_chunk = signed[4 * n :].cumsum() if gops else None
    if gop_chunk is not None and len(gop_chunk) and not (gop_chunk.min() >= 0 and gop_chunk.max() < n):
        raise CorruptError(f"packed layout: group {name} has a GOP in a chunk that is not there")
    crcs = take.many(n).astype(np.int64) if crc else None
    in_order = _in_order(t_first, t_last)
    return GroupLayout(name, topics, offset, length, t_first, t_last, counted, crcs, gop_chunk, in_order, skew)


def _counts(pairs: list[int], pairs_per_topic: list[int], n: int, name: str) -> Counts:
    """Counts from all topics' run-length pairs."""
    ends = [2 * end for end in itertools.accumulate(pairs_per_topic)]
    try:
        return Counts([pairs[start:end] for start, end in itertools.pairwise([0, *ends])], n)
    except CorruptError as exc:
        raise CorruptError(f"packed layout: group {name}: {exc}") from exc
