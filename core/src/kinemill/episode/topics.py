"""What a writer is told of its topics, and the profiles that decide how they are laid out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kinemill.contracts.episode import TopicKind
from kinemill.errors import UsageError

__all__ = ["DEFAULT_GROUPS", "PROFILES", "Profile", "TopicSpec", "codec_of", "group_of", "profile_of"]

NS = 1_000_000_000

DEFAULT_GROUPS: Mapping[TopicKind, str] = {
    TopicKind.VIDEO: "cameras",
    TopicKind.STATE: "state",
    TopicKind.DEPTH: "depth",
    TopicKind.LIDAR: "lidar",
    TopicKind.AUDIO: "audio",
    TopicKind.TACTILE: "tactile",
    TopicKind.TEXT: "events",
    TopicKind.EVENT: "events",
    TopicKind.OTHER: "other",
}
"""The group of a topic that names none. Groups never share a chunk."""

_NO_TEXT = re.compile("[\0\ud800-\udfff]")
_GROUP = re.compile(r"[a-z][a-z0-9_]{0,31}")
DEPTH_FORMATS = ("16UC1", "32FC1", "mono8", "rgb8")
"""Of the images of a depth topic; the first where `pixel_format` names none."""
JOINT_FIELDS = ("position", "velocity", "effort")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic that a recording may have.

    A topic that is declared and never written is a *missing* topic: its channel stands in the
    file with no message, the receipt names it, and a reader answers with padding.
    """

    topic: str
    kind: TopicKind = TopicKind.VIDEO
    rate_hz: float | None = None
    """Nominal rate. Needed for cameras that the writer encodes: it places the IDR ticks."""
    width: int | None = None
    height: int | None = None
    """Pixels of a camera or depth topic; taken from the first frame where None."""
    names: tuple[str, ...] = ()
    """Joint or column names of a state topic, in storage order."""
    fields: tuple[str, ...] = ("position",)
    """Which arrays of a JointState hold values: row = positions, then velocities, then efforts."""
    units: str | None = None
    group: str | None = None
    """Overrides the kind's group, e.g. `cameras_4k` for a camera that is seldom read with the others."""
    frame_id: str = ""
    pixel_format: str = "rgb24"
    """Of the arrays given to `.frame`: rgb24 (H, W, 3), gray (H, W) or yuv420p (H * 3 / 2, W).

    Of a depth topic: 16UC1 (uint16, which is also meant where this is not set), 32FC1 (float32), mono8 or rgb8.
    """
    encoder: Mapping[str, str] = field(default_factory=dict)
    """x264 options that replace the profile's, e.g. `{"crf": "20"}`."""
    schema: str | None = None
    """With `encoding`: messages are stored as given by `.message`, under this schema name."""
    encoding: str | None = None
    schema_encoding: str | None = None
    schema_data: bytes = b""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Extra keys of the channel's metadata."""

    def __post_init__(self) -> None:
        if not self.topic or len(self.topic) > 1000 or _NO_TEXT.search(self.topic):
            raise UsageError(f"topic {self.topic[:60]!r}: needs 1 to 1000 characters, none of them NUL or half a pair")
        if self.group is not None and not _GROUP.fullmatch(self.group):
            raise UsageError(f"topic {self.topic}: group {self.group!r}: lower-case letters, digits, _; at most 32")
        if self.rate_hz is not None and not 0 < self.rate_hz < 1e6:
            raise UsageError(f"topic {self.topic}: rate_hz {self.rate_hz} is not between 0 and 1,000,000")
        unknown = [f for f in self.fields if f not in JOINT_FIELDS]
        if unknown or not self.fields or list(self.fields) != [f for f in JOINT_FIELDS if f in self.fields]:
            raise UsageError(f"topic {self.topic}: fields {self.fields}: some of {JOINT_FIELDS}, in this order")
        if self.kind is TopicKind.STATE and self.schema is None and not self.names:
            raise UsageError(f"topic {self.topic}: a state topic needs `names`, one for each value")
        if len(set(self.names)) != len(self.names):
            raise UsageError(f"topic {self.topic}: names are not unique")

    @property
    def columns(self) -> int:
        """Values in a row of a state topic."""
        return len(self.names) * len(self.fields)


