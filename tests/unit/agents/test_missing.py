"""Counting the lines of the shims: on from the last run, over a megabyte, over reboots, never twice."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from kinemill.agents.missing import count_missing

LINE = "1790000000 prolog 127\n"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


def settled(run_dir: Path, state: Path) -> dict[str, int]:
    """The count once further runs find nothing more."""
    before = count_missing(run_dir, state)
    while (now := count_missing(run_dir, state)) != before:
        before = now
    return now


def append(run_dir: Path, text: str) -> None:
    with (run_dir / "agent_missing").open("a") as file:
        file.write(text)


def test_without_a_file_nothing_is_counted_and_nothing_written(run_dir: Path, tmp_path: Path) -> None:
    assert count_missing(run_dir, tmp_path / "state") == {}
    assert not (tmp_path / "state").exists()


def test_lines_are_counted_once_over_many_runs(run_dir: Path, tmp_path: Path) -> None:
    for total in range(1, 6):
        append(run_dir, LINE)
        assert count_missing(run_dir, tmp_path / "state") == {"prolog": total}
        assert count_missing(run_dir, tmp_path / "state") == {"prolog": total}


def test_a_line_that_is_being_written_is_counted_when_it_is_whole(run_dir: Path, tmp_path: Path) -> None:
    append(run_dir, LINE + "1790000001 epi")
    assert count_missing(run_dir, tmp_path / "state") == {"prolog": 1}
    append(run_dir, "log 1\n")
    assert count_missing(run_dir, tmp_path / "state") == {"prolog": 1, "epilog": 1}


def test_the_count_goes_on_beyond_a_megabyte_and_the_file_does_not(run_dir: Path, tmp_path: Path) -> None:
    lines = (3 << 20) // len(LINE)
    append(run_dir, LINE * lines)
    assert settled(run_dir, tmp_path / "state") == {"prolog": lines}
    assert not (run_dir / "agent_missing").exists()
    assert (run_dir / "agent_missing.1").stat().st_size == lines * len(LINE)
    append(run_dir, "1790000002 healthcheck 1\n" + LINE)
    assert settled(run_dir, tmp_path / "state") == {"prolog": lines + 1, "healthcheck": 1}


def test_what_arrives_while_the_file_is_put_aside_is_counted(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (1 << 20) // len(LINE) + 1
    append(run_dir, LINE * lines)
    late = (run_dir / "agent_missing").open("a")
    rename = os.rename

    def slow(old: Path | str, new: Path | str, **more: int) -> None:
        rename(old, new, **more)
        if str(new).endswith(".1"):
            late.write(LINE)
            late.close()

    monkeypatch.setattr("os.rename", slow)
    assert settled(run_dir, tmp_path / "state") == {"prolog": lines + 1}
    assert late.closed


def test_after_a_reboot_the_new_file_counts_from_its_start(run_dir: Path, tmp_path: Path) -> None:
    append(run_dir, LINE * 3)
    count_missing(run_dir, tmp_path / "state")
    (run_dir / "agent_missing").unlink()
    append(run_dir, LINE.replace("1790000000", "1790009999") * 5)  # longer than the old one was
    assert count_missing(run_dir, tmp_path / "state") == {"prolog": 8}


def test_memory_does_not_grow_with_the_file(run_dir: Path, tmp_path: Path) -> None:
    append(run_dir, "x" * (8 << 20) + "\n" + LINE)
    tracemalloc.start()
    try:
        assert count_missing(run_dir, tmp_path / "state") == {}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
    for _ in range(9):  # a megabyte a run
        count_missing(run_dir, tmp_path / "state")
    assert count_missing(run_dir, tmp_path / "state") == {"prolog": 1}


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_what_is_no_file_is_left_alone(run_dir: Path, tmp_path: Path, kind: str) -> None:
    place = run_dir / "agent_missing"
    if kind == "link":
        (tmp_path / "other").write_text(LINE)
        place.symlink_to(tmp_path / "other")
    elif kind == "fifo":
        os.mkfifo(place)
    else:
        place.mkdir()
    assert count_missing(run_dir, tmp_path / "state") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", '{"head": 1, "offset": "x", "hooks": []}', '{"head": "", "offset": -5, "hooks": {"evil": 3}}']
)
def test_a_spoilt_state_counts_anew(run_dir: Path, tmp_path: Path, text: str) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    (state / "missing.json").write_text(text)
    append(run_dir, LINE * 2)
    assert count_missing(run_dir, state) == {"prolog": 2}
    assert count_missing(run_dir, state) == {"prolog": 2}
