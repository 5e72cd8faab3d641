"""The message schemas that episodes use, all of them known to stock viewers.

Video, depth, audio, lidar and events are Foxglove's protobuf messages, taken from the package
`foxglove-schemas-protobuf`; state and text are ROS 2 messages in CDR, whose definitions are
short enough to stand here.
"""

from __future__ import annotations

import functools
import importlib
from dataclasses import dataclass
from typing import Any

from kinemill.contracts.episode import TopicKind
from kinemill.episode.topics import TopicSpec
from kinemill.errors import UsageError

__all__ = ["JOINT_STATE", "STRING", "VIDEO", "SchemaText", "guess_kind", "schema_for"]

VIDEO = "foxglove.CompressedVideo"
JOINT_STATE = "sensor_msgs/msg/JointState"
STRING = "std_msgs/msg/String"
RAW_IMAGE = "foxglove.RawImage"
POINT_CLOUD = "foxglove.PointCloud"
RAW_AUDIO = "foxglove.RawAudio"
LOG = "foxglove.Log"


@dataclass(frozen=True, slots=True)
class SchemaText:
    """What a Schema record and its channels need."""

    name: str
    encoding: str
    """Schema encoding: `protobuf`, `ros2msg`, `jsonschema` or empty."""
    data: bytes
    message_encoding: str


_RULE = "=" * 80
_TIME = f"{_RULE}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_HEADER = f"{_RULE}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
_JOINT_STATE_TEXT = (
    f"std_msgs/Header header\nstring[] name\nfloat64[] position\nfloat64[] velocity\nfloat64[] effort\n{_HEADER}{_TIME}"
)

_FOXGLOVE = {
    TopicKind.VIDEO: VIDEO,
    TopicKind.DEPTH: RAW_IMAGE,
    TopicKind.LIDAR: POINT_CLOUD,
    TopicKind.AUDIO: RAW_AUDIO,
    TopicKind.EVENT: LOG,
}


@functools.cache
def _foxglove(name: str) -> SchemaText:
    """A Foxglove schema: the message's file descriptor with all that it imports, dependencies first."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    short = name.removeprefix("foxglove.")
    module = importlib.import_module(f"foxglove_schemas_protobuf.{short}_pb2")
    files: dict[str, Any] = {}

    def visit(descriptor: Any) -> None:
        if descriptor.name not in files:
            for dependency in descriptor.dependencies:
                visit(dependency)
            files[descriptor.name] = descriptor

    visit(module.DESCRIPTOR)
    found = FileDescriptorSet()
    for descriptor in files.values():
        descriptor.CopyToProto(found.file.add())
    return SchemaText(name, "protobuf", found.SerializeToString(deterministic=True), "protobuf")


def schema_for(spec: TopicSpec) -> SchemaText:
    """The schema that `spec`'s messages are stored under.

    Raises:
        UsageError: The kind has no schema of its own and the spec names none.
    """
    if spec.schema is not None:
        if not spec.encoding:
            raise UsageError(f"topic {spec.topic}: `schema` needs `encoding` (protobuf, cdr, json, ...) beside it")
        return SchemaText(spec.schema, spec.schema_encoding or "", spec.schema_data, spec.encoding)
    if spec.kind in _FOXGLOVE:
        return _foxglove(_FOXGLOVE[spec.kind])
    if spec.kind is TopicKind.STATE or (spec.kind is TopicKind.TACTILE and spec.names):
        return SchemaText(JOINT_STATE, "ros2msg", _JOINT_STATE_TEXT.encode(), "cdr")
    if spec.kind is TopicKind.TACTILE:
        return _foxglove(RAW_IMAGE)
    if spec.kind is TopicKind.TEXT:
        return SchemaText(STRING, "ros2msg", b"string data\n", "cdr")
    raise UsageError(f"topic {spec.topic}: kind {spec.kind.value} needs `schema` and `encoding`")


_BY_NAME = {
    VIDEO: TopicKind.VIDEO,
    "foxglove_msgs/msg/CompressedVideo": TopicKind.VIDEO,
    JOINT_STATE: TopicKind.STATE,
    "sensor_msgs/JointState": TopicKind.STATE,
    "foxglove.JointStates": TopicKind.STATE,
    "std_msgs/msg/Float64MultiArray": TopicKind.STATE,
    "std_msgs/msg/Float32MultiArray": TopicKind.STATE,
    "sensor_msgs/msg/Imu": TopicKind.STATE,
    "geometry_msgs/msg/PoseStamped": TopicKind.STATE,
    "geometry_msgs/msg/TwistStamped": TopicKind.STATE,
    "geometry_msgs/msg/WrenchStamped": TopicKind.STATE,
    POINT_CLOUD: TopicKind.LIDAR,
    "sensor_msgs/msg/PointCloud2": TopicKind.LIDAR,
    "sensor_msgs/msg/LaserScan": TopicKind.LIDAR,
    RAW_AUDIO: TopicKind.AUDIO,
    "foxglove.CompressedAudio": TopicKind.AUDIO,
    "audio_common_msgs/msg/AudioData": TopicKind.AUDIO,
    STRING: TopicKind.TEXT,
    LOG: TopicKind.EVENT,
    "rcl_interfaces/msg/Log": TopicKind.EVENT,
}


def guess_kind(schema: str) -> TopicKind:
    """The kind of a foreign topic by its schema's name; OTHER where that says nothing."""
    return _BY_NAME.get(schema, TopicKind.OTHER)
