"""The floors: the contracts of pyproject.toml turn red where they should."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from support.repo import DISTRIBUTIONS, ROOT

CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


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
        timeout=120,
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
        ("contracts", "import numpy"),
        ("contracts", "import kinemill.training"),
    ],
)
def test_a_planted_import_turns_the_floors_red(copied: Path, floor: str, line: str) -> None:
    home = copied / ("core" if floor == "contracts" else floor)
    planted = home / "src" / "kinemill" / floor / "planted.py"
    planted.write_text(f"{line}\n")
    try:
        answer = lint(copied)
    finally:
        planted.unlink()
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert f"kinemill.{floor}.planted -> " in answer.stdout


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


def test_every_module_of_core_is_named_in_the_contract_of_core() -> None:
    (contract,) = [one for one in CONTRACTS if one["id"] == "core"]
    modules = {
        f"kinemill.{path.stem}"
        for path in (ROOT / "core" / "src" / "kinemill").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").is_file()
    }
    assert modules - set(contract["source_modules"]) == set(), "add it to contract 'core' in pyproject.toml"
