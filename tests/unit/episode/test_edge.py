"""Names on a command line: what they mean."""

from __future__ import annotations

import pytest

from kinemill.episode.edge import place


def test_a_key_of_a_store_is_unquoted_as_its_folder_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "reader")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not asked for")
    store, key = place("s3://bucket/day%20one/a%20b%3F.mcap?endpoint=http://127.0.0.1:1")
    assert key == "a b?.mcap"
    assert "day one" in store.url or "day%20one" in store.url
