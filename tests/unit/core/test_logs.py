"""Log lines."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from kinemill.errors import UsageError
from kinemill.logs import bind, setup_logs


@pytest.fixture(autouse=True)
def _keep_root_logger() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("kinemill")
    handlers, level, own = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    ours.setLevel(own)


def test_json_lines_carry_bound_and_extra_fields() -> None:
    out = io.StringIO()
    setup_logs(fmt="json", stream=out)
    with bind(run_id="r1", attempt=3), bind(episode_id="e"):
        logging.getLogger("x").warning("lost %d", 2, extra={"step": "convert"})
    logging.getLogger("kinemill.x").info("after")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert first["message"] == "lost 2"
    assert (first["run_id"], first["attempt"], first["episode_id"], first["step"]) == ("r1", "3", "e", "convert")
    assert first["ts"].endswith("Z")
    assert "run_id" not in second


def test_a_hostile_name_cannot_forge_a_line_or_reach_the_terminal() -> None:
    for fmt in ("json", "text"):
        out = io.StringIO()
        setup_logs(fmt=fmt, stream=out)
        logging.getLogger("x").error("bad file %s", "a\n2026 root login\x1b[31m")
        assert len(out.getvalue().splitlines()) == 1
        assert "\x1b" not in out.getvalue()


def test_a_traceback_is_kept() -> None:
    out = io.StringIO()
    setup_logs(fmt="json", stream=out)
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        logging.getLogger("x").exception("failed")
    assert "RuntimeError: boom" in json.loads(out.getvalue())["traceback"]


def test_a_level_hides_what_is_below_it_and_auto_is_json_off_a_terminal() -> None:
    out = io.StringIO()
    setup_logs(level="error", stream=out)
    logging.getLogger("x").warning("hidden")
    logging.getLogger("x").error("seen")
    assert [json.loads(line)["message"] for line in out.getvalue().splitlines()] == ["seen"]


def test_other_libraries_are_heard_from_warnings_on() -> None:
    out = io.StringIO()
    setup_logs(fmt="json", level="debug", stream=out)
    for name in ("kinemill.store", "somebody"):
        logging.getLogger(name).debug("detail")
        logging.getLogger(name).warning("trouble")
    said = [(json.loads(line)["logger"], json.loads(line)["message"]) for line in out.getvalue().splitlines()]
    assert said == [("kinemill.store", "detail"), ("kinemill.store", "trouble"), ("somebody", "trouble")]


def test_unknown_words_are_refused() -> None:
    with pytest.raises(UsageError, match="episode"):
        bind(episode="x").__enter__()
    with pytest.raises(UsageError, match="yaml"):
        setup_logs(fmt="yaml")
    with pytest.raises(UsageError, match="loud"):
        setup_logs(level="loud")
