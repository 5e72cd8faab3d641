"""Stock readers and viewers open our files: nobody needs our code to look at an episode."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import NonSeekingReader, SeekingReader, make_reader
from mcap_protobuf.decoder import DecoderFactory as ProtobufDecoders
from mcap_ros2.decoder import DecoderFactory as RosDecoders

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec, profile_of
from support.episode import EPISODE, fill, picture, specs, stamp
from support.layers import skip

ROOT = Path(__file__).parents[3]
RERUN = ROOT / ".venv-rerun/bin/rerun"
NPM = ROOT / "build/viewers/node_modules"


@pytest.fixture(scope="module", params=["vla", "world", "live", "big"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An episode of each layout: small chunks, large ones, interleaved ones, and padded ones of more than 4 MiB."""
    file = tmp_path_factory.mktemp("viewers") / f"{request.param}.mcap"
    topics = [*specs(2, 2), TopicSpec("/task", TopicKind.TEXT), TopicSpec("/depth", TopicKind.DEPTH)]
    profile = profile_of("world" if request.param == "world" else "vla")
    if request.param == "big":
        topics.append(TopicSpec("/noise", rate_hz=30, group="noise", encoder={"crf": "1", "preset": "ultrafast"}))
    writer = EpisodeWriter(file, episode_id=EPISODE, profile=profile, topics=topics, live=request.param == "live")
    fill(writer, cameras=2, states=2, frames=45)
    writer.text("/task", stamp(0), "fold the towel")
    for k in range(10):
        writer.frame("/depth", stamp(k), np.full((48, 64), 100 * k, np.uint16))
    if request.param == "big":
        rng = np.random.default_rng(0)
        for k in range(10):
            writer.frame("/noise", stamp(k), rng.integers(0, 256, (960, 1280, 3), dtype=np.uint8))
    writer.attach("robot.urdf", "application/xml", b"<robot/>")
    writer.close()
    return file


def expected(path: Path) -> dict[str, int]:
    found = {"/cam/0": 45, "/cam/1": 45, "/state/0": 301, "/state/1": 301, "/task": 1, "/depth": 10}
    found["/state/0"] = found["/state/1"] = 300
    return found | ({"/noise": 10} if path.stem == "big" else {})


def content(path: Path) -> dict[str, str]:
    """sha256 of all payloads of each topic, by the stock Python reader."""
    found: dict[str, Any] = {}
    with path.open("rb") as stream:
        for _, channel, message in SeekingReader(stream, validate_crcs=True).iter_messages():
            found.setdefault(channel.topic, hashlib.sha256()).update(message.data)
    return {topic: hashed.hexdigest() for topic, hashed in found.items()}


def test_the_stock_python_readers_deliver_every_message_in_order(path: Path) -> None:
    with path.open("rb") as stream:
        for reader in (SeekingReader(stream, validate_crcs=True), NonSeekingReader(stream, validate_crcs=True)):
            stream.seek(0)
            counts: dict[str, int] = {}
            last = 0
            for _, channel, message in reader.iter_messages():
                counts[channel.topic] = counts.get(channel.topic, 0) + 1
                assert message.log_time >= last
                last = message.log_time
            assert counts == expected(path)


def test_the_stock_decoders_read_every_message(path: Path) -> None:
    with path.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[ProtobufDecoders(), RosDecoders()])
        frames = rows = 0
        for found in reader.iter_decoded_messages():
            if found.schema.name == "foxglove.CompressedVideo":
                assert found.decoded_message.format == "h264"
                assert found.decoded_message.timestamp.ToNanoseconds() == found.message.log_time
                frames += 1
            elif found.schema.name == "sensor_msgs/msg/JointState":
                assert len(found.decoded_message.position) == 7
                assert found.decoded_message.velocity == []
                rows += 1
            elif found.schema.name == "std_msgs/msg/String":
                assert found.decoded_message.data == "fold the towel"
        assert (frames, rows) == (100 if path.stem == "big" else 90, 600)


@pytest.mark.parametrize("topic", ["", "/cam/1", "/state/0"])
def test_mcap_core_reads_all_or_one_topic(path: Path, topic: str, tmp_path: Path) -> None:
    """foxglove/mcap 1147: an indexed reader with a topic filter."""
    node = shutil.which("node")
    if node is None or not (NPM / "@mcap/core").is_dir():
        skip("node or @mcap/core is not installed", run="make viewers (needs npm), then make test")
    script = tmp_path / "read.mjs"
    shutil.copy(Path(__file__).with_name("read_with_mcap_core.mjs"), script)
    (tmp_path / "node_modules").symlink_to(NPM)
    done = subprocess.run(
        [node, script, path, *([topic] if topic else [])], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["counts"] == (expected(path) if not topic else {topic: expected(path)[topic]})
    assert told["content"] == {name: hashed for name, hashed in content(path).items() if name in told["counts"]}
    assert told["ordered"]
    assert told["attachments"] == 2


def rerun(home: Path, *args: object) -> str:
    environ = {**os.environ, "HOME": str(home), "XDG_CONFIG_HOME": str(home), "RERUN_ANALYTICS": "0"}
    done = subprocess.run(
        [RERUN, *map(str, args)], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_rerun_checks_converts_and_shows_native_types(path: Path, tmp_path: Path) -> None:
    if not RERUN.exists():
        skip("rerun-sdk is not installed in .venv-rerun", run="make viewers, then make test")
    rerun(tmp_path, "analytics", "disable")
    rerun(tmp_path, "mcap", "check", "--full", path)
    rerun(tmp_path, "mcap", "convert", path, "-o", tmp_path / "out.rrd")
    shown = rerun(tmp_path, "rrd", "print", "-v", tmp_path / "out.rrd")
    # every frame and every row has arrived, as what the viewer draws by itself
    rows: dict[str, int] = {}
    for n, entity, columns in re.findall(r"with (\d+) rows [^-]* - (\S+) - data columns: \[(.*)\]", shown):
        for kind in ("VideoStream:sample", "Scalars:scalars"):
            if kind in columns:
                rows[f"{entity} {kind}"] = rows.get(f"{entity} {kind}", 0) + int(n)
    for topic, n in expected(path).items():
        if topic.startswith(("/cam", "/noise")):
            assert rows[f"{topic} VideoStream:sample"] == n
        elif topic.startswith("/state"):
            assert rows[f"{topic}/position Scalars:scalars"] == n, rows


def test_a_stock_decoder_of_video_gets_pictures_from_any_idr(path: Path) -> None:
    """Annex B packets straight from the messages, no container, no extradata: what a viewer does."""
    import av

    context = av.VideoCodecContext.create("h264", "r")
    context.thread_count = 1
    context.options = {"flags": "+low_delay"}
    with path.open("rb") as stream:
        reader = make_reader(stream, decoder_factories=[ProtobufDecoders()])
        frames = [
            frame.to_ndarray(format="rgb24")
            for found in reader.iter_decoded_messages(["/cam/0"])
            for frame in context.decode(av.Packet(found.decoded_message.data))
        ]
    assert len(frames) == 45
    assert np.abs(frames[44].astype(int) - picture(0, 44)).mean() < 8
