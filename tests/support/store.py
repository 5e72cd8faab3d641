"""Stores, and a proxy that lies, for tests."""

from __future__ import annotations

import http.client
import http.server
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinemill.store.config import S3Address
from kinemill.store.embedded import S3Server
from kinemill.store.retry import Retry
from kinemill.store.s3 import S3Store

__all__ = ["QUICK", "Answer", "Liar", "liar_before"]

QUICK = Retry(attempts=4, base_s=0.01, cap_s=0.05, deadline_s=300)
"""Retries that do not make a test wait."""


@dataclass
class Answer:
    """What the real server said, for a lie to change."""

    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Liar:
    """A proxy before an S3 server.

    Attributes:
        drop_headers: Request headers that the server never sees (their signature is not checked: the proxy signs anew).
        on_request: Called with method, path and headers; returns an Answer instead of asking, or None.
        on_answer: Changes an answer.
    """

    port: int = 0
    drop_headers: set[str] = field(default_factory=set)
    on_request: Callable[[str, str, Mapping[str, str]], Answer | None] = lambda *_: None
    on_answer: Callable[[str, str, Answer], Answer] = lambda _method, _path, answer: answer
    requests: list[tuple[str, str]] = field(default_factory=list)
    store: S3Store | None = None


@contextmanager
def liar_before(server: S3Server, prefix: str = "lies") -> Iterator[Liar]:
    """A `Liar` before `server`, and a store that talks to it."""
    liar = Liar()
    real = S3Store(S3Address(server.bucket, endpoint=server.endpoint), server.credentials)
    signer = real._http  # the proxy takes headers away, so it must sign anew

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            path, _, query = self.path.partition("?")
            liar.requests.append((self.command, self.path))
            sent = {k.lower(): v for k, v in self.headers.items()}
            answer = liar.on_request(self.command, self.path, sent)
            if answer is None:
                answer = self._ask(path, query, sent, body)
                answer = liar.on_answer(self.command, self.path, answer)
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            size = answer.headers.get("content-length", "0") if self.command == "HEAD" else str(len(answer.body))
            self.send_header("content-length", size)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        def _ask(self, path: str, query: str, sent: Mapping[str, str], body: bytes) -> Answer:
            import hashlib

            keep = {
                k: v
                for k, v in sent.items()
                if (k.startswith("x-amz-") or k in ("if-match", "if-none-match", "range"))
                and k not in ("x-amz-date", "x-amz-content-sha256", "x-amz-security-token")
                and k not in liar.drop_headers
            }
            signed = signer._sign(self.command, path, _sorted(query), keep, hashlib.sha256(body).hexdigest())
            signed["content-length"] = str(len(body))
            connection = http.client.HTTPConnection(signer._host, timeout=300)
            try:
                connection.request(self.command, path + (f"?{query}" if query else ""), body=body, headers=signed)
                got = connection.getresponse()
                return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
            finally:
                connection.close()

        def log_message(self, *_: object) -> None:
            return

    for verb in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{verb}", Handler._do)

    class Proxy(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            return  # clients hang up on purpose

    proxy = Proxy(("127.0.0.1", 0), Handler)
    liar.port = proxy.server_address[1]
    thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    address = S3Address(server.bucket, prefix, endpoint=f"http://127.0.0.1:{liar.port}")
    liar.store = S3Store(address, server.credentials, retry=QUICK, timeout_s=120)
    try:
        yield liar
    finally:
        proxy.shutdown()
        thread.join()
        proxy.server_close()


def _sorted(query: str) -> str:
    return "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&"))) if query else ""
