"""Does an object store keep the promises that kinemill builds on? Proven by use, never by its documentation.

Each check is one promise; a store that breaks one can lose or mix data here, so it is refused. The checks write
under a prefix of their own and remove it again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kinemill.contracts.store import Store
from kinemill.errors import ConflictError, KinemillError, NotFoundError, TruncatedError
from kinemill.store.s3 import S3Store

__all__ = ["StoreFinding", "check_store"]

_PREFIX = ".kinemill-check"
_PART = 5 << 20
"""S3's smallest part."""
_PAGE = 100


@dataclass(frozen=True, slots=True)
class StoreFinding:
    """What one check found."""

    check: str
    ok: bool
    detail: str
    """What was seen; for a broken promise, what could go wrong."""
    seconds: float


class _BrokenPromiseError(Exception):
    """Carries a finding's text."""


def check_store(
    store: Store,
    *,
    racers: int = 32,
    rounds: int = 3,
    objects: int = 250,
    progress: Callable[[str], None] | None = None,
) -> list[StoreFinding]:
    """Run every check.

    Args:
        store: Where to; needs rights to read, write, list and delete.
        racers: Simultaneous creators of one key.
        rounds: Races, each for a new key.
        objects: Small objects for the paging check.
        progress: Called with each check's name as it begins.

    Returns:
        One finding a check, in order.

    Raises:
        KinemillError: The store cannot be used at all: no connection, no rights, no bucket.
    """
    base = f"{_PREFIX}/{secrets.token_hex(8)}"
    probe = f"{base}/probe"
    store.put_if_absent(probe, b"probe")
    checks: list[tuple[str, Callable[[], str]]] = [
        ("read_after_write", lambda: _read_after_write(store, f"{base}/a")),
        ("ranges", lambda: _ranges(store, f"{base}/ranges")),
        ("pinned_ranges", lambda: _pinned(store, f"{base}/pinned")),
        ("create_if_absent", lambda: _create(store, f"{base}/create")),
        ("create_race", lambda: _race(store, f"{base}/race", racers, rounds)),
        ("replace_if_match", lambda: _replace(store, f"{base}/pointer")),
        ("replace_race", lambda: _replace_race(store, f"{base}/fence", racers)),
        ("large_objects", lambda: _large(store, f"{base}/large")),
        ("paging", lambda: _paging(store, f"{base}/pages", objects)),
        ("delete", lambda: _delete(store, f"{base}/gone")),
    ]
    if isinstance(store, S3Store):
        checks.append(("checksums", lambda: _checksums(store, f"{base}/sums")))
        checks.append(("signatures", lambda: _signatures(store, probe)))
    findings = []
    try:
        for name, body in checks:
            if progress is not None:
                progress(name)
            findings.append(_run(name, body))
    finally:
        with contextlib.suppress(KinemillError):
            for meta in list(store.list(f"{base}/")):
                store.delete(meta.key)
    return findings


def _run(name: str, body: Callable[[], str]) -> StoreFinding:
    start = time.monotonic()
    try:
        detail, ok = body(), True
    except _BrokenPromiseError as exc:
        detail, ok = str(exc), False
    except KinemillError as exc:
        detail, ok = f"{type(exc).__name__}: {exc}", False
    return StoreFinding(name, ok, detail, round(time.monotonic() - start, 3))


def _demand(condition: bool, text: str) -> None:
    if not condition:
        raise _BrokenPromiseError(text)


def _refused(body: Callable[[], object], kind: type[KinemillError], text: str) -> None:
    try:
        body()
    except kind:
        return
    raise _BrokenPromiseError(text)


# ---- the checks


def _read_after_write(store: Store, base: str) -> str:
    for i in range(20):
        data = secrets.token_bytes(1000 + i)
        meta = store.put_if_absent(f"{base}/{i}", data)
        _demand(store.get(f"{base}/{i}") == data, "an object read right after its write was not what was written")
        found = store.head(f"{base}/{i}")
        _demand(found.size_bytes == len(data), f"head says {found.size_bytes} bytes of {len(data)}")
        _demand(found.etag == meta.etag, "the etag that the write returned is not the one that head tells")
    _refused(lambda: store.get(f"{base}/none"), NotFoundError, "a key that does not exist was read")
    return "20 objects, each right at once"


