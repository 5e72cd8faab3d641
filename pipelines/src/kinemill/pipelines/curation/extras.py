"""What a build adds to the rows: statistics of the state topics, and layouts as sidecars.

Both are read from, or put beside, the objects that the manifest points at.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kinemill.contracts import Store, TopicKind, episode_key, layout_key
from kinemill.errors import ConflictError, DataError, NotFoundError

if TYPE_CHECKING:
    from kinemill.pipelines.warehouse.query import Warehouse

__all__ = ["put_layouts", "statistics_text"]

_STREAMS = 8
_SPAN_NS = 60_000_000_000
_SPANS = 10
"""Of a long episode: so many stretches of a minute, evenly spread. Shorter ones are read whole."""


def statistics_text(store: Store, warehouse: Warehouse, episodes: int) -> str:
    """Statistics of all state topics as the manifest's metadata has them, from the first rows of its order.

    The order is a seeded shuffle, so the first rows are a fair sample, and the same one each time. Where the manifest
    has a split `train`, only its rows count. A topic whose episodes have different columns is left out.

    Args:
        store: Where the episodes lie.
        warehouse: With the table `chosen`.
        episodes: How many are read at most; 0: none.

    Returns:
        JSON; empty where there is nothing to tell.

    Raises:
        DataError: An episode's object is damaged or gone.
    """
    from kinemill.manifest.statistics import Gathered, dump_statistics

    if episodes <= 0:
        return ""
    rows = list(
        warehouse.rows(
            "select episode_id, profile, sha256, topics, layout from chosen "  # noqa: S608 - an integer
            "where split = 'train' or not exists (select 1 from chosen where split = 'train') "
            f"order by order_key, episode_id limit {int(episodes)}"
        )
    )
    found: dict[str, Gathered] = {}
    mixed: set[str] = set()
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="statistics") as pool:
        for topics in pool.map(lambda row: _read_states(store, row), rows):
            for topic, parts in topics.items():
                one = found.setdefault(topic, Gathered())
                for part in parts:
                    if one.columns not in (None, part.shape[1]):
                        mixed.add(topic)
                    elif topic not in mixed:
                        one.add(part)
    whole = {topic: one.result() for topic, one in found.items() if topic not in mixed}
    told = {topic: one for topic, one in whole.items() if one is not None}
    return dump_statistics(told) if told else ""


def _read_states(store: Store, row: Sequence[Any]) -> dict[str, list[Any]]:
    """Rows of each state topic of one episode, a part per stretch."""
    from kinemill.episode import EpisodeReader, Layout, Window

    episode_id, profile, sha256, topics, packed = row
    key = episode_key(uuid.UUID(bytes=bytes(episode_id)), profile, bytes(sha256).hex())
    try:
        layout = Layout.from_columns(topics, bytes(packed)) if packed is not None else None
        reader = EpisodeReader.open(store, key, layout=layout)
        states: dict[str, list[Any]] = {}
        for group in reader.layout.groups:
            names = [t.topic for t in group.topics if t.kind is TopicKind.STATE and t.names]
            if not names or not len(group):
                continue
            for start, stop in _stretches(int(group.t_first_ns.min()), int(group.t_last_ns.max()) + 1):
                answers = reader.read([Window.between(name, start, stop) for name in names])
                for name in names:
                    if len(answers[name][1]):
                        states.setdefault(name, []).append(answers[name][1])
        return states
    except (DataError, NotFoundError) as exc:
        raise DataError(
            f"statistics: {key} cannot be read ({exc}); put the episode aside, or set `statistics_episodes: 0`"
        ) from exc


def _stretches(start: int, stop: int) -> Iterator[tuple[int, int]]:
    if stop - start <= _SPANS * _SPAN_NS:
        yield start, stop
        return
    for i in range(_SPANS):
        at = start + i * (stop - start - _SPAN_NS) // (_SPANS - 1)
        yield at, at + _SPAN_NS


def put_layouts(store: Store, warehouse: Warehouse) -> int:
    """Put the packed layout of every chosen row beside its object, where it is not there yet.

    Args:
        store: The corpus.
        warehouse: With the table `chosen`.

    Returns:
        Sidecars written.

    Raises:
        DataError: A row without a layout in the warehouse, and without a sidecar.
    """
    written = 0
    with ThreadPoolExecutor(_STREAMS, thread_name_prefix="sidecars") as pool:
        for number in range(256):  # a shard at a time bounds what is held
            shard = f"{number:02x}"
            rows = warehouse.rows(
                f"select episode_id, profile, sha256, layout from chosen where right(hex(episode_id), 2) = '{number:02X}'"  # noqa: S608, E501 - two digits
            )
            wanted = {
                layout_key(episode_key(uuid.UUID(bytes=bytes(e)), profile, bytes(sha).hex())): packed
                for e, profile, sha, packed in rows
            }
            if not wanted:
                continue
            standing = _standing(store, shard)
            wanted = {k: v for k, v in wanted.items() if k not in standing}
            if missing := next((k for k, v in wanted.items() if v is None), None):
                raise DataError(f"{missing}: the warehouse has no layout of this episode, and there is no sidecar")
            list(pool.map(lambda item: _put(store, *item), wanted.items()))
            written += len(wanted)
    return written


def _standing(store: Store, shard: str) -> set[str]:
    return {meta.key for meta in store.list(f"episodes/{shard}/") if meta.key.endswith(".layout")}


def _put(store: Store, key: str, packed: Any) -> None:
    with suppress(ConflictError):  # another build was faster; the content follows from the object's key
        store.put_if_absent(key, bytes(packed))
