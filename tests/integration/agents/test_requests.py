"""The drop box: what a job puts there is never believed, followed, or listed by others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinemill.agents.requests import ask, take_requests
from kinemill.errors import EnvironmentFault
from support.layers import skip_if


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run folder with its box, as tmpfiles.d makes it."""
    (tmp_path / "requests").mkdir()
    (tmp_path / "requests").chmod(0o1733)
    return tmp_path


def test_a_request_is_taken_once_and_its_asker_named(run_dir: Path) -> None:
    ask(run_dir)
    ask(run_dir)
    (line,) = take_requests(run_dir)
    assert "asked 2x" in line
    assert take_requests(run_dir) == []


def test_links_folders_pipes_and_strange_names_are_removed_and_nothing_else(run_dir: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_text("precious")
    box = run_dir / "requests"
    (box / "link").symlink_to(victim)
    (box / "dirlink").symlink_to(folder)
    os.link(victim, box / "hard")
    os.mkfifo(box / "pipe")
    (box / "empty").mkdir()
    (box / "full").mkdir()
    (box / "full" / "x").touch()
    (box / "$(reboot)\n; rm -rf .").touch()
    os.close(os.open(os.fsencode(box) + b"/\xff\xfe", os.O_CREAT))
    take_requests(run_dir)
    assert victim.read_text() == "precious"
    assert (folder / "file").read_text() == "precious"
    assert [p.name for p in box.iterdir()] == ["full"], "a filled folder stays; it wakes nobody twice"


def test_a_box_that_is_a_link_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "file").touch()
    (tmp_path / "requests").symlink_to(tmp_path / "elsewhere")
    assert take_requests(tmp_path) == []
    assert (tmp_path / "elsewhere" / "file").exists()


def test_a_flood_is_taken_in_parts(run_dir: Path) -> None:
    for i in range(250):
        (run_dir / "requests" / str(i)).touch()
    assert "asked 200x" in take_requests(run_dir)[0]
    assert "asked 50x" in take_requests(run_dir)[0]


def test_without_a_box_the_asker_is_told(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="are the node agents installed"):
        ask(tmp_path)


@skip_if(os.geteuid() != 0, "only root can own a folder as somebody else", run="make test as root")
def test_somebody_elses_box_is_left_alone(run_dir: Path) -> None:
    os.chown(run_dir / "requests", 1234, 1234)
    (run_dir / "requests" / "x").touch()
    assert "left alone" in take_requests(run_dir)[0]
    assert (run_dir / "requests" / "x").exists()
