"""The real nvidia-ml-py on top of the stub library."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kinemill.control.sandbox import standins, stub
from kinemill.control.sandbox.standins import GPU_KEYS, Hardware, change_gpus
from kinemill.errors import ConfigError

Ask = Callable[..., object]

HEAD = """
import json, warnings
warnings.simplefilter("ignore")
import pynvml as n
n.nvmlInit()
def h(i): return n.nvmlDeviceGetHandleByIndex(i)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Stand-ins of a healthy node with 8 GPUs."""
    standins.create(tmp_path / "node", Hardware(), seed="n1")
    standins.boot(tmp_path / "node")
    return tmp_path / "node"


@pytest.fixture
def ask(folder: Path, tmp_path: Path) -> Ask:
    """Evaluate an expression in a fresh process that loads the stub through nvidia-ml-py."""

    def run(expression: str, *, variant: str = "whole", deadline_s: float = 300) -> object:
        libraries = tmp_path / variant
        libraries.mkdir(exist_ok=True)
        link = libraries / "libnvidia-ml.so.1"
        if variant != "absent" and not link.is_symlink():
            link.symlink_to(stub.library(variant, folder=tmp_path / "built"))
        code = f"{HEAD}print(json.dumps({expression}))"
        environment = {"LD_LIBRARY_PATH": str(libraries), "KINEMILL_STUB_NVML": str(folder / "nvml.state"), "PATH": ""}
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            check=False,
            env=environment,
        )
        if done.returncode != 0:
            raise RuntimeError(done.stderr.strip().splitlines()[-1])
        return json.loads(done.stdout)

    return run


def test_a_healthy_node(ask: Ask) -> None:
    found = ask(
        "[n.nvmlDeviceGetCount(), n.nvmlSystemGetDriverVersion(), n.nvmlDeviceGetName(h(0)),"
        " len({n.nvmlDeviceGetUUID(h(i)) for i in range(8)}), n.nvmlDeviceGetPciInfo(h(1)).busId,"
        " n.nvmlDeviceGetEccMode(h(0)), n.nvmlDeviceGetMemoryInfo(h(0)).total,"
        " n.nvmlDeviceGetMemoryInfo(h(0), version=n.nvmlMemory_v2).total,"
        " n.nvmlDeviceGetRemappedRows(h(0)), n.nvmlDeviceGetCurrPcieLinkWidth(h(0)),"
        " n.nvmlDeviceGetMigMode(h(0)), n.nvmlDeviceGetPersistenceMode(h(0)), n.nvmlDeviceGetTemperature(h(0), 0),"
        " n.nvmlDeviceGetCurrentClocksEventReasons(h(0)),"
        " [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h(0))],"
        " n.nvmlDeviceGetNvLinkState(h(0), 17)]"
    )
    assert found == [
        8, "570.133.20", "NVIDIA H200", 8, "00000000:2B:00.0", [1, 1], 150754820096, 150754820096, [0, 0, 0, 0], 16,
        [0, 0], 1, 38, 1, [], 1,
    ]  # fmt: skip


def test_faults_are_seen_at_the_next_call(ask: Ask, folder: Path) -> None:
    change_gpus(
        folder,
        {
            "gpu3.ecc.volatile.uncorrected": "1",
            "gpu3.ecc.volatile.corrected": "250000",
            "gpu3.ecc.aggregate.uncorrected": "7",
            "gpu3.remap.pending": "1",
            "gpu3.recovery_action": "2",
            "gpu3.clocks.reasons": "0x40",
            "gpu3.processes": "41:1024,42:2048",
            "gpu3.nvlink.down": "3,7",
            "gpu3.pcie.width": "8",
        },
    )
    found = ask(
        "[[n.nvmlDeviceGetTotalEccErrors(h(3), k, c) for c in (0, 1) for k in (0, 1)],"
        " n.nvmlDeviceGetRemappedRows(h(3)), [(v.nvmlReturn, v.value.uiVal) for v in"
        " n.nvmlDeviceGetFieldValues(h(3), [230, 145, 999])], n.nvmlDeviceGetCurrentClocksEventReasons(h(3)),"
        " [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h(3))],"
        " [n.nvmlDeviceGetNvLinkState(h(3), i) for i in (2, 3, 7)], n.nvmlDeviceGetCurrPcieLinkWidth(h(3)),"
        " n.nvmlDeviceGetMemoryErrorCounter(h(3), 1, 0, 2), n.nvmlDeviceGetTotalEccErrors(h(2), 1, 0)]"
    )
    assert found == [
        [250000, 1, 0, 7], [0, 0, 1, 0], [[0, 2], [0, 0], [3, 0]], 64, [[41, 1024], [42, 2048]], [1, 0, 0], 8, 1, 0,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expression", "error"),
    [
        ({"gpu3.lost": "1"}, "n.nvmlDeviceGetUUID(h(3))", "NVMLError_GpuIsLost"),
        ({"return.nvmlInit_v2": "9"}, "0", "NVMLError_DriverNotLoaded"),
        ({"count": ""}, "0", "NVMLError_DriverNotLoaded"),
        ({"count": "7"}, "n.nvmlDeviceGetUUID(h(7))", "NVMLError_InvalidArgument"),
        (
            {"gpu1.return.nvmlDeviceGetTotalEccErrors": "999"},
            "n.nvmlDeviceGetTotalEccErrors(h(1), 1, 0)",
            "NVMLError_Unknown",
        ),
        ({}, "n.nvmlDeviceGetRetiredPages(h(0), 0)", "NVMLError_NotSupported"),
        ({"gpu0.ecc.mode": "0"}, "n.nvmlDeviceGetTotalEccErrors(h(0), 1, 0)", "NVMLError_NotSupported"),
    ],
)
def test_errors_are_those_of_the_real_library(
    ask: Ask, folder: Path, changes: dict[str, str], expression: str, error: str
) -> None:
    change_gpus(folder, changes)
    with pytest.raises(RuntimeError, match=error):
        ask(expression)


@pytest.mark.parametrize(
    ("variant", "expression", "error"),
    [
        ("absent", "0", "NVMLError_LibraryNotFound"),
        ("empty", "0", "NVMLError_LibraryNotFound"),
        ("partial", "n.nvmlDeviceGetRemappedRows(h(0))", "NVMLError_FunctionNotFound"),
    ],
)
def test_broken_libraries(ask: Ask, variant: str, expression: str, error: str) -> None:
    with pytest.raises(RuntimeError, match=error):
        ask(expression, variant=variant)


def test_an_old_library_still_answers_what_it_has(ask: Ask) -> None:
    assert ask("n.nvmlDeviceGetCount()", variant="partial") == 8


def test_a_call_that_hangs_is_ended_from_outside(folder: Path, ask: Ask) -> None:
    change_gpus(folder, {"gpu2.hang.nvmlDeviceGetTemperature": "6000"})
    assert ask("n.nvmlDeviceGetTemperature(h(1), 0)") == 38
    with pytest.raises(subprocess.TimeoutExpired):  # which is told once the process is gone
        ask("n.nvmlDeviceGetTemperature(h(2), 0)", deadline_s=3)


def test_a_boot_clears_the_volatile_part(folder: Path, ask: Ask) -> None:
    change_gpus(folder, {"gpu0.ecc.volatile.corrected": "5", "gpu0.ecc.aggregate.corrected": "9", "gpu0.lost": "1"})
    standins.boot(folder)
    assert ask("[n.nvmlDeviceGetTotalEccErrors(h(0), 0, c) for c in (0, 1)]") == [0, 9]


def test_unknown_keys_are_refused(folder: Path) -> None:
    for key in ("gpu0.ecc.volatil", "counts", "gpu0.return.strcpy", "hang.x"):
        with pytest.raises(ConfigError, match="no GPU state"):
            change_gpus(folder, {key: "1"})
    with pytest.raises(ConfigError, match="one line"):
        change_gpus(folder, {"gpu0.uuid": "a\nb"})


def test_the_list_of_keys_is_what_the_library_reads() -> None:
    source = (Path(stub.__file__).parent / "data" / "nvml.c").read_text()
    read = set(re.findall(r'"([a-z_.0-9]+)"', source.split("/* ---- finding a GPU */")[1]))
    read -= {"0", "count", ".dram", ".sram", "aggregate", "volatile", "corrected", "uncorrected", ""}
    composed = {key for key in GPU_KEYS if re.match(r"ecc\.(volatile|aggregate)\.", key)}
    assert read - composed == set(GPU_KEYS) - composed


def test_building_is_done_once(tmp_path: Path) -> None:
    first = stub.library(folder=tmp_path)
    made = first.stat().st_mtime_ns
    assert stub.library(folder=tmp_path).stat().st_mtime_ns == made
    assert os.access(first, os.R_OK)
    with pytest.raises(ConfigError, match="known: whole, partial, empty"):
        stub.library("half", folder=tmp_path)
