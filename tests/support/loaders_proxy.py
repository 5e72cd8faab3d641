"""An HTTP relay in a process of its own: counts requests by kind, and adds latency to each.

It stands between a client and a real object store, so what it counts is what the server was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

__all__ = ["Relay"]


@dataclass
class _State:
    host: str
    port: int
    delay_s: float
    requests: Counter[str]
    sent: int = 0
    lines: list[str] | None = None
    fail: int = 0
    """Requests still to be answered with 503."""
    cut: int = 0
    """Answers still to be cut in the middle."""


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: dict[str, str]) -> int:
    """Move one body on; the bytes moved."""
    if fields.get("transfer-encoding", "").lower() == "chunked":
        moved = 0
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            writer.write(line + await reader.readexactly(size + 2))
            moved += size
            if not size:
                return moved
    left = moved = int(fields.get("content-length") or 0)
    while left:
        data = await reader.read(min(left, 1 << 18))
        if not data:
            raise ConnectionError
        writer.write(data)
        await writer.drain()
        left -= len(data)
    return moved


async def _serve(client_in: asyncio.StreamReader, client_out: asyncio.StreamWriter, state: _State) -> None:
    up_in, up_out = await asyncio.open_connection(state.host, state.port, limit=1 << 20)
    try:
        while head := await _head(client_in):
            method, target = head.split(b" ", 2)[:2]
            fields = _fields(head)
            kind = method.decode() + (" range" if "range" in fields else "")
            state.requests[kind] += 1
            if state.lines is not None:
                state.lines.append(f"{kind} {target.decode()} {fields.get('range', '')}")
            if state.delay_s:
                await asyncio.sleep(state.delay_s)
            if state.fail and method == b"GET":
                state.fail -= 1
                client_out.write(b"HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\n\r\n")
                await client_out.drain()
                continue
            up_out.write(head)
            await _pass(client_in, up_out, fields)
            await up_out.drain()
            while (answer := await _head(up_in)).split(b" ", 2)[1:2] == [b"100"]:
                client_out.write(answer)
            if not answer:
                return
            told = _fields(answer)
            if state.cut and method == b"GET":
                state.cut -= 1
                client_out.write(answer + await up_in.read(100))
                await client_out.drain()
                return
            client_out.write(answer)
            status = answer.split(b" ", 2)[1]
            if method != b"HEAD" and status not in (b"204", b"304"):
                state.sent += await _pass(up_in, client_out, told)
            await client_out.drain()
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
        pass  # a client left, or the relay ends
    finally:
        for writer in (up_out, client_out):
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.close()


async def _main(pipe: Connection, host: str, port: int, delay_s: float) -> None:
    state = _State(host, port, delay_s, Counter())
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    server = await asyncio.start_server(lambda r, w: _serve(r, w, state), "127.0.0.1", 0, limit=1 << 20)
    pipe.send(server.sockets[0].getsockname()[1])

    def asked() -> None:
        try:
            what, value = pipe.recv()
        except EOFError:
            done.set_result(None)
            return
        if what == "stop":
            done.set_result(None)
        elif what == "read":
            pipe.send((dict(state.requests), state.sent, state.lines))
        elif what == "clear":
            state.requests.clear()
            state.sent, state.lines = 0, [] if value else None
            pipe.send(None)
        else:
            setattr(state, what, value)
            pipe.send(None)

    loop.add_reader(pipe.fileno(), asked)
    await done
    server.close()


def _run(pipe: Connection, host: str, port: int, delay_s: float) -> None:
    asyncio.run(_main(pipe, host, port, delay_s))


class Relay:
    """Use in a with statement; `endpoint` takes the place of the server's."""

    def __init__(self, endpoint: str, *, delay_s: float = 0.0) -> None:
        parts = urlsplit(endpoint)
        self._to = (str(parts.hostname), int(parts.port or 80), delay_s)

    def __enter__(self) -> Self:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, *self._to), daemon=True)
        self._process.start()
        theirs.close()
        self.endpoint = f"http://127.0.0.1:{self._pipe.recv()}"
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(("stop", None))
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()

    def _ask(self, what: str, value: object = None) -> tuple[dict[str, int], int, list[str] | None] | None:
        self._pipe.send((what, value))
        answer: tuple[dict[str, int], int, list[str] | None] | None = self._pipe.recv()
        return answer

    def clear(self, *, keep_lines: bool = False) -> None:
        """Count from zero."""
        self._ask("clear", keep_lines)

    def set_delay(self, seconds: float) -> None:
        self._ask("delay_s", seconds)

    def fail_next(self, count: int) -> None:
        """Answer that many GETs with 503."""
        self._ask("fail", count)

    def cut_next(self, count: int) -> None:
        """Break off that many answers."""
        self._ask("cut", count)

    @property
    def counted(self) -> tuple[Counter[str], int, list[str]]:
        """Requests by kind (`GET range`, `HEAD`, ...), body bytes sent to clients, and their lines if kept."""
        answer = self._ask("read")
        assert answer is not None
        return Counter(answer[0]), answer[1], answer[2] or []


if __name__ == "__main__":  # for a look by hand
    with Relay(sys.argv[1]) as relay:
        print(relay.endpoint, flush=True)
        sys.stdin.read()
        print(json.dumps(dict(relay.counted[0])))
