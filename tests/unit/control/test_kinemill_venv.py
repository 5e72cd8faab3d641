"""The parts of the venv modules that decide."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from support.ansible import ROLES, load_module

venv = load_module(ROLES / "python_artifact" / "library" / "kinemill_venv.py")
prune = load_module(ROLES / "python_artifact" / "library" / "kinemill_venv_prune.py")


def wheelhouse(folder: Path, wheels: list[str]) -> Path:
    manifest = {"version": "1+a", "requirement": "x==1", "wheels": dict.fromkeys(wheels, "")}
    (folder / "artifact.json").write_text(json.dumps(manifest))
    for name in wheels:
        (folder / name).touch()
    return folder


def test_the_newest_pip_of_the_wheelhouse_is_used(tmp_path: Path) -> None:
    manifest = venv.read_manifest(wheelhouse(tmp_path, ["click-8.whl", "pip-26.3.whl"]))
    assert venv.pip_wheel(manifest) == "pip-26.3.whl"


def test_a_wheelhouse_with_a_hole_is_refused(tmp_path: Path) -> None:
    wheelhouse(tmp_path, ["click-8.whl"])
    (tmp_path / "click-8.whl").unlink()
    with pytest.raises(ValueError, match=r"lacks click-8\.whl"):
        venv.read_manifest(tmp_path)
    with pytest.raises(ValueError, match="no wheel of pip"):
        venv.pip_wheel({"wheels": {"click-8.whl": ""}})
    with pytest.raises(ValueError, match="not a wheelhouse"):
        venv.read_manifest(tmp_path / "none")


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_broken_mark_counts_as_none(tmp_path: Path, text: str) -> None:
    (tmp_path / venv.MARKER).write_text(text)
    assert venv.installed(tmp_path) is None


def versions(root: Path, count: int) -> list[Path]:
    made = [root / f"v{index}" for index in range(count)]
    for index, path in enumerate(made):
        path.mkdir()
        (path / prune.MARKER).write_text("{}")
        os.utime(path / prune.MARKER, (index, index))
    return made


def test_pruning_keeps_the_newest_and_the_running_one(tmp_path: Path) -> None:
    made = versions(tmp_path, 5)
    (tmp_path / "current").symlink_to("v0")
    (tmp_path / "foreign").mkdir()
    assert prune.removable(tmp_path, 3) == made[1:3]
    assert prune.removable(tmp_path, 1) == made[1:]
    assert prune.removable(tmp_path, 9) == []


def test_pruning_without_a_link_still_keeps_the_newest(tmp_path: Path) -> None:
    made = versions(tmp_path, 3)
    assert prune.removable(tmp_path, 1) == made[:2]


def test_wheels_come_from_folders_and_an_index_that_holds_no_secret(tmp_path: Path) -> None:
    own, site = tmp_path / "own", tmp_path / "site"
    site.mkdir()
    assert venv.sources(own, [str(site)], "") == ["--no-index", f"--find-links={own}", f"--find-links={site}"]
    assert venv.sources(own, [], "https://wheels.example/simple")[0] == "--index-url=https://wheels.example/simple"
    with pytest.raises(ValueError, match="carries credentials"):
        venv.sources(own, [], "https://user:word@wheels.example/simple")
    with pytest.raises(ValueError, match=r"no such folder of wheels on the node: .*absent"):
        venv.sources(own, [str(tmp_path / "absent")], "")
