"""Object stores fail: answers are lost, servers go and come back, bodies end early."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import BinaryIO, Self

import pytest

from kinemill.errors import (
    ConfigError,
    ConflictError,
    ExternalError,
    NotFoundError,
    TruncatedError,
    UnavailableError,
)
from kinemill.store.config import Credentials, S3Address
from kinemill.store.counts import requests_sent
from kinemill.store.embedded import S3Server
from kinemill.store.retry import Retry
from kinemill.store.s3 import S3Store
from support.store import QUICK, Answer, liar_before


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with S3Server() as started:
        yield started


class Times:
    """True for the first `n` calls."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self) -> bool:
        self.left -= 1
        return self.left >= 0


BUSY = Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>")


def test_a_busy_store_is_asked_again_and_not_for_ever(server: S3Server) -> None:
    with liar_before(server) as liar:
        store = liar.store
        assert store is not None
        store.put_if_absent("k", b"0123")
        few = Times(3)
        liar.on_request = lambda *_: BUSY if few() else None
        assert store.get("k") == b"0123"
        few = Times(3)
        assert store.get_range("k", 1, 2) == b"12"
        few = Times(3)
        assert [m.key for m in store.list()] == ["k"]
        liar.on_request = lambda *_: BUSY
        liar.requests.clear()
        with pytest.raises(UnavailableError, match="gave up after 4 attempts"):
            store.head("k")
        assert len(liar.requests) == 4


def test_requests_are_counted_by_operation_and_by_how_they_ended(server: S3Server) -> None:
    from prometheus_client import REGISTRY

    before = Counter(requests_sent())
    with liar_before(server, "counted") as liar:
        store = liar.store
        assert store is not None
        store.put_if_absent("k", b"0123")
        few = Times(2)
        liar.on_request = lambda *_: BUSY if few() else None
        assert store.get("k") == b"0123"
        with pytest.raises(ConflictError):
            store.put_if_absent("k", b"4567")
        with pytest.raises(NotFoundError):
            store.head("nothing")
        assert len(list(store.list())) == 1
        store.delete("k")
    assert Counter(requests_sent()) - before == {
        ("put", "ok"): 1,
        ("put", "conflict"): 1,
        ("get", "unavailable"): 2,
        ("get", "ok"): 1,
        ("head", "not_found"): 1,
        ("list", "ok"): 1,
        ("delete", "ok"): 1,
    }
    shown = REGISTRY.get_sample_value("kinemill_store_requests_total", {"op": "get", "result": "unavailable"})
    assert shown == requests_sent()["get", "unavailable"]


def test_a_create_whose_answer_was_lost_is_still_ours(server: S3Server, tmp_path: Path) -> None:
    with liar_before(server, "lost") as liar:
        store = liar.store
        assert store is not None
        once = Times(1)
        # The server did it, and the proxy says that it did not.
        liar.on_answer = lambda verb, _path, answer: BUSY if verb == "PUT" and once() else answer
        assert store.put_if_absent("bytes", b"mine").etag == store.head("bytes").etag
        once = Times(1)
        source = tmp_path / "f"
        source.write_bytes(b"from a file")
        store.put_if_absent("file", source)
        once = Times(1)
        etag = store.head("bytes").etag or ""
        store.put_if_match("bytes", b"mine too", etag)
        assert store.get("bytes") == b"mine too"


def test_a_create_that_somebody_else_won_meanwhile_is_not_ours(server: S3Server) -> None:
    with liar_before(server, "won") as liar:
        store = liar.store
        assert store is not None
        once = Times(1)

        def someone_else(verb: str, _path: str, _headers: Mapping[str, str]) -> Answer | None:
            if verb == "PUT" and once():
                server.store("won").put_if_absent("k", b"theirs")
                return BUSY
            return None

        liar.on_request = someone_else
        with pytest.raises(ConflictError):
            store.put_if_absent("k", b"mine")
        assert store.get("k") == b"theirs"


