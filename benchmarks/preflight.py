"""What a prolog costs a job: wall and CPU with 8 stub GPUs, with hanging checks, and what is left behind.

The shim runs as Slurm runs it (no PATH, no HOME), the stub NVML library lies under the real pynvml, and a do-nothing
bash prolog and an empty Python run beside it in the same rounds.
"""

from __future__ import annotations

import configparser
import ctypes
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from frame import Bench, Sample, run_command

REPO = Path(__file__).resolve().parents[1]
PACKAGE = REPO / "agents" / "src" / "kinemill" / "agents"
STUB = REPO / "control" / "src" / "kinemill" / "control" / "sandbox" / "data" / "nvml.c"
GPUS = 8
PR_SET_CHILD_SUBREAPER = 36


class Node:
    """A pretended node: stub GPUs, settings, places of its own.

    Args:
        folder: Where everything lies.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "nvml.state"
        for name in ("scratch", "metrics"):
            (folder / name).mkdir()
        (folder / "kmsg").write_text("6,1,1000000,-;Linux version 6.1\n")
        subprocess.run(
            ["gcc", "-O1", "-shared", "-fPIC", "-o", str(folder / "libnvidia-ml.so.1"), str(STUB)], check=True
        )
        self.healthy()
        self.settings("")

    def healthy(self, *more: str) -> None:
        """Eight healthy GPUs, and `more` lines of state."""
        lines = [f"count {GPUS}", *(f"gpu{i}.uuid GPU-{i}" for i in range(GPUS)), *more]
        self.state.write_text("".join(f"{line}\n" for line in lines))

    def settings(self, mounts: str) -> None:
        """Write agents.toml; `mounts` are TOML strings."""
        root = self.folder / "root"
        shutil.rmtree(root, ignore_errors=True)
        (root / "proc" / "self").mkdir(parents=True)
        for name in ("sys", "dev", "tmp"):
            (root / name).symlink_to(f"/{name}")
        (root / "proc" / "sys").symlink_to("/proc/sys")
        (root / "proc" / "meminfo").symlink_to("/proc/meminfo")
        (root / str(self.folder / "scratch").lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
        if mounts:  # a named pipe without a writer: whoever opens it hangs, as on a dead server
            os.mkfifo(root / "proc" / "self" / "mounts")
        (self.folder / "agents.toml").write_text(
            f'probe_root = "{root if mounts else "/"}"\n'
            f'state_dir = "{self.folder}/state"\nrun_dir = "{self.folder}/run"\n'
            f'kernel_log = "{self.folder}/kmsg"\ntextfile_dir = "{self.folder}/metrics"\n'
            f'[hardware]\nsku = "h200-8"\ngpus = {GPUS}\nmounts = [{mounts}]\n'
            f"scratch_dirs = [{'' if mounts else repr(str(self.folder / 'scratch'))}]\n"
            "[checks]\nmin_free_percent = 0.0\nmin_free_inodes_percent = 0.0\n"
        )

    def hook(self, name: str, ok: tuple[int, ...] = (0,)) -> Sample:
        """Run a shim as Slurm does."""
        env = {
            "SLURM_JOB_ID": "77",
            "SLURM_JOB_GPUS": ",".join(str(i) for i in range(GPUS)),
            "KINEMILL_CONFIG_DIR": str(self.folder),
            "KINEMILL_AGENT_PYTHON": sys.executable,
            "KINEMILL_RUN_DIR": str(self.folder / "shim"),
            "LD_LIBRARY_PATH": str(self.folder),
            "KINEMILL_STUB_NVML": str(self.state),
        }
        return run_command(["/bin/sh", str(PACKAGE / "hooks" / f"{name}.sh")], env=env, ok=ok)


def bash() -> Sample:
    """A prolog that does nothing."""
    return run_command(["/bin/bash", "-c", ":"])


def python() -> Sample:
    """A Python that does nothing."""
    return run_command([sys.executable, "-I", "-c", "pass"])


def left_behind() -> list[int]:
    """Processes that a run left; as sub-reaper we inherit every orphan."""
    words = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(word) for word in words]


def timer_s() -> float:
    """The longest pause between two rounds of the periodic timer, from its unit file."""
    unit = configparser.ConfigParser()
    unit.read(PACKAGE / "units" / "kinemill-node-check.timer")
    return sum(float(unit["Timer"][key]) for key in ("OnUnitActiveSec", "RandomizedDelaySec", "AccuracySec"))


def main() -> None:
    """Measure."""
    bench = Bench("preflight", __doc__)
    beside = "a do-nothing bash prolog and python -c pass, same rounds"
    bench.declare("prolog_wall_p50", unit="s", better="lower", bar=0.5, against=beside)
    bench.declare("prolog_cpu_p50", unit="s", better="lower", bar=0.25, against=beside)
    bench.declare("prolog_cpu_over_python", unit="x", better="lower", against="python -c pass, same rounds")
    bench.declare("prolog_wall_over_bash", unit="s", better="lower", against="a do-nothing bash prolog, same rounds")
    bench.declare("prolog_wall_p99_two_hanging", unit="s", better="lower", bar=3.0, against="two checks of 2 s each")
    bench.declare("left_behind", unit="processes", better="lower", bar=0.0, against="none before the first run")
    bench.declare("idle_fault_seen", unit="s", better="lower", bar=60.0, against="the timer's longest pause plus a run")
    bench.declare("resident", unit="MB", better="lower", bar=60.0, against="no process between two runs")

    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(prefix="kinemill-preflight-") as name:
        node = Node(Path(name))
        rounds = bench.interleave(
            {"bash": bash, "python": python, "prolog": lambda: node.hook("prolog")},
            repeats=bench.pick(quick=11, full=51),
        )
        bench.record("prolog_wall_p50", rounds.median("prolog", of="wall_s"))
        bench.record("prolog_cpu_p50", rounds.median("prolog", of="cpu_s"))
        bench.record("prolog_cpu_over_python", rounds.ratio("prolog", "python", of="cpu_s"))
        bench.record("prolog_wall_over_bash", rounds.difference("prolog", "bash", of="wall_s"))

        # an idle node goes bad: the next round finds it
        node.healthy("gpu3.ecc.volatile.uncorrected 1")
        found = [node.hook("healthcheck", ok=(0,)).wall_s for _ in range(bench.pick(quick=3, full=9))]
        metrics = (Path(name) / "metrics" / "kinemill_node.prom").read_text()
        if not re.search(r'^kinemill_check_result\{check="gpu.ecc",class="transient"\} 2$', metrics, re.MULTILINE):
            raise RuntimeError(f"the fault was not found:\n{metrics}")
        bench.record("idle_fault_seen", timer_s() + max(found))

        node.healthy("hang.nvmlInit_v2 600", "hang.nvmlInitWithFlags 600")
        node.settings('"/shared"')
        slow: list[float] = []
        for _ in range(bench.pick(quick=5, full=100)):
            # the first UNKNOWN lets the job through, the second refuses it
            slow.append(node.hook("prolog", ok=(0, 1)).wall_s)
        p99 = statistics.quantiles(slow, n=100, method="inclusive")[98]
        bench.say(f"two hanging checks: {len(slow)} runs, {min(slow):.2f} to {max(slow):.2f} s")
        bench.record("prolog_wall_p99_two_hanging", p99)

        node.healthy()
        node.settings("")
        before = len(left_behind())
        for _ in range(bench.pick(quick=10, full=1000)):
            node.hook("prolog")
        bench.record("left_behind", len(left_behind()) - before)
        bench.record("resident", 0.0 if not left_behind() else 1e9)
        missing = Path(name) / "shim" / "agent_missing"
        if missing.exists():
            raise RuntimeError(f"the agent crashed: {missing.read_text()}")
    bench.finish()


if __name__ == "__main__":
    main()
