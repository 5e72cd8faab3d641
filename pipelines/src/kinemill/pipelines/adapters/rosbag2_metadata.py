"""metadata.yaml of a ROS 2 bag: what it claims, and every way in which the rows say otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.errors import ConfigError
from kinemill.pipelines.adapters.base import Finding, Level, Source
from kinemill.pipelines.adapters.files import inside
from kinemill.pipelines.adapters.vendor import MAX_YAML_BYTES, load_yaml

__all__ = ["BagMetadata", "compare", "files_findings", "read_metadata"]


@dataclass(slots=True)
class BagMetadata:
    """What metadata.yaml claims."""

    files: list[str] = field(default_factory=list)
    messages: int | None = None
    topics: dict[str, int] = field(default_factory=dict)
    start_ns: int | None = None
    duration_ns: int | None = None
    compression_mode: str = ""
    compression_format: str = ""
    storage: str = ""


def read_metadata(path: Path) -> BagMetadata:
    if path.stat().st_size > MAX_YAML_BYTES:
        raise ConfigError(f"{path.name} is larger than {MAX_YAML_BYTES >> 10} KiB")
    data = load_yaml(path.read_text("utf-8", "replace"), path.name)
    info = data.get("rosbag2_bagfile_information") if isinstance(data, dict) else None
    if not isinstance(info, dict):
        raise ConfigError(f"{path.name} has no rosbag2_bagfile_information")

    def number(value: Any, key: str) -> int | None:
        found = value.get(key) if isinstance(value, dict) else None
        return found if isinstance(found, int) else None

    def rows(key: str) -> list[Any]:
        found = info.get(key)
        return found if isinstance(found, list) else []

    out = BagMetadata(
        files=[str(f) for f in rows("relative_file_paths")],
        messages=number(info, "message_count"),
        start_ns=number(info.get("starting_time"), "nanoseconds_since_epoch"),
        duration_ns=number(info.get("duration"), "nanoseconds"),
        compression_mode=str(info.get("compression_mode") or "").upper(),
        compression_format=str(info.get("compression_format") or ""),
        storage=str(info.get("storage_identifier") or ""),
    )
    for entry in rows("topics_with_message_count"):
        if isinstance(entry, dict) and isinstance(entry.get("topic_metadata"), dict):
            name, messages = entry["topic_metadata"].get("name"), entry.get("message_count")
            if isinstance(name, str) and isinstance(messages, int):
                out.topics[name] = messages
    return out


def files_findings(source: Source, metadata: BagMetadata, storages: list[Path]) -> list[Finding]:
    out = []
    folder = source.path if source.path.is_dir() else source.path.parent
    present = {p.resolve() for p in storages}
    missing, outside = [], []
    for name in metadata.files:
        path = inside(folder, name)
        if path is None:
            outside.append(name)
        elif path.resolve() not in present and inside(folder, Path(name).name) not in storages:
            missing.append(name)
    if outside:
        text = f"{source.key}: metadata.yaml names files outside of the bag ({outside[0]!r}); they are not read"
        out.append(Finding("path_outside", Level.WARN, text))
    if missing:
        total = len(metadata.files)
        text = f"{source.key}: {len(missing)} of {total} files that metadata.yaml names are missing ({missing[0]} ...)"
        out.append(Finding("files_missing", Level.FAIL, text, {"missing": str(len(missing)), "files": str(total)}))
    if metadata.compression_mode == "MESSAGE":
        text = f"{source.key}: each message is compressed on its own ({metadata.compression_format})"
        level = Level.INFO if metadata.compression_format == "zstd" else Level.FAIL
        out.append(Finding("message_compression", level, text, {"format": metadata.compression_format}))
    elif metadata.compression_mode == "FILE":
        out.append(Finding("file_compression", Level.INFO, f"{source.key}: the files were compressed as a whole"))
    return out


def compare(
    metadata: BagMetadata | None, found: dict[str, int], logs: list[int], *, cut_off: bool = False
) -> list[Finding]:
    """What metadata.yaml says against what the rows say.

    Args:
        metadata: None where there is none.
        found: Messages by topic.
        logs: Log times of all messages.
        cut_off: A file is known to be damaged: what is missing is told in one sentence.
    """
    if metadata is None:
        return []
    if cut_off:
        promised = metadata.messages or sum(metadata.topics.values())
        if len(logs) >= promised:
            return []
        text = f"{promised - len(logs)} of {promised} messages are missing"
        evidence = {"missing": str(promised - len(logs)), "promised": str(promised)}
        return [Finding("messages_missing", Level.FAIL, text, evidence)]
    out = []
    for topic, promised in metadata.topics.items():
        have = found.get(topic, 0)
        if have < promised:
            text = f"{promised - have} of {promised} messages of {topic} are missing"
            evidence = {"topic": topic, "missing": str(promised - have), "promised": str(promised)}
            out.append(Finding("messages_missing", Level.FAIL, text, evidence))
        elif have > promised:
            text = f"topic {topic} has {have} messages, metadata.yaml says {promised}; the rows are believed"
            out.append(Finding("metadata_count_wrong", Level.WARN, text))
    if metadata.messages is not None and not metadata.topics and len(logs) < metadata.messages:
        text = f"{metadata.messages - len(logs)} of {metadata.messages} messages are missing"
        out.append(Finding("messages_missing", Level.FAIL, text))
    if logs and metadata.start_ns is not None and metadata.duration_ns is not None:
        first, last = min(logs), max(logs)
        if metadata.start_ns != first or abs(metadata.duration_ns - (last - first)) > 1:
            text = (
                f"metadata.yaml says start {metadata.start_ns} and duration {metadata.duration_ns} ns, "
                f"the rows say {first} and {last - first} ns; the rows are believed"
            )
            out.append(Finding("metadata_time_wrong", Level.WARN, text))
    return out
