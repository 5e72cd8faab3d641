"""What stands in for a node's hardware: GPUs, kernel log, sysfs trees, disk tools, a container runtime.

All of it is plain files in one folder that the node sees read-only. GPU state is `key value` lines that the stub
library reads again on every call. At a node's boot the volatile part goes and the rest stays, as on real hardware.
Product code never reads these files: it sees NVML, `probe_root` and `kernel_log`.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kinemill.control.sandbox.names import STAND_INS
from kinemill.errors import ConfigError, NotFoundError

__all__ = [
    "GPU_KEYS",
    "KERNEL_LOG",
    "PROBE_ROOT",
    "Hardware",
    "boot",
    "change_gpus",
    "create",
    "kernel_message",
    "read_state",
]

# As seen inside a node; settings of the product point here.
PROBE_ROOT = f"{STAND_INS}/root"
KERNEL_LOG = f"{STAND_INS}/kmsg"

# Key of one GPU -> whether a reboot clears it.
GPU_KEYS: Mapping[str, bool] = {
    "uuid": False,
    "serial": False,
    "name": False,
    "pci": False,
    "minor": False,
    "vbios": False,
    "part": False,
    "ecc.mode": False,
    "ecc.pending": False,
    "ecc.volatile.corrected": True,
    "ecc.volatile.uncorrected": True,
    "ecc.volatile.uncorrected.dram": True,
    "ecc.volatile.uncorrected.sram": True,
    "ecc.volatile.corrected.dram": True,
    "ecc.volatile.corrected.sram": True,
    "ecc.aggregate.corrected": False,
    "ecc.aggregate.corrected.dram": False,
    "ecc.aggregate.corrected.sram": False,
    "ecc.aggregate.uncorrected": False,
    "ecc.aggregate.uncorrected.dram": False,
    "ecc.aggregate.uncorrected.sram": False,
    "remap.correctable": False,
    "remap.uncorrectable": False,
    "remap.pending": True,
    "remap.failure": False,
    "recovery_action": True,
    "clocks.reasons": True,
    "pcie.generation": False,
    "pcie.width": False,
    "pcie.max_generation": False,
    "pcie.max_width": False,
    "pcie.replays": True,
    "nvlink.links": False,
    "nvlink.down": False,
    "nvlink.errors": True,
    "processes": True,
    "mig.mode": False,
    "persistence": True,
    "memory.total": False,
    "memory.used": True,
    "temperature": True,
    "power": True,
    "power.limit": True,
    "pstate": True,
    "utilization": True,
    "clocks.sm": True,
    "compute_mode": True,
    "fabric.state": True,
    "fabric.status": True,
    "fabric.health": True,
    "lost": True,
}
_SYSTEM_KEYS = {"count", "driver", "nvml", "cuda"}
_CALL = re.compile(r"(?:gpu\d+\.)?(?:return|hang)\.nvml[A-Za-z0-9_]+")
_GPU = re.compile(r"gpu(\d+)\.(.+)")


@dataclass(frozen=True, slots=True)
class Hardware:
    """What a node pretends to have.

    Attributes:
        gpus: How many GPUs.
        gpu_name: Their product name.
        gpu_memory: Memory of each, in bytes.
        links: NVLink links of each.
        ports: InfiniBand ports.
        disks: NVMe disks.
    """

    gpus: int = 8
    gpu_name: str = "NVIDIA H200"
    gpu_memory: int = 150_754_820_096
    links: int = 18
    ports: int = 8
    disks: int = 2


def create(folder: Path, hardware: Hardware, *, seed: str) -> None:
    """Make a node's stand-ins.

    Args:
        folder: Where; the node sees it at `names.STAND_INS`.
        hardware: What to pretend.
        seed: The node's name: UUIDs and serials follow from it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write_state(folder, _healthy(hardware, seed))
    _infiniband(folder / "root", hardware.ports)
    _pci(folder / "root", hardware)
    _disks(folder, hardware.disks)
    # Whatever is not pretended is the node's own.
    for name in ("proc", "etc", "dev", "var", "run", "tmp", "usr"):
        link = folder / "root" / name
        if not link.is_symlink():
            link.symlink_to(f"/{name}")
    (folder / "container-runtime.json").write_text('{"version": "3.5.0", "broken": ""}\n', encoding="utf-8")