def _ranges(store: Store, key: str) -> str:
    data = secrets.token_bytes(300_000)
    store.put_if_absent(key, data)
    for start, length in ((0, 1), (0, 300_000), (1, 7), (150_000, 65_536), (299_999, 1)):
        got = store.get_range(key, start, length)
        _demand(got == data[start : start + length], f"bytes {start}..{start + length} were not those of the object")
    many = [(i * 1000, 999) for i in range(64)]
    got_many = store.get_ranges(key, many)
    _demand(
        all(g == data[s : s + n] for g, (s, n) in zip(got_many, many, strict=True)), "parallel ranges were mixed up"
    )
    text = "a range behind the object's end was answered as if it were whole"
    _refused(lambda: store.get_range(key, 299_000, 2000), TruncatedError, text)
    _refused(lambda: store.get_range(key, 400_000, 10), TruncatedError, text)
    return "exact, also 64 at once; short answers are noticed"


def _pinned(store: Store, key: str) -> str:
    etag = store.put_if_absent(key, b"first" * 100).etag or ""
    _demand(store.get_range(key, 0, 5, etag=etag) == b"first", "a read pinned to the right etag failed")
    store.put_if_match(key, b"later" * 100, etag)
    _refused(
        lambda: store.get_range(key, 0, 5, etag=etag),
        ConflictError,
        "If-Match on a read is ignored: a download could mix two versions of an object",
    )
    return "If-Match on reads is honoured"


def _create(store: Store, key: str) -> str:
    store.put_if_absent(key, b"mine")
    _refused(
        lambda: store.put_if_absent(key, b"theirs"),
        ConflictError,
        "If-None-Match is ignored: a second writer overwrites the first, and both believe they won",
    )
    _demand(store.get(key) == b"mine", "a refused create changed the object all the same")
    return "a second create is refused and changes nothing"


def _race(store: Store, base: str, racers: int, rounds: int) -> str:
    for turn in range(rounds):
        key = f"{base}/{turn}"
        winners, failures = _together(
            racers,
            lambda i, key=key: store.put_if_absent(key, f"racer {i}".encode().ljust(4096)),  # type: ignore[misc]
        )
        _demand(not failures, f"{len(failures)} of {racers} failed otherwise: {failures[:1]}")
        _demand(len(winners) == 1, f"{len(winners)} of {racers} simultaneous creates of one key were told they won")
        _demand(
            store.get(key) == f"racer {winners[0]}".encode().ljust(4096), "the object is not the one winner's of a race"
        )
    return f"{rounds} races of {racers}: one winner each"


def _replace(store: Store, key: str) -> str:
    first = store.put_if_absent(key, b"1").etag or ""
    second = store.put_if_match(key, b"2", first).etag or ""
    _demand(second != first, "the etag did not change with the content")
    _refused(
        lambda: store.put_if_match(key, b"3", first),
        ConflictError,
        "If-Match on writes is ignored: a stale writer overwrites a pointer",
    )
    _demand(store.get(key) == b"2", "a refused replace changed the object all the same")
    _refused(
        lambda: store.put_if_match(f"{key}-none", b"x", first), ConflictError, "a key that is not there was replaced"
    )
    return "a stale replace is refused and changes nothing"


def _replace_race(store: Store, key: str, racers: int) -> str:
    etag = store.put_if_absent(key, b"start").etag or ""
    winners, failures = _together(racers, lambda i: store.put_if_match(key, f"fence {i}".encode(), etag))
    _demand(not failures, f"{len(failures)} of {racers} failed otherwise: {failures[:1]}")
    _demand(len(winners) == 1, f"{len(winners)} of {racers} simultaneous replaces of one etag were told they won")
    _demand(store.get(key) == f"fence {winners[0]}".encode(), "the object is not the one winner's of a race")
    return f"one winner of {racers}"


