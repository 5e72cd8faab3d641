"""ROS 2 bags, MCAP or sqlite3, with or without their metadata.yaml.

One bag is one episode. Rows are believed, metadata are compared with them: every difference is a finding.
"""

from __future__ import annotations

import heapq
import re
import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinemill.errors import ConfigError, CorruptError, DataError, TruncatedError, UnsupportedError
from kinemill.pipelines.adapters import rosbag2
from kinemill.pipelines.adapters.base import (
    Adapter,
    CameraTrack,
    EpisodeFacts,
    Finding,
    Level,
    Picture,
    RawEpisode,
    Source,
    SourceFacts,
    StateTrack,
    topic_facts,
)
from kinemill.pipelines.adapters.files import head_finding
from kinemill.pipelines.adapters.images import decode_file, even, from_raw
from kinemill.pipelines.adapters.mapping import Plan, map_state, plan_topics
from kinemill.pipelines.adapters.rosbag2_metadata import BagMetadata, compare, files_findings, read_metadata
from kinemill.pipelines.adapters.vendor import StateMap, VendorSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ADAPTER"]

IMAGE_TYPES: Final = ("sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage")
JOINT_TYPE: Final = "sensor_msgs/msg/JointState"
SUFFIXES: Final = (".mcap", ".db3")
READABLE: Final = ("cdr", "ros1")
REORDER_ROWS: Final = 64
"""How far a picture may stand behind a later one in the file and still be put in order."""


class _Types:
    """CDR decoders for the message types of one bag, each from the bag's own text where it has one."""

    def __init__(self, generation: int = 2) -> None:
        from rosbags.typesys import Stores, get_typestore

        self._store = get_typestore(Stores.ROS2_HUMBLE if generation == 2 else Stores.ROS1_NOETIC)
        self._generation = generation
        self._known: dict[str, bool] = {}
        self.bad: dict[str, str] = {}

    def learn(self, channel: rosbag2.Channel) -> bool:
        """True where messages of this channel can be decoded; why not stands in `bad`."""
        from rosbags.typesys import get_types_from_msg

        if channel.type in self._known:
            return self._known[channel.type]
        ok = channel.type in self._store.fielddefs
        if channel.definition:
            try:
                new = get_types_from_msg(channel.definition, channel.type)
                fresh = {k: v for k, v in new.items() if k not in self._store.fielddefs}
                self._store.register(fresh)
                self._store.get_msgdef(channel.type)
                ok = True
            except Exception as exc:  # noqa: BLE001 - a text from outside may break its parser in any way
                if not ok:
                    self.bad[channel.topic] = f"{type(exc).__name__}: {str(exc).splitlines()[0] if str(exc) else ''}"
        elif not ok:
            self.bad[channel.topic] = "no definition in the bag, and not a standard type"
        self._known[channel.type] = ok
        return ok

    def has_header(self, kind: str) -> bool:
        """True where the message starts with a std_msgs/Header."""
        if kind not in self._store.fielddefs:
            return False
        fields = self._store.fielddefs[kind][1]
        return bool(fields) and fields[0][0] == "header" and fields[0][1][1] == "std_msgs/msg/Header"

    def decode(self, data: bytes, kind: str, where: str) -> Any:
        """One message as an object.

        Raises:
            CorruptError: The bytes are no such message.
        """
        try:
            if self._generation == 1:
                return self._store.deserialize_ros1(data, kind)
            return self._store.deserialize_cdr(data, kind)
        except Exception as exc:
            raise CorruptError(f"{where}: a message is no {kind} ({type(exc).__name__}: {exc})") from exc


def header_stamp(data: bytes, encoding: str = "cdr") -> int:
    """ns of the std_msgs/Header that a message starts with.

    Before the stamp stand 4 bytes in both generations: CDR's encapsulation, or ROS 1's sequence number.
    """
    if len(data) < 12:
        raise CorruptError("a message ends inside its header")
    seconds, nanos = struct.unpack_from("<iI" if encoding == "ros1" or data[1] & 1 else ">iI", data, 4)
    return int(seconds) * 1_000_000_000 + int(nanos)


def flatten(message: Any, prefix: str = "", depth: int = 0) -> dict[str, float]:
    """All plain numbers of a message by dotted name; stamps, covariances and long arrays are left out."""
    import numpy as np

    out: dict[str, float] = {}
    for name in message.__dataclass_fields__:
        if name in ("header", "stamp") or name.startswith("__") or "covariance" in name:
            continue
        value = getattr(message, name)
        key = f"{prefix}{name}"
        if isinstance(value, bool | int | float | np.number):
            out[key] = float(value)
        elif isinstance(value, np.ndarray) and value.dtype.kind in "fiu" and value.size <= 256:
            out |= {f"{key}.{i}": float(v) for i, v in enumerate(value.ravel())}
        elif hasattr(value, "__dataclass_fields__") and depth < 6:
            out |= flatten(value, f"{key}.", depth + 1)
    return out


