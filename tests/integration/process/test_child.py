"""Servers of our own: one owner, ports that stay ours, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kinemill.errors import ConflictError, DeadlineError, EnvironmentFault, UnavailableError, UsageError
from kinemill.process import (
    Account,
    Child,
    OwnedFolder,
    Ports,
    ProcessId,
    private_folder,
    reachable,
    socket_folder,
    state_root,
    unprivileged_account,
)
from support.layers import skip

ENV = {"PATH": os.environ["PATH"]}
SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def until(condition: Callable[[], object], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def alive(pid: int) -> bool:
    return ProcessId.of(pid) is not None


def child(folder: Path, argv: list[str], **more: object) -> Child:
    return Child(folder, "server", [str(Path(argv[0]).resolve()), *argv[1:]], env=ENV, **more)  # type: ignore[arg-type]


# ---- ports


def test_reserved_ports_go_to_nobody_who_asks_for_any() -> None:
    with Ports([f"p{i}" for i in range(20)]) as ports:
        mine = set(ports.as_dict().values())
        others = []
        for _ in range(300):
            other = socket.socket()
            other.bind(("127.0.0.1", 0))
            others.append(other)
        theirs = {other.getsockname()[1] for other in others}
        for other in others:
            other.close()
    assert len(mine) == 20
    assert not mine & theirs


def test_a_server_can_listen_on_its_reserved_port() -> None:
    with Ports(["http"]) as ports:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", ports["http"]))
        server.listen()
        with socket.create_connection(("127.0.0.1", ports["http"]), timeout=60) as client:
            accepted, address = server.accept()
            accepted.close()
            assert address == client.getsockname()
        server.close()


def test_the_ports_of_the_last_run_are_taken_again_if_they_are_free() -> None:
    with Ports(["a"]) as first:
        known = first.as_dict()
        with Ports(["a"], prefer=known) as second:
            assert second["a"] != known["a"], "a reservation was shared"
    for _ in range(20):  # somebody else on this machine may have taken it meanwhile: then that one's next
        with Ports(["a"], prefer=known) as third:
            if third["a"] == known["a"]:
                return
            known = third.as_dict()
    raise AssertionError("no port of a last run was taken again")


def test_only_loopback() -> None:
    with pytest.raises(UsageError, match="loopback"):
        Ports(["a"], host="0.0.0.0")  # noqa: S104 - it must refuse


# ---- folders


def test_a_folder_has_one_living_owner_who_is_named(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s"), pytest.raises(ConflictError, match=str(os.getpid())):
        OwnedFolder(tmp_path / "s")
    with OwnedFolder(tmp_path / "s"):
        pass


def test_private_folder_refuses_links_and_foreign_owners(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(EnvironmentFault, match="links are not followed"):
        private_folder(tmp_path / "link")
    assert (private_folder(tmp_path / "new").stat().st_mode & 0o777) == 0o700
    (tmp_path / "open").mkdir(mode=0o777)
    assert (private_folder(tmp_path / "open").stat().st_mode & 0o777) == 0o700
    if os.geteuid() == 0:
        os.chown(tmp_path / "real", 65534, 65534)
        with pytest.raises(EnvironmentFault, match="belongs to uid 65534"):
            private_folder(tmp_path / "real")


def test_a_long_path_gets_a_short_place_for_its_socket(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 90)
    assert socket_folder(tmp_path, "s") in (tmp_path, socket_folder(tmp_path, "s"))
    short = socket_folder(long, ".s.PGSQL.65535.lock")
    assert short != long
    assert len(str(short)) < 60
    assert short == socket_folder(long, ".s.PGSQL.65535.lock"), "the same place each time"


def test_state_root_needs_no_runtime_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/somewhere/u")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert state_root() == Path("/somewhere/u/.local/state/kinemill/servers")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert state_root() == Path("/s/kinemill/servers")


def test_reachable_looks_at_every_folder_above(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    (tmp_path / "a" / "b").mkdir(mode=0o700)
    stranger = Account("stranger", 65533, 65533)
    assert not reachable(tmp_path / "a" / "b" / "c", stranger)
    assert reachable(tmp_path / "a" / "b" / "c", None)


def test_the_account_of_root_is_not_root() -> None:
    found = unprivileged_account()
    assert (found is None) == (os.geteuid() != 0)
    assert found is None or found.uid != 0


# ---- life


def test_it_starts_says_when_it_is_ready_and_stops(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s") as owned:
        server = child(owned.path, SLEEPER)
        server.start(lambda: "up" in server.tail(), timeout_s=120)
        pid = server.pid
        assert pid is not None
        assert alive(pid)
        record = json.loads((owned.path / "server.pid.json").read_text())
        assert record["pid"] == pid
        server.stop()
        assert not alive(pid)
        assert not (owned.path / "server.pid.json").exists()


def test_an_early_death_shows_the_log(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s") as owned:
        server = child(owned.path, [sys.executable, "-c", "print('no such flag: --wrong'); raise SystemExit(3)"])
        with pytest.raises(UnavailableError, match=r"status 3 .*\n?.*no such flag"):
            server.start(lambda: False, timeout_s=120)


def test_not_ready_in_time_is_stopped(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s") as owned:
        server = child(owned.path, SLEEPER)
        with pytest.raises(DeadlineError, match="not ready"):
            server.start(lambda: False, timeout_s=0.5)
        assert server.pid is None


def test_what_ignores_sigterm_is_killed_with_its_children(tmp_path: Path) -> None:
    stubborn = textwrap.dedent("""
        import signal, subprocess, sys, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kid = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("kid", kid.pid, flush=True)
        time.sleep(600)
    """)
    with OwnedFolder(tmp_path / "s") as owned:
        server = child(owned.path, [sys.executable, "-c", stubborn])
        server.start(lambda: "kid" in server.tail(), timeout_s=120)
        kid = int(server.tail().split()[-1])
        server.stop(grace_s=0.3)
        until(lambda: not alive(kid), "the child's child outlived it")


def test_a_short_lived_thread_may_start_a_server(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s") as owned:
        server = child(owned.path, SLEEPER)
        starter = threading.Thread(target=lambda: server.start(lambda: "up" in server.tail()))
        starter.start()
        starter.join()
        time.sleep(0.2)  # the kernel would have killed it with its thread by now
        assert server.running
        server.stop()


OWNER = """
import os, sys, time
from pathlib import Path
from kinemill.process import Child, OwnedFolder
owned = OwnedFolder(Path(sys.argv[1]))
sleeper = [os.path.realpath(sys.executable), "-c", "import time; print('up', flush=True); time.sleep(600)"]
server = Child(owned.path, "server", sleeper, env={"PATH": os.environ["PATH"]},
    die_with_parent=sys.argv[2] == "die")
