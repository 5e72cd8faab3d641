"""What every `Store` must do. A backend's test inherits `StoreContract` and gives a `store` fixture."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from kinemill.contracts import ObjectMeta, Store
from kinemill.errors import ConflictError, NotFoundError, TruncatedError


class StoreContract:
    """Inherit, and add a fixture `store` that yields an empty store."""

    def test_it_is_a_store(self, store: Store) -> None:
        assert isinstance(store, Store)
        assert "://" in store.url

    def test_what_was_put_is_read_back(self, store: Store) -> None:
        meta = store.put_if_absent("a/b.bin", b"0123456789")
        assert (meta.key, meta.size_bytes) == ("a/b.bin", 10)
        assert store.get("a/b.bin") == b"0123456789"
        assert store.head("a/b.bin").size_bytes == 10

    def test_a_file_is_put_like_bytes(self, store: Store, tmp_path: Path) -> None:
        source = tmp_path / "x"
        source.write_bytes(b"from a file")
        assert store.put_if_absent("f", source).size_bytes == 11
        assert store.get("f") == b"from a file"

    def test_an_empty_object_is_an_object(self, store: Store) -> None:
        store.put_if_absent("empty", b"")
        assert store.get("empty") == b""

    def test_nothing_is_overwritten(self, store: Store) -> None:
        store.put_if_absent("k", b"first")
        with pytest.raises(ConflictError, match="k"):
            store.put_if_absent("k", b"second")
        assert store.get("k") == b"first"

    def test_one_of_racing_creators_wins(self, store: Store) -> None:
        wins: list[int] = []
        start = threading.Barrier(8)

        def create(i: int) -> None:
            start.wait()
            try:
                store.put_if_absent("race", str(i).encode())
            except ConflictError:
                return
            wins.append(i)

        threads = [threading.Thread(target=create, args=(i,)) for i in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(wins) == 1
        assert store.get("race") == str(wins[0]).encode()

    def test_a_pointer_moves_only_from_the_etag_it_had(self, store: Store) -> None:
        old = store.put_if_absent("pointer", b"1")
        assert old.etag
        new = store.put_if_match("pointer", b"2", old.etag)
        with pytest.raises(ConflictError):
            store.put_if_match("pointer", b"3", old.etag)
        assert store.get("pointer") == b"2"
        assert store.head("pointer").etag == new.etag
        with pytest.raises(ConflictError):
            store.put_if_match("never-there", b"3", old.etag)

    def test_ranges_are_exact_and_a_short_one_is_an_error(self, store: Store) -> None:
        meta = store.put_if_absent("k", b"0123456789")
        assert store.get_range("k", 2, 3) == b"234"
        assert store.get_range("k", 7, 3, etag=meta.etag) == b"789"
        assert store.get_ranges("k", [(0, 1), (9, 1), (3, 4)]) == [b"0", b"9", b"3456"]
        assert store.get_range("k", 4, 0) == b""
        with pytest.raises(TruncatedError, match="k"):
            store.get_range("k", 8, 3)
        with pytest.raises(TruncatedError):
            store.get_range("k", 20, 1)
        with pytest.raises(ConflictError):
            store.get_range("k", 0, 1, etag="some-other-etag")

    def test_what_is_not_there_is_named(self, store: Store, tmp_path: Path) -> None:
        for call in (store.get, store.head, lambda k: store.get_range(k, 0, 1)):
            with pytest.raises(NotFoundError, match="nobody"):
                call("nobody")
        with pytest.raises(NotFoundError, match="nobody"):
            store.download("nobody", tmp_path / "x")

    def test_listing_is_by_prefix_and_in_order(self, store: Store) -> None:
        for key in ("e/b", "e/a", "e/c/d", "other"):
            store.put_if_absent(key, key.encode())
        found = list(store.list("e/"))
        assert [m.key for m in found] == ["e/a", "e/b", "e/c/d"]
        assert all(isinstance(m, ObjectMeta) and m.size_bytes == len(m.key) for m in found)
        assert [m.key for m in store.list()] == ["e/a", "e/b", "e/c/d", "other"]

    def test_download_writes_the_whole_object_in_parts(self, store: Store, tmp_path: Path) -> None:
        data = bytes(range(256)) * 1024
        meta = store.put_if_absent("big", data)
        out = tmp_path / "out"
        store.download("big", out, etag=meta.etag, size_bytes=len(data), part_bytes=100_000)
        assert out.read_bytes() == data
        with pytest.raises(ConflictError):
            store.download("big", tmp_path / "o2", etag="some-other-etag", size_bytes=len(data))

    def test_delete_is_quiet_about_what_is_gone(self, store: Store) -> None:
        store.put_if_absent("k", b"1")
        store.delete("k")
        store.delete("k")
        with pytest.raises(NotFoundError):
            store.get("k")

    def test_it_is_usable_from_many_threads(self, store: Store) -> None:
        store.put_if_absent("k", b"0123456789")
        got: list[bytes] = []
        threads = [threading.Thread(target=lambda: got.append(store.get_range("k", 1, 8))) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert got == [b"12345678"] * 8