def joint_values(message: Any) -> dict[str, float]:
    """Positions by joint name; velocities and efforts, where there are any, as `<joint>.vel` and `.eff`."""
    names = list(message.name)
    out = dict(zip(names, map(float, message.position), strict=False))
    for suffix, values in ((".vel", message.velocity), (".eff", message.effort)):
        if len(values) == len(names):
            out |= {n + suffix: float(v) for n, v in zip(names, values, strict=True)}
    return out


class Ros2Adapter:
    """See the module."""

    name = "ros2"
    version = 1
    generation = 2

    def find(self, root: Path, files: list[Path]) -> list[Source]:
        """Folders with a metadata.yaml are one bag; other files are grouped by `<name>_<number>`."""
        by_folder: dict[Path, list[Path]] = defaultdict(list)
        for path in files:
            if path.suffix in SUFFIXES:
                by_folder[path.parent].append(path)
        for path in files:
            if path.name == "metadata.yaml" and path.parent not in by_folder and _is_bag_metadata(path):
                by_folder[path.parent] = []
        sources = []
        for folder, found in by_folder.items():
            metadata = folder / "metadata.yaml"
            if metadata in files:
                extra = [p for p in (p.with_name(p.name + "-wal") for p in found) if p in files]
                sources.append(self._source(root, folder, [*found, metadata, *extra]))
                continue
            groups: dict[str, list[Path]] = defaultdict(list)
            for path in found:
                groups[re.sub(r"_\d+$", "", path.stem) + path.suffix].append(path)
            for group in groups.values():
                whole = group[0] if len(group) == 1 else folder
                sources.append(self._source(root, whole if len(groups) > 1 or len(group) == 1 else folder, group))
        return sources

    def _source(self, root: Path, path: Path, files: list[Path]) -> Source:
        key = path.relative_to(root).as_posix() if path != root else path.name
        return Source(self.name, key, path, tuple(sorted(files)))

    # ---- inspect

    def inspect(self, source: Source, vendor: VendorSpec) -> SourceFacts:
        """Counts and stamps of every topic, and what metadata.yaml says otherwise."""
        findings: list[Finding] = []
        bag = _open(source, findings)
        if any(f.level is Level.FAIL for f in findings if f.code in ("empty_file", "lfs_pointer")):
            return SourceFacts(self.name, (), tuple(findings))
        types = _Types(self.generation)
        stamps: dict[str, list[int]] = defaultdict(list)
        logs: list[int] = []
        notes: set[str] = set()
        for path in bag.storages:
            try:
                for row in rosbag2.rows(path, bag.channels, notes):
                    logs.append(row.log_ns)
                    stamps[row.channel.topic].append(_stamp(row, vendor, types, bag.packed))
            except TruncatedError as exc:
                findings.append(Finding("truncated", Level.FAIL, str(exc)))
            except DataError as exc:
                findings.append(Finding("corrupt", Level.FAIL, str(exc)))
        if "no_checksums" in notes:
            text = f"{source.key}: the MCAP carries no checksums: a damaged byte in it would not be noticed"
            findings.append(Finding("no_checksums", Level.INFO, text))
        import numpy as np

        topics = tuple(
            topic_facts(name, channel.type, np.array(stamps.get(name, []), dtype=np.int64))
            for name, channel in sorted(bag.channels.items())
        )
        cut_off = any(f.code in ("truncated", "corrupt") for f in findings)
        findings += compare(bag.metadata, {t.topic: t.messages for t in topics}, logs, cut_off=cut_off)
        findings += _judge_channels(bag.channels, types, {t.topic: t.messages for t in topics})
        if not logs and not any(f.level is Level.FAIL for f in findings):
            text = f"{source.key}: the bag has {len(topics)} topics and no message"
            findings.append(Finding("empty", Level.FAIL, text))
        plan = _plan(bag.channels, types, vendor)
        if plan.unmapped:
            text = f"{source.key}: left out, since nobody asked for them: {', '.join(plan.unmapped)}"
            findings.append(Finding("unmapped_topics", Level.INFO, text, {"topics": ", ".join(plan.unmapped)}))
        episodes = (EpisodeFacts("", 0, topics),) if logs else ()
        return SourceFacts(self.name, episodes, tuple(findings))

    # ---- read

    def read(self, source: Source, vendor: VendorSpec, index: int) -> RawEpisode:
        """The bag as one episode."""
        import numpy as np

        bag = _open(source, [])
        types = _Types(self.generation)
        for path in bag.storages:  # a topic may be declared anywhere, and the plan needs them all
            for _ in rosbag2.rows(path, bag.channels):
                pass
        plan = _plan(bag.channels, types, vendor)
        stamps: dict[str, list[int]] = defaultdict(list)
        values: dict[str, list[list[float]]] = defaultdict(list)
        names: dict[str, list[str]] = {}
        first: dict[str, NDArray[Any]] = {}
        counts: dict[str, int] = defaultdict(int)
        for path in bag.storages:
            for row in rosbag2.rows(path):
                topic, where = row.channel.topic, f"{source.key}, topic {row.channel.topic}"
                if topic in plan.cameras:
                    if topic not in first:
                        first[topic] = _picture(row, types, bag.packed, where, swap=_swap(vendor, plan, topic))
                    continue
                if topic not in plan.states:
                    continue
                data = rosbag2.unpack(row.data, where) if bag.packed else row.data
                message = types.decode(data, row.channel.type, where)
                found = joint_values(message) if row.channel.type == JOINT_TYPE else flatten(message)
                wanted = names.setdefault(topic, _wanted_columns(plan.states[topic], found))
                if any(name not in found for name in wanted):
                    counts["partial_state_messages"] += 1
                    continue
                stamps[topic].append(_stamp(row, vendor, types, bag.packed))
                values[topic].append([found[name] for name in wanted])
        states: list[StateTrack] = []
        for topic, spec in plan.states.items():
            if not values[topic]:
                if spec.required:
                    raise DataError(f"{source.key}: topic {topic} has no message with all its columns")
                continue
            t_ns = np.array(stamps[topic], dtype=np.int64)
            order = np.argsort(t_ns, kind="stable")
            track = map_state(
                topic,
                spec,
                names[topic],
                t_ns=t_ns[order],
                values=np.array(values[topic])[order],
                where=source.key,
            )
            counts["late_messages"] += int((np.diff(t_ns) < 0).sum())
            states.append(track)
        cameras = tuple(
            CameraTrack(spec.topic, topic, first[topic].shape[1], first[topic].shape[0], spec.rate_hz)
            for topic, spec in plan.cameras.items()
            if topic in first
        )
        counts["unmapped_topics"] = len(plan.unmapped)
        return RawEpisode(
            key="",
            robot=vendor.robot,
            task=vendor.task,
            instruction=vendor.instruction,
            cameras=cameras,
            states=tuple(states),
            pictures=lambda: _pictures(source, vendor, bag, plan, types),
            missing=plan.missing,
            counts={k: v for k, v in counts.items() if v},
        )