server.start(lambda: "up" in server.tail())
print(server.pid, flush=True)
time.sleep(600)
"""


def owner(folder: Path, how: str) -> tuple[subprocess.Popen[str], int]:
    process = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), how], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def test_a_child_dies_with_its_killed_parent(tmp_path: Path) -> None:
    parent, pid = owner(tmp_path / "s", "die")
    assert alive(pid)
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()
    until(lambda: not alive(pid), "the server outlived its owner")


def test_the_next_owner_ends_what_a_killed_one_left(tmp_path: Path) -> None:
    parent, pid = owner(tmp_path / "s", "outlive")
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()
    assert alive(pid), "it was told to outlive its owner"
    with OwnedFolder(tmp_path / "s"):
        until(lambda: not alive(pid), "the sweep left it")
    assert not (tmp_path / "s" / "server.pid.json").exists()


def test_a_reused_pid_is_left_alone(tmp_path: Path) -> None:
    stranger = subprocess.Popen(SLEEPER, stdout=subprocess.DEVNULL)
    me = ProcessId.of(stranger.pid)
    assert me is not None
    folder = private_folder(tmp_path / "s")
    record = {"pid": me.pid, "start_ticks": me.start_ticks - 1, "boot_id": me.boot_id, "exe": "/x", "cwd": str(folder)}
    (folder / "server.pid.json").write_text(json.dumps(record))
    with OwnedFolder(folder):
        assert stranger.poll() is None
    record |= {"start_ticks": me.start_ticks, "boot_id": "another boot"}
    (folder / "server.pid.json").write_text(json.dumps(record))
    with OwnedFolder(folder):
        assert stranger.poll() is None
    stranger.send_signal(signal.SIGKILL)
    stranger.wait()


@pytest.mark.parametrize("torn", [b"", b"{", b'{"pid": 1}', b"[]", b"\xff\xfe"])
def test_a_torn_record_is_no_obstacle(tmp_path: Path, torn: bytes) -> None:
    folder = private_folder(tmp_path / "s")
    (folder / "server.pid.json").write_bytes(torn)
    with OwnedFolder(folder):
        assert not (folder / "server.pid.json").exists()


def test_temporary_folders_of_killed_owners_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    old = private_folder(tmp_path / "kinemill-s3-old")
    (old / "owner.lock").write_text("999999\n")
    with OwnedFolder(None, name="s3") as owned:
        assert not old.exists()
        assert owned.path.is_relative_to(tmp_path)
        with OwnedFolder(None, name="s3"):
            assert owned.path.exists(), "the folder of a living owner was removed"
    assert not owned.path.exists()


def test_an_unprivileged_account_can_be_taken(tmp_path: Path) -> None:
    account = unprivileged_account()
    if account is None:
        skip("not root, so there is no account to change to", run="make test as root")
    with OwnedFolder(tmp_path / "s") as owned:
        say = 'echo "$(id -u) $(id -G)"; exec sleep 600'
        server = child(owned.path, ["/bin/sh", "-c", say], account=account)
        server.start(lambda: server.tail() != "(empty)")
        assert server.tail() == f"{account.uid} {account.gid}"
        server.stop()


def test_a_folder_that_others_use_is_no_place_to_run(tmp_path: Path) -> None:
    with OwnedFolder(tmp_path / "s") as owned, pytest.raises(UsageError, match="nobody else works in"):
        child(owned.path, SLEEPER, cwd=Path("/"))
