"""Recordings of Slurm's outputs are what the releases say today.

New ones: `KINEMILL_RECORD=1 make full-cluster`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from support.slurm_raw import RAW, VERSIONS, load, record

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster


@pytest.mark.full("cluster")
@pytest.mark.parametrize("release", VERSIONS)
def test_recordings_have_the_form_of_live_output(slurm_cluster: Callable[..., Cluster], release: str) -> None:
    cluster = slurm_cluster(VERSIONS[release])
    assert cluster.version().startswith(release)
    found = record(cluster)
    folder = RAW / release
    if os.environ.get("KINEMILL_RECORD"):
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
    assert {path.name for path in folder.iterdir()} == set(found)
    for name, text in found.items():
        if name.endswith(".json"):
            live, kept = json.loads(text), load(release, name)
            for top in ("nodes", "jobs", "reservations", "sinfo"):
                assert keys(live.get(top, [])) == keys(kept.get(top, [])), f"{name}: {top}"


def keys(records: list[dict[str, object]]) -> set[str]:
    """All keys of all records: which of them comes first is not the release's doing."""
    return {key for record in records for key in record}
