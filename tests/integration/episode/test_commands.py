"""`kinemill episode` as people type it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from click.testing import CliRunner, Result

from kinemill.cli import cli
from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec
from kinemill.episode.commands import episode
from kinemill.episode.proto import video_prefix, video_suffix
from kinemill.episode.repack import repack
from kinemill.episode.schemas import schema_for
from kinemill.errors import ConflictError, EnvironmentFault, NotFoundError, UsageError
from support.episode import EPISODE, encode, picture, small_episode, specs, stamp


def run(*args: object) -> Result:
    return CliRunner().invoke(episode, [str(a) for a in args])


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "e.mcap"
    path.write_bytes(small_episode(2, 2, 60)[0])
    return path


def test_info_shows_topics_and_draws(sample: Path) -> None:
    result = run("info", sample, "--picture")
    assert result.exit_code == 0, result.output
    assert "/cam/0" in result.output
    assert "12 chunks" in result.output
    assert "█" in result.output
    # and as JSON
    told = json.loads(run("info", sample, "--json").output)
    assert [(g["name"], g["chunks"], g["messages"]) for g in told["groups"]] == [
        ("cameras", 12, 120),
        ("state", 2, 800),
    ]


def test_info_reads_the_index_alone_and_works_on_urls(sample: Path) -> None:
    result = run("info", f"file://{sample}", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["episode_id"].startswith("0192f0c1")


def test_verify_says_ok_and_bad(sample: Path, tmp_path: Path) -> None:
    assert run("verify", sample, "--deep").output.startswith("ok ")
    raw = bytearray(sample.read_bytes())
    raw[small_episode(2, 2, 60)[1].groups[0].offset + 300] ^= 4
    bad = tmp_path / "bad.mcap"
    bad.write_bytes(raw)
    result = run("verify", sample, bad, "--json")
    assert result.exit_code == 1
    first, second = (json.loads(line) for line in result.output.splitlines())
    assert (first["ok"], second["ok"]) == (True, False)
    assert {f["code"] for f in second["findings"]} >= {"chunk_crc", "data_crc"}


def test_verify_holds_a_file_to_the_hash_in_its_name(sample: Path, tmp_path: Path) -> None:
    named = tmp_path / f"vla-{small_episode(2, 2, 60)[1].sha256[:12]}.mcap"
    named.write_bytes(sample.read_bytes())
    assert run("verify", named).exit_code == 0
    named.rename(tmp_path / "vla-0123456789ab.mcap")
    result = run("verify", tmp_path / "vla-0123456789ab.mcap")
    assert result.exit_code == 1
    assert "sha256" in result.output


def test_repack_writes_and_tells(sample: Path, tmp_path: Path) -> None:
    live = tmp_path / "live.mcap"
    live.write_bytes(small_episode(2, 2, 60, "vla", True)[0])
    result = run("repack", live, tmp_path / "out.mcap", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["receipt"]["sha256"] == small_episode(2, 2, 60)[1].sha256
    assert (tmp_path / "out.mcap").read_bytes() == sample.read_bytes()


def test_index_prints_the_receipt(sample: Path) -> None:
    from kinemill.contracts.episode import Receipt
    from kinemill.records import loads

    assert loads(Receipt, run("index", sample, "--receipt").output) == small_episode(2, 2, 60)[1]


def sheet_of(path: Path) -> np.ndarray:
    import av

    with av.open(str(path)) as opened:
        (frame,) = opened.decode(video=0)
        return frame.to_ndarray(format="rgb24")


def test_frames_writes_a_contact_sheet(sample: Path, tmp_path: Path) -> None:
    # given two cameras of 64 x 48
    target = tmp_path / "sheet.png"
    # when
    result = run("frames", sample, target, "--columns", 4, "--height", 48, "--json")
    # then it says what it shows
    assert result.exit_code == 0, result.output
    told = json.loads(result.output)
    assert told["cameras"] == ["/cam/0", "/cam/1"]
    assert told["columns_s"] == pytest.approx([0.249, 0.748, 1.247, 1.746], abs=0.001)
    assert told["empty"] == 0
    # and each place holds the frame of its time, under a line of words
    sheet = sheet_of(target)
    assert sheet.shape == (told["height"], told["width"], 3) == (11 + 2 * (11 + 48 + 4), 4 * 68 + 4, 3)
    for row in range(2):
        for column, second in enumerate(told["columns_s"]):
            y, x = 22 + row * 63, 4 + 68 * column
            place = sheet[y : y + 48, x : x + 64].astype(int)
            errors = [np.abs(place - picture(row, k)).mean() for k in range(60)]
            assert int(np.argmin(errors)) == int(second * 30)
        assert sheet[11 + 63 * row : 22 + 63 * row].max() == 255
    assert [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_a_contact_sheet_repeats_no_frame_where_a_camera_has_none(tmp_path: Path) -> None:
    # given a camera that starts a second late, and one that ends a second early
    path = tmp_path / "e.mcap"
    with EpisodeWriter(path, episode_id=EPISODE, topics=specs(2, 0)) as writer:
        for k in range(90):
            if k < 60:
                writer.frame("/cam/0", stamp(k), picture(0, k))
            if k >= 30:
                writer.frame("/cam/1", stamp(k), picture(1, k))
    # when / then
    told = json.loads(run("frames", path, tmp_path / "a.png", "--columns", 6, "--json").output)
    assert told["empty"] == 3
    assert "3 of 12 places without a frame" in run("frames", path, tmp_path / "b.png", "--columns", 6).output


def test_a_contact_sheet_of_a_stock_file(tmp_path: Path) -> None:
    from mcap.writer import Writer

    known = schema_for(TopicSpec("/x", rate_hz=30))
    path = tmp_path / "stock.mcap"
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        video = writer.register_schema(known.name, known.encoding, known.data)
        channel = writer.register_channel("/front", "protobuf", video)
        for k, data in enumerate(encode(30)):
            t = stamp(k)
            writer.add_message(channel, t, video_prefix(t, b"", len(data)) + data + video_suffix("h264"), t, k)
        writer.finish()
    told = json.loads(run("frames", path, tmp_path / "a.png", "--columns", 2, "--json").output)
    assert (told["cameras"], told["empty"]) == (["/front"], 0)


def test_frames_of_what_is_not_there(sample: Path, tmp_path: Path) -> None:
    blind = tmp_path / "blind.mcap"
    blind.write_bytes(small_episode(0, 1, 10)[0])
    target = tmp_path / "none.png"
    for args, error, what in (
        ((sample, target, "--camera", "/cam/11"), UsageError, "did you mean /cam/1"),
        ((blind, target), NotFoundError, "no camera with frames"),
        ((sample, target, "--columns", 64, "--height", 1080), UsageError, "smaller pictures"),
        ((sample, tmp_path / "no/folder.png"), EnvironmentFault, "there is no folder"),
        ((sample, sample), ConflictError, "exists already"),
    ):
        result = run("frames", *args)
        assert isinstance(result.exception, error)
        assert what in str(result.exception)
    assert not target.exists()


def test_every_command_has_help_with_an_example() -> None:
    for name in ("info", "verify", "repack", "index", "frames"):
        result = run(name, "--help")
        assert "Example:" in result.output
        assert "--json" in result.output
        for code in ("Exit: 0", " 1 ", " 2 ", " 75 ", " 78 "):
            assert code in result.output


def typed(*args: object, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What a person sees."""
    program = Path(sys.executable).parent / "kinemill"
    return subprocess.run(
        [program, "episode", *map(str, args)],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize(
    ("args", "code", "what"),
    [
        (("info", "nope.mcap"), 1, "no such file"),
        (("info", "."), 2, "a folder"),
        (("verify", "pipe"), 2, "no regular file"),
        (("info", "empty"), 1, "0 bytes are no MCAP"),
        (("info", "text"), 1, "are no MCAP"),
        (("verify", "text"), 1, ""),
        (("repack", "text", "x"), 1, "does not start as an MCAP"),
        (("repack", "e.mcap", "x", "--profile", "y"), 2, "vla or world"),
        (("repack", "e.mcap", "x", "--episode-id", "y"), 2, "no UUID"),
        (("repack", "e.mcap", "no/x"), 1, "there is no folder"),
        (("repack", "e.mcap", "e.mcap"), 1, "nothing is overwritten"),
        (("verify",), 2, "Missing argument"),
        (("verify", "e.mcap", "--sha256", "zz"), 2, "hexadecimal"),
        (("info", "http://x/y"), 78, "expected s3://"),
        (("info", "e.mcap/x"), 1, "no such file"),
    ],
)
def test_exit_codes_and_one_line_for_what_cannot_be(
    args: tuple[str, ...], code: int, what: str, tmp_path: Path
) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "text").write_text("a text that is long enough to be a file\n")
    (tmp_path / "e.mcap").write_bytes(small_episode(1, 1, 10)[0])
    os.mkfifo(tmp_path / "pipe")
    before = sorted(p.name for p in tmp_path.iterdir())
    done = typed(*args, cwd=tmp_path)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert what in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_no_store_is_made_where_a_file_is_only_looked_at(sample: Path, tmp_path: Path) -> None:
    """In somebody else's folder, or on a disk that is mounted for reading."""
    sheets = tmp_path / "sheets"
    sheets.mkdir()
    for name in (sample, f"file://{sample}"):
        for args in (("info", name), ("index", name, "--receipt", "--json"), ("verify", name)):
            assert run(*args).exit_code == 0
    assert run("frames", sample, sheets / "a.png").exit_code == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e.mcap", "sheets"]
    assert [p.name for p in sheets.iterdir()] == ["a.png"]


