"""What changed between two manifests: rows that came, went, or point at another object."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.manifest import ManifestFile

__all__ = ["ManifestDiff", "diff_manifests"]


@dataclass(frozen=True, slots=True)
class ManifestDiff:
    """From one manifest to another; episodes are counted by (episode, profile)."""

    added: int
    removed: int
    corrected: int
    """In both, with another object."""
    reweighted: int
    moved: int
    """In both, in another split."""
    same: int
    added_by_vendor: dict[str, int] = field(default_factory=dict)
    removed_by_vendor: dict[str, int] = field(default_factory=dict)


def diff_manifests(old: Path, new: Path) -> ManifestDiff:
    """Compare two manifest files.

    Raises:
        CorruptError: One of them is not whole.
    """
    import duckdb

    with ManifestFile(old) as first, ManifestFile(new) as second, duckdb.connect(":memory:") as engine:
        engine.register("a", first.table())
        engine.register("b", second.table())
        counts = engine.execute(
            """
            select
              count(*) filter (where a.episode_id is null),
              count(*) filter (where b.episode_id is null),
              count(*) filter (where a.sha256 <> b.sha256),
              count(*) filter (where a.weight <> b.weight),
              count(*) filter (where a.split <> b.split),
              count(*) filter (where a.sha256 = b.sha256 and a.weight = b.weight and a.split = b.split)
            from a full join b on a.episode_id = b.episode_id and a.profile = b.profile
            """
        ).fetchone()
        assert counts is not None  # noqa: S101 - an aggregate has one row

        def by_vendor(left: str, right: str) -> dict[str, int]:
            rows: list[Any] = engine.execute(
                f"select vendor, count(*) from {left} l anti join {right} r "  # noqa: S608 - constants
                "on l.episode_id = r.episode_id and l.profile = r.profile group by 1 order by 1"
            ).fetchall()
            return {str(k): int(v) for k, v in rows}

        added, removed, corrected, reweighted, moved, same = (int(c) for c in counts)
        return ManifestDiff(
            added=added,
            removed=removed,
            corrected=corrected,
            reweighted=reweighted,
            moved=moved,
            same=same,
            added_by_vendor=by_vendor("b", "a"),
            removed_by_vendor=by_vendor("a", "b"),
        )
