"""The nodes' one way to packages: a caching proxy in the sandbox's network, a relay on this machine, a socket between.

The proxy listens where nodes can reach it and can itself reach nothing but the relay's unix socket. The relay fetches
below the mirrors it was given and nowhere else. What never changes under its name (`*.deb`, `by-hash`) is kept in the
cache folder; the rest passes through.

Run as `python -m kinemill.control.sandbox.relay ID` in this machine's network namespace.
"""

from __future__ import annotations

import ctypes
import hashlib
import http.client
import http.server
import json
import os
import re
import shutil
import socket
import socketserver
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from kinemill.control.sandbox.anchor import anchor_pid
from kinemill.control.sandbox.host import cache_root
from kinemill.control.sandbox.names import GATEWAY, PROXY_PORT, Places

__all__ = ["Fetcher", "is_constant", "main", "safe_path"]

_DEADLINE_S = 30
_CHUNK_BYTES = 1 << 18
_CACHE_BYTES = 4 << 30
_PATH = re.compile(r"/([a-z0-9-]+)/((?:[A-Za-z0-9._~%+:=@-]+/?)+)")


def safe_path(path: str) -> tuple[str, str] | None:
    """Split a request's path into mirror and rest; None where it is no plain path."""
    match = _PATH.fullmatch(path)
    if match is None or ".." in path.split("/") or "%2e" in path.lower() or "%2f" in path.lower():
        return None
    return match[1], match[2]


def is_constant(rest: str) -> bool:
    """True for names whose content never changes."""
    return rest.endswith(".deb") or "/by-hash/" in rest


class Fetcher:
    """Fetches below a few mirrors, keeping what never changes.

    Args:
        mirrors: Name -> address to fetch below.
        cache: Folder of kept files.
    """

    def __init__(self, mirrors: Mapping[str, str], cache: Path) -> None:
        self._mirrors = dict(mirrors)
        self._cache = cache
        self._guard = threading.Lock()
        # One lock per address: nodes that ask for the same thing together cause one download.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        cache.mkdir(parents=True, exist_ok=True)
        self._trim()

    def fetch(self, path: str) -> tuple[int, int, IO[bytes] | None]:
        """Answer a request for `/<mirror>/<rest>`.

        Returns:
            Status, length in bytes and the open body (None where there is none).
        """
        split = safe_path(path)
        if split is None or split[0] not in self._mirrors:
            return 403, 0, None
        url = f"{self._mirrors[split[0]]}/{split[1]}"
        if not is_constant(split[1]):
            return self._open(url)
        kept = self._cache / hashlib.sha256(url.encode()).hexdigest()
        with self._guard:
            lock = self._locks[url]
        with lock:
            if not kept.is_file():
                status, length, body = self._open(url)
                if body is None or status != 200:
                    return status, length, body
                self._keep(body, length, kept)
        return 200, kept.stat().st_size, kept.open("rb")

    def _open(self, url: str) -> tuple[int, int, IO[bytes] | None]:
        try:
            answer = urllib.request.urlopen(url, timeout=_DEADLINE_S)  # noqa: S310 - only below the given mirrors
        except urllib.error.HTTPError as error:
            return error.code, 0, None
        except (OSError, http.client.HTTPException):
            return 502, 0, None
        length = answer.headers.get("Content-Length")
        if length is None:  # read it whole, so that its length is known
            whole = tempfile.TemporaryFile()  # noqa: SIM115 - handed to the caller, who closes it
            shutil.copyfileobj(answer, whole, _CHUNK_BYTES)
            size = whole.tell()
            whole.seek(0)
            return 200, size, whole
        return 200, int(length), answer

    def _keep(self, body: IO[bytes], length: int, target: Path) -> None:
        with body, tempfile.NamedTemporaryFile(dir=self._cache, delete=False) as temporary:
            try:
                shutil.copyfileobj(body, temporary, _CHUNK_BYTES)
                if temporary.tell() != length:
                    raise OSError(f"{temporary.tell()} of {length} bytes came")
                Path(temporary.name).replace(target)
            except BaseException:
                Path(temporary.name).unlink(missing_ok=True)
                raise

    def _trim(self) -> None:
        """Remove what was used longest ago until the folder is within its bound."""
        files = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in self._cache.iterdir())
        excess = sum(size for _, size, _ in files) - _CACHE_BYTES
        for _, size, path in files:
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= size


class _RelayHandler(socketserver.StreamRequestHandler):
    """One line with a path in; a line `status length` and the body out."""

    timeout = _DEADLINE_S

    def handle(self) -> None:
        path = self.rfile.readline(4096).decode("ascii", errors="replace").strip()
        try:
            status, length, body = self.server.fetcher.fetch(path)  # type: ignore[attr-defined]  # set by main
        except OSError:
            status, length, body = 502, 0, None
        self.wfile.write(f"{status} {length}\n".encode())
        if body is not None:
            with body:
                shutil.copyfileobj(body, self.wfile, _CHUNK_BYTES)


class _ProxyHandler(http.server.BaseHTTPRequestHandler):
    """Speaks HTTP to the nodes and a line to the relay."""

    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer one request from the relay's answer."""
        relay = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with relay:
            relay.settimeout(4 * _DEADLINE_S)
            try:
                relay.connect(str(self.server.relay_path))  # type: ignore[attr-defined]  # set by main
                relay.sendall(f"{self.path}\n".encode())
                answer = relay.makefile("rb")
                status, length = (int(word) for word in answer.readline(64).split())
            except (OSError, ValueError):
                self.send_error(502, "the relay does not answer")
                return
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.send_header("Content-Type", "application/octet-stream")
            self.end_headers()
            shutil.copyfileobj(answer, self.wfile, _CHUNK_BYTES)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it so
        """One line per request in the sandbox's log."""
        print(self.client_address[0], format % args, file=sys.stderr, flush=True)


class _Relay(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


def _serve_proxy(places: Places, pid: int) -> None:
    """The child: enter the sandbox's network for good, then serve."""
    with Path(f"/proc/{pid}/ns/net").open() as namespace:
        if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000) != 0:
            raise OSError(ctypes.get_errno(), "setns")
    server = http.server.ThreadingHTTPServer((GATEWAY, PROXY_PORT), _ProxyHandler)
    server.relay_path = places.relay  # type: ignore[attr-defined]  # read by the handler
    (places.home / "proxy.pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    server.serve_forever()


def main(arguments: list[str]) -> int:
    """Entry; runs until it is killed."""
    places = Places(int(arguments[0]))
    mirrors = json.loads(arguments[1])
    places.relay.unlink(missing_ok=True)
    relay = _Relay(str(places.relay), _RelayHandler)
    relay.fetcher = Fetcher(mirrors, cache_root() / "packages")  # type: ignore[attr-defined]  # read by the handler
    pid = anchor_pid(places)
    if os.fork() == 0:
        relay.socket.close()
        _serve_proxy(places, pid)
    relay.serve_forever()
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
