"""Hooks over the stub library under the real pynvml: what drivers do when they break."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinemill.agents.hooks import hook_path
from kinemill.agents.verdict import read_verdict
from support.layers import skip, skip_if
from support.process import patient_python

REPO = Path(__file__).resolve().parents[3]
STUB = REPO / "control/src/kinemill/control/sandbox/data/nvml.c"
GPUS = 4


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the stub library, whole and as of an old driver."""
    if shutil.which("gcc") is None:
        skip("no C compiler for the stub library", run="apt-get install gcc, then make test")
    folder = tmp_path_factory.mktemp("nvml")
    for name, flags in (("whole", []), ("partial", ["-DPARTIAL"])):
        (folder / name).mkdir()
        out = str(folder / name / "libnvidia-ml.so.1")
        subprocess.run(["gcc", "-shared", "-fPIC", *flags, "-o", out, str(STUB)], check=True, timeout=300)
    (folder / "empty").mkdir()
    (folder / "empty" / "libnvidia-ml.so.1").touch()
    return folder


@pytest.fixture
def prolog(tmp_path: Path, libraries: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a hook on a node with GPU state lines; agents.toml may be added to."""

    def run(
        *state: str,
        library: str = "whole",
        hook: str = "prolog",
        toml: str = "",
        job: int = 77,
        gpus: str = "0,1,2,3",
        patient: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "nvml.state").write_text(
            "\n".join([f"count {GPUS}", *(f"gpu{i}.uuid GPU-{i}" for i in range(GPUS)), *state]) + "\n"
        )
        kmsg = tmp_path / "kmsg"
        if not kmsg.exists():
            kmsg.write_text("6,1,1000000,-;Linux version 6.1\n")
        paths = {"state_dir": "state", "run_dir": "run", "textfile_dir": "metrics", "kernel_log": "kmsg"}
        text = "".join(f'{key} = "{tmp_path / name}"\n' for key, name in paths.items())
        text += f'[hardware]\nsku = "h200-8"\ngpus = {GPUS}\nscratch_dirs = []\n{toml}'
        (tmp_path / "agents.toml").write_text(text)
        env = {
            "SLURM_JOB_ID": str(job),
            **({"SLURM_JOB_GPUS": gpus} if gpus else {}),
            "KINEMILL_CONFIG_DIR": str(tmp_path),
            "KINEMILL_AGENT_PYTHON": patient_python(tmp_path) if patient else sys.executable,
            "KINEMILL_RUN_DIR": str(tmp_path / "shim"),
            "LD_LIBRARY_PATH": str(libraries / library),
            "KINEMILL_STUB_NVML": str(tmp_path / "nvml.state"),
        }
        command = ["/bin/sh", str(hook_path(hook))]
        done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False, timeout=300)
        assert not (tmp_path / "shim" / "agent_missing").exists(), done.stderr
        return done

    return run


Prolog = Callable[..., subprocess.CompletedProcess[str]]


def code(tmp_path: Path) -> str:
    verdict = read_verdict(tmp_path / "run")
    assert verdict is not None
    return "|".join(verdict.reason.split("|")[1:4])


def test_healthy_gpus_pass_in_silence(prolog: Prolog) -> None:
    done = prolog()
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        ("gpu1.ecc.volatile.uncorrected 1", "gpu.ecc|T|ecc_vol_unc"),
        ("gpu1.ecc.volatile.corrected 250000", "gpu.ecc|T|ecc_vol_cor"),
        ("gpu1.remap.failure 1", "gpu.remap|H|remap_failure"),
        ("gpu1.remap.pending 1", "gpu.remap|T|remap_pending"),
        ("gpu1.recovery_action 2", "gpu.recovery|T|recovery_reboot"),
        ("gpu1.lost 1", "gpu.count|T|gpu_lost"),
        ("count 3", "gpu.count|T|gpu_count"),
        ("gpu1.nvlink.down 3,7", "gpu.nvlink|T|nvlink_down"),
        ("gpu1.pcie.width 8", "gpu.pcie|T|pcie_width"),
        ("gpu1.fabric.status 5", "gpu.fabric|T|fabric_status"),
        ("gpu1.clocks.reasons 128", "gpu.clocks|T|power_brake"),
        ("gpu1.processes 4242:1000", "gpu.leftover|T|gpu_process"),
        ("return.nvmlInitWithFlags 9", "gpu.nvml|T|driver_not_loaded"),
    ],
)
def test_a_measured_fault_refuses_with_its_reason(prolog: Prolog, tmp_path: Path, state: str, reason: str) -> None:
    assert prolog(state).returncode == 1
    assert code(tmp_path) == reason


def test_a_lifetime_of_errors_with_none_since_boot_passes(prolog: Prolog) -> None:
    done = prolog(
        "gpu1.ecc.aggregate.corrected 250000", "gpu1.ecc.aggregate.uncorrected 9", "gpu1.remap.uncorrectable 2"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_empty_library_is_a_missing_one(prolog: Prolog, tmp_path: Path) -> None:
    assert prolog(library="empty").returncode == 1
    assert code(tmp_path) == "gpu.nvml|T|library_missing"


def test_an_old_driver_without_newer_functions_is_not_broken(prolog: Prolog) -> None:
    """What the old driver has no function for could not be measured twice in a row, and must not drain the node."""
    for job in (1, 2, 3):
        done = prolog(library="partial", job=job)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetTotalEccErrors"])
def test_a_library_that_never_returns_is_unknown_once_and_refused_twice(
    prolog: Prolog, tmp_path: Path, call: str
) -> None:
    first = prolog(f"hang.{call} 600", patient=False)
    assert first.returncode == 0
    assert "UNKNOWN" in first.stderr
    assert prolog(f"hang.{call} 600", job=78, patient=False).returncode == 1
    assert "|T|" in code(tmp_path)
    metrics = (tmp_path / "metrics" / "kinemill_node.prom").read_text()
    assert 'kinemill_check_timeouts_total{check="nvml"} 2' in metrics


def test_garbage_from_the_library_is_unknown(prolog: Prolog) -> None:
    done = prolog("gpu1.return.nvmlDeviceGetTotalEccErrors 777", "gpu2.return.nvmlDeviceGetUUID 999")
    assert done.returncode == 0
    assert "gpu.ecc UNKNOWN" in done.stderr


def test_a_job_is_judged_by_its_own_gpus_and_its_xids_are_its_own(prolog: Prolog, tmp_path: Path) -> None:
    addresses = [f"gpu{i}.pci 00000000:{0x10 + i:02X}:00.0" for i in range(GPUS)]
    assert prolog(*addresses, "gpu3.ecc.volatile.uncorrected 1", job=1, gpus="0,1").returncode == 0
    with (tmp_path / "kmsg").open("a") as log:
        log.write("4,2,2000000,-;NVRM: Xid (PCI:0000:10:00): 31, pid=1, name=a, Ch 8\n")
        log.write("4,3,2100000,-;NVRM: Xid (PCI:0000:12:00): 31, pid=2, name=b, Ch 8\n")  # another job's GPU
    assert prolog(*addresses, hook="epilog", job=1, gpus="0,1").returncode == 0
    notes = json.loads((tmp_path / "state" / "agents" / "notes.json").read_text())["rows"]
    assert [(n[0], "0000:10:00" in n[1], "0000:12:00" in n[1]) for n in notes] == [(1, True, False)]
    # later jobs on that GPU end without an XID of their own: the old line condemns nobody
    for job in (2, 3, 4):
        prolog(*addresses, job=job, gpus="0")
        assert prolog(*addresses, hook="epilog", job=job, gpus="0").returncode == 0
    assert len(json.loads((tmp_path / "state" / "agents" / "xids.json").read_text())["rows"]) == 1


def test_the_check_that_found_the_fault_is_part_of_every_clean_round(prolog: Prolog, tmp_path: Path) -> None:
    """gpu.leftover runs in no periodic round by itself; a round without it would not prove the cure."""
    assert prolog("gpu1.processes 4242:1000").returncode == 1
    fault = tmp_path / "state" / "agents" / "fault.json"
    prolog("gpu1.processes 4242:1000", hook="healthcheck")
    assert json.loads(fault.read_text())["fault"]["passes"] == 0
    event = json.loads(fault.read_text())["fault"]["event"]
    prolog(hook="healthcheck")
    after = json.loads(fault.read_text())["fault"]
    assert (after["passes"], after["event"]) == (1, event)


def test_what_never_drains_does_not_keep_a_cured_node_out(prolog: Prolog, tmp_path: Path) -> None:
    """A round is clean though MIG is not as stated (config); with a GPU that cannot be read it is not."""
    fault = tmp_path / "state" / "agents" / "fault.json"
    assert prolog("gpu1.recovery_action 1").returncode == 1
    prolog("gpu2.mig.mode 1", hook="healthcheck")
    assert json.loads(fault.read_text())["fault"]["passes"] == 1
    prolog("gpu2.return.nvmlDeviceGetTotalEccErrors 999", hook="healthcheck")
    assert json.loads(fault.read_text())["fault"]["passes"] == 1


def test_a_prolog_needs_no_controller(prolog: Prolog, libraries: Path, tmp_path: Path) -> None:
    """mej/nhc#159: the health program ran before slurmd had registered, and scontrol blocked."""
    prolog()
    script = (
        "import sys\nfrom kinemill.agents.hook import main\ncode = main(['prolog'])\n"
        "assert not [m for m in sys.modules if m.startswith('kinemill.slurm') or m in ('click', 'prometheus_client')]\n"
        "sys.exit(code)"
    )
    env = {
        "KINEMILL_CONFIG_DIR": str(tmp_path),
        "LD_LIBRARY_PATH": str(libraries / "whole"),
        "KINEMILL_STUB_NVML": str(tmp_path / "nvml.state"),
    }
    command = [sys.executable, "-I", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@skip_if(os.geteuid() != 0, "a full disk of its own needs a mount", run="make test as root")
@pytest.mark.parametrize(("state", "expected"), [("", 0), ("gpu1.remap.failure 1", 1)])
@pytest.mark.parametrize("how", ["full", "read-only"])
def test_a_disk_that_takes_nothing_does_not_change_the_decision(
    prolog: Prolog, libraries: Path, tmp_path: Path, state: str, expected: int, how: str
) -> None:
    prolog(state)  # writes agents.toml and the GPUs' state
    fill = f"head -c 100000 /dev/zero >{tmp_path}/state/filler 2>/dev/null"
    script = {
        "full": f"mount -t tmpfs -o size=64k none {tmp_path}/state; {fill}",
        "read-only": f"mount -t tmpfs -o ro none {tmp_path}/state; mount -t tmpfs -o ro none {tmp_path}/run",
    }[how]
    env = {
        "PATH": "/usr/bin:/bin:/usr/sbin:/sbin",
        "SLURM_JOB_ID": "1",
        "KINEMILL_CONFIG_DIR": str(tmp_path),
        "KINEMILL_AGENT_PYTHON": patient_python(tmp_path),
        "KINEMILL_RUN_DIR": str(tmp_path / "shim"),
        "LD_LIBRARY_PATH": str(libraries / "whole"),
        "KINEMILL_STUB_NVML": str(tmp_path / "nvml.state"),
    }
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c"]
    command.append(f"{script}; exec /bin/sh {hook_path('prolog')}")
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == expected, done.stderr
    assert "could not be written" in done.stderr