def test_a_lost_multipart_completion_is_still_ours(server: S3Server, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(bytes(11 << 20))
    with liar_before(server, "parts") as liar:
        store = liar.store
        assert store is not None
        once = Times(1)
        liar.on_answer = lambda verb, path, answer: BUSY if verb == "POST" and "uploadId" in path and once() else answer
        store.create_in_parts("k", source, part_bytes=5 << 20)
        assert store.head("k").size_bytes == 11 << 20


def test_a_half_written_upload_is_no_object(server: S3Server, tmp_path: Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(bytes(11 << 20))
    with liar_before(server, "half") as liar:
        store = liar.store
        assert store is not None
        liar.on_request = lambda _verb, path, _headers: BUSY if "partNumber=2" in path else None
        with pytest.raises(UnavailableError):
            store.create_in_parts("k", source, part_bytes=5 << 20)
        assert list(store.list()) == []
        assert any(verb == "DELETE" and "uploadId" in path for verb, path in liar.requests), "the parts were left"


def test_a_body_that_ends_early_is_no_data(server: S3Server, tmp_path: Path) -> None:
    with liar_before(server, "short") as liar:
        store = liar.store
        assert store is not None
        store.put_if_absent("k", bytes(5000))

        def cut(_verb: str, _path: str, answer: Answer) -> Answer:
            if answer.status == 206:
                answer.body = answer.body[:-1]
                answer.headers.pop("content-range", None)
            return answer

        liar.on_answer = cut
        with pytest.raises((TruncatedError, UnavailableError, ExternalError)):
            store.get_range("k", 0, 5000)
        with pytest.raises((TruncatedError, UnavailableError, ExternalError)):
            store.download("k", tmp_path / "d", part_bytes=1000)
        assert not (tmp_path / "d").exists()


class Wire:
    """A server of few words: each request is answered by the next script, then as the last one says."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = list(answers)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.asked = 0
        self.store = S3Store(
            S3Address("corpus", endpoint=f"http://127.0.0.1:{self._socket.getsockname()[1]}"),
            Credentials("key", "secret"),
            retry=QUICK,
        )
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with self._socket:
            while self._answers:
                peer, _ = self._socket.accept()
                # a client that has heard enough hangs up, in the middle of an answer too
                with contextlib.suppress(ConnectionError), peer, peer.makefile("rb") as lines:
                    while _whole_request(lines):
                        self.asked += 1
                        answer = self._answers.pop(0)
                        peer.sendall(answer)
                        if b"keep-alive" not in answer or not self._answers:
                            break

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._answers:  # a test that failed asks for less
            self._answers.clear()
            with contextlib.suppress(OSError):
                socket.create_connection(self._socket.getsockname()).close()
        self._thread.join(timeout=300)


def _whole_request(lines: BinaryIO) -> bool:
    """Read a request to the end of its headers: what is left unread would reset the connection when it is closed."""
    while (line := lines.readline()) not in (b"\r\n", b""):
        pass
    return line == b"\r\n"


def _part(body: bytes, *, told: int | None = None, more: str = "") -> bytes:
    length = len(body) if told is None else told
    return f"HTTP/1.1 206 Partial Content\r\ncontent-length: {length}\r\n{more}\r\n".encode() + body


BODY = bytes(range(256)) * 12_000


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((_part(BODY),), id="at-once"),
        pytest.param((_part(BODY[: 1 << 20], told=len(BODY)), _part(BODY)), id="cut-in-the-middle"),
        pytest.param((_part(b"", told=len(BODY)), _part(BODY)), id="cut-behind-the-headers"),
        pytest.param((b"", _part(BODY)), id="closed-without-an-answer"),
        pytest.param(
            (
                b"HTTP/1.1 206 Partial Content\r\ntransfer-encoding: chunked\r\n\r\n"
                + f"{len(BODY):x}\r\n".encode()
                + BODY
                + b"\r\n0\r\n\r\n",
            ),
            id="chunked",
        ),
        pytest.param((_part(BODY).replace(b"HTTP/1.1", b"HTTP/1.0"),), id="http-1.0"),
    ],
)
def test_a_download_ends_with_the_right_bytes_however_the_answers_come(
    answers: tuple[bytes, ...], tmp_path: Path
) -> None:
    with Wire(*answers) as wire:
        wire.store.download("k", tmp_path / "d", etag="e", size_bytes=len(BODY))
        assert (tmp_path / "d").read_bytes() == BODY
        assert wire.asked == len(answers)


def test_a_connection_is_used_again_after_a_download(tmp_path: Path) -> None:
    half = len(BODY) // 2
    more = "connection: keep-alive\r\n"
    with Wire(_part(BODY[:half], more=more), _part(BODY[half:], more=more)) as wire:
        etag_and_size = {"etag": "e", "size_bytes": half}
        wire.store.download("k", tmp_path / "a", **etag_and_size)  # type: ignore[arg-type]  # a dict of both
        wire.store.download("k", tmp_path / "b", **etag_and_size)  # type: ignore[arg-type]  # a dict of both
        assert (tmp_path / "a").read_bytes() + (tmp_path / "b").read_bytes() == BODY
        assert wire.asked == 2


def test_more_than_was_asked_for_is_no_data(tmp_path: Path) -> None:
    with Wire(_part(BODY)) as wire, pytest.raises(ExternalError, match="more than"):
        wire.store.download("k", tmp_path / "d", etag="e", size_bytes=len(BODY) - 1)
    assert not (tmp_path / "d").exists()


def test_a_whole_answer_to_a_range_is_refused(server: S3Server) -> None:
    with liar_before(server, "whole") as liar:
        store = liar.store
        assert store is not None
        store.put_if_absent("k", bytes(5000))
        liar.drop_headers.add("range")
        with pytest.raises(ExternalError, match="ignores ranges"):
            store.get_range("k", 10, 10)


def test_denied_is_not_tried_again(server: S3Server) -> None:
    with liar_before(server) as liar:
        store = liar.store
        assert store is not None
        liar.on_request = lambda *_: Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>")
        for call in (lambda: store.get("k"), lambda: store.put_if_absent("k", b""), lambda: list(store.list())):
            liar.requests.clear()
            with pytest.raises(ConfigError, match="denied"):
                call()
            assert len(liar.requests) == 1


def test_hostile_xml_is_refused(server: S3Server) -> None:
    bomb = b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>'
    with liar_before(server) as liar:
        store = liar.store
        assert store is not None
        row = "<L><Contents><Key>k</Key><Size>{}</Size><LastModified>{}</LastModified></Contents></L>".format
        others = [row("-1", "2026-11-30T08:00:00Z").encode(), row("5", "yesterday").encode(), row("1e9", "").encode()]
        late = b"<!--" + b"x" * 4096 + b"-->" + bomb.removeprefix(b'<?xml version="1.0"?>')
        wide = bomb.decode().replace('"1.0"', '"1.0" encoding="UTF-16"').encode("utf-16")
        for body in (bomb, late, wide, b"<unfinished", b"", b"<L><IsTruncated>true</IsTruncated></L>", *others):
            liar.on_request = lambda *_, body=body: Answer(200, {}, body)  # type: ignore[misc]
            with pytest.raises(ExternalError):
                list(store.list())


def test_an_upload_in_parts_that_is_answered_with_nothing_is_no_upload(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(6 << 20))
    with liar_before(server, "parts") as liar:
        store = liar.store
        assert store is not None
        liar.on_request = lambda verb, *_: Answer(200, {}, b"<L></L>") if verb == "POST" else None
        with pytest.raises(ExternalError, match="gave no id"):
            store.create_in_parts("k", tmp_path / "f", part_bytes=5 << 20)
        id_only = b"<L><UploadId>u</UploadId></L>"
        liar.on_request = lambda verb, *_: Answer(200, {}, id_only if verb == "POST" else b"")
        with pytest.raises(ExternalError, match="without an etag"):
            store.create_in_parts("k", tmp_path / "f", part_bytes=5 << 20)


def test_a_server_that_comes_back_is_worth_waiting_for() -> None:
    with S3Server() as server:
        store = server.store(retry=Retry(cap_s=1.0, attempts=10_000, deadline_s=300))
        store.put_if_absent("k", b"still here")
        server.kill()
        back = threading.Thread(target=server.restart)
        back.start()
        assert store.get("k") == b"still here"
        store.put_if_absent("k2", b"and writable")
        back.join()
