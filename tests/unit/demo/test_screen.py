"""What the demo writes while it runs: plain lines to a log, one rewritten line to a terminal."""

from __future__ import annotations

import io

import pytest
from demo.screen import Screen


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_plain_lines_and_no_flood() -> None:
    out = io.StringIO()
    screen = Screen(2, out=out)
    with screen.stage("ingest") as stage:
        for i in range(1000):
            screen.live(f"step {i}")
        screen.say("8 episodes published")
    text = out.getvalue()
    assert "[1/2] ingest" in text
    assert "\x1b" not in text
    assert text.count("step ") == 1  # the next one would come after ten seconds
    assert stage.lines == ["8 episodes published"]


def test_a_terminal_gets_one_line_that_is_wiped_before_the_next_that_stays() -> None:
    out = Terminal()
    screen = Screen(1, out=out)
    with screen.stage("train"):
        screen.live("step 1")
        screen.say("done")
    assert "step 1\r\x1b[2K      done\n" in out.getvalue()


def test_a_stage_that_fails_is_not_called_done() -> None:
    out = io.StringIO()
    screen = Screen(1, out=out)
    with pytest.raises(ValueError, match="x"), screen.stage("train"):
        raise ValueError("x")
    assert "done in" not in out.getvalue()
    assert screen.stages[-1].name == "train"


def test_the_table_is_aligned() -> None:
    out = io.StringIO()
    Screen(1, out=out).table("It runs.", [("a", "1"), ("longer", "2")])
    lines = out.getvalue().splitlines()
    assert lines[1:4] == ["It runs.", "  a       1", "  longer  2"]
