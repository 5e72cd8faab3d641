"""How a worker that knows only a URL gets its store: once per process and URL."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.loaders.settings import ReadSettings

__all__ = ["store_for", "use_store"]

_open: dict[tuple[int, str, ReadSettings | None], Store] = {}
_given: dict[str, Store] = {}


def use_store(store: Store) -> str:
    """Let `store_for` answer with this very object in this process and its forks.

    Returns:
        Its URL.
    """
    _given[store.url] = store
    return store.url


def store_for(url: str, settings: ReadSettings | None = None) -> Store:
    """The store at `url`; clients are made anew after a fork.

    Args:
        url: Of the store.
        settings: Bounds on retries; None: the store's own.
    """
    given = _given.get(url)
    if given is not None:
        return given
    place = (os.getpid(), url, settings)
    found = _open.get(place)
    if found is None:
        from kinemill.store import open_store
        from kinemill.store.retry import Retry

        retry = None
        if settings is not None:
            retry = Retry(settings.attempts, base_s=settings.backoff_s, deadline_s=settings.deadline_s)
        found = _open[place] = open_store(url, retry=retry)
    return found
