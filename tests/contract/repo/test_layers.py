"""The pytest plugin: layers, deadlines, long suites, skips that explain themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.repo import ROOT

SAMPLE = """
import pytest
from support.layers import skip

def test_passes(request):
    marks = {mark.name for mark in request.node.iter_markers()}
    assert "unit" in marks
    assert request.node.get_closest_marker("timeout").args == (300,)

@pytest.mark.full("cache")
def test_long():
    pass

@pytest.mark.full("train")
def test_longer():
    pass

@pytest.mark.slow
def test_slow():
    pass
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "unit" / "sample").mkdir(parents=True)
    (tmp_path / "tests" / "support").mkdir()
    shutil.copy(ROOT / "tests" / "support" / "layers.py", tmp_path / "tests" / "support")
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tests" / "unit" / "sample" / "test_sample.py").write_text(SAMPLE)
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_ordinary_run_leaves_long_tests_out_and_says_what_runs_them(tree: Path) -> None:
    answer = run(tree)
    assert answer.returncode == 0, answer.stdout
    assert "1 passed, 3 deselected" in answer.stdout
    assert "make full-cache" in answer.stdout
    assert "make full-train" in answer.stdout
    assert "1 slow tests; to run it:" in answer.stdout


def test_an_area_chooses_its_long_suite_alone(tree: Path) -> None:
    answer = run(tree, "-m", "full", "--area", "cache", "-v")
    assert answer.returncode == 0, answer.stdout
    assert "test_long PASSED" in answer.stdout
    assert "1 passed" in answer.stdout


def test_an_unknown_area_is_refused_with_the_known_ones(tree: Path) -> None:
    answer = run(tree, "-m", "full", "--area", "cash")
    assert answer.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no long suite of area cash; there is: cache, train" in answer.stdout + answer.stderr


def test_slow_tests_run_when_named(tree: Path) -> None:
    assert "1 passed" in run(tree, "-m", "slow").stdout


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("import pytest\ndef test_it(): pytest.skip('no moon')", 1, "without saying what would run it"),
        ("import pytest\npytest.skip('no moon', allow_module_level=True)", 2, "without saying what would run it"),
        (
            "from support.layers import skip\ndef test_it(): skip('no moon', run='wait for night')",
            0,
            "1 x no moon; to run it: wait for night",
        ),
        (
            "from support.layers import skip_if\n@skip_if(True, 'no sun', run='get up')\ndef test_it(): pass",
            0,
            "1 x no sun; to run it: get up",
        ),
        ("import pytest\n@pytest.mark.full\ndef test_it(): pass", 4, "write the area into the marker"),
        ("import warnings\ndef test_it(): warnings.warn('old')", 1, "UserWarning: old"),
    ],
)
def test_skips_explain_themselves_and_warnings_fail(tree: Path, body: str, status: int, words: str) -> None:
    (tree / "tests" / "unit" / "sample" / "test_sample.py").write_text(body + "\n")
    answer = run(tree)
    assert answer.returncode == status, answer.stdout
    assert words in answer.stdout + answer.stderr


def test_a_test_outside_the_layers_is_refused(tree: Path) -> None:
    (tree / "tests" / "misc").mkdir()
    (tree / "tests" / "misc" / "test_lost.py").write_text("def test_it(): pass\n")
    answer = run(tree)
    assert answer.returncode == pytest.ExitCode.USAGE_ERROR
    assert "a test lives in tests/<unit|" in answer.stdout + answer.stderr


def test_cheap_layers_run_first(tree: Path) -> None:
    for layer in ("cluster", "integration"):
        (tree / "tests" / layer / "area").mkdir(parents=True)
        (tree / "tests" / layer / "area" / "test_it.py").write_text("def test_it(): pass\n")
    answer = run(tree, "-v")
    order = [answer.stdout.index(f"tests/{layer}/") for layer in ("unit", "integration", "cluster")]
    assert order == sorted(order)
    assert answer.stdout.splitlines()[-1].startswith("=")
    assert "3 passed" in answer.stdout.splitlines()[-1]
