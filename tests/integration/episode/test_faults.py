"""A full or failing disk, an encoder that breaks, Ctrl-C, kill -9: nothing half done under a name, nothing lost of a
live recording, and no thread or handle left behind."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec
from kinemill.episode.encode import CameraEncoder
from kinemill.episode.repack import repack
from kinemill.errors import EnvironmentFault, StateError, UnsupportedError
from support.episode import EPISODE, fill, packets, picture, row, specs, stamp


class Disk(io.RawIOBase):
    """A file on a disk with only so much room, which may grow again."""

    def __init__(self, path: Path, room: int) -> None:
        self._file = path.open("r+b", buffering=0)
        self.room = room

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, data: Any) -> int:
        if self.room <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = self._file.write(memoryview(data)[: self.room])  # a full disk takes a part first
        self.room -= taken
        return taken

    def close(self) -> None:
        super().close()
        self._file.close()


def on_a_small_disk(writer: EpisodeWriter, room: int) -> Disk:
    assert writer._temporary is not None
    writer._stream.close()
    disk = Disk(writer._temporary, room)
    writer._stream = writer._out._stream = io.BufferedWriter(disk)
    return disk


def our_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("encode ", "sha256"))]


def saved(folder: Path) -> dict[str, int]:
    """topic -> messages that repack saves from the one file that was left."""
    (part,) = (p for p in folder.iterdir() if p.name.endswith(".part"))
    report = repack(part, folder / "saved.mcap")
    return {t.topic: t.messages for g in report.receipt.groups for t in g.topics}


@pytest.mark.parametrize("room", [100, 9_000, 60_000, 90_000])
@pytest.mark.parametrize("as_packets", [True, False])
def test_a_full_disk_leaves_nothing_and_says_so(as_packets: bool, room: int, tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(2, 2))
    on_a_small_disk(writer, room)
    with pytest.raises(EnvironmentFault, match=r"No space left.*make room"), writer:
        fill(writer, frames=120, as_packets=as_packets)
    assert list(tmp_path.iterdir()) == []
    assert our_threads() == []


def test_a_write_that_failed_is_not_gone_on_with(tmp_path: Path) -> None:
    # given a disk that fills up and is given room again
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(2, 2))
    disk = on_a_small_disk(writer, 20_000)
    with pytest.raises(EnvironmentFault):
        fill(writer, frames=120)
    disk.room = 1 << 30
    # when the caller goes on nevertheless
    with pytest.raises(StateError, match="failed"):
        writer.packet("/cam/0", stamp(500), packets(0, 10)[0][1])
    with pytest.raises(StateError, match="failed"):
        writer.close()
    # then no file with a hole in it stands there
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_keeps_what_was_recorded_live(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(2, 1), live=True)
    on_a_small_disk(writer, 150_000)
    with pytest.raises(EnvironmentFault, match="repack") as caught, writer:
        fill(writer, cameras=2, states=1, frames=300)
    assert ".part" in caught.value.__notes__[0]
    assert not (tmp_path / "e.mcap").exists()
    assert saved(tmp_path)["/cam/0"] > 30
    assert our_threads() == []


def test_a_disk_that_cannot_sync_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", broken)
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(1, 1), live=True)
    with pytest.raises(EnvironmentFault, match="Input/output error"), writer:
        fill(writer, cameras=1, states=1, frames=120)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"none/e\.mcap.*No such file"):
        EpisodeWriter(tmp_path / "none/e.mcap", episode_id=EPISODE, topics=specs(1, 1))


def test_one_encoder_that_breaks_stops_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = CameraEncoder._open

    def breaks(self: CameraEncoder, frame: Any) -> Any:
        if self._spec.topic == "/cam/1":
            raise MemoryError("no room for another encoder")
        return original(self, frame)

    monkeypatch.setattr(CameraEncoder, "_open", breaks)
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(3, 1))
    with pytest.raises(UnsupportedError, match=r"/cam/1.*encoding failed.*no room"), writer:
        fill(writer, cameras=3, states=1, frames=120, as_packets=False)
    assert list(tmp_path.iterdir()) == []
    assert our_threads() == []


@pytest.mark.parametrize("live", [False, True])
def test_ctrl_c_while_encoding(live: bool, tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(2, 1), live=live)

    def interrupted() -> None:
        fill(writer, cameras=2, states=1, frames=70, as_packets=False)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), writer:
        interrupted()
    assert our_threads() == []
    # then a converter leaves nothing, and a recorder every single message
    if live:
        assert saved(tmp_path) == {"/cam/0": 70, "/cam/1": 70, "/state/0": 467}
    else:
        assert list(tmp_path.iterdir()) == []


def test_abort_is_for_good(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(1, 1), live=True)
    fill(writer, cameras=1, states=1, frames=70)
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_live_topics_that_fall_silent_are_on_the_disk_all_the_same(tmp_path: Path) -> None:
    # given a line of text at the start, a camera that stops after a second, and a state that goes on
    topics = [*specs(1, 1), TopicSpec("/late", rate_hz=30, group="other_camera"), TopicSpec("/task", TopicKind.TEXT)]
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=topics, live=True)
    writer.text("/task", stamp(0), "fold the towel")
    for k in range(30):
        writer.packet("/cam/0", *packets(0, 30)[k][:2])
        writer.frame("/late", stamp(k), picture(0, k))
    for k in range(130):
        writer.rows("/state/0", stamp(k), row(0, stamp(k)))
    # when the power goes
    found = saved(tmp_path)
    assert (found["/task"], found["/cam/0"]) == (1, 30)
    assert found["/late"] >= 20  # but for the few that its encoder holds
    assert found["/state/0"] >= 130 - 75
    writer.abort()


RECORDER = """
    import sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from kinemill.episode import EpisodeWriter
    from support.episode import EPISODE, packets, row, specs, stamp

    streams = [packets(c, 120) for c in range(2)]
    writer = EpisodeWriter(Path({path!r}), episode_id=EPISODE, topics=specs(2, 1), live=True)
    for k in range(10**9):
        for c in range(2):
            writer.packet(f"/cam/{{c}}", stamp(k), streams[c][k % 120][1])
        writer.rows("/state/0", stamp(k), row(0, stamp(k)))
"""


def test_kill_9_of_a_recorder(tmp_path: Path) -> None:
    text = textwrap.dedent(RECORDER).format(tests=str(Path(__file__).parents[2]), path=str(tmp_path / "e.mcap"))
    recorder = subprocess.Popen([sys.executable, "-c", text])
    try:
        deadline = time.monotonic() + 120
        while not any(p.stat().st_size > 1 << 20 for p in tmp_path.iterdir()):
            assert time.monotonic() < deadline
            assert recorder.poll() is None
            time.sleep(0.01)
    finally:
        recorder.send_signal(signal.SIGKILL)
        recorder.wait()
    found = saved(tmp_path)
    assert found["/cam/0"] > 100
    assert abs(found["/cam/0"] - found["/state/0"]) <= 90  # the reorder window, one cut, and what one group waits
