"""Reads slurm.conf and its neighbours strictly, so that a bad template fails on the control host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kinemill.errors import ConfigError

__all__ = ["SlurmConf", "parse", "parse_cgroup", "parse_gres", "parse_slurmdbd"]

_PAIR = re.compile(r'(\S+?)=("[^"]*"|\S*)')
_REPEATED = {"SlurmctldHost"}
_CGROUP = {"CgroupPlugin", "ConstrainCores", "ConstrainDevices", "ConstrainRAMSpace"}


@dataclass(frozen=True, slots=True)
class SlurmConf:
    """A slurm.conf.

    Attributes:
        settings: Name -> value of single lines.
        controllers: Hosts of slurmctld.
        nodes: One mapping per NodeName line.
        partitions: One mapping per PartitionName line.
    """

    settings: Mapping[str, str]
    controllers: tuple[str, ...]
    nodes: tuple[Mapping[str, str], ...]
    partitions: tuple[Mapping[str, str], ...]


def _lines(text: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if not line:
            continue
        pairs = _PAIR.findall(line)
        if not pairs or " ".join(f"{key}={value}" for key, value in pairs).split() != line.split():
            raise ConfigError(f"line {number}: not name=value: {raw!r}")
        empty = [key for key, value in pairs if not value]
        if empty:
            raise ConfigError(f"line {number}: {', '.join(empty)} has no value")
        if len({key for key, _ in pairs}) != len(pairs):
            raise ConfigError(f"line {number}: a name stands twice: {raw!r}")
        found.append(dict(pairs))
    return found


def parse(text: str) -> SlurmConf:
    """Read a slurm.conf.

    Args:
        text: Its content.

    Returns:
        What it says.

    Raises:
        ConfigError: A line is not `name=value`, a setting stands twice, or ClusterName is missing.
    """
    settings: dict[str, str] = {}
    controllers: list[str] = []
    nodes: list[Mapping[str, str]] = []
    partitions: list[Mapping[str, str]] = []
    for line in _lines(text):
        first = next(iter(line))
        if first == "NodeName":
            nodes.append(line)
        elif first == "PartitionName":
            partitions.append(line)
        elif len(line) > 1:
            raise ConfigError(f"{first}: one setting a line")
        elif first in _REPEATED:
            controllers.append(line[first])
        elif first in settings:
            raise ConfigError(f"{first} stands twice")
        else:
            settings |= line
    if "ClusterName" not in settings:
        raise ConfigError("ClusterName is missing")
    return SlurmConf(settings, tuple(controllers), tuple(nodes), tuple(partitions))


def parse_gres(text: str) -> list[Mapping[str, str]]:
    """Read a gres.conf.

    Raises:
        ConfigError: A line names no resource.
    """
    lines = _lines(text)
    for line in lines:
        if "Name" not in line:
            raise ConfigError(f"gres.conf: a line names no resource: {line}")
    return list(lines)


def parse_cgroup(text: str) -> Mapping[str, str]:
    """Read a cgroup.conf.

    Raises:
        ConfigError: A setting is not known, or none is there (Slurm refuses an empty file).
    """
    settings: dict[str, str] = {}
    for line in _lines(text):
        settings |= line
    if not settings or not set(settings) <= _CGROUP:
        raise ConfigError(f"cgroup.conf: {sorted(set(settings) - _CGROUP) or 'is empty'}")
    return settings


def parse_slurmdbd(text: str) -> Mapping[str, str]:
    """Read a slurmdbd.conf.

    Raises:
        ConfigError: A line is not one setting, a setting stands twice, or what the daemon needs is missing.
    """
    settings: dict[str, str] = {}
    for line in _lines(text):
        for name, value in line.items():
            if len(line) > 1 or name in settings:
                raise ConfigError(f"slurmdbd.conf: {name}: one setting a line, once")
            settings[name] = value
    lacking = {"AuthType", "DbdHost", "StorageType", "StorageLoc"} - set(settings)
    if lacking:
        raise ConfigError(f"slurmdbd.conf: lacks {', '.join(sorted(lacking))}")
    return settings
