"""What many hosts have in common, said once: `gpu[001-016]` instead of sixteen lines that differ in a number."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable
from itertools import pairwise

from kinemill.control.deploy.record import Failure, Finding

__all__ = ["fold", "same_failures", "same_findings"]

_NUMBERED = re.compile(r"([^:/\[\],]*?)([0-9]{1,9})")


def fold(names: Iterable[str]) -> str:
    """Names of hosts in few words, in Slurm's own form; what is no host's name, such as `file:line`, stays as it is.

    Args:
        names: In any order; a name that comes twice is said once.
    """
    numbers: dict[str, list[str]] = {}
    said: list[str] = []
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            said.append(name)
        else:
            if match[1] not in numbers:
                said.append("")
            numbers.setdefault(match[1], []).append(match[2])
    ranges = iter([prefix + _ranges(found) for prefix, found in numbers.items()])
    return ", ".join(text or next(ranges) for text in said)


def _ranges(numbers: list[str]) -> str:
    """`001`, or `[001-003,007]`; numbers of different widths are never in one range, since zeros may lead."""
    if len(numbers) == 1:
        return numbers[0]
    ordered = sorted(numbers, key=lambda text: (len(text), int(text)))
    starts = [0] + [
        index + 1
        for index, (one, other) in enumerate(pairwise(ordered))
        if len(one) != len(other) or int(other) != int(one) + 1
    ]
    parts = [
        ordered[start] if end - start == 1 else f"{ordered[start]}-{ordered[end - 1]}"
        for start, end in pairwise([*starts, len(ordered)])
    ]
    return f"[{','.join(parts)}]"


def same_findings(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each that differs in more than its place, in the order of first sight."""
    places: dict[Finding, list[str]] = {}
    for finding in findings:
        places.setdefault(dataclasses.replace(finding, where=""), []).append(finding.where)
    return [dataclasses.replace(finding, where=fold(found)) for finding, found in places.items()]


def same_failures(failures: Iterable[Failure]) -> list[Failure]:
    """One failure for each that differs in more than its host, in the order of first sight."""
    hosts: dict[Failure, list[str]] = {}
    for failure in failures:
        hosts.setdefault(dataclasses.replace(failure, host=""), []).append(failure.host)
    return [dataclasses.replace(failure, host=fold(found)) for failure, found in hosts.items()]
