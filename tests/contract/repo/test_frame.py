"""The frame of the benchmarks: its last line, its exit status, its arithmetic."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from support.repo import ROOT

if TYPE_CHECKING:
    from pathlib import Path

KEYS = ["id", "value", "unit", "better", "bar", "ok", "against"]


@pytest.fixture(scope="module")
def frame() -> Any:
    spec = importlib.util.spec_from_file_location("frame", ROOT / "benchmarks" / "frame.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["frame"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def finish(bench: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    with pytest.raises(SystemExit) as ending:
        bench.finish()
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return int(str(ending.value.code)), report


def test_the_last_line_is_one_json_object_of_the_agreed_shape(frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench = frame.Bench("sample", argv=["--quick"])
    bench.declare("ratio", unit="x", better="higher", bar=2.0, against="the peer")
    bench.declare("told", unit="s", better="lower", against="nothing")
    bench.record("ratio", 2.5)
    bench.record("told", 1.0)
    status, report = finish(bench, capsys)
    assert status == 0
    assert list(report) == ["name", "machine", "figures"]
    assert [list(figure) for figure in report["figures"]] == [KEYS, KEYS]
    assert report["figures"][0]["ok"] is True
    assert report["figures"][1]["ok"] is None


@pytest.mark.parametrize(
    ("better", "bar", "value", "ok"),
    [("higher", 2.0, 1.9, False), ("lower", 2.0, 2.1, False), ("higher", 2.0, 2.0, True), ("lower", 2.0, 2.0, True)],
)
def test_a_missed_bar_is_an_exit_status(
    frame: Any, capsys: pytest.CaptureFixture[str], better: str, bar: float, value: float, ok: bool
) -> None:
    bench = frame.Bench("sample", argv=[])
    bench.declare("it", unit="x", better=better, bar=bar, against="the peer")
    bench.record("it", value)
    status, report = finish(bench, capsys)
    assert report["figures"][0]["ok"] is ok
    assert status == (0 if ok else 1)


def test_a_promised_figure_that_was_never_measured_is_a_miss(frame: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench = frame.Bench("sample", argv=[])
    bench.declare("forgotten", unit="x", better="higher", bar=1.0, against="the peer")
    bench.declare("impossible", unit="x", better="higher", bar=1.0, against="a GPU")
    bench.leave_out("impossible", "no GPU here")
    status, report = finish(bench, capsys)
    assert [figure["ok"] for figure in report["figures"]] == [False, None]
    assert status == 1


def test_bodies_take_turns_and_ratios_stay_within_a_round(frame: Any) -> None:
    order: list[str] = []
    bench = frame.Bench("sample", argv=[])
    samples = {"a": frame.Sample(2.0, 1.0), "b": frame.Sample(1.0, 1.0)}

    def body(name: str) -> Any:
        order.append(name)
        return samples[name]

    rounds = bench.interleave({"a": lambda: body("a"), "b": lambda: body("b")}, repeats=3)
    assert order == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert rounds.ratio("a", "b") == 2.0
    assert rounds.difference("a", "b") == 1.0
    with pytest.raises(ValueError, match="pss_bytes is 0"):
        rounds.ratio("a", "b", of="pss_bytes")


def test_cpu_time_and_memory_of_children_count(frame: Any) -> None:
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    sample = frame.measure(lambda: subprocess.run([sys.executable, "-c", burn], check=True))
    assert sample.cpu_s >= 0.29
    hold = "import time\nkeep = bytearray(64 << 20)\ntime.sleep(3)"  # long enough to be looked at
    assert frame.run_command([sys.executable, "-c", hold], pss=True).pss_bytes >= 64 << 20
    with pytest.raises(RuntimeError, match="status 3"):
        frame.run_command([sys.executable, "-c", "raise SystemExit(3)"])


def test_memory_is_watched_while_children_come_and_go(frame: Any) -> None:
    body = "for i in $(seq 1000); do /bin/true; done"
    assert frame.run_command(["sh", "-c", body], pss=True).pss_bytes > 0
    assert frame.pss_bytes(2**22 + 1) == 0  # no process can have this number


def run_all(folder: Path, **names: str) -> subprocess.CompletedProcess[str]:
    for name in ("frame.py", "run_all.py"):
        (folder / name).write_text((ROOT / "benchmarks" / name).read_text())
    for name, body in names.items():
        (folder / f"{name}.py").write_text(body)
    return subprocess.run(
        [sys.executable, str(folder / "run_all.py"), "--quick", "--drawing", str(folder / "drawing.md")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


GOOD = """
from frame import Bench
bench = Bench("good", "Good.")
bench.declare("fast", unit="x", better="higher", bar=2.0, against="slow")
bench.record("fast", 3.0)
bench.finish()
"""


def test_all_benchmarks_are_run_and_drawn(tmp_path: Path) -> None:
    answer = run_all(tmp_path, good=GOOD)
    assert answer.returncode == 0, answer.stderr
    drawing = (tmp_path / "drawing.md").read_text()
    assert "| fast | 3 x |" in drawing
    assert "2 benchmarks" not in drawing


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise SystemExit('broken')", "broken"),
        ('print(\'{"name": "bad"}\')', "last line"),
        (GOOD.replace("3.0", "1.0").replace('"good"', '"bad"'), "missed"),
    ],
)
def test_a_broken_or_missed_benchmark_turns_the_whole_red_and_the_others_still_run(
    tmp_path: Path, body: str, words: str
) -> None:
    answer = run_all(tmp_path, bad=body, good=GOOD)
    assert answer.returncode == 1
    assert words in answer.stdout + answer.stderr
    assert "| fast | 3 x |" in (tmp_path / "drawing.md").read_text()
