"""Every store keeps the contract: the folder, and S3 through a real server."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.contracts import ObjectMeta, Store
from kinemill.errors import ConfigError, ConflictError, EnvironmentFault, NotFoundError, TruncatedError, UsageError
from kinemill.store import open_async_store, open_store
from kinemill.store.embedded import S3Server
from kinemill.store.files import FileStore
from kinemill.store.parallel import Lanes, download
from kinemill.store.s3 import S3Store
from support.store_contract import StoreContract


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


class TestFiles(StoreContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return FileStore(tmp_path / "store")


class TestS3(StoreContract):
    @pytest.fixture
    def store(self, server: S3Server, request: pytest.FixtureRequest) -> Store:
        return server.store(f"contract/{request.node.name}")


@pytest.fixture(params=["file", "s3"])
def store(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Store:
    if request.param == "file":
        return FileStore(tmp_path / "store")
    return server.store(f"t/{abs(hash(request.node.nodeid))}")


# ---- what only real stores can get wrong


@pytest.mark.parametrize("name", ["plain", "a b", "a+b", "ü/é", "a%2Fb", "q?x=1&y", "#frag", "~t-_.x", "日本", "a'\"b"])
def test_keys_of_all_kinds_come_back_as_they_went(store: Store, name: str) -> None:
    store.put_if_absent(f"k/{name}", name.encode())
    assert store.get(f"k/{name}") == name.encode()
    assert store.get_range(f"k/{name}", 1, 2) == name.encode()[1:3]
    assert [m.key for m in store.list("k/")] == [f"k/{name}"]
    store.delete(f"k/{name}")
    assert list(store.list("k/")) == []


def test_a_list_is_whole_and_in_order(store: Store) -> None:
    names = [f"l/{n}" for n in ("a/b", "a/c/d", "a0", "ab", "B", "z")]
    for name in random.Random(1).sample(names, len(names)):
        store.put_if_absent(name, b"x")
    assert [m.key for m in store.list("l/")] == sorted(names)
    assert [m.key for m in store.list("l/a")] == sorted(n for n in names if n.startswith("l/a"))
    # SeaweedFS sorts by folder, so a-b would stand behind a/b there; kinemill's own keys have no such pair.
    assert [m.key for m in store.list("l/a/")] == ["l/a/b", "l/a/c/d"]


def test_a_pinned_range_notices_another_version(store: Store) -> None:
    meta = store.put_if_absent("p", b"0123456789")
    assert meta.etag is not None
    store.put_if_match("p", b"9876543210", meta.etag)
    with pytest.raises(ConflictError):
        store.get_range("p", 0, 4, etag=meta.etag)
    with pytest.raises(ConflictError):
        store.put_if_match("p", b"x", meta.etag)
    assert store.get("p") == b"9876543210"


def test_short_ranges_are_errors(store: Store) -> None:
    store.put_if_absent("r", b"0123456789")
    for start, length in ((5, 6), (10, 1), (100, 1), (-1, 2), (0, -1)):
        with pytest.raises(TruncatedError):
            store.get_range("r", start, length)
    assert store.get_range("r", 10, 0) == b""


@pytest.mark.parametrize("size", [0, 1, 999_999, 1_000_000, 1_000_001, 5_000_003])
def test_a_download_is_the_object(store: Store, tmp_path: Path, size: int) -> None:
    data = random.Random(size).randbytes(size)
    store.put_if_absent("d", data)
    target = tmp_path / "d"
    assert store.download("d", target, part_bytes=1_000_000).size_bytes == size
    assert target.read_bytes() == data


def test_a_download_leaves_nothing_when_it_fails(store: Store, tmp_path: Path) -> None:
    etag = store.put_if_absent("d", b"x" * 100).etag or ""
    target = tmp_path / "d"
    with pytest.raises(TruncatedError):
        store.download("d", target, size_bytes=200, part_bytes=60)
    assert not target.exists()
    store.put_if_match("d", b"y" * 100, etag)
    with pytest.raises(ConflictError):
        store.download("d", target, etag=etag)
    assert not target.exists()
    with pytest.raises(NotFoundError):
        store.download("none", target)


def test_no_room_shows_before_a_byte_moves(store: Store, tmp_path: Path) -> None:
    store.put_if_absent("d", b"x")
    with pytest.raises(EnvironmentFault, match="no room for"):
        store.download("d", tmp_path / "d", size_bytes=1 << 60)
    assert not (tmp_path / "d").exists()


def test_a_download_tells_of_each_part(store: Store, tmp_path: Path) -> None:
    store.put_if_absent("d", bytes(250))
    told: list[tuple[int, int]] = []
    store.download("d", tmp_path / "d", part_bytes=100, progress=lambda *at: told.append(at))
    assert len(told) == 3
    assert told[-1] == (250, 250)
    assert [done for done, _ in told] == sorted({done for done, _ in told})


def test_a_download_follows_no_link(store: Store, tmp_path: Path) -> None:
    store.put_if_absent("d", b"new")
    (tmp_path / "other").write_bytes(b"old")
    (tmp_path / "d").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        store.download("d", tmp_path / "d")
    assert (tmp_path / "other").read_bytes() == b"old"


def test_a_failed_download_waits_for_the_parts_that_have_begun(tmp_path: Path) -> None:
    # Given a part that fails while another is still writing
    writing, failed, returned = threading.Event(), threading.Event(), threading.Event()
    outlived = []

    def fill(fd: int, start: int, length: int) -> int:
        if start == 0:
            assert writing.wait(60)
            failed.set()
            raise TruncatedError("the first part")
        writing.set()
        assert failed.wait(60)
        outlived.append(returned.wait(0.3))  # time enough for a download that does not wait for this part
        return os.pwrite(fd, b"x" * length, start)

    # When the download fails
    with pytest.raises(TruncatedError, match="the first part"):
        download(Lanes(2), fill, ObjectMeta("d", 20), tmp_path / "d", part_bytes=10)
    returned.set()
    # Then nobody writes through its descriptor any more, whose number may be another file's by now
    assert outlived == [False]


def test_many_threads_share_a_store(store: Store) -> None:
    data = random.Random(0).randbytes(200_000)
    store.put_if_absent("m", data)
    wrong: list[int] = []

    def read(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(20):
            start = rng.randrange(150_000)
            if store.get_range("m", start, 40_000) != data[start : start + 40_000]:
                wrong.append(seed)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def _use(store: Store, answers: multiprocessing.SimpleQueue[object]) -> None:
    signal.alarm(300)
    try:
        made = store.put_if_absent(f"from-{os.getpid()}", b"child")
        got = store.get("shared"), store.get_ranges("shared", [(0, 2), (2, 3)]), made.size_bytes
        answers.put((got, [m.key for m in store.list("sha")]))
    except BaseException as exc:
        answers.put(repr(exc))
        raise


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_store_works_on_the_far_side_of_a_fork_or_spawn(store: Store, method: str) -> None:
    store.put_if_absent("shared", b"01234")
    assert store.get("shared") == b"01234", "the client's threads run now"
    context = multiprocessing.get_context(method)
    answers = context.SimpleQueue()
    children = [context.Process(target=_use, args=(store, answers)) for _ in range(2)]
    for child in children:
        child.start()
    got = [answers.get() for _ in children]
    for child in children:
        child.join(300)
    assert got == [((b"01234", [b"01", b"234"], 5), ["shared"])] * 2
    assert store.get("shared") == b"01234", "the parent goes on"


def test_a_pickled_store_is_small_and_works(store: Store) -> None:
    store.put_if_absent("x", b"1")
    text = pickle.dumps(store)
    assert len(text) < 1000
    assert pickle.loads(text).get("x") == b"1"  # noqa: S301 - our own


def test_large_files_go_up_in_parts_and_only_once(server: S3Server, tmp_path: Path) -> None:
    store = server.store("large")
    source = tmp_path / "big"
    source.write_bytes(random.Random(3).randbytes(12_000_000))
    meta = store.create_in_parts("big", source, part_bytes=5 << 20)
    assert meta.size_bytes == 12_000_000
    assert store.head("big").etag == meta.etag
    with pytest.raises(ConflictError):
        store.create_in_parts("big", source, part_bytes=5 << 20)
    with pytest.raises(ConflictError):
        store.put_if_absent("big", source)
    store.download("big", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == source.read_bytes()


def test_the_async_half_reads_the_same(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    for url in ("s3://corpus/async", (tmp_path / "async").as_uri()):
        store = open_store(url)
        meta = store.put_if_absent("a/x", b"0123456789")

        async def read(url: str = url, etag: str | None = meta.etag) -> tuple[object, ...]:
            reader = open_async_store(url)
            with pytest.raises(NotFoundError):
                await reader.get("none")
            with pytest.raises(TruncatedError):
                await reader.get_range("a/x", 8, 5)
            parts = await asyncio.gather(*(reader.get_range("a/x", i, 2, etag=etag) for i in range(0, 10, 2)))
            return b"".join(parts), (await reader.head("a/x")).size_bytes, [m.key async for m in reader.list("a/")]

        assert asyncio.run(read()) == (b"0123456789", 10, ["a/x"])


# ---- opening


def test_a_folder_store_takes_no_key_that_leaves_it(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "s")
    for key in ("../x", "a/../../x", "/etc/passwd", "", "a//b", ".", "a/.", "a\0b", ".kinemill-store/lock-00"):
        with pytest.raises(UsageError):
            store.get(key)
        with pytest.raises(UsageError):
            store.put_if_absent(key, b"x")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match=r"file/below: the folder cannot be made .*Not a directory"):
        FileStore(tmp_path / "file" / "below")


def test_a_crash_while_putting_leaves_no_object(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FileStore(tmp_path / "s")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(EnvironmentFault, match="No space left"):
        store.put_if_absent("a", b"x")
    monkeypatch.undo()
    assert list(store.list()) == []
    assert not list((tmp_path / "s" / ".kinemill-store").glob("put-*")), "a half-written file was left"


def test_no_secret_in_a_url_or_a_text(server: S3Server) -> None:
    with pytest.raises(ConfigError, match="no credentials"):
        open_store("s3://key:secret@bucket/x")
    store = server.store("x")
    assert isinstance(store, S3Store)
    secret = server.credentials.secret_key
    assert secret not in repr(store) + store.url + repr(server.credentials) + server.url


def test_credentials_come_from_the_environment_or_a_private_file(
    server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        open_store(server.url)
    keys = tmp_path / "s3.env"
    pair = server.credentials
    keys.write_text(f"AWS_ACCESS_KEY_ID={pair.access_key}\nAWS_SECRET_ACCESS_KEY='{pair.secret_key}'\n")
    monkeypatch.setenv("KINEMILL_S3_CREDENTIALS_FILE", str(keys))
    keys.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        open_store(server.url)
    keys.chmod(0o600)
    store = open_store(server.url_of("file"))
    store.put_if_absent("x", b"1")
    assert server.store("file").get("x") == b"1"


def test_unknown_places_are_refused() -> None:
    with pytest.raises(ConfigError, match="expected s3://"):
        open_store("gopher://x")
    with pytest.raises(ConfigError, match="endpont"):
        open_store("s3://b?endpont=http://x")
    with pytest.raises(ConfigError, match="absolute"):
        open_store("file://host/x")
    memory = open_store("memory://m1")
    memory.put_if_absent("x", b"1")
    assert open_store("memory://m1").get("x") == b"1"