def _together(count: int, body: Callable[[int], object]) -> tuple[list[int], list[str]]:
    """Run `body(i)` in `count` threads at once: who came through, and who failed otherwise than by a conflict."""
    gate = threading.Barrier(count)
    winners: list[int] = []
    failures: list[str] = []

    def one(i: int) -> None:
        gate.wait(600)
        try:
            body(i)
        except ConflictError:
            return
        except KinemillError as exc:
            failures.append(str(exc)[:200])
            return
        winners.append(i)

    threads = [threading.Thread(target=one, args=(i,), name=f"racer-{i}") for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return winners, failures


def _large(store: Store, key: str) -> str:
    with tempfile.TemporaryDirectory(prefix="kinemill-check-") as folder:
        source, back = Path(folder) / "source", Path(folder) / "back"
        source.write_bytes(os.urandom(1 << 20) * 12 + b"odd end")
        wanted = hashlib.sha256(source.read_bytes()).hexdigest()
        size = source.stat().st_size
        meta = store.create_in_parts(key, source, part_bytes=_PART) if isinstance(store, S3Store) else None
        if meta is None:
            meta = store.put_if_absent(key, source)
        found = store.head(key)
        _demand(found.size_bytes == size, f"a multipart object has {found.size_bytes} bytes of {size}")
        _demand(found.etag == meta.etag, "the etag of a multipart upload changes after it is complete")
        store.download(key, back, part_bytes=1 << 20)
        _demand(hashlib.sha256(back.read_bytes()).hexdigest() == wanted, "a multipart object came back changed")
        if isinstance(store, S3Store):
            _refused(
                lambda: store.create_in_parts(key, source, part_bytes=_PART),
                ConflictError,
                "If-None-Match is ignored when a multipart upload completes: large objects can be overwritten",
            )
            return "12 MiB in parts, read back by 13 ranges, and a second create refused"
    return "12 MiB, read back by 13 ranges"


def _paging(store: Store, base: str, objects: int) -> str:
    names = [f"{base}/{i:05d}-{'é' if i % 50 == 0 else 'x'} +%.bin" for i in range(objects)]
    for name in names:
        store.put_if_absent(name, b".")
    found = [meta.key for meta in store.list(f"{base}/")]
    _demand(len(found) == len(set(found)), "a list names a key twice")
    _demand(set(found) == set(names), f"a list shows {len(set(found) & set(names))} of {objects} keys")
    _demand(found == sorted(found, key=str.encode), "a list is not in order of keys")
    if isinstance(store, S3Store):
        page, token = store.list_page(f"{base}/", None, _PAGE)
        paged, pages = [meta.key for meta in page], 1
        while token is not None and pages <= objects:
            page, token = store.list_page(f"{base}/", token, _PAGE)
            paged, pages = paged + [meta.key for meta in page], pages + 1
        _demand(paged == found, f"{pages} pages of {_PAGE} show other keys than one list")
        return f"{objects} keys in order, whole and by pages of {_PAGE}"
    return f"{objects} keys in order"


def _delete(store: Store, key: str) -> str:
    store.put_if_absent(key, b"x")
    store.delete(key)
    store.delete(key)
    _refused(lambda: store.get(key), NotFoundError, "a deleted object was read")
    _demand(not list(store.list(key)), "a deleted object is still listed")
    store.put_if_absent(key, b"again")
    return "gone at once, twice is no error, and the key is free again"


def _checksums(store: S3Store, base: str) -> str:
    data = secrets.token_bytes(10_000)
    right = base64.b64encode(hashlib.sha256(data).digest()).decode()
    wrong = base64.b64encode(hashlib.sha256(b"other").digest()).decode()
    store.put_with_headers(f"{base}/right", data, {"x-amz-checksum-sha256": right})
    _refused(
        lambda: store.put_with_headers(f"{base}/wrong", data, {"x-amz-checksum-sha256": wrong}),
        KinemillError,
        "an object whose bytes are not those of its checksum was accepted",
    )
    _refused(lambda: store.head(f"{base}/wrong"), NotFoundError, "an object with a wrong checksum was kept")
    return "a wrong sha256 is refused and nothing is kept"


def _signatures(store: S3Store, key: str) -> str:
    _refused(
        lambda: store.with_other_secret().get(key),
        KinemillError,
        "a request signed with a wrong secret was answered: anybody may read this bucket",
    )
    return "a wrong secret is refused"
