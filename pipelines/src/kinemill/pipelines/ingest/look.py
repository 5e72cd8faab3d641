"""A look into one recording without ingesting it: facts and findings, for `ingest plan --inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kinemill.pipelines.adapters import Finding, Level, Source, SourceFacts, VendorSpec
from kinemill.pipelines.gates import judge_facts
from kinemill.pipelines.ingest.sandbox import Sandbox, VendorDataError

__all__ = ["Look", "look_at"]


@dataclass(frozen=True, slots=True)
class Look:
    """What a pre-gate would say."""

    key: str
    facts: SourceFacts
    findings: tuple[Finding, ...]

    @property
    def refused(self) -> int:
        """How many findings put something aside."""
        return sum(f.level is Level.FAIL for f in self.findings)

    def lines(self) -> Iterator[str]:
        """For a person."""
        yield f"{self.key}: {len(self.facts.episodes)} episodes, {self.facts.messages} messages"
        for episode in self.facts.episodes:
            name = f"  episode {episode.key}" if episode.key else "  episode"
            yield f"{name}: {episode.duration_s:.3f} s"
            for topic in episode.topics:
                extra = f", {topic.repeated_stamps} repeated stamps" if topic.repeated_stamps else ""
                yield f"    {topic.messages:>8} {topic.topic} ({topic.type}){extra}"
        for finding in self.findings:
            yield f"  {finding.level.value}: [{finding.code}] {finding.message}"


def look_at(source: Source, vendor: VendorSpec) -> Look:
    """Inspect one recording in a sandbox of its own."""
    with Sandbox() as box:
        try:
            facts = box.inspect(source, vendor)
        except VendorDataError as exc:
            return Look(source.key, SourceFacts(source.adapter, ()), (Finding(exc.code, Level.FAIL, str(exc)),))
    whole, each = judge_facts(facts, vendor, source.key)
    return Look(source.key, facts, (*whole, *(f for found in each.values() for f in found)))
