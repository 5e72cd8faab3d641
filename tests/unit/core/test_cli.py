"""The umbrella command: lazy, strict about who may add commands, clear at its edge."""

from __future__ import annotations

import click
import pytest

from kinemill.cli import GROUPS, cli, run
from kinemill.errors import ConfigError, DataError, UnavailableError


@pytest.mark.parametrize(("error", "code"), [(ConfigError, 78), (UnavailableError, 75), (DataError, 1)])
def test_an_error_is_one_line_and_its_exit_code(
    error: type[Exception], code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def fails() -> None:
        raise error("episode 7f3c: ends too early; run it again")

    assert run(fails, "prog", []) == code
    captured = capsys.readouterr()
    assert captured.err == "prog: episode 7f3c: ends too early; run it again\n"
    assert captured.out == ""


def test_a_bug_keeps_its_traceback() -> None:
    @click.command()
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(broken, "prog", [])


def test_ctrl_c_and_usage_have_their_codes(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert run(interrupted, "prog", []) == 130
    assert run(cli, "kinemill", ["no-such-group"]) == 2
    assert run(cli, "kinemill", ["--no-such-flag"]) == 2
    assert "interrupted" in capsys.readouterr().err


def test_an_interrupt_that_came_out_as_something_else_is_still_one(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def waits() -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")  # as threading.Condition does

    assert run(waits, "prog", []) == 130
    assert capsys.readouterr().err == "prog: interrupted\n"


def test_help_lists_groups_of_the_table_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(cli, "kinemill", ["--help"]) == 0
    out = capsys.readouterr().out
    assert "config" in out
    listed = out.split("Commands:")[1].split()
    assert "config" in set(listed) & set(GROUPS)


def test_a_group_that_is_not_installed_says_which_part_it_belongs_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("kinemill.cli._entry_points", dict)
    assert run(cli, "kinemill", ["train"]) == 2
    assert "kinemill-training installed here has no 'train'" in capsys.readouterr().err
    monkeypatch.setattr("kinemill.cli._installed", lambda floor: False)
    assert run(cli, "kinemill", ["train"]) == 2
    assert "kinemill-training, which is not installed here" in capsys.readouterr().err
