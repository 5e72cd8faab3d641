"""Reads small configuration files of nodes strictly, so that a bad template fails on the control host."""

from __future__ import annotations

import configparser
from collections.abc import Iterator, Mapping

from kinemill.errors import ConfigError

__all__ = [
    "parse_enroot",
    "parse_limits",
    "parse_mariadb",
    "parse_mount",
    "parse_plugstack",
    "parse_preferences",
    "parse_sshd",
    "parse_sysctl",
    "parse_unit",
]

_LIMITS = {
    *("core", "data", "fsize", "memlock", "nofile", "rss", "stack", "cpu", "nproc", "as", "maxlogins", "priority"),
    *("locks", "sigpending", "msgqueue", "nice", "rtprio"),
}


def _lines(text: str) -> Iterator[tuple[int, str]]:
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.split("#", 1)[0].strip()
        if line:
            yield number, line


def parse_limits(text: str) -> list[tuple[str, str, str, str]]:
    """Read a limits.conf: who, soft or hard, what, value.

    Raises:
        ConfigError: A line is not one.
    """
    found: list[tuple[str, str, str, str]] = []
    for number, line in _lines(text):
        words = line.split()
        if len(words) != 4 or words[1] not in {"soft", "hard", "-"} or words[2] not in _LIMITS:
            raise ConfigError(f"limits.conf line {number}: not 'who soft|hard limit value': {line!r}")
        if not (words[3].lstrip("-").isdigit() or words[3] in {"unlimited", "infinity"}):
            raise ConfigError(f"limits.conf line {number}: {words[3]!r} is no number")
        found.append((words[0], words[1], words[2], words[3]))
    return found


def parse_sysctl(text: str) -> Mapping[str, str]:
    """Read a sysctl.conf.

    Raises:
        ConfigError: A line is not `name = value`, or a name stands twice.
    """
    found: dict[str, str] = {}
    for number, line in _lines(text):
        name, mark, value = (part.strip() for part in line.partition("="))
        if not mark or not value or not name or " " in name:
            raise ConfigError(f"sysctl.conf line {number}: not 'name = value': {line!r}")
        if name in found:
            raise ConfigError(f"sysctl.conf line {number}: {name} stands twice")
        found[name] = value
    return found


def parse_sshd(text: str) -> Mapping[str, str]:
    """Read a sshd_config without blocks.

    Raises:
        ConfigError: A line is not `Keyword value`.
    """
    found: dict[str, str] = {}
    for number, line in _lines(text):
        words = line.split(maxsplit=1)
        if len(words) != 2 or not words[0].isalnum() or words[0] == "Match":
            raise ConfigError(f"sshd_config line {number}: not 'Keyword value': {line!r}")
        found[words[0]] = words[1]
    return found


def parse_mariadb(text: str) -> Mapping[str, str | None]:
    """Read the server's section of a my.cnf.

    Raises:
        ConfigError: It cannot be read, or lets the database listen on the network.
    """
    section = _ini(text, "my.cnf", "mariadbd", bare=True)
    if "skip-networking" not in section:
        raise ConfigError("my.cnf: the database would listen on the network; keep skip-networking")
    return section


def parse_mount(text: str) -> Mapping[str, str | None]:
    """Read the mount section of a systemd unit.

    Raises:
        ConfigError: It cannot be read, or lacks what a mount needs.
    """
    section = _ini(text, "mount unit", "Mount", bare=False)
    lacking = [name for name in ("What", "Where", "Type") if not section.get(name)]
    if lacking:
        raise ConfigError(f"mount unit: lacks {', '.join(lacking)}")
    return section


def parse_unit(text: str) -> Mapping[str, str | None]:
    """Read the unit section of a systemd unit or drop-in.

    Raises:
        ConfigError: It cannot be read, or asks for the mount of what is no absolute path.
    """
    section = _ini(text, "unit", "Unit", bare=False)
    place = section.get("RequiresMountsFor")
    if place is not None and not place.startswith("/"):
        raise ConfigError(f"unit: RequiresMountsFor={place} is no absolute path")
    return section


def parse_preferences(text: str) -> list[Mapping[str, str]]:
    """Read a file of apt_preferences: one mapping for each stanza.

    Raises:
        ConfigError: A stanza lacks one of its three fields, or has another.
    """
    found: list[Mapping[str, str]] = []
    for block in "\n".join(line for line in text.splitlines() if not line.startswith("#")).split("\n\n"):
        rows = [line.partition(":") for line in block.splitlines() if line.strip()]
        stanza = {name.strip(): value.strip() for name, _, value in rows}
        if not rows:
            continue
        if set(stanza) != {"Package", "Pin", "Pin-Priority"} or not all(stanza.values()) or len(rows) != 3:
            raise ConfigError(f"apt_preferences: not Package, Pin and Pin-Priority: {block.strip()!r}")
        if not stanza["Pin-Priority"].lstrip("-").isdigit():
            raise ConfigError(f"apt_preferences: {stanza['Pin-Priority']!r} is no priority")
        found.append(stanza)
    return found


def parse_enroot(text: str) -> Mapping[str, str]:
    """Read an enroot.conf.

    Raises:
        ConfigError: A line is not `ENROOT_NAME value`, or a name stands twice.
    """
    found: dict[str, str] = {}
    for number, line in _lines(text):
        name, _, value = line.partition(" ")
        if not name.startswith("ENROOT_") or not value.strip() or name in found:
            raise ConfigError(f"enroot.conf line {number}: not one 'ENROOT_NAME value': {line!r}")
        found[name] = value.strip()
    return found


def parse_plugstack(text: str) -> list[tuple[str, str, str]]:
    """Read a plugstack.conf: optional, required or include; a path; arguments.

    Raises:
        ConfigError: A line is not one, or its path is not absolute.
    """
    found: list[tuple[str, str, str]] = []
    for number, line in _lines(text):
        words = line.split(None, 2)
        if len(words) < 2 or words[0] not in {"optional", "required", "include"} or not words[1].startswith("/"):
            raise ConfigError(f"plugstack.conf line {number}: not 'optional|required|include /path': {line!r}")
        found.append((words[0], words[1], words[2] if len(words) > 2 else ""))
    return found


def _ini(text: str, what: str, section: str, *, bare: bool) -> Mapping[str, str | None]:
    parser = configparser.ConfigParser(allow_no_value=bare, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way to keep capitals
    try:
        parser.read_string(text)
        return dict(parser[section])
    except (configparser.Error, KeyError) as error:
        raise ConfigError(f"{what}: {error}") from error
