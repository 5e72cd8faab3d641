"""A file goes into a store only as what its receipt says it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kinemill.episode.publishing import publish, publish_file
from kinemill.errors import StateError
from kinemill.store.memory import MemoryStore
from support.episode import small_episode


def test_the_same_content_is_one_object(tmp_path: Path) -> None:
    data, receipt = small_episode(1, 1, 10)
    (tmp_path / "e.mcap").write_bytes(data)
    store = MemoryStore()
    first = publish(store, tmp_path / "e.mcap", receipt)
    assert publish(store, tmp_path / "e.mcap", receipt) == first
    assert [(o.key, o.size_bytes) for o in store.list()] == [(first.key, len(data))]


def test_a_receipt_of_another_file_is_refused(tmp_path: Path) -> None:
    data, receipt = small_episode(1, 1, 10)
    path = tmp_path / "e.mcap"
    store = MemoryStore()
    # given a byte that was changed behind the writer's back, and a file that was cut
    for content in (data[:500] + bytes([data[500] ^ 1]) + data[501:], data[:-1]):
        path.write_bytes(content)
        with pytest.raises(StateError, match="its receipt says"):
            publish(store, path, receipt)
    path.write_bytes(data)
    with pytest.raises(StateError, match="sha256"):
        publish(store, path, replace(receipt, sha256="0" * 64))
    assert list(store.list()) == []


def test_a_name_that_is_taken_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "taken").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        publish_file(tmp_path / "new", tmp_path / "taken")
    assert (tmp_path / "taken").read_bytes() == b"old"