def boot(folder: Path) -> None:
    """What a boot does to hardware: volatile counters, recovery actions and the kernel log begin anew."""
    if (folder / "nvml.state").is_file():
        kept = {key: value for key, value in read_state(folder).items() if not _is_volatile(key)}
        _write_state(folder, kept)
    (folder / "boot").write_text(f"{time.monotonic_ns()}\n", encoding="ascii")
    (folder / "kmsg").write_text("", encoding="utf-8")
    kernel_message(folder, "Linux version 6.1.0-stand-in")


def _is_volatile(key: str) -> bool:
    match = _GPU.fullmatch(key)
    return bool(match) and GPU_KEYS.get(match[2], False) if match else False


def read_state(folder: Path) -> dict[str, str]:
    """The GPU state, key by key.

    Raises:
        NotFoundError: There is none.
    """
    path = folder / "nvml.state"
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: the node has no stand-ins") from error
    return dict(line.split(" ", 1) for line in lines if " " in line)


def change_gpus(folder: Path, changes: Mapping[str, str]) -> dict[str, str]:
    """Change GPU state while things run.

    Args:
        folder: The node's stand-ins.
        changes: Key -> value; an empty value removes the key. Keys: `count`, `driver`, `gpuN.<key>` with a key of
            `GPU_KEYS`, `[gpuN.]return.<function>` with an NVML code, `[gpuN.]hang.<function>` with seconds.

    Returns:
        The whole state afterwards.

    Raises:
        ConfigError: A key is not known.
    """
    for key, value in changes.items():
        match = _GPU.fullmatch(key)
        known = key in _SYSTEM_KEYS or _CALL.fullmatch(key) or (match and match[2] in GPU_KEYS)
        if not known:
            raise ConfigError(
                f"no GPU state {key!r}; known: {', '.join(sorted(_SYSTEM_KEYS))}, gpuN.<one of "
                f"{', '.join(GPU_KEYS)}>, [gpuN.]return.<nvmlFunction>, [gpuN.]hang.<nvmlFunction>"
            )
        if "\n" in value or "\n" in key:
            raise ConfigError(f"{key}: a value is one line")
    state = read_state(folder)
    for key, value in changes.items():
        state.pop(key, None)
        if value:
            state[key] = value
    _write_state(folder, state)
    return state


def kernel_message(folder: Path, text: str, *, priority: int = 4) -> None:
    """Append a record to the node's kernel log, in the format of /dev/kmsg.

    Args:
        folder: The node's stand-ins.
        text: One line.
        priority: syslog priority; 4 is a warning.
    """
    if "\n" in text:
        raise ConfigError("a kernel message is one line")
    try:
        booted = int((folder / "boot").read_text())
    except (OSError, ValueError):
        booted = time.monotonic_ns()
    path = folder / "kmsg"
    sequence = path.read_text(encoding="utf-8").count("\n") if path.is_file() else 0
    with path.open("a", encoding="utf-8") as handle:
        handle.write(f"{priority},{sequence},{(time.monotonic_ns() - booted) // 1000},-;{text}\n")


def _healthy(hardware: Hardware, seed: str) -> dict[str, str]:
    state = {"count": str(hardware.gpus), "driver": "570.133.20", "nvml": "12.570.133.20", "cuda": "12080"}
    digits = "".join(f"{byte:02x}" for byte in seed.encode())[:12].ljust(12, "0")
    for index in range(hardware.gpus):
        state |= {
            f"gpu{index}.uuid": f"GPU-{index:08x}-0000-4000-8000-{digits}",
            f"gpu{index}.serial": f"16500{int(digits[:8], 16) % 10**6:06d}{index:02d}",
            f"gpu{index}.name": hardware.gpu_name,
            f"gpu{index}.pci": pci_address(index),
            f"gpu{index}.memory.total": str(hardware.gpu_memory),
            f"gpu{index}.nvlink.links": str(hardware.links),
        }
    return state


def pci_address(index: int) -> str:
    """PCI address of a GPU, as NVML writes it."""
    return f"00000000:{0x1B + 0x10 * index:02X}:00.0"


