"""The floors: the contracts of pyproject.toml turn red where they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.repo import DISTRIBUTIONS, ROOT


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run lint-imports over a copy of the sources."""
    sources = os.pathsep.join(str(tree / name / "src") for name in DISTRIBUTIONS)
    return subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": sources, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("floors")
    shutil.copy(ROOT / "pyproject.toml", tree)
    for name in DISTRIBUTIONS:
        shutil.copytree(ROOT / name / "src", tree / name / "src", ignore=shutil.ignore_patterns("__pycache__"))
    return tree


@pytest.mark.parametrize(
    ("floor", "line"),
    [
        ("agents", "import torch"),
        ("agents", "def late():\n    import numpy"),
        ("agents", "import pynvml"),
        ("agents", "import kinemill.pipelines"),
        ("control", "from airflow.models import DAG"),
        ("pipelines", "from torch import nn"),
        ("pipelines", "import kinemill.loaders"),
        ("pipelines", "import airflow"),
        ("loaders", "import sqlalchemy.orm"),
        ("training", "import kinemill.agents"),
        ("manifest", "import torch"),
        ("contracts", "import numpy"),
        ("contracts", "import torch"),
        ("contracts", "import psycopg"),
        ("contracts", "import kinemill.training"),
    ],
)
def test_a_planted_import_turns_the_floors_red(copied: Path, floor: str, line: str) -> None:
    home = {"contracts": "core/src/kinemill/contracts", "manifest": "loaders/src/kinemill/loaders/manifest"}
    planted = copied / home.get(floor, f"{floor}/src/kinemill/{floor}") / "planted.py"
    planted.write_text(f"{line}\n")
    try:
        answer = lint(copied)
    finally:
        planted.unlink()
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert f"{floor}.planted -> " in answer.stdout


def test_a_probe_may_touch_the_gpu_library(copied: Path) -> None:
    probes = copied / "agents" / "src" / "kinemill" / "agents" / "probes"
    existed = probes.exists()
    probes.mkdir(exist_ok=True)
    (probes / "__init__.py").touch()
    planted = probes / "planted.py"
    planted.write_text("import pynvml\n")
    try:
        answer = lint(copied)
    finally:
        planted.unlink()
        if not existed:
            shutil.rmtree(probes)
    assert "probes.planted -> pynvml" not in answer.stdout
