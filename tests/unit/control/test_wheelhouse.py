"""The name of a wheelhouse follows from what decides its content."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.control.wheelhouse import build, source_digest
from kinemill.errors import ConfigError, NotFoundError


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    for name in ("agents", "core"):
        source = tmp_path / name / "src" / "kinemill"
        source.mkdir(parents=True)
        (source / "part.py").write_text("x = 1\n")
        (tmp_path / name / "README.md").write_text("read me\n")
        (tmp_path / name / "pyproject.toml").write_text(f'[project]\nname = "kinemill-{name}"\nversion = "1.2.3"\n')
    return tmp_path


def test_the_digest_sees_content_and_not_caches(repo: Path) -> None:
    before = source_digest(repo, ["agents", "core"], ["lock"])
    cache = repo / "core" / "src" / "kinemill" / "__pycache__"
    cache.mkdir()
    (cache / "part.cpython-311.pyc").write_bytes(b"x")
    assert source_digest(repo, ["agents", "core"], ["lock"]) == before
    assert source_digest(repo, ["agents", "core"], ["another lock"]) != before
    (repo / "core" / "src" / "kinemill" / "part.py").write_text("x = 2\n")
    assert source_digest(repo, ["agents", "core"], ["lock"]) != before


def test_a_dry_run_makes_nothing(repo: Path) -> None:
    made = build("agents", repo=repo, output=repo / "out", pythons=["3.11"], dry_run=True)
    assert made.changed
    assert made.requirement == "kinemill-agents==1.2.3"
    assert made.version.startswith("1.2.3+")
    assert not (repo / "out").exists()


def test_the_pythons_are_part_of_the_name(repo: Path) -> None:
    names = {build("agents", repo=repo, output=repo, pythons=p, dry_run=True).version for p in (["3.11"], ["3.13"])}
    assert len(names) == 2


def test_what_nodes_install_beside_it_is_part_of_the_name(repo: Path) -> None:
    def name(*also: str) -> str:
        return build("agents", repo=repo, output=repo, pythons=["3.11"], also=also, dry_run=True).version

    assert len({name(), name("torch==2.9.0"), name("torch==2.13.0")}) == 3


def test_refusals_say_what_to_do(repo: Path) -> None:
    with pytest.raises(ConfigError, match="known: agents"):
        build("agnets", repo=repo, output=repo, pythons=["3.11"])
    with pytest.raises(ConfigError, match="at least one version"):
        build("agents", repo=repo, output=repo, pythons=[])
    with pytest.raises(NotFoundError, match="repository's root"):
        build("agents", repo=repo / "elsewhere", output=repo, pythons=["3.11"])