def _write_state(folder: Path, state: Mapping[str, str]) -> None:
    """Write by rename: the stub may read at any moment."""
    temporary = folder / "nvml.state.tmp"
    temporary.write_text("".join(f"{key} {value}\n" for key, value in state.items()), encoding="utf-8")
    temporary.replace(folder / "nvml.state")


def _tree(root: Path, files: Mapping[str, object]) -> None:
    for name, value in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n", encoding="ascii")


def _infiniband(root: Path, ports: int) -> None:
    for index in range(ports):
        base = f"sys/class/infiniband/mlx5_{index}"
        port = f"{base}/ports/1"
        _tree(
            root,
            {
                f"{base}/fw_ver": "28.43.1014",
                f"{base}/hca_type": "MT4129",
                f"{base}/board_id": "MT_0000000838",
                f"{port}/state": "4: ACTIVE",
                f"{port}/phys_state": "5: LinkUp",
                f"{port}/rate": "400 Gb/sec (4X NDR)",
                f"{port}/link_layer": "InfiniBand",
                f"{port}/counters/link_downed": 0,
                f"{port}/counters/link_error_recovery": 0,
                f"{port}/counters/symbol_error": 0,
                f"{port}/counters/port_rcv_errors": 0,
            },
        )


def _pci(root: Path, hardware: Hardware) -> None:
    for index in range(hardware.gpus):
        device = f"sys/bus/pci/devices/0000:{0x1B + 0x10 * index:02x}:00.0"
        _tree(
            root,
            {
                f"{device}/vendor": "0x10de",
                f"{device}/device": "0x2335",
                f"{device}/class": "0x030200",
                f"{device}/current_link_speed": "32.0 GT/s PCIe",
                f"{device}/max_link_speed": "32.0 GT/s PCIe",
                f"{device}/current_link_width": 16,
                f"{device}/max_link_width": 16,
                f"{device}/aer_dev_fatal": "TOTAL_ERR_FATAL 0",
                f"{device}/aer_dev_nonfatal": "TOTAL_ERR_NONFATAL 0",
                f"{device}/aer_dev_correctable": "TOTAL_ERR_COR 0",
            },
        )


def _disks(folder: Path, disks: int) -> None:
    names = [f"nvme{index}" for index in range(disks)]
    for name in names:
        report = {
            "device": {"name": f"/dev/{name}", "protocol": "NVMe"},
            "model_name": "Stand-in NVMe 7.68TB",
            "smart_status": {"passed": True},
            "nvme_smart_health_information_log": {
                "critical_warning": 0,
                "available_spare": 100,
                "available_spare_threshold": 10,
                "percentage_used": 3,
                "media_errors": 0,
                "temperature": 38,
            },
        }
        (folder / f"disk-{name}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def set_sysfs(folder: Path, name: str, value: str) -> None:
    """Change one file of the pretended sysfs.

    Args:
        folder: The node's stand-ins.
        name: Such as `class/infiniband/mlx5_0/ports/1/state`.
        value: Its new line.

    Raises:
        NotFoundError: There is no such file.
    """
    root = (folder / "root" / "sys").resolve()
    path = root / name
    if not path.resolve().is_relative_to(root) or not path.is_file():
        raise NotFoundError(f"sys/{name}: not among the stand-ins")
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(f"{value}\n", encoding="utf-8")
    temporary.replace(path)


def device_lines(hardware: Hardware) -> Sequence[str]:
    """tmpfiles.d lines for the GPUs' device nodes; nothing is behind them."""
    lines = [f"c /dev/nvidia{index} 0666 root root - 195:{index}" for index in range(hardware.gpus)]
    return [*lines, "c /dev/nvidiactl 0666 root root - 195:255"] if hardware.gpus else []


def program_names() -> Mapping[str, str]:
    """Programs that stand in on a node: path there -> file in the package's data."""
    return {
        "/usr/local/sbin/smartctl": "stand-in-smartctl",
        "/usr/local/sbin/nvme": "stand-in-nvme",
        "/usr/local/bin/enroot": "stand-in-enroot",
    }


def library_folder() -> str:
    """Where a node's loader looks for the stub library."""
    return f"/usr/lib/{os.uname().machine}-linux-gnu"
