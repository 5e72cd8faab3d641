"""Free ports on a loopback address that nobody can take before the server binds them."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from kinemill.errors import EnvironmentFault, UsageError

__all__ = ["Ports"]


class Ports:
    """Named free ports, reserved until `close`.

    Each port is bound here, marked SO_REUSEADDR, and never listened on. The kernel then gives it to nobody
    who asks for any free port, neither by bind to port 0 nor as the source port of a connection, while a
    server that sets SO_REUSEADDR, as Postgres and every Go program do, can still bind it by its number.
    The reservation outlives a crash and a restart of the server, so its address stays the same.

    Args:
        names: One port each.
        host: A loopback address.
        prefer: Ports to take if they are free, such as those of the last run.

    Raises:
        UsageError: `host` is no loopback address.
        EnvironmentFault: The address has no free port.
    """

    def __init__(self, names: Sequence[str], *, host: str = "127.0.0.1", prefer: Mapping[str, int] | None = None):
        if not host.startswith("127."):
            raise UsageError(f"{host}: embedded servers listen on a loopback address (127.0.0.0/8) only")
        self.host = host
        self._sockets: dict[str, socket.socket] = {}
        wanted = prefer or {}
        try:
            for name in names:
                self._sockets[name] = self._reserve(wanted.get(name, 0))
        except OSError as exc:
            self.close()
            raise EnvironmentFault(f"no free port on {host}: {exc}; `ss -tan` shows who holds them") from exc

    def _reserve(self, wanted: int) -> socket.socket:
        for port in (wanted, 0) if wanted else (0,):
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                held.bind((self.host, port))
            except OSError:
                held.close()
                if port == 0:
                    raise
                continue
            # Only now: with the option set before it, bind would share another owner's reservation.
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return held
        raise AssertionError("port 0 either binds or raises")

    def __getitem__(self, name: str) -> int:
        return int(self._sockets[name].getsockname()[1])

    def as_dict(self) -> dict[str, int]:
        """Name to port."""
        return {name: self[name] for name in self._sockets}

    def close(self) -> None:
        """Give the ports back; a server that listens on one keeps it."""
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
