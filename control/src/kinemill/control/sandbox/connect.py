"""A relay between standard input and output and a port of a node: ssh's ProxyCommand.

Run as `python -m kinemill.control.sandbox.connect ID NODE PORT`, or `kinemill sandbox connect NODE PORT`.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys

from kinemill.control.sandbox.anchor import read_record, tcp
from kinemill.control.sandbox.names import Places, node_address
from kinemill.errors import KinemillError, NotFoundError

__all__ = ["main", "pump"]

_CHUNK_BYTES = 1 << 16


def pump(connection: socket.socket, source: int, sink: int) -> None:
    """Carry bytes both ways until the far side ends; an ended source is passed on as a half-close."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is connection:
                    data = connection.recv(_CHUNK_BYTES)
                    if not data:
                        return
                    while data:
                        data = data[os.write(sink, data) :]
                else:
                    data = os.read(source, _CHUNK_BYTES)
                    if data:
                        connection.sendall(data)
                    else:
                        selector.unregister(source)
                        connection.shutdown(socket.SHUT_WR)


def main(arguments: list[str]) -> int:
    """Entry."""
    places, node, port = Places(int(arguments[0])), arguments[1], int(arguments[2])
    try:
        nodes = read_record(places).get("nodes", [])
        if node not in nodes:
            raise NotFoundError(f"no node {node!r} in sandbox {places.id}")
        with tcp(places, node_address(nodes.index(node)), port, deadline_s=10) as connection:
            connection.settimeout(None)
            pump(connection, 0, 1)
    except (KinemillError, ConnectionError, BrokenPipeError) as error:
        print(f"sandbox connect: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