@dataclass(slots=True)
class _Bag:
    storages: list[Path]
    metadata: BagMetadata | None
    channels: dict[str, rosbag2.Channel] = field(default_factory=dict)

    @property
    def packed(self) -> bool:
        """Each message is compressed on its own; nothing inside the storage says so."""
        return self.metadata is not None and self.metadata.compression_mode == "MESSAGE"


def _is_bag_metadata(path: Path) -> bool:
    with path.open("rb") as file:
        return b"rosbag2_bagfile_information" in file.read(4096)


def _number(path: Path) -> tuple[str, int]:
    match = re.search(r"_(\d+)$", path.stem)
    return (path.stem[: match.start()], int(match[1])) if match else (path.stem, -1)


def _open(source: Source, findings: list[Finding]) -> _Bag:
    storages = sorted((p for p in source.files if p.suffix in (*SUFFIXES, ".bag")), key=_number)
    metadata = None
    for path in source.files:
        if path.name == "metadata.yaml":
            try:
                metadata = read_metadata(path)
            except ConfigError as exc:
                findings.append(
                    Finding("bad_metadata", Level.WARN, f"{source.key}: {exc}; the rows are read without it")
                )
    if metadata is None and len(source.files) == len(storages) and source.path.suffix != ".bag":
        findings.append(Finding("no_metadata", Level.INFO, f"{source.key}: no metadata.yaml to compare the rows with"))
    for path in storages:
        bad = head_finding(path)
        if bad is not None:
            findings.append(bad)
    if metadata is not None:
        findings += files_findings(source, metadata, storages)
    return _Bag(storages, metadata)