def group_of(spec: TopicSpec) -> str:
    """The group that `spec` lies in."""
    return spec.group or DEFAULT_GROUPS[spec.kind]


def codec_of(spec: TopicSpec) -> str | None:
    """How its messages hold pictures: h264, 16UC1, 32FC1, or as its metadata says; None for all else."""
    if spec.kind is TopicKind.VIDEO:
        return "h264"
    if spec.kind is TopicKind.DEPTH and spec.schema is None:
        return spec.pixel_format if spec.pixel_format in DEPTH_FORMATS else DEPTH_FORMATS[0]
    return spec.metadata.get("codec")


@dataclass(frozen=True, slots=True)
class Profile:
    """How a rendition is laid out and encoded. Compare profiles at equal PSNR, never at equal CRF."""

    name: str
    gop_frames: int
    """Frames between IDR ticks of the fastest camera."""
    chunk_bytes: int = 0
    """A video chunk takes whole GOPs until it is this big; 0: exactly one GOP a chunk."""
    crf: float = 23.0
    preset: str = "veryfast"
    tune: str | None = "fastdecode"
    lookahead: int = 0
    """x264's rc-lookahead in frames; costs memory (that many frames per camera) and pays at long GOPs."""
    x264: tuple[tuple[str, str], ...] = ()
    """Further x264 parameters."""
    span_ns: int = NS
    """Time that a chunk of state (or depth, audio, ...) covers."""
    span_bytes: int = 4 << 20
    """... unless it is this big before."""
    reorder_ns: int = NS // 2
    """Messages that are later than this against their group go into a later chunk and are counted."""
    frame_reorder_ns: int = NS // 10
    """The same for one camera's frames before they are encoded (holds raw frames)."""
    zstd_level: int = 1
    state_zstd_level: int = -1
    """For groups of rows alone: as small as level 3 there, and unpacked 1.6 times as fast (measured)."""
    max_chunk_bytes: int = 64 << 20
    """Upper bound of one chunk's records."""

    def __post_init__(self) -> None:
        if not 1 <= self.gop_frames <= 1000:
            raise UsageError(f"profile {self.name}: gop_frames {self.gop_frames} is not between 1 and 1000")
        if not _GROUP.fullmatch(self.name):
            raise UsageError(f"profile {self.name!r}: lower-case letters, digits and _ only, at most 32")
        if self.span_ns <= 0 or self.reorder_ns < 0 or self.frame_reorder_ns < 0:
            raise UsageError(f"profile {self.name}: span_ns must be positive, reorder windows not negative")


PROFILES: Mapping[str, Profile] = {
    # at GOP 5 the IDR is a third of the bytes and every other frame is predicted from it: better IDRs pay (measured:
    # ipratio 1.1 -> 1.6 saves 20 % at equal PSNR), and adaptive quantization costs 10 % there
    "vla": Profile("vla", gop_frames=5, crf=25.0, x264=(("ipratio", "1.6"), ("aq-mode", "0"))),
    "world": Profile("world", gop_frames=120, chunk_bytes=8 << 20, lookahead=20),
}
"""`vla`: sparse samples, one GOP of all cameras a chunk. `world`: long clips, large chunks."""


def profile_of(profile: str | Profile, **overrides: object) -> Profile:
    """A profile by name, with fields replaced.

    Raises:
        UsageError: No such profile or field.
    """
    if isinstance(profile, str):
        if profile not in PROFILES:
            raise UsageError(f"profile '{profile}' is not known; there is {', '.join(PROFILES)}, or pass a Profile")
        profile = PROFILES[profile]
    try:
        return replace(profile, **overrides)  # type: ignore[arg-type]  # replace() checks names, __post_init__ values
    except TypeError as exc:
        raise UsageError(f"profile {profile.name}: {exc}") from exc
