"""Role container_runtime: podman from Debian, and enroot with pyxis from STUB PACKAGES under a real Slurm."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.cluster import Cluster
from kinemill.control.sandbox.furnish import NodeSpec
from support.cluster import SUITES, need_sandbox
from support.deploy import Roles
from support.stub_packages import make_source, runtime_stubs, spank_stub

pytestmark = pytest.mark.full("cluster")


@pytest.fixture
def bare() -> Iterator[Sandbox]:
    need_sandbox()
    found = Sandbox.up([NodeSpec("n1", "bookworm", hardware=None)], name=f"p{os.getpid() % 10**6}", owned=True)
    yield found
    found.down()


@pytest.fixture
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    for one in (folder, folder.parent):
        one.chmod(0o755)
    make_source(folder / "stubs", runtime_stubs(spank_stub(folder, SUITES["bookworm"])))
    return folder


@pytest.fixture
def cluster(source: Path) -> Iterator[Cluster]:
    need_sandbox()
    name = f"e{os.getpid() % 10**6}"
    found = Cluster.up("ctl", ["n1"], image="bookworm-slurm", name=name, owned=True, wheelhouses=source)
    yield found
    found.down()


def shell(box: Sandbox) -> Callable[[str, str], str]:
    return lambda node, text: box.exec(node, ["sh", "-c", text], check=False).stdout.strip()


def test_podman_is_installed_once_and_verify_fails_without_it(bare: Sandbox, tmp_path: Path) -> None:
    facts = {"vendor_provides": ["time"], "base_minimum_free_mb": 100}
    roles = Roles(bare, tmp_path, {"slurm_nodes": ["n1"]}, facts)
    # when the role runs twice, then the second run changes nothing
    roles.apply(["base", "container_runtime"])
    assert roles.apply(["container_runtime"])["changed"] == 0
    assert shell(bare)("n1", "podman info --format '{{.Host.CgroupManager}}'") == "cgroupfs"
    # when it is broken, then verify fails
    shell(bare)("n1", "mv /usr/bin/podman /opt/")
    assert roles.run(["container_runtime"], "--tags=container_runtime_verify").returncode == 2
    shell(bare)("n1", "mv /opt/podman /usr/bin/")


def test_pyxis_gives_srun_its_option_by_a_file_beside_a_vendors_list(
    cluster: Cluster, source: Path, tmp_path: Path
) -> None:
    box, on = cluster.box, shell(cluster.box)
    on("n1", "rm /usr/local/bin/enroot")
    stubs = {
        "name": "stubs",
        "uris": ["file:/srv/wheelhouses/stubs"],
        "suites": ["./"],
        "key": str(source / "stubs.asc"),
    }
    facts = {
        "vendor_provides": ["driver", "slurm", "time"],
        "base_package_sources": [stubs],
        "base_package_lists": True,
        "base_minimum_free_mb": 100,
        "container_runtime_kind": "enroot",
    }
    roles = Roles(box, tmp_path, {"slurm_controllers": ["ctl"], "slurm_nodes": ["n1"]}, facts)
    assert "--container-image" not in on("ctl", "srun --help")
    # given a list of plugins that leaves ours out, then the role says what to add, and touches nothing
    on("n1", "echo '# the own list of this site' >/etc/slurm/plugstack.conf")
    done = roles.run(["base", "container_runtime"])
    assert 'add the line "include plugstack.conf.d/*.conf" to it' in done.stdout.replace("\n", " ").replace("  ", " ")
    assert on("n1", "cat /etc/slurm/plugstack.conf; ls /etc/slurm/plugstack.conf.d 2>&1").startswith("# the own list")
    # when it includes the folder
    on("n1", "echo 'include /etc/slurm/plugstack.conf.d/*.conf' >>/etc/slurm/plugstack.conf")
    roles.apply(["base", "container_runtime"])
    assert roles.apply(["container_runtime"])["changed"] == 0
    # then a real srun takes the option, and the step runs with the plugin in it
    assert "--container-image" in on("ctl", "srun --help")
    assert on("ctl", "srun --immediate=60 --nodelist=n1 --container-image=anything hostname") == "n1"
    assert on("n1", "head -n1 /etc/slurm/plugstack.conf") == "# the own list of this site"
    # when the plugin is gone, then jobs go on, and verify fails
    on("n1", "rm /usr/lib/x86_64-linux-gnu/slurm/spank_pyxis.so")
    assert on("ctl", "srun --immediate=60 --nodelist=n1 hostname") == "n1"
    done = roles.run(["container_runtime"], "--tags=container_runtime_verify", hosts="slurm_nodes")
    assert done.returncode == 2, done.stdout