def _judge_channels(channels: dict[str, rosbag2.Channel], types: _Types, found: dict[str, int]) -> list[Finding]:
    """Topics that cannot be decoded or hold nothing."""
    out = []
    foreign = {c.topic: c.encoding for c in channels.values() if c.encoding not in READABLE}
    if foreign and len(foreign) == len(channels):
        kinds = ", ".join(sorted(set(foreign.values())))
        text = f"unknown message encoding '{kinds}' in all {len(foreign)} topics ({sum(found.values())} messages)"
        out.append(Finding("unknown_encoding", Level.FAIL, text, {"encoding": kinds}))
    elif foreign:
        for topic, encoding in foreign.items():
            text = f"topic {topic}: message encoding '{encoding}' is not read"
            out.append(Finding("unknown_encoding", Level.WARN, text))
    for channel in channels.values():
        if channel.encoding in READABLE and not types.learn(channel):
            why = types.bad.get(channel.topic, "as above")
            text = f"topic {channel.topic}: its type {channel.type} cannot be read ({why})"
            out.append(Finding("bad_schema", Level.WARN, text, {"topic": channel.topic}))
        if found.get(channel.topic, 0) == 0 and any(found.values()):
            text = f"topic {channel.topic} has no message"
            out.append(Finding("empty_topic", Level.INFO, text, {"topic": channel.topic}))
    return out


def _plan(channels: dict[str, rosbag2.Channel], types: _Types, vendor: VendorSpec) -> Plan:
    cameras, states, others = [], [], []
    for channel in channels.values():
        if channel.encoding not in READABLE or not types.learn(channel):
            others.append(channel.topic)
        elif channel.type in IMAGE_TYPES:
            cameras.append(channel.topic)
        elif vendor.states is not None or channel.type in _NUMERIC:
            states.append(channel.topic)
        else:
            others.append(channel.topic)
    return plan_topics(vendor, cameras, states, others)


_NUMERIC: Final = (
    JOINT_TYPE,
    "sensor_msgs/msg/Imu",
    "sensor_msgs/msg/MagneticField",
    "sensor_msgs/msg/Temperature",
    "nav_msgs/msg/Odometry",
    "geometry_msgs/msg/Pose",
    "geometry_msgs/msg/PoseStamped",
    "geometry_msgs/msg/Twist",
    "geometry_msgs/msg/TwistStamped",
    "geometry_msgs/msg/WrenchStamped",
    "std_msgs/msg/Float64",
    "std_msgs/msg/Float32",
    "std_msgs/msg/Float64MultiArray",
    "std_msgs/msg/Float32MultiArray",
)
"""Types that count as state where no YAML names the topics."""


def _stamp(row: rosbag2.Row, vendor: VendorSpec, types: _Types, packed: bool) -> int:
    if vendor.time_base == "publish":
        return row.publish_ns
    if vendor.time_base == "header" and types.learn(row.channel) and types.has_header(row.channel.type):
        where = f"topic {row.channel.topic}"
        return header_stamp(rosbag2.unpack(row.data, where) if packed else row.data, row.channel.encoding)
    return row.log_ns


def _wanted_columns(spec: StateMap, found: dict[str, float]) -> list[str]:
    """Columns to keep of each message, in a fixed order."""
    if spec.columns and all(isinstance(c.source, str) for c in spec.columns):
        return [str(c.source) for c in spec.columns]
    return list(found)


def _swap(vendor: VendorSpec, plan: Plan, topic: str) -> bool:
    return (plan.cameras[topic].color_order or vendor.color_order) == "bgr"


def _picture(row: rosbag2.Row, types: _Types, packed: bool, where: str, *, swap: bool) -> NDArray[Any]:
    data = rosbag2.unpack(row.data, where) if packed else row.data
    message = types.decode(data, row.channel.type, where)
    if row.channel.type == "sensor_msgs/msg/CompressedImage":
        if "compressedDepth" in message.format or message.format in ("h264", "h265", "av1"):
            raise UnsupportedError(f"{where}: compressed format '{message.format}' is not read yet")
        return even(decode_file(bytes(message.data), where, swap=swap))
    return even(
        from_raw(
            message.data,
            width=message.width,
            height=message.height,
            step=message.step,
            encoding=message.encoding,
            where=where,
            swap=swap,
        )
    )


def _pictures(source: Source, vendor: VendorSpec, bag: _Bag, plan: Plan, types: _Types) -> Iterator[Picture]:
    """All pictures, put in order over a window of `REORDER_ROWS`."""
    pending: list[tuple[int, int, rosbag2.Row]] = []
    order = count()

    def make(entry: tuple[int, int, rosbag2.Row]) -> Picture:
        t_ns, _, row = entry
        topic = row.channel.topic
        where = f"{source.key}, topic {topic} at {t_ns / 1e9:.3f} s"
        image = _picture(row, types, bag.packed, where, swap=_swap(vendor, plan, topic))
        return Picture(plan.cameras[topic].topic, t_ns, image)

    for path in bag.storages:
        for row in rosbag2.rows(path):
            if row.channel.topic not in plan.cameras:
                continue
            heapq.heappush(pending, (_stamp(row, vendor, types, bag.packed), next(order), row))
            if len(pending) > REORDER_ROWS:
                yield make(heapq.heappop(pending))
    while pending:
        yield make(heapq.heappop(pending))


ADAPTER: Adapter = Ros2Adapter()
