"""A job asks for its node to be looked at: one datagram to a socket. Root believes nothing in it and checks for itself.

systemd holds the socket and starts this module when something arrives. A datagram leaves nothing on
any disk, its queue is short, and the unit pauses after each round: whoever asks all the time gets a
round every few seconds and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import struct
import sys
from pathlib import Path

from kinemill.errors import EnvironmentFault

__all__ = ["NAME", "ask", "main", "take_requests"]

NAME = "ask.socket"
_MOST = 1000
_CREDENTIALS = struct.Struct("iII")
_FIRST_FD = 3  # sd_listen_fds(3): the first descriptor that systemd hands over


def ask(run_dir: Path) -> None:
    """Ask root to check this node now; a queue that is full means that it is about to.

    Raises:
        EnvironmentFault: Nobody listens on this node.
    """
    path = run_dir / NAME
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(b"?", str(path))
        except BlockingIOError:
            return
        except OSError as exc:
            raise EnvironmentFault(
                f"{path}: takes no request ({exc.strerror}); are the node agents installed on this node?"
            ) from exc


def take_requests(listener: socket.socket) -> dict[int, int]:
    """Empty the queue: uid -> how often it asked, by the kernel's word; -1 where the kernel says nothing."""
    listener.setblocking(False)
    counts: dict[int, int] = {}
    with contextlib.suppress(BlockingIOError):
        for _ in range(_MOST):
            _, ancillary, _, _ = listener.recvmsg(1, socket.CMSG_SPACE(_CREDENTIALS.size))
            uid = -1
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                    uid = _CREDENTIALS.unpack(data[: _CREDENTIALS.size])[1]
            counts[uid] = counts.get(uid, 0) + 1
    return counts


def _who(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except (KeyError, OverflowError):
        return f"uid {uid}"


def main() -> int:
    """What the socket's service runs: empty the queue, then a full round of checks."""
    from kinemill.agents.hook import run_hook
    from kinemill.agents.lines import logger

    if os.environ.get("LISTEN_FDS") != "1":
        sys.stderr.write("kinemill-node: started by no socket; use: kinemill-node ask\n")
        return 2
    log = logger("kinemill.agents.requests")
    with socket.socket(fileno=os.dup(_FIRST_FD)) as listener:
        for uid, times in sorted(take_requests(listener).items()):
            log.info("%s asked %dx for this check", _who(uid), times, extra={"uid": uid})
    return run_hook("periodic")


if __name__ == "__main__":
    sys.exit(main())
