"""The whole site on this machine, without root, below a folder of the test."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from support.ansible import REPO, playbook, recap


class Site:
    """site.yml with the local inventory and every place below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        # The sources as they are now: an edit meanwhile is a new version, rightly.
        self.sources = root / "sources"
        for name in ("core", "agents", "requirements"):
            shutil.copytree(REPO / name, self.sources / name, ignore=shutil.ignore_patterns("__pycache__"))
        self.agents = root / "local" / "opt" / "kinemill" / "agents"

    def run(self, *arguments: str) -> dict[str, int]:
        places = json.dumps({"kinemill_build_dir": str(self.root), "wheelhouse_repo": str(self.sources)})
        done = playbook("site.yml", "-i", "inventories/local", "-e", places, *arguments)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
        return recap(done.stdout)

    def running(self) -> str:
        """The version that the current link runs, as that version says."""
        code = "import json, pathlib, sys; import kinemill.agents, kinemill.errors;"
        code += "print(pathlib.Path(sys.prefix, '.kinemill-venv.json').read_text())"
        done = subprocess.run(
            [self.agents / "current" / "bin" / "python", "-I", "-c", code],
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        return str(json.loads(done.stdout)["version"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(tmp_path_factory.mktemp("site"))
    assert site.run()["changed"] == 3  # wheelhouse, venv, link
    return site


def test_a_second_run_changes_nothing(site: Site) -> None:
    inode = (site.agents / "current").lstat().st_ino
    counts = site.run()
    assert counts["changed"] == 0
    assert counts["failed"] == 0
    assert (site.agents / "current").lstat().st_ino == inode
    assert site.run("--check")["changed"] == 0


def test_going_back_is_a_swap_of_the_link(site: Site) -> None:
    # given a first version, and a second one that differs in what it was built for
    first = site.running()
    site.run("-e", json.dumps({"wheelhouse_pythons": ["3.13", "3.11"]}))
    second = site.running()
    assert second != first
    # when the first is asked for again
    made = (site.agents / first / ".kinemill-venv.json").stat().st_mtime_ns
    counts = site.run(
        "-e",
        f"python_artifact_version={first}",
        "--tags",
        "python_artifact_install,python_artifact_configure,python_artifact_verify",
    )
    # then the link is all that changed
    assert counts["changed"] == 1
    assert site.running() == first
    assert (site.agents / first / ".kinemill-venv.json").stat().st_mtime_ns == made
    assert (site.agents / second).is_dir()


def test_a_half_made_venv_is_made_again(site: Site) -> None:
    version = site.running()
    (site.agents / version / ".kinemill-venv.json").unlink()
    assert site.run("-e", f"python_artifact_version={version}")["changed"] >= 1
    assert site.running() == version
