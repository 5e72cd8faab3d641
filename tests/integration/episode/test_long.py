"""The long suite of episodes: an hour, and more than 4 GiB."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import SeekingReader

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, TopicSpec, Window
from kinemill.episode.scan import FileSource
from kinemill.episode.verify import verify
from kinemill.store.files import FileStore
from support.episode import EPISODE, NS, row, stamp

pytestmark = pytest.mark.full("episodes")

MEMORY = """
    import sys, threading, time
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    import numpy as np
    from kinemill.episode import EpisodeWriter
    from support.episode import EPISODE, packets, row, specs, stamp

    peak = 0
    def pss():
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    def watch():
        global peak
        while True:
            peak = max(peak, pss())
            time.sleep(0.2)

    threading.Thread(target=watch, daemon=True).start()
"""

HOUR = """
    streams = [packets(c, 120, "vla") for c in range(4)]
    writer = EpisodeWriter(Path({path!r}), episode_id=EPISODE, topics=specs(4, 2))
    for k in range(3600 * 30):
        for c in range(4):
            writer.packet(f"/cam/{{c}}", stamp(k), streams[c][k % 120][1])
        if k % 3 == 0:
            t = stamp(k) + np.arange(20) * 5_000_000
            for i in range(2):
                writer.rows(f"/state/{{i}}", t, np.tile(row(i, stamp(k)), (20, 1)))
"""

ENCODE = """
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 256, (480, 640, 3), dtype=np.uint8) // 4 + 90 for _ in range(8)]
    writer = EpisodeWriter(Path({path!r}), episode_id=EPISODE, profile={profile!r},
                           topics=specs(4, 0, width=640, height=480))
    for k in range(45 * 30):
        for c in range(4):
            writer.frame(f"/cam/{{c}}", stamp(k), images[(k + c) % 8])
"""


def peak_pss(body: str, path: Path, **values: str) -> int:
    text = textwrap.dedent(MEMORY).format(tests=str(Path(__file__).parents[2]))
    text += textwrap.dedent(body).format(path=str(path), **values) + "writer.close()\nprint(max(peak, pss()))\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=5400, check=True)
    return int(done.stdout.split()[-1])


def test_an_hour_of_four_cameras_in_400_mb(tmp_path: Path) -> None:
    path = tmp_path / "hour.mcap"
    assert peak_pss(HOUR, path) < 400 << 20
    with FileSource(path) as source:
        report = verify(source)
    assert report.findings == []
    assert report.messages == 4 * 3600 * 30 + 2 * 3600 * 200


@pytest.mark.parametrize("profile", ["vla", "world"])
def test_encoding_four_cameras_in_400_mb(profile: str, tmp_path: Path) -> None:
    assert peak_pss(ENCODE, tmp_path / "e.mcap", profile=profile) < 400 << 20


def test_more_than_four_gib(tmp_path: Path) -> None:
    # given a topic of 4.6 GB that does not shrink, and state behind it
    blob = np.random.default_rng(0).bytes(8_000_000)
    topics = [
        TopicSpec("/blob", TopicKind.OTHER, schema="Blob", encoding="raw"),
        TopicSpec("/state/0", TopicKind.STATE, rate_hz=200, names=tuple(f"joint{i}" for i in range(7))),
    ]
    path = tmp_path / "big.mcap"
    writer = EpisodeWriter(path, episode_id=EPISODE, topics=topics)
    for k in range(580):
        writer.message("/blob", stamp(k), blob)
        writer.rows("/state/0", stamp(k), row(0, stamp(k)))
    receipt = writer.close()
    state = receipt.groups[-1]
    assert state.offset > 1 << 32
    # then our reader, with and without a layout, the stock reader, and verify
    store = FileStore(tmp_path)
    layout = Layout.from_columns(*Layout.from_receipt(receipt).columns())
    for reader in (EpisodeReader.open(store, "big.mcap", layout=layout), EpisodeReader.open(store, "big.mcap")):
        t_ns, rows, _ = reader.read([Window.at("/state/0", stamp(500))])["/state/0"]
        assert t_ns.tolist() == [stamp(500)]
        np.testing.assert_array_equal(rows[0], row(0, stamp(500)))
    with path.open("rb") as stream:
        assert sum(1 for _ in SeekingReader(stream, validate_crcs=True).iter_messages(["/state/0"])) == 580
    with FileSource(path) as source:
        assert verify(source, sha256=receipt.sha256).findings == []
    assert receipt.t_last_ns - receipt.t_first_ns < 20 * NS
