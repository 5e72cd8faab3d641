"""What every adapter answers with: facts, findings and episodes, in plain records."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kinemill.pipelines.adapters.vendor import VendorSpec

__all__ = [
    "Adapter",
    "CameraTrack",
    "EpisodeFacts",
    "Finding",
    "Level",
    "Picture",
    "RawEpisode",
    "Source",
    "SourceFacts",
    "StateTrack",
    "TopicFacts",
    "topic_facts",
]


class Level(enum.StrEnum):
    """How much a finding matters."""

    INFO = "info"
    """Set right on the way, and counted."""
    WARN = "warn"
    """The data are used, a person should know."""
    FAIL = "fail"
    """The episode (or the whole recording) is put aside."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, in words for a person."""

    code: str
    """Stable short code, such as `truncated`."""
    level: Level
    message: str
    evidence: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic, camera or column of a recording, as its rows say (never as its metadata say)."""

    topic: str
    """The vendor's own name."""
    type: str
    messages: int
    t_first_ns: int | None = None
    """On the recording's own clock; None without messages or without a clock."""
    t_last_ns: int | None = None
    repeated_stamps: int = 0
    """Messages with the same stamp as the one before."""
    backward_steps: int = 0
    """Messages with an earlier stamp than the one before."""
    max_gap_ns: int = 0


@dataclass(frozen=True, slots=True)
class EpisodeFacts:
    """One episode of a recording."""

    key: str
    """Names it within its recording; empty where a recording is one episode."""
    index: int
    """What `Adapter.read` is given."""
    topics: tuple[TopicFacts, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def messages(self) -> int:
        """Messages, rows and frames together."""
        return sum(t.messages for t in self.topics)

    @property
    def t_first_ns(self) -> int | None:
        """The first stamp of any topic."""
        return min((t.t_first_ns for t in self.topics if t.t_first_ns is not None), default=None)

    @property
    def t_last_ns(self) -> int | None:
        """The last stamp of any topic."""
        return max((t.t_last_ns for t in self.topics if t.t_last_ns is not None), default=None)

    @property
    def duration_s(self) -> float:
        """Last stamp minus first; 0 where there are none."""
        first, last = self.t_first_ns, self.t_last_ns
        return 0.0 if first is None or last is None else (last - first) / 1e9

    def topic(self, name: str) -> TopicFacts:
        """The topic of that name.

        Raises:
            KeyError: There is none.
        """
        for found in self.topics:
            if found.topic == name:
                return found
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """What `Adapter.inspect` found in one recording."""

    adapter: str
    episodes: tuple[EpisodeFacts, ...]
    findings: tuple[Finding, ...] = ()
    """Of the recording as a whole."""

    @property
    def messages(self) -> int:
        """Over all episodes."""
        return sum(e.messages for e in self.episodes)

    def codes(self) -> set[str]:
        """Codes of all findings, of the recording and of its episodes."""
        return {f.code for f in self.findings} | {f.code for e in self.episodes for f in e.findings}


@dataclass(frozen=True, slots=True)
class Source:
    """One recording as found on disk: a bag, an HDF5 file, a LeRobot data set."""

    adapter: str
    key: str
    """Path relative to the drop; part of the episode's identity."""
    path: Path
    """The file or folder."""
    files: tuple[Path, ...]
    """Everything that belongs to it and is there, sorted; its digest covers these."""


@dataclass(frozen=True, slots=True)
class CameraTrack:
    """A camera of an episode, under its kinemill topic."""

    topic: str
    source: str
    """The vendor's name of it."""
    width: int
    height: int
    rate_hz: float | None
    codec: str = ""
    """`h264` where pictures come as Annex B packets that may be passed through; else empty."""


@dataclass(frozen=True, slots=True)
class StateTrack:
    """A numeric topic of an episode, whole, in kinemill's units and order."""

    topic: str
    source: str
    names: tuple[str, ...]
    units: str
    """One word where all columns share it, else one a column, comma-separated."""
    rate_hz: float | None
    t_ns: NDArray[Any]
    """(n,) int64, in the order of the recording."""
    values: NDArray[Any]
    """(n, len(names)) float64."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One frame: decoded, or a packet that is passed through."""

    topic: str
    t_ns: int
    image: NDArray[Any] | None = None
    """(height, width, 3) uint8 RGB."""
    packet: bytes | None = None
    """Annex B access unit."""


@dataclass(frozen=True, slots=True)
class RawEpisode:
    """One episode, ready to be written: state in memory, pictures as a stream."""

    key: str
    robot: str
    task: str
    instruction: str
    cameras: tuple[CameraTrack, ...]
    states: tuple[StateTrack, ...]
    pictures: Callable[[], Iterator[Picture]]
    """Opens the stream of all cameras' pictures, about in time order."""
    packets: Callable[[], Iterator[Picture]] | None = None
    """The same as H.264 packets, where every camera's stream could be passed through."""
    packet_gop: int = 0
    """Frames per GOP of `packets`, the same and on the same ticks in all cameras."""
    missing: tuple[str, ...] = ()
    """Topics that were promised and are not there."""
    counts: dict[str, int] = field(default_factory=dict)
    """What was set right or left out: repeated_stamps, unmapped_topics, ..."""


class Adapter(Protocol):
    """One vendor format."""

    name: str
    version: int
    """Raised when the same input gives other output; part of the completion key."""

    def find(self, root: Path, files: list[Path]) -> list[Source]:
        """The recordings among `files` (all regular files below `root`, sorted); parses nothing."""
        ...

    def inspect(self, source: Source, vendor: VendorSpec) -> SourceFacts:
        """What is in it; a bad recording is a finding, never an exception."""
        ...

    def read(self, source: Source, vendor: VendorSpec, index: int) -> RawEpisode:
        """Episode `index` of `inspect`.

        Raises:
            DataError: It cannot be read; the message says what and where.
        """
        ...


def topic_facts(topic: str, kind: str, stamps: NDArray[Any]) -> TopicFacts:
    """Facts of one topic from its stamps, (n,) int64 ns in the order of the recording."""
    import numpy as np

    if len(stamps) == 0:
        return TopicFacts(topic, kind, 0)
    steps = np.diff(stamps)
    return TopicFacts(
        topic,
        kind,
        len(stamps),
        int(stamps.min()),
        int(stamps.max()),
        int((steps == 0).sum()),
        int((steps < 0).sum()),
        int(np.diff(np.sort(stamps)).max(initial=0)),
    )
