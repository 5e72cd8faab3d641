"""Role training on real nodes: a real torch from a folder of the site's, and none where Python is another."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.furnish import NodeSpec
from support.ansible import REPO
from support.cluster import need_sandbox
from support.deploy import Roles
from support.layers import skip

pytestmark = pytest.mark.full("cluster")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that nodes see: the wheelhouse of the plane, and a torch for CPUs with what it needs."""
    folder = tmp_path_factory.mktemp("wheels")
    for one in (folder, folder.parent):
        one.chmod(0o755)
    wanted = f"torch=={importlib.metadata.version('torch')}"
    if "+cpu" not in wanted:
        skip(
            "the torch of these tests is not a build for CPUs, which would fetch gigabytes", run="a CPU build of torch"
        )
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        f"--dest={folder / 'site'}",
        wanted,
    ]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode != 0:
        skip(f"pip cannot fetch {wanted}", run="make test online, or with PIP_FIND_LINKS naming its folder")
    build = [sys.executable, "-m", "kinemill.control.wheelhouse", "--plane=training", f"--repo={REPO}"]
    build += [f"--output={folder}", "--python=3.11", f"--also={wanted}"]
    done = subprocess.run(build, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "site").chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def box(wheels: Path) -> Iterator[Sandbox]:
    need_sandbox()
    specs = [NodeSpec("old", "bookworm", disk="4G", hardware=None), NodeSpec("new", "trixie-slurm", hardware=None)]
    found = Sandbox.up(specs, name=f"w{os.getpid() % 10**6}", owned=True, wheelhouses=wheels, proxy=False)
    yield found
    found.down()


def test_the_job_is_installed_where_its_torch_runs_and_nowhere_else(box: Sandbox, wheels: Path, tmp_path: Path) -> None:
    facts = {
        "training_torch": f"torch=={importlib.metadata.version('torch')}",
        "training_find_links": ["/srv/wheelhouses/site"],
        "training_muon": {"node_threshold": 6, "fabric_gbps": 3200},
        "python_artifact_wheelhouses": str(wheels),
        "python_artifact_delivery": "shared",
        "python_artifact_shared_dir": "/srv/wheelhouses",
    }
    roles = Roles(box, tmp_path, {"slurm_nodes": ["old", "new"]}, facts)
    # when the role runs, twice
    done = roles.run(["training"])
    assert done.returncode == 0, done.stdout[-6000:]
    assert "Python 3.13 here" in done.stdout
    assert roles.apply(["training"])["changed"] == 0
    # then an ordinary user can build the optimizer, with the torch that was asked for
    python = "/opt/kinemill/training/current/bin/python"
    code = (
        "import torch, kinemill.training as t; m = torch.nn.Linear(4, 4, bias=False); t.Muon(m.parameters(), lr=0.1);"
    )
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", python, "-I", "-c"]
    shown = box.exec("old", [*command, f"{code} print(torch.__version__)"], check=False)
    assert shown.stdout.strip() == importlib.metadata.version("torch"), shown.stderr
    assert box.exec("old", ["sh", "-c", f"ls {python} /opt/kinemill/training/current/.kinemill-warm"]).returncode == 0
    assert box.exec("new", ["test", "-e", "/opt/kinemill/training"], check=False).returncode == 1
    print(box.exec("old", ["du", "-sm", "/opt/kinemill/training"]).stdout, end="")
    print(subprocess.run(["du", "-sm", *wheels.iterdir()], capture_output=True, text=True, check=True).stdout, end="")
    # and the optimizer's threshold is the inventory's, for that user too
    told = box.exec("old", ["stat", "--format=%U:%G %a", "/etc/kinemill/muon.toml"])
    assert told.stdout.strip() == "root:root 644"
    assert box.exec("new", ["test", "-e", "/etc/kinemill/muon.toml"], check=False).returncode == 1
    asked = ["/opt/kinemill/training/current/bin/kinemill", "train", "strategy", "--model=7b", "--json"]
    answer = json.loads(box.exec("old", [*command[:4], *asked]).stdout)
    assert (answer["site_threshold"], answer["site_threshold_origin"]) == (6, "/etc/kinemill/muon.toml")
    # when the file is spoilt, then verify names the key, and the next run makes it whole
    box.exec("old", ["sed", "--in-place", "s/node_threshold/node_treshold/", "/etc/kinemill/muon.toml"])
    spoilt = roles.run(["training"], "--tags=training_verify")
    assert spoilt.returncode == 2, spoilt.stdout
    assert "did you mean node_threshold?" in re.sub(r"\s+", " ", spoilt.stdout.replace("'", ""))
    assert roles.apply(["training"])["changed"] == 1
    # when a figure cannot be, then it is refused before anything is written
    wrong = roles.run(["training"], training_muon={"node_threshold": 6, "efficiency": 0})
    assert wrong.returncode == 2, wrong.stdout
    assert "each figure must be finite and above 0" in re.sub(r"\s+", " ", wrong.stdout)
    assert json.loads(box.exec("old", [*command[:4], *asked]).stdout)["site_threshold"] == 6
    # when torch is broken, then verify fails
    box.exec("old", ["sh", "-c", "mv /opt/kinemill/training/current/lib/python3.11/site-packages/torch /opt/"])
    broken = roles.run(["training"], "--tags=training_verify")
    box.exec("old", ["sh", "-c", "mv /opt/torch /opt/kinemill/training/current/lib/python3.11/site-packages/"])
    assert broken.returncode == 2, broken.stdout
    # when it comes from nowhere, then the role says so before anything is done
    lost = roles.run(["training"], training_find_links=[])
    assert lost.returncode == 2
    assert "say where it comes from" in lost.stdout