@pytest.mark.parametrize("args", [("info",), ("verify",), ("index", "--receipt"), ("repack", "x")], ids=lambda a: a[0])
def test_a_file_that_may_not_be_read_is_one_line(
    args: tuple[str, ...], sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root every file can be read, so the system's refusal is played."""

    def refused(path: object, *_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr("kinemill.store.files.os.open", refused)
    result = run(args[0], sample, *[tmp_path / a if a == "x" else a for a in args[1:]])
    if args == ("verify",):  # of many files, the others are looked at all the same
        assert (result.exit_code, result.stdout) == (1, "")
        assert "Permission denied" in result.stderr
        return
    assert isinstance(result.exception, EnvironmentFault), result.output
    assert "e.mcap: Permission denied; look at the rights" in str(result.exception)


def test_verify_goes_on_behind_a_file_that_is_not_there(sample: Path, tmp_path: Path) -> None:
    result = run("verify", tmp_path / "nope", sample, tmp_path, "--json")
    lost, sound, folder = (json.loads(line) for line in result.stdout.splitlines())
    assert result.exit_code == 1
    assert (lost["ok"], sound["ok"], folder["ok"]) == (None, True, None)
    assert "no such file" in lost["error"]
    assert run("verify", sample, tmp_path).exit_code == 2


@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "arguments", [["episode", "info"], ["episode", "index", "--help"], ["config", "show"]], ids=str
)
def test_a_full_disk_behind_a_pipe_is_one_line(arguments: list[str], buffered: bool, sample: Path) -> None:
    program = Path(sys.executable).parent / "kinemill"
    known = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [program, *arguments, *([sample] if arguments[-1] == "info" else [])],
            env=known if buffered else known | {"PYTHONUNBUFFERED": "1"},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 1
    assert "No space left" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_reader_of_the_pipe_that_leaves_is_no_error(sample: Path) -> None:
    program = Path(sys.executable).parent / "kinemill"
    index = subprocess.Popen(
        [program, "episode", "index", sample], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert index.stdout is not None
    assert index.stderr is not None
    index.stdout.close()
    told = index.stderr.read()
    index.stderr.close()
    index.wait(timeout=300)
    assert "Traceback" not in told


def test_drawings_fit_a_narrow_terminal_and_one_without_boxes(sample: Path, tmp_path: Path) -> None:
    # given terminals of 40 and of 200 columns
    for columns, widest in ((40, 40), (200, 96)):
        done = typed("info", sample, "--picture", cwd=tmp_path, COLUMNS=str(columns))
        drawing = done.stdout[done.stdout.index("time ") :].splitlines()
        axes = [line for line in drawing if line.startswith(("time", "cameras", "state", "file"))]
        assert max(map(len, axes)) <= widest
        assert any("█" in line for line in axes)
    # and one that knows Latin letters alone
    done = typed("info", sample, "--picture", cwd=tmp_path, PYTHONIOENCODING="latin-1")
    assert done.returncode == 0, done.stderr
    assert "@" in done.stdout


def test_info_json_stays_json_where_a_picture_is_asked_for(sample: Path) -> None:
    result = run("info", sample, "--json", "--picture")
    assert json.loads(result.stdout)["profile"] == "vla"
    assert "█" in result.stderr


def test_info_tells_a_live_recording(tmp_path: Path) -> None:
    path = tmp_path / "live.mcap"
    path.write_bytes(small_episode(2, 2, 60, "vla", True)[0])
    assert "live: its groups lie interleaved" in run("info", path).output
    assert "episode, live" in run("verify", path).output


def test_names_out_of_a_file_do_not_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "e.mcap"
    evil = "/a\x1b]0;owned\x07\x1b[2J"
    topic = TopicSpec(evil, TopicKind.OTHER, schema="S\x1b[31m", encoding="raw")
    with EpisodeWriter(path, episode_id=EPISODE, topics=[topic]) as writer:
        writer.message(evil, 1, b"x")
    for args in (("info", path, "--picture"), ("verify", path)):
        assert "\x1b" not in run(*args).output
    assert json.loads(run("info", path, "--json").output)["groups"][0]["topics"][0]["topic"] == evil


def test_file_names_that_are_no_utf8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff\xfe.mcap")
    path.write_bytes(small_episode(1, 1, 10)[0])
    for args in (("info", path), ("verify", path), ("verify", path, "--json"), ("repack", path, tmp_path / "a.mcap")):
        done = typed(*args, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "place", "target"),
    [
        ("verify", "kinemill.episode.verify.walk", ""),
        ("repack", "kinemill.episode.repack.check_packet", "out.mcap"),
        ("repack", "kinemill.episode.repack._feed", "out.mcap"),
        ("repack", "kinemill.episode.repack._read_back", "out.mcap"),
        ("frames", "kinemill.episode.picture._shrink", "out.png"),
        ("frames", "kinemill.episode.edge.os.link", "out.png"),
    ],
)
def test_ctrl_c_leaves_one_line_and_nothing_behind(command: str, place: str, target: str, tmp_path: Path) -> None:
    # given a command in which the signal comes just as the work reaches a place
    path = tmp_path / "e.mcap"
    path.write_bytes(small_episode(2, 2, 60)[0])
    module, _, name = place.rpartition(".")
    code = (
        f"import pkgutil, signal, os; m = pkgutil.resolve_name({module!r}); real = m.{name}\n"
        "def strike(*a, **k):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(*a, **k)\n"
        f"m.{name} = strike\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from kinemill.cli import main; main()\n"
    )
    # when
    done = subprocess.run(
        [sys.executable, "-c", code, "episode", command, path, *([tmp_path / target] if target else [])],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    # then
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["e.mcap"]


def test_the_umbrella_lists_the_group() -> None:
    assert "episode" in CliRunner().invoke(cli, ["--help"]).output


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, kinemill.episode; print([m for m in ('numpy', 'av', 'mcap', 'zstandard') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_a_stock_file_is_told_from_an_episode(tmp_path: Path) -> None:
    from mcap.writer import Writer

    path = tmp_path / "stock.mcap"
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        channel = writer.register_channel("/a", "json", writer.register_schema("A", "jsonschema", b"{}"))
        writer.add_message(channel, 1, b"{}", 1)
        writer.finish()
    assert "a stock MCAP" in run("info", path).output
    assert "stock MCAP" in run("verify", path).output
    assert repack(path, tmp_path / "e.mcap").messages_out == 1
