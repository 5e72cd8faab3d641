"""The embedded S3 server: private, bounded, and the same after SIGKILL."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path

import pytest

from kinemill.errors import ConflictError, KinemillError, UnavailableError
from kinemill.store.embedded import S3Server
from kinemill.store.retry import Retry
from kinemill.store.s3 import S3Store
from support.process import run_as_nobody


def listening(pid: int) -> set[str]:
    """Addresses on which a process listens, from /proc."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = str(fd.readlink())
        except FileNotFoundError:  # closed since
            continue
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    found = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                address = bytes.fromhex(fields[1].split(":")[0])
                found.add(socket.inet_ntoa(address[::-1]) if table == "tcp" else address.hex())
    return found


def test_it_survives_kill_and_a_new_owner_finds_its_data(tmp_path: Path) -> None:
    with S3Server(tmp_path / "s3") as server:
        store = server.store()
        store.put_if_absent("k", b"before")
        url, keys = server.url, server.credentials
        with pytest.raises(ConflictError, match="in use by process"):
            S3Server(tmp_path / "s3").start()
        server.kill()
        with pytest.raises(UnavailableError, match="gave up after 1 attempts"):
            server.store(retry=Retry(attempts=1)).get("k")
        server.restart()
        assert server.url == url, "a restart keeps the address"
        assert store.get("k") == b"before", "the same store goes on"
    with S3Server(tmp_path / "s3") as again:
        assert again.credentials == keys
        assert again.store().get("k") == b"before"


def test_it_listens_on_loopback_only_and_shows_no_secret() -> None:
    with S3Server() as server:
        assert server.pid is not None
        assert listening(server.pid) == {"127.0.0.1"}
        arguments = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode()
        assert server.credentials.secret_key not in arguments
        assert "-master.telemetry=false" in arguments
        for name in ("credentials.json", "weed.log"):
            assert (server.folder / name).stat().st_mode & 0o077 == 0
        anonymous = S3Store(server.address, type(server.credentials)("nobody", "x"), retry=Retry(attempts=1))
        with pytest.raises(KinemillError, match="denied"):
            anonymous.get("k")
        wrong = S3Store(
            type(server.address)("corpsu", endpoint=server.endpoint), server.credentials, retry=Retry(attempts=1)
        )
        with pytest.raises(KinemillError):
            wrong.put_if_absent("k", b"x")  # a mistyped bucket is not made
        folder = server.folder
    assert not folder.exists(), "a temporary folder is removed"


SCRIPT = """
import sys
from kinemill.store.embedded import S3Server
with S3Server() as server:
    server.store().put_if_absent("k", b"1")
    print(server.store().get("k"), server.folder)
"""


def test_it_runs_as_an_ordinary_user_without_a_runtime_dir() -> None:
    done = run_as_nobody(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("b'1'")


@pytest.mark.full("catalog")
def test_its_memory_is_bounded(tmp_path: Path) -> None:
    """Without bounds it takes about 1 GB for this (0.96 to 1.16 GB were seen); with them 230 MB."""
    bound_mib, size_mib = 256, 512
    with S3Server(memory_bytes=bound_mib << 20) as server, (tmp_path / "f").open("wb") as file:
        for _ in range(size_mib):
            file.write(os.urandom(1 << 20))
        file.flush()
        store = server.store()
        store.put_if_absent("k", tmp_path / "f")
        for _ in range(2):
            store.download("k", tmp_path / "g")
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
        assert found is not None
        assert int(found[1]) >> 10 < 2 * bound_mib, "the most it ever had"
