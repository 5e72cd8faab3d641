"""The parts of the sandbox that decide, without any sandbox."""

from __future__ import annotations

import dataclasses
import io
import os
import shutil
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from kinemill.control.sandbox import box, cluster, connect, host, images, relay, standins
from kinemill.control.sandbox.names import Places, check_name, node_address
from kinemill.control.sandbox.supervise import nspawn_command
from kinemill.errors import (
    ConfigError,
    DeadlineError,
    EnvironmentFault,
    ExternalError,
    LimitError,
    MissingToolError,
    NotFoundError,
    UnavailableError,
)

# ---- names


def test_everything_follows_from_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINEMILL_SANDBOX_STATE", "/run/elsewhere")
    one, two = Places(1), Places(2)
    assert one.home == Path("/run/elsewhere/1")
    assert one.cgroup != two.cgroup
    monkeypatch.setenv("KINEMILL_SANDBOX_STATE", "/run/third")
    assert Places(1).cgroup != one.home  # ids of another folder are other ids
    assert node_address(0) == "10.77.0.11"


@pytest.mark.parametrize("name", ["n1", "ctl", "a-b-c", "x" * 12])
def test_good_names(name: str) -> None:
    assert check_name(name, "node") == name


@pytest.mark.parametrize("name", ["", "1n", "N", "n_1", "n.1", "x" * 13, "a/b", "a b", "-a", "n1\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ConfigError, match="node"):
        check_name(name, "node")


# ---- this machine


def test_all_that_is_missing_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool in {"systemd-nspawn", "tc"} else "/x")
    monkeypatch.setattr(host, "cgroup2_root", lambda: None)
    with pytest.raises(EnvironmentFault) as caught:
        host.require()
    text = str(caught.value)
    for word in ("root", "systemd-nspawn", "tc", "cgroup2", "apt-get install --no-install-recommends iproute2 systemd"):
        assert word in text


def test_root_without_tools_gets_the_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool == "mmdebstrap" else "/x")
    host.require()
    with pytest.raises(MissingToolError, match="install --no-install-recommends mmdebstrap"):
        host.require(for_images=True)


def test_no_overlay_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, **kw: "nodev tmpfs\n" if str(self) == "/proc/filesystems" else real(self, **kw)
    )
    monkeypatch.setattr(Path, "exists", lambda _: False)
    assert "overlayfs in the kernel" in [lack.what for lack in host.lacks()]


def test_the_cache_is_the_settings_and_the_sandboxes_own_programs_find_it_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("KINEMILL_SANDBOX_CACHE", "KINEMILL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("KINEMILL_CONFIG_DIR", str(tmp_path))
    (tmp_path / "core.toml").write_text("cache_dir = '/big/disk'\n")
    assert host.cache_root() == Path("/big/disk/sandbox")
    assert box._child_environment()["KINEMILL_CONFIG_DIR"] == str(tmp_path)
    monkeypatch.setenv("KINEMILL_SANDBOX_CACHE", "/elsewhere")
    assert host.cache_root() == Path("/elsewhere")


# ---- images


def test_the_digest_follows_the_recipe() -> None:
    recipe = images.RECIPES["bookworm"]
    assert recipe.digest == dataclasses.replace(recipe).digest
    assert recipe.digest != dataclasses.replace(recipe, packages=(*recipe.packages, "less")).digest
    assert recipe.digest != dataclasses.replace(recipe, suite="trixie").digest


def test_an_unknown_image_is_refused() -> None:
    with pytest.raises(ConfigError, match="known: bookworm"):
        images.build("buster")


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """An image build with everything outside replaced; `says` is mmdebstrap's stderr, `room` the free bytes."""
    world: dict[str, Any] = {"says": "", "room": 10**11, "ran": []}
    monkeypatch.setenv("KINEMILL_SANDBOX_CACHE", str(tmp_path))
    monkeypatch.setenv("KINEMILL_SANDBOX_MIRROR", "http://mirror.invalid/debian/")
    monkeypatch.setattr(images, "require", lambda **_: None)
    monkeypatch.setattr(images, "apt_settings", list)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, world["room"]))

    def run(command: list[str], **_: Any) -> Any:
        world["ran"].append(command)
        if world.get("slow"):
            raise DeadlineError("mmdebstrap ...: not done after 1500 s")
        code = 1 if world["says"] else 0
        return type("Done", (), {"returncode": code, "stderr": world["says"], "stdout": "5 x"})()

    monkeypatch.setattr(images, "run", run)
    return world


