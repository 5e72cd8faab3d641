"""Statistics and sidecars of a build, over a warehouse of three rows and a store in memory."""

from __future__ import annotations

from typing import Any

import pytest

from kinemill.contracts import layout_key
from kinemill.errors import DataError
from kinemill.manifest.statistics import METADATA_KEY, parse_statistics
from kinemill.pipelines.curation.extras import _stretches, put_layouts, statistics_text
from kinemill.store.memory import MemoryStore
from support.loaders import MadeEpisode, make_episode


class Rows:
    """Answers the queries of this module; a row is (episode_id, profile, sha256, topics, layout)."""

    def __init__(self, episodes: list[MadeEpisode]) -> None:
        self.episodes = episodes

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        if "limit" in sql:
            count = int(sql.rsplit(" ", 1)[1])
            return [
                tuple(e.row[n] for n in ("episode_id", "profile", "sha256", "topics", "layout"))
                for e in self.episodes[:count]
            ]
        shard = sql.rsplit("'", 2)[1].lower()
        return [
            (e.row["episode_id"], e.row["profile"], e.row["sha256"], e.row["layout"])
            for e in self.episodes
            if e.id.hex.endswith(shard)
        ]


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore("corpus")


def make(store: MemoryStore, seed: int, **more: Any) -> MadeEpisode:
    return make_episode(store, seed=seed, frames=12, cameras=1, **more)


def test_the_first_episodes_of_the_order_count_and_no_others(store: MemoryStore) -> None:
    made = Rows([make(store, seed) for seed in (3, 5, 100)])
    told = parse_statistics({METADATA_KEY: statistics_text(store, made, 2)})  # type: ignore[arg-type]  # the part used
    assert sorted(told) == ["/action", "/state"]
    assert told["/state"].count == 2 * 40
    assert (told["/state"].min[1], told["/state"].max[1], told["/state"].mean[1]) == (3.0, 5.0, 4.0)


def test_none_asked_for_reads_nothing(store: MemoryStore) -> None:
    assert statistics_text(store, Rows([]), 0) == ""  # type: ignore[arg-type]  # as above
    assert statistics_text(store, Rows([]), 9) == ""  # type: ignore[arg-type]  # as above


def test_a_damaged_episode_is_named_with_what_to_do(store: MemoryStore) -> None:
    one = make(store, 1, damage=lambda data: data[:200] + bytes(len(data) - 200))
    with pytest.raises(DataError, match=f"{one.key}.*statistics_episodes: 0"):
        statistics_text(store, Rows([one]), 4)  # type: ignore[arg-type]  # as above


def test_an_episode_that_is_gone_too(store: MemoryStore) -> None:
    one = make(store, 1)
    store.delete(one.key)
    with pytest.raises(DataError, match=one.key):
        statistics_text(store, Rows([one]), 4)  # type: ignore[arg-type]  # as above


def test_a_long_episode_is_read_in_stretches_from_end_to_end() -> None:
    minute = 60_000_000_000
    assert list(_stretches(5, 5 + 10 * minute)) == [(5, 5 + 10 * minute)]
    long = list(_stretches(0, 600 * minute))
    assert len(long) == 10
    assert long[0] == (0, minute)
    assert long[-1] == (599 * minute, 600 * minute)


def test_sidecars_are_written_once_and_only_where_they_lack(store: MemoryStore) -> None:
    made = [make(store, seed) for seed in range(4)]
    store.put_if_absent(layout_key(made[0].key), made[0].layout)
    assert put_layouts(store, Rows(made)) == 3  # type: ignore[arg-type]  # as above
    assert put_layouts(store, Rows(made)) == 0  # type: ignore[arg-type]  # as above
    assert all(store.get(layout_key(one.key)) == one.layout for one in made)


def test_a_row_without_layout_needs_a_sidecar(store: MemoryStore) -> None:
    one = make(store, 1)
    one.row["layout"] = None
    with pytest.raises(DataError, match="no layout of this episode"):
        put_layouts(store, Rows([one]))  # type: ignore[arg-type]  # as above
