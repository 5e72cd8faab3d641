"""`kinemill episode` as people type it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kinemill.cli import cli
from kinemill.episode.commands import episode
from kinemill.episode.repack import repack
from support.episode import small_episode


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


def test_frames_writes_a_contact_sheet(sample: Path, tmp_path: Path) -> None:
    import av

    result = run("frames", sample, tmp_path / "sheet.png", "--columns", 4, "--height", 48)
    assert result.exit_code == 0, result.output
    with av.open(str(tmp_path / "sheet.png")) as opened:
        (frame,) = opened.decode(video=0)
    assert (frame.width, frame.height) == (4 * 64, 2 * 48)
    assert run("frames", sample, tmp_path / "none.png", "--camera", "/nope").exit_code != 0


def test_every_command_has_help_with_an_example() -> None:
    for name in ("info", "verify", "repack", "index", "frames"):
        result = run(name, "--help")
        assert "Example:" in result.output
        assert "Exit:" in result.output


@pytest.mark.parametrize(
    ("args", "code"), [(("info", "nope.mcap"), 1), (("repack", "e", "x", "--profile", "y"), 1), (("verify",), 2)]
)
def test_exit_codes_at_the_umbrella(args: tuple[str, ...], code: int, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "kinemill"
    done = subprocess.run(
        [program, "episode", *args], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


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