@pytest.mark.parametrize(
    ("says", "error", "words"),
    [
        ("E: Failed to fetch http://mirror.invalid/x  Could not resolve", UnavailableError, "does not answer"),
        ("dpkg: error: No space left on device", EnvironmentFault, "the disk ran full"),
        ("E: something else", ExternalError, "something else"),
    ],
)
def test_a_failed_build_says_why_and_leaves_nothing(
    builder: dict[str, Any], tmp_path: Path, says: str, error: type[Exception], words: str
) -> None:
    builder["says"] = says
    with pytest.raises(error, match=words):
        images.build("bookworm")
    assert not [path for path in (tmp_path / "images").iterdir() if path.is_dir()]


def test_a_slow_mirror_is_named_and_nothing_is_left(builder: dict[str, Any], tmp_path: Path) -> None:
    builder["slow"] = True
    with pytest.raises(
        DeadlineError, match=r"not built after 25 minutes: the mirror http://mirror.invalid/debian is slow"
    ):
        images.build("bookworm")
    assert not [path for path in (tmp_path / "images").iterdir() if path.is_dir()]


def test_a_build_is_not_begun_without_room(builder: dict[str, Any]) -> None:
    builder["room"] = 10**8
    with pytest.raises(LimitError, match="KINEMILL_SANDBOX_CACHE"):
        images.build("bookworm")
    assert builder["ran"] == []


def test_a_built_image_is_found_and_an_old_one_pruned(builder: dict[str, Any], tmp_path: Path) -> None:
    made = images.build("bookworm")
    assert images.find("bookworm") == dataclasses.replace(made, built_s=0.0)
    ran = len(builder["ran"])
    assert images.build("bookworm").root == made.root
    assert len(builder["ran"]) == ran
    assert "deb http://mirror.invalid/debian bookworm main" in builder["ran"][0]
    (tmp_path / "images" / "bookworm-000000000000").mkdir()
    assert images.prune() == ["bookworm-000000000000"]


def test_the_mirror_is_the_one_of_this_machines_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KINEMILL_SANDBOX_MIRROR", raising=False)
    lines = "http://a.invalid/security/|Debian|Debian-Security|main\nhttp://b.invalid/debian/|Debian|Debian|main\n"
    monkeypatch.setattr(images, "run", lambda *_, **__: type("Done", (), {"stdout": lines})())
    assert images.host_mirror() == "http://b.invalid/debian"
    # and where the lists were never fetched, the one that they would come from
    lines = "'http://a.invalid/debian-security/dists/x' y 0\n'http://b.invalid/debian/dists/bookworm/InRelease' y 0\n"
    answers = {"indextargets": "", "--print-uris": lines}
    monkeypatch.setattr(images, "run", lambda command, **_: type("Done", (), {"stdout": answers[command[1]]})())
    assert images.host_mirror() == "http://b.invalid/debian"
    answers["--print-uris"] = ""
    with pytest.raises(NotFoundError, match="KINEMILL_SANDBOX_MIRROR"):
        images.host_mirror()


# ---- packages


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("/debian/pool/main/h/hello/hello_2.10-3_amd64.deb", ("debian", "pool/main/h/hello/hello_2.10-3_amd64.deb")),
        ("/debian/dists/bookworm/InRelease", ("debian", "dists/bookworm/InRelease")),
        ("/debian/../x", None),
        ("/debian/a/%2e%2E/x", None),
        ("/debian/a%2fx", None),
        ("http://elsewhere/debian/x", None),
        ("/debian//x", None),
        ("/debian/x y", None),
        ("/debian/x?y", None),
        ("debian/x", None),
        ("/", None),
        ("", None),
    ],
)
def test_only_plain_paths_pass(path: str, split: tuple[str, str] | None) -> None:
    assert relay.safe_path(path) == split


