"""Facts of golden nodes, and ways to break one thing at a time."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from kinemill.agents.checks import CheckModule, all_checks
from kinemill.agents.context import Context, Job
from kinemill.agents.facts import Facts
from kinemill.agents.settings import AgentsSettings, Hardware
from kinemill.agents.skus import load_sku
from kinemill.contracts.checks import CheckContext, CheckResult

BOOT = "01234567-89ab-cdef-0123-456789abcdef"


def v(value: Any) -> dict[str, Any]:
    """A reading with a value."""
    return {"v": value}


def e(name: str) -> dict[str, Any]:
    """A reading with an NVML error."""
    return {"e": name}


def gpu(index: int, sku: str) -> dict[str, Any]:
    """A healthy, idle GPU of `sku`."""
    limits = load_sku(sku)
    assert limits.nvlinks is not None
    assert limits.pcie_generation is not None
    return {
        "index": index,
        "handle": v(True),
        "uuid": v(f"GPU-{index}"),
        "name": v(f"{limits.gpu_name} 80GB HBM3"),
        "pci": v(f"00000000:{index:02X}:00.0"),
        "recovery": v(0),
        "remap": v([0, 0, 0, 0]),
        "ecc_volatile_uncorrected": v(0),
        "ecc_volatile_corrected": v(0),
        "ecc_aggregate_uncorrected": v(0),
        "ecc_aggregate_corrected": v(0),
        "clock_events": v(0x1),
        "pcie_width": v(16),
        "pcie_generation": v(1),
        "nvlinks": v(limits.nvlinks.value),
        "fabric": v([3, 0]) if sku != "a100-8" else e("NotSupported"),
        "persistence": v(1),
        "mig": v([0, 0]),
        "memory": v({"total": 80 << 30, "used": 600 << 20}),
        "processes": v([]),
        "temperature_c": v(34),
    }


def hardware(sku: str = "h200-8") -> Hardware:
    """What the inventory says of the golden node."""
    return Hardware(
        sku=sku,
        gpus=8,
        gpu_uuids=tuple(f"GPU-{i}" for i in range(8)),
        cpus=192,
        memory_mb=2_000_000,
        mounts=("/shared",),
        scratch_dirs=("/scratch",),
        ethernet=("eth0",),
        infiniband_ports=8,
        nvme_devices=2,
        container_command=("enroot", "version"),
        slurm_conf="/etc/slurm/slurm.conf",
        slurm_conf_sha256="ab" * 32,
    )


def healthy(sku: str = "h200-8", state: str = "idle") -> dict[str, Any]:
    """Facts of a healthy node: `idle`, `busy`, or `after_reboot` with a lifetime of old errors."""
    rate = load_sku(sku).infiniband_rate_gbps
    assert rate is not None
    values: dict[str, Any] = {
        "nvml.init": v(True),
        "nvml.driver": v("570.86.15"),
        "nvml.count": v(8),
        **{f"gpu.{i}": gpu(i, sku) for i in range(8)},
        "kernel.seen": 900,
        "kernel.lost": False,
        "kernel.lines": [[12.5, "nvme nvme0: 64/0/0 default/read/poll queues"]],
        "disk./scratch": {"free_percent": 60.0, "free_inodes_percent": 90.0, "read_only": False, "write": "ok"},
        "nvme.devices": ["nvme0", "nvme1"],
        **{f"nvme.nvme{i}": {"percentage_used": 3, "critical_warning": 0, "media_errors": 0} for i in (0, 1)},
        "mounts.table": {"/shared": "nfs4 rw"},
        "mount./shared": {"ok": True, "blocks": 10},
        "host.cpus_online": 192,
        "host.memory_mb": 1_980_000,
        "clock.state": {"synchronized": True},
        "ib.ports": [
            {
                "port": f"mlx5_{i}/1",
                "state": "4: ACTIVE",
                "phys_state": "5: LinkUp",
                "rate": f"{rate.value} Gb/sec (4X)",
                "link_downed": 1,
            }
            for i in range(8)
        ],
        "eth.eth0": {"present": True, "operstate": "up", "speed_mbps": 100_000, "carrier_down_count": 1},
        "pcie.fatal": {},
        "pcie.nonfatal": {},
        "container.run": {"exit": 0, "last": "3.5.0"},
        "slurm_conf.sha256": "ab" * 32,
    }
    for i in range(8):
        one = values[f"gpu.{i}"]
        if state == "busy":
            one.update(
                pcie_generation=v(5),
                temperature_c=v(74),
                clock_events=v(0x4),
                memory=v({"total": 80 << 30, "used": 70 << 30}),
            )
            one["processes"] = v([4000 + i])
        if state == "after_reboot":
            one.update(ecc_aggregate_corrected=v(250_000), ecc_aggregate_uncorrected=v(7), remap=v([3, 2, 0, 0]))
    return copy.deepcopy(values)


def context(
    kind: CheckContext = CheckContext.PERIODIC, *, sku: str = "h200-8", job: Job | None = None, **changes: Any
) -> Context:
    """The golden node's context; `changes` replace settings."""
    settings = AgentsSettings(probe_root=Path("/nonexistent"), hardware=hardware(sku), **changes)
    return Context(kind, settings, load_sku(settings.hardware.sku), BOOT, job)


def judge(
    name: str, values: dict[str, Any], ctx: Context | None = None, ended: dict[str, str] | None = None
) -> CheckResult:
    """One check's answer to these facts."""
    module: CheckModule = all_checks()[name]
    how = dict.fromkeys(module.NEEDS, "ok") | (ended or {})
    return module.judge(Facts(values, how), ctx or context())
