"""Slurm's short way to write host names: `n[1-3,07],m2` to a list, and nothing bigger than asked for."""

from __future__ import annotations

import re

from kinemill.errors import ExternalError, LimitError

__all__ = ["MAX_HOSTS", "expand_hostlist"]

MAX_HOSTS = 65_536
_MAX_CHARS = 1 << 20
_NOTHING = {"", "(null)", "None", "N/A", "None assigned"}
_PART = re.compile(r"(?P<text>[^\[\],]*)(?:\[(?P<set>[^\[\]]*)\])?")
_RANGE = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")


def expand_hostlist(text: str, *, most: int = MAX_HOSTS) -> tuple[str, ...]:
    """Every host that `text` names, in its order; leading zeros are kept.

    Args:
        text: As Slurm writes it; `(null)` and its like are no host.
        most: More hosts than this are refused.

    Raises:
        ExternalError: Not a host list.
        LimitError: More than `most` hosts.
    """
    if text.strip() in _NOTHING:
        return ()
    if len(text) > _MAX_CHARS:
        raise LimitError(f"a host list of {len(text)} characters; at most {_MAX_CHARS} are read")
    hosts: list[str] = []
    for item in _split(text.strip()):
        names = [""]
        for prefix, numbers in _pieces(item):
            names = [f"{name}{prefix}{number}" for name in names for number in _numbers(numbers, most)]
            if len(names) + len(hosts) > most:
                raise LimitError(f"host list '{text[:60]}' names more than {most} hosts")
        hosts += names
    return tuple(hosts)


def _split(text: str) -> list[str]:
    """At the commas outside brackets."""
    items = [""]
    depth = 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            raise ExternalError(f"'{text[:60]}' is not a host list")
        if char == "," and depth == 0:
            items.append("")
        else:
            items[-1] += char
    if depth or not all(items):
        raise ExternalError(f"'{text[:60]}' is not a host list")
    return items


def _pieces(item: str) -> list[tuple[str, str | None]]:
    found: list[tuple[str, str | None]] = []
    at = 0
    while at < len(item):
        match = _PART.match(item, at)
        if match is None or match.end() == at:
            raise ExternalError(f"'{item[:60]}' is not a host name")
        found.append((match["text"], match["set"]))
        at = match.end()
    return found


def _numbers(numbers: str | None, most: int) -> list[str]:
    if numbers is None:
        return [""]
    found: list[str] = []
    for part in numbers.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise ExternalError(f"'{numbers[:60]}' is not a set of host numbers")
        first, last = match["first"], match["last"] or match["first"]
        if int(last) < int(first):
            raise ExternalError(f"'{part}' counts backwards in a host list")
        if int(last) - int(first) >= most:
            raise LimitError(f"'{part}' names more than {most} hosts")
        width = len(first) if first.startswith("0") else 0
        found += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1)]
        if len(found) > most:
            raise LimitError(f"'{numbers[:60]}' names more than {most} hosts")
    return found
