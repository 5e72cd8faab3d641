"""The download protocol between real processes on a real disk."""

from __future__ import annotations

import json
import logging
import multiprocessing as mp
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kinemill.errors import ConflictError, CorruptError, DeadlineError, EnvironmentFault
from kinemill.loaders.manifest import ManifestRef, collect, open_manifest, pull
from kinemill.loaders.manifest import fetch as fetch_module
from kinemill.loaders.manifest.fetch import local_paths
from kinemill.loaders.manifest.locks import file_system_of
from kinemill.loaders.manifest.manifest import forget_open
from support.layers import skip_if
from support.loaders import FolderStore, manifest_columns, publish, write_manifest

PART = 64 << 10


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "bucket").mkdir()
    return FolderStore(tmp_path / "bucket")


@pytest.fixture
def ref(tmp_path: Path, store: FolderStore) -> ManifestRef:
    ref = publish(store, write_manifest(tmp_path / "m.arrow", manifest_columns(20_000)))
    store.forget()
    return ref


def until(condition: Callable[[], bool], what: str, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.01)


def _rank(ref: ManifestRef, store: FolderStore, folder: Path, out: mp.SimpleQueue) -> None:
    manifest = open_manifest(ref, store=store, folder=folder, part_bytes=PART)
    out.put((len(manifest), manifest[17].key))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_eight_processes_make_one_download(store: FolderStore, ref: ManifestRef, tmp_path: Path, method: str) -> None:
    # given eight processes of one node, as a launcher starts them, before any process group exists
    context = mp.get_context(method)
    out = context.SimpleQueue()
    count = 8 if method == "fork" else 3
    ranks = [context.Process(target=_rank, args=(ref, store, tmp_path / "local", out)) for _ in range(count)]
    for rank in ranks:
        rank.start()
    # when each opens the manifest
    for rank in ranks:
        rank.join(300)
    # then the store saw one download, and every rank the same rows
    assert [rank.exitcode for rank in ranks] == [0] * count
    assert len({out.get() for _ in range(count)}) == 1
    assert store.requests() == {"get_range": -(-ref.size_bytes // PART)}
    assert sorted(p.suffix for p in (tmp_path / "local").iterdir()) == [".arrow", ".lock", ".ok", ".use"]


def test_two_fake_nodes_each_fetch_their_own(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    for node in ("node-a", "node-b"):
        path, use = pull(ref, store, tmp_path / node, part_bytes=ref.size_bytes)
        os.close(use)
        assert path.read_bytes() == (store.root / ref.key).read_bytes()
    assert store.requests() == {"get_range": 2}


def test_two_jobs_on_one_node_share_one_copy_and_neither_blocks(
    store: FolderStore, ref: ManifestRef, tmp_path: Path
) -> None:
    first = pull(ref, store, tmp_path / "local")
    store.forget()
    second = pull(ref, store, tmp_path / "local", wait_s=0)
    assert first[0] == second[0]
    assert store.requests() == {}
    for _, use in (first, second):
        os.close(use)


_HOLD = """
import sys, time
from pathlib import Path
from kinemill.loaders.manifest.locks import hold
with hold(Path(sys.argv[1]), wait_s=1, what="x"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_waiter_gives_up_and_names_the_holder(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(local_paths(folder, ref.sha256).lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(DeadlineError, match=rf"waited 0\.2 s for pid {holder.pid} on"):
            pull(ref, store, folder, wait_s=0.2)
        holder.kill()
    # the lock died with its holder: the stale file stops nobody
    _, use = pull(ref, store, folder, wait_s=0.2)
    os.close(use)


def _slow_fetch(ref: ManifestRef, store: FolderStore, folder: Path) -> None:
    pull(ref, store, folder, part_bytes=4096)


def test_a_fetcher_killed_half_way_leaves_nothing_that_hinders(
    store: FolderStore, ref: ManifestRef, tmp_path: Path
) -> None:
    folder = tmp_path / "local"
    slow = FolderStore(store.root, delay_s=0.2)
    child = mp.get_context("fork").Process(target=_slow_fetch, args=(ref, slow, folder))
    child.start()
    until(lambda: store.requests()["get_range"] >= 3, "the child fetches")
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(120)
    left = list(folder.glob("*.part"))
    assert len(left) == 1
    # when the next process comes
    path, use = pull(ref, store, folder)
    os.close(use)
    # then it has the whole file and the temporary of the dead one is gone
    assert path.stat().st_size == ref.size_bytes
    assert not list(folder.glob("*.part"))


def test_a_full_disk_shows_before_a_byte_moves_and_nothing_stays(
    store: FolderStore, ref: ManifestRef, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, start: int, length: int) -> None:
        raise OSError(28, "No space left on device")

    folder = tmp_path / "local"
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(EnvironmentFault, match=rf"needs {ref.size_bytes} bytes, \d+ free"):
            pull(ref, store, folder)
    assert store.requests() == {}
    assert sorted(p.suffix for p in folder.iterdir()) == [".lock", ".use"]
    _, use = pull(ref, store, folder)  # and the next attempt is clean
    os.close(use)


_FULL = """
import sys
from pathlib import Path
from kinemill.errors import EnvironmentFault
from kinemill.loaders.manifest import ManifestRef, pull
from kinemill.store.memory import MemoryStore
folder = Path(sys.argv[1])
try:
    pull(ManifestRef("memory://memory", "big", "1" * 64, 64 << 20), MemoryStore(), folder)
except EnvironmentFault as exc:
    print(exc)
print(sorted(p.suffix for p in folder.iterdir()))
"""


@skip_if(os.geteuid() != 0, "a small file system can only be mounted by root", run="make test as root")
def test_a_really_full_file_system_is_the_same(tmp_path: Path) -> None:
    script = tmp_path / "full.py"
    script.write_text(_FULL)
    small = tmp_path / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=1m tmpfs "$1" && exec "$2" "$3" "$1"'
    told = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(small), sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    assert "no room for big: needs 67108864 bytes" in told
    assert "kinemill load pull --gc" in told
    assert told.splitlines()[-1] == "['.lock', '.use']"


def test_a_changed_object_is_refused(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    (store.root / ref.key).write_bytes(b"other" * 10)
    with pytest.raises(ConflictError):
        pull(ref, store, tmp_path / "local")
    assert not list((tmp_path / "local").glob("*.arrow"))


def test_wrong_bytes_are_refused_and_nothing_stays(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    raw = bytearray((store.root / ref.key).read_bytes())
    raw[1000] ^= 1
    (store.root / ref.key).write_bytes(raw)
    bare = ManifestRef(ref.store, ref.key, ref.sha256, ref.size_bytes)  # no etag: the sha256 alone must do
    with pytest.raises(CorruptError, match="sha256"):
        pull(bare, store, tmp_path / "local")
    assert sorted(p.suffix for p in (tmp_path / "local").iterdir()) == [".lock", ".use"]


@pytest.mark.parametrize("damage", ["truncate", "touch", "no ok", "bad ok"])
def test_a_damaged_local_copy_is_fetched_again(
    store: FolderStore, ref: ManifestRef, tmp_path: Path, damage: str
) -> None:
    path, use = pull(ref, store, tmp_path / "local")
    os.close(use)
    ok = path.with_suffix(".ok")
    match damage:
        case "truncate":
            os.truncate(path, 100)
        case "touch":
            os.utime(path, ns=(1, 1))
        case "no ok":
            ok.unlink()
        case "bad ok":
            ok.write_text("[]")
    store.forget()
    path, use = pull(ref, store, tmp_path / "local")
    os.close(use)
    assert path.read_bytes() == (store.root / ref.key).read_bytes()
    assert store.requests()["get_range"] > 0


def test_verify_finds_rot_inside_and_the_old_mapping_lives_on(
    store: FolderStore, ref: ManifestRef, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = open_manifest(ref, store=store, folder=tmp_path / "local")
    expected = manifest[5]
    path = local_paths(tmp_path / "local", ref.sha256).data
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(stat.st_size // 2)
        file.write(b"rot")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    with caplog.at_level(logging.WARNING):
        again, use = pull(ref, store, tmp_path / "local", verify=True)
    os.close(use)
    assert "rotted" in caplog.text
    assert again.read_bytes() == (store.root / ref.key).read_bytes()
    assert manifest[5] == expected
    forget_open()


# ---- collection


def _published(store: FolderStore, tmp_path: Path, count: int) -> list[ManifestRef]:
    made = []
    for i in range(count):
        path = write_manifest(tmp_path / f"{i}.arrow", manifest_columns(50, seed=i))
        made.append(publish(store, path, id=f"m{i}"))
    return made


def test_collection_keeps_the_last_used_and_those_in_use(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    refs = _published(store, tmp_path, 4)
    fds = []
    for age, ref in enumerate(refs):
        path, use = pull(ref, store, folder)
        os.utime(path.with_suffix(".ok"), ns=(10**18 + age, 10**18 + age))
        fds.append(use)
    for fd in fds[1:]:
        os.close(fd)  # the oldest, 0, stays mapped by somebody
    assert {p.stem for p in collect(folder, keep=2, dry_run=True)} == {refs[1].sha256}
    assert local_paths(folder, refs[1].sha256).data.exists()
    collect(folder, keep=2)
    kept = {p.stem for p in folder.glob("*.arrow")}
    assert kept == {refs[0].sha256, refs[2].sha256, refs[3].sha256}
    os.close(fds[0])
    collect(folder, keep=0)
    assert list(folder.iterdir()) == []


def test_collection_sweeps_temporaries_of_the_dead(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    folder.mkdir()
    stale = folder / f"{'a' * 64}.123.part"
    stale.write_bytes(b"x")
    assert collect(folder) == [stale]
    assert list(folder.iterdir()) == []


def test_a_manifest_opened_in_a_fork_is_in_use_until_the_fork_ends(store: FolderStore, tmp_path: Path) -> None:
    folder = tmp_path / "local"
    (ref,) = _published(store, tmp_path, 1)
    manifest = open_manifest(ref, store=store, folder=folder)
    context = mp.get_context("fork")
    stop = context.Event()
    child = context.Process(target=stop.wait, args=(600,))
    child.start()
    del manifest
    forget_open()  # this process lets go, the fork does not
    assert collect(folder, keep=0) == []
    stop.set()
    child.join(120)
    assert [p.suffix for p in collect(folder, keep=0)] == [".arrow"]


# ---- where the folder lies


def test_a_network_mount_is_warned_of_once(
    store: FolderStore, ref: ManifestRef, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
) -> None:
    monkeypatch.setattr(fetch_module, "file_system_of", lambda folder: "nfs4")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            _, use = pull(ref, store, tmp_path / "local")
            os.close(use)
    assert caplog.text.count("network mount (nfs4)") == 1


def test_the_file_system_is_read_from_mountinfo(tmp_path: Path) -> None:
    info = tmp_path / "mountinfo"
    info.write_text(
        "22 1 8:1 / / rw - ext4 /dev/sda rw\n"
        f"23 22 0:5 / {tmp_path} rw,relatime shared:1 - nfs4 server:/x rw\n"
        f"24 22 0:6 / {tmp_path}/with\\040space rw - fuse.s3fs s3fs rw\n"
    )
    (tmp_path / "with space").mkdir()
    assert file_system_of(Path("/"), info) == "ext4"
    assert file_system_of(tmp_path / "x", info) == "nfs4"
    assert file_system_of(tmp_path / "with space" / "y", info) == "fuse.s3fs"
    assert file_system_of(tmp_path, tmp_path / "none") == ""


def test_a_folder_that_cannot_be_made_says_which_setting(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"manifest\.dir"):
        pull(ref, store, tmp_path / "file" / "local")


def test_the_ok_file_is_readable_by_people(store: FolderStore, ref: ManifestRef, tmp_path: Path) -> None:
    path, use = pull(ref, store, tmp_path / "local")
    os.close(use)
    told = json.loads(path.with_suffix(".ok").read_text())
    assert told["sha256"] == ref.sha256
    assert told["from"].endswith(ref.key)
    assert len(pickle.dumps(ref)) < 1000
