"""A job's request: one datagram, its sender by the kernel's word, nothing left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.agents.requests import NAME, ask, take_requests
from kinemill.errors import EnvironmentFault


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket as systemd makes it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(str(tmp_path / NAME))
        yield sock


def test_requests_are_taken_once_and_their_sender_named(listener: socket.socket, tmp_path: Path) -> None:
    ask(tmp_path)
    ask(tmp_path)
    assert take_requests(listener) == {os.getuid(): 2}
    assert take_requests(listener) == {}


def test_a_full_queue_blocks_nobody(listener: socket.socket, tmp_path: Path) -> None:
    for _ in range(500):
        ask(tmp_path)
    (taken,) = take_requests(listener).values()
    assert 0 < taken <= 500
    assert take_requests(listener) == {}


def test_what_a_datagram_says_does_not_matter(listener: socket.socket, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for content in (b"", b"drain n2\n" * 1000, b"\x00\xff", b'{"uid": 0}'):
            sender.sendto(content, str(tmp_path / NAME))
    assert take_requests(listener) == {os.getuid(): 4}


@pytest.mark.parametrize("what", ["nothing", "a file", "a dead socket"])
def test_where_nobody_listens_the_asker_is_told(tmp_path: Path, what: str) -> None:
    if what == "a file":
        (tmp_path / NAME).touch()
    if what == "a dead socket":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(tmp_path / NAME))
    with pytest.raises(EnvironmentFault, match="are the node agents installed"):
        ask(tmp_path)


def test_started_by_hand_it_says_what_to_use() -> None:
    command = [sys.executable, "-I", "-m", "kinemill.agents.requests"]
    done = subprocess.run(command, env={}, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert "kinemill-node ask" in done.stderr
