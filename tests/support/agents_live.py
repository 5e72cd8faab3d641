"""The agents on real nodes: the built wheels, their settings for the stand-ins, and the hooks."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

__all__ = ["AGENTS", "Agents", "site_packages"]

REPO = Path(__file__).resolve().parents[2]
AGENTS = "/opt/kinemill/agents/current"
_PURE = ("click", "pynvml.py")
"""What the hooks import beside our own wheels; pure Python, so one copy serves 3.11 and 3.13."""


def site_packages(folder: Path) -> Path:
    """A folder of importable packages: our two wheels as hatchling builds them, and what they need."""
    wheels = folder / "wheels"
    for name in ("core", "agents"):
        subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)],
            cwd=REPO / name,
            check=True,
            capture_output=True,
            timeout=300,
        )
    site = folder / "site"
    for wheel in sorted(wheels.glob("*.whl")):
        shutil.unpack_archive(wheel, site, "zip")
    import click

    here = Path(click.__file__).parents[1]
    for name in _PURE:
        source = here / name
        if source.is_dir():
            shutil.copytree(source, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, site / name)
    _be_patient(site / "kinemill" / "agents" / "runner.py")
    return site


def _be_patient(runner: Path) -> None:
    """Nodes share a machine with all the rest here: what takes longer than 2 s is no fault of theirs."""
    text = runner.read_text(encoding="utf-8")
    for old, new in (("\nPROBE_S = 2.0\n", "\nPROBE_S = 9.0\n"), ("\n_REAP_S = 1.0\n", "\n_REAP_S = 5.0\n")):
        assert text.count(old) == 1, f"{runner} has no line {old.strip()}"
        text = text.replace(old, new)
    runner.write_text(text, encoding="utf-8")


class Agents:
    """The agents on a cluster's nodes.

    Args:
        cluster: Where.
        site: What `site_packages` made.
    """

    def __init__(self, cluster: Cluster, site: Path) -> None:
        self.cluster = cluster
        self.site = site

    def venv(self, node: str) -> Path:
        """The venv with our wheels on a node, as role python_artifact leaves it; its package folder, seen from here."""
        box = self.cluster.box
        venv = box.root(node) / AGENTS.lstrip("/")
        if not (venv / "bin" / "kinemill-node").is_file():
            box.exec(node, ["python3", "-m", "venv", "--without-pip", AGENTS])
            (packages,) = (venv / "lib").glob("python3.*/site-packages")
            shutil.copytree(self.site, packages, dirs_exist_ok=True)
            box.exec(node, [f"{AGENTS}/bin/python", "-m", "compileall", "-q", f"{AGENTS}/lib"], deadline_s=120)
            script = venv / "bin" / "kinemill-node"
            script.write_text(
                f"#!{AGENTS}/bin/python -I\nimport sys\nfrom kinemill.agents.cli import main\nsys.exit(main())\n"
            )
            script.chmod(0o755)
        (data,) = (venv / "lib").glob("python3.*/site-packages/kinemill/agents")
        stand_ins = box.stand_ins(node)
        for disk in stand_ins.glob("disk-*.json"):
            (stand_ins / "root/sys/class/nvme" / disk.stem.removeprefix("disk-")).mkdir(parents=True, exist_ok=True)
        return data

    def install(self, node: str, *, hooks: bool = True, **hardware: Any) -> None:
        """Venv, settings, hooks and units on a node; nothing runs yet but the hooks."""
        box = self.cluster.box
        data, root = self.venv(node), box.root(node)
        for unit in (data / "units").iterdir():
            if unit.suffix in (".service", ".timer", ".socket"):
                shutil.copy(unit, root / "etc/systemd/system" / unit.name)
        shutil.copy(data / "units/kinemill-node.tmpfiles", root / "etc/tmpfiles.d/kinemill-node.conf")
        box.exec(node, ["systemd-tmpfiles", "--create", "/etc/tmpfiles.d/kinemill-node.conf"])
        box.exec(node, ["systemctl", "daemon-reload"])
        self.configure(node, **hardware)
        for kind, name in (("prolog", "prolog"), ("epilog", "epilog"), ("health", "healthcheck")) if hooks else ():
            folder = f"{AGENTS}/lib/python3.*/site-packages/kinemill/agents/hooks"
            self.cluster.hook(node, kind, "kinemill", f"exec /bin/sh {folder}/{name}.sh")

    def configure(self, node: str, **hardware: Any) -> None:
        """Write agents.toml."""
        stated = {
            "sku": "h200-8",
            "gpus": 8,
            "infiniband_ports": 8,
            "nvme_devices": 2,
            "container_command": ["/usr/local/bin/enroot", "version"],
            "scratch_dirs": ["/tmp", "/var"],
            **hardware,
        }
        lines = [
            'probe_root = "/opt/kinemill-stand-ins/root"',
            'kernel_log = "/opt/kinemill-stand-ins/kmsg"',
            'textfile_dir = "/var/lib/kinemill/metrics"',
            f'node_name = "{node}"',
            "[hardware]",
            *(f"{key} = {json.dumps(value)}" for key, value in stated.items()),
            "[checks]",
            "min_free_percent = 0.5",
            "min_free_inodes_percent = 0.0",
        ]
        etc = self.cluster.box.root(node) / "etc/kinemill"
        etc.mkdir(exist_ok=True)
        (etc / "agents.toml").write_text("\n".join(lines) + "\n")

    def forget(self, node: str) -> None:
        """Memory, verdict and metrics of earlier tests go; GPUs are healthy and the kernel log begins anew."""
        from kinemill.control.sandbox import standins

        root = self.cluster.box.root(node)
        units = ["kinemill-node-check.timer", "kinemill-node-ask.socket"]
        self.cluster.box.exec(node, ["systemctl", "disable", "--now", *units], check=False)
        under_way = ["kinemill-node-check.service", "kinemill-node-ask.service"]
        self.cluster.box.exec(node, ["systemctl", "stop", *under_way], check=False)
        shutil.rmtree(root / "var/lib/kinemill", ignore_errors=True)
        self.cluster.box.exec(node, ["rm", "-f", "/run/kinemill/verdict.json", "/run/kinemill/agent_missing"])
        stand_ins = self.cluster.box.stand_ins(node)
        standins.boot(stand_ins)
        sick = [
            k for k in standins.read_state(stand_ins) if ".ecc." in k or ".lost" in k or "hang." in k or "remap" in k
        ]
        if sick:
            standins.change_gpus(stand_ins, dict.fromkeys(sick, ""))

    def gpu(self, node: str, **changes: str) -> None:
        """Change stub GPUs; `__` stands for a dot."""
        from kinemill.control.sandbox import standins

        pairs = {key.replace("__", "."): value for key, value in changes.items()}
        standins.change_gpus(self.cluster.box.stand_ins(node), pairs)

    def node(self, node: str, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kinemill-node on a node."""
        return self.cluster.box.exec(node, [f"{AGENTS}/bin/kinemill-node", *words], check=check)

    def read(self, node: str, path: str) -> str:
        """A file of a node (not below /run, which only the node itself sees)."""
        return (self.cluster.box.root(node) / path.lstrip("/")).read_text()


@pytest.fixture(scope="session")
def agents_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheels, built once in a run."""
    return site_packages(tmp_path_factory.mktemp("agents"))