class Origin:
    """A web server by function call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []
        self.content: dict[str, bytes] = {}
        self.length: dict[str, str | None] = {}
        monkeypatch.setattr(urllib.request, "urlopen", self.open)

    def open(self, url: str, timeout: float) -> Any:
        self.asked.append(url)
        if url not in self.content:
            raise urllib.error.HTTPError(url, 404, "no", {}, None)  # type: ignore[arg-type]  # no headers needed
        body = io.BytesIO(self.content[url])
        length = self.length.get(url, str(len(self.content[url])))
        body.headers = {} if length is None else {"Content-Length": length}  # type: ignore[attr-defined]  # as urllib does
        return body


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> Origin:
    return Origin(monkeypatch)


def fetched(fetcher: relay.Fetcher, path: str) -> tuple[int, bytes]:
    status, length, body = fetcher.fetch(path)
    if body is None:
        return status, b""
    with body:
        data = body.read()
    assert len(data) == length
    return status, data


def test_what_never_changes_is_fetched_once(origin: Origin, tmp_path: Path) -> None:
    origin.content = {"http://m/debian/pool/x.deb": b"deb", "http://m/debian/dists/InRelease": b"rel"}
    fetcher = relay.Fetcher({"debian": "http://m/debian"}, tmp_path)
    for _ in range(2):
        assert fetched(fetcher, "/debian/pool/x.deb") == (200, b"deb")
        assert fetched(fetcher, "/debian/dists/InRelease") == (200, b"rel")
    assert [url.rsplit("/", 1)[1] for url in origin.asked] == ["x.deb", "InRelease", "InRelease"]
    assert fetched(fetcher, "/debian/pool/y.deb") == (404, b"")
    assert fetched(fetcher, "/other/pool/x.deb") == (403, b"")


def test_a_short_download_is_not_kept(origin: Origin, tmp_path: Path) -> None:
    url = "http://m/pool/x.deb"
    origin.content, origin.length = {url: b"half"}, {url: "8"}
    fetcher = relay.Fetcher({"debian": "http://m"}, tmp_path)
    with pytest.raises(OSError, match="4 of 8 bytes"):
        fetcher.fetch("/debian/pool/x.deb")
    assert list(tmp_path.iterdir()) == []
    origin.length = {}
    assert fetched(fetcher, "/debian/pool/x.deb") == (200, b"half")


def test_an_answer_without_a_length_gets_one(origin: Origin, tmp_path: Path) -> None:
    url = "http://m/dists/x"
    origin.content, origin.length = {url: b"abc"}, {url: None}
    assert fetched(relay.Fetcher({"debian": "http://m"}, tmp_path), "/debian/dists/x") == (200, b"abc")


def test_the_cache_is_bounded(origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for index in range(4):
        (tmp_path / str(index)).write_bytes(b"x" * 10)
        os.utime(tmp_path / str(index), (index, index))
    monkeypatch.setattr(relay, "_CACHE_BYTES", 25)
    relay.Fetcher({}, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


# ---- ssh's way in


def test_the_pump_carries_both_ways_and_passes_the_end_on() -> None:
    near, far = socket.socketpair()
    source_read, source_write = os.pipe()
    sink_read, sink_write = os.pipe()
    thread = threading.Thread(target=connect.pump, args=(near, source_read, sink_write), daemon=True)
    thread.start()
    os.write(source_write, b"question")
    os.close(source_write)
    asked = b""
    while part := far.recv(100):
        asked += part
    sender = threading.Thread(target=far.sendall, args=(b"answer" * 50_000,), daemon=True)
    sender.start()
    told = b""
    while len(told) < 300_000:
        told += os.read(sink_read, 1 << 16)
    sender.join(timeout=120)
    far.close()
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert asked == b"question"
    assert told == b"answer" * 50_000
    for fd in (source_read, sink_read, sink_write):
        os.close(fd)
    near.close()


# ---- nodes


def test_a_node_gets_its_own_network_and_no_more_than_it_needs() -> None:
    command = nspawn_command(Places(3), "n1", ["--bind-ro=/w:/srv/wheelhouses"])
    assert "--register=no" in command
    assert any(word.startswith("--network-namespace-path=") for word in command)
    assert [word for word in command if word.startswith("--bind=")] == [f"--bind={Places(3).shared}:/shared"]


def test_kernel_messages_are_records_in_order(tmp_path: Path) -> None:
    standins.boot(tmp_path)
    standins.kernel_message(tmp_path, "NVRM: Xid 79", priority=3)
    lines = (tmp_path / "kmsg").read_text().splitlines()
    heads = [line.split(";")[0].split(",") for line in lines]
    assert [(head[0], head[1], head[3]) for head in heads] == [("4", "0", "-"), ("3", "1", "-")]
    assert int(heads[0][2]) <= int(heads[1][2])
    with pytest.raises(ConfigError, match="one line"):
        standins.kernel_message(tmp_path, "a\nb")


def test_sysfs_stays_in_its_tree(tmp_path: Path) -> None:
    standins.create(tmp_path, standins.Hardware(gpus=1, ports=1), seed="n1")
    for name in ("../nvml.state", "class/infiniband/mlx5_9/ports/1/state", "class"):
        with pytest.raises(NotFoundError, match="not among the stand-ins"):
            standins.set_sysfs(tmp_path, name, "x")


def test_scontrol_lines_are_split_into_fields() -> None:
    line = "NodeName=n1 State=IDLE+DRAIN Gres=gpu:h200:8 CfgTRES=cpu=16,gres/gpu=8 Reason=not our fault [root@now] A=b"
    assert cluster._fields(line) == {
        "NodeName": "n1",
        "State": "IDLE+DRAIN",
        "Gres": "gpu:h200:8",
        "CfgTRES": "cpu=16,gres/gpu=8",
        "Reason": "not our fault [root@now]",
        "A": "b",
    }
