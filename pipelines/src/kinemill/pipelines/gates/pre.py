"""Before anything is converted: is this recording what the vendor's YAML says it is?"""

from __future__ import annotations

from collections.abc import Iterable

from kinemill.pipelines.adapters.base import EpisodeFacts, Finding, Level, SourceFacts
from kinemill.pipelines.adapters.vendor import CameraMap, StateMap, VendorSpec

__all__ = ["judge_facts", "worst"]

_RANK = {Level.INFO: 0, Level.WARN: 1, Level.FAIL: 2}


def worst(findings: Iterable[Finding]) -> Finding | None:
    """The first of the gravest findings, or None."""
    return max(findings, key=lambda f: _RANK[f.level], default=None)


def judge_facts(facts: SourceFacts, vendor: VendorSpec, where: str) -> tuple[list[Finding], dict[int, list[Finding]]]:
    """Findings of the recording as a whole, and by episode; a FAIL puts the one or the other aside.

    Args:
        facts: What the adapter found.
        vendor: Limits, and the topics that have to be there.
        where: What to call the recording.
    """
    whole = list(facts.findings)
    each = {e.index: [*e.findings, *_episode(e, vendor, f"{where}{e.key}")] for e in facts.episodes}
    return whole, each


def _episode(episode: EpisodeFacts, vendor: VendorSpec, where: str) -> list[Finding]:
    limits = vendor.gates
    out: list[Finding] = []
    present = {t.topic for t in episode.topics if t.messages > 0}
    wanted: dict[str, CameraMap | StateMap] = {**(vendor.cameras or {}), **(vendor.states or {})}
    for source, spec in wanted.items():
        if spec.required and source not in present and not _told(episode, source):
            text = f"{where}: no message of {source}, which the vendor YAML names as {spec.topic}"
            out.append(Finding("topic_missing", Level.FAIL, text, {"topic": source}))
    if (vendor.cameras is not None or vendor.states is not None) and not any(n in present for n in wanted):
        out.append(Finding("nothing_mapped", Level.FAIL, f"{where}: none of the topics that the vendor YAML names"))
    duration_s = episode.duration_s
    if duration_s < limits.min_duration_s:
        text = f"{where}: {duration_s:.3f} s long, the limit is {limits.min_duration_s:g} s"
        out.append(Finding("too_short", Level.FAIL, text, {"duration_s": f"{duration_s:.3f}"}))
    if duration_s > limits.max_duration_s:
        text = (
            f"{where}: {duration_s:.0f} s from first to last message, the limit is {limits.max_duration_s:g} s: "
            "several recordings may have been merged into one"
        )
        out.append(Finding("too_long", Level.FAIL, text, {"duration_s": f"{duration_s:.0f}"}))
    first = episode.t_first_ns
    if first is not None and first < 0:
        out.append(Finding("negative_time", Level.FAIL, f"{where}: time stamps below zero ({first} ns)"))
    return out


def _told(episode: EpisodeFacts, source: str) -> bool:
    """The adapter said already, and better, what is wrong with this topic."""
    return any(source in (f.evidence.get("camera"), f.evidence.get("topic")) for f in episode.findings)
