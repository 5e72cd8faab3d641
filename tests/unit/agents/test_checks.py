"""Healthy nodes pass everything; each fault is found by its check, named, and of the right class."""

from __future__ import annotations

from typing import Any

import pytest

from kinemill.agents.checks import all_checks
from kinemill.agents.context import Job
from kinemill.agents.facts import Facts
from kinemill.agents.settings import CheckSettings, Hardware
from kinemill.agents.skus import load_sku, sku_names
from kinemill.contracts.checks import CheckClass, CheckContext, CheckStatus, FixAction
from kinemill.contracts.fleet import DrainEvent, format_reason
from kinemill.errors import ConfigError
from support.agents import context, e, healthy, judge, v

FAIL, WARN, OK, SKIP, UNKNOWN = (
    CheckStatus.FAIL,
    CheckStatus.WARN,
    CheckStatus.OK,
    CheckStatus.SKIP,
    CheckStatus.UNKNOWN,
)
T, H, CONF, APP = CheckClass.TRANSIENT, CheckClass.HARD, CheckClass.CONFIG, CheckClass.APP


@pytest.mark.parametrize("sku", sku_names())
@pytest.mark.parametrize("state", ["idle", "busy", "after_reboot"])
def test_a_healthy_node_passes_every_check(sku: str, state: str) -> None:
    kind = CheckContext.PERIODIC if state == "busy" else CheckContext.PROLOG
    ctx = context(kind, sku=sku)
    for name, module in all_checks().items():
        if kind in module.CHECK.contexts or state != "busy":
            result = judge(name, healthy(sku, state), ctx)
            assert result.status in (OK, SKIP), result


def gpu3(**readings: Any) -> dict[str, Any]:
    """A node whose GPU 3 has other readings."""
    values = healthy()
    values["gpu.3"].update(readings)
    return values


def node(**facts: Any) -> dict[str, Any]:
    """A node with other facts; `__` stands for a dot."""
    return {**healthy(), **{k.replace("__", "."): x for k, x in facts.items()}}


def lines(*texts: str) -> dict[str, Any]:
    """A node whose kernel said these things."""
    return node(kernel__lines=[[100.0 + i, t] for i, t in enumerate(texts)])


XID = "NVRM: Xid (PCI:0000:3b:00): {}, pid=1, name=python, text"

FAULTS: list[tuple[str, dict[str, Any], CheckStatus, CheckClass, str]] = [
    ("gpu.nvml", node(nvml__init=e("LibraryNotFound")), FAIL, T, "library_missing"),
    ("gpu.nvml", node(nvml__init=e("DriverNotLoaded")), FAIL, T, "driver_not_loaded"),
    ("gpu.nvml", node(nvml__init=e("Unknown")), UNKNOWN, T, "nvml_no_answer"),
    ("gpu.count", node(nvml__count=v(7)), FAIL, T, "gpu_count"),
    ("gpu.count", gpu3(ecc_volatile_corrected=e("GpuIsLost")), FAIL, T, "gpu_lost"),
    ("gpu.count", gpu3(uuid=v("GPU-other")), FAIL, H, "gpu_uuid"),
    ("gpu.count", gpu3(name=v("NVIDIA L4")), FAIL, CONF, "gpu_model"),
    ("gpu.count", node(nvml__count=e("Unknown")), UNKNOWN, T, "count_unknown"),
    ("gpu.recovery", gpu3(recovery=v(1)), FAIL, T, "recovery_reset"),
    ("gpu.recovery", gpu3(recovery=v(2)), FAIL, T, "recovery_reboot"),
    ("gpu.recovery", gpu3(recovery=v(99)), UNKNOWN, T, "recovery_unknown"),
    ("gpu.remap", gpu3(remap=v([1, 0, 1, 0])), FAIL, T, "remap_pending"),
    ("gpu.remap", gpu3(remap=v([1, 0, 1, 1])), FAIL, H, "remap_failure"),
    ("gpu.remap", gpu3(remap=v("garbage")), UNKNOWN, T, "remap_garbage"),
    ("gpu.ecc", gpu3(ecc_volatile_uncorrected=v(1)), FAIL, T, "ecc_vol_unc"),
    ("gpu.ecc", gpu3(ecc_volatile_corrected=v(30_000)), WARN, T, "ecc_vol_cor"),
    ("gpu.ecc", gpu3(ecc_volatile_corrected=v(250_000)), FAIL, T, "ecc_vol_cor"),
    ("gpu.ecc", gpu3(ecc_volatile_corrected=e("Unknown")), UNKNOWN, T, "nvml_unknown"),
    ("gpu.clocks", gpu3(clock_events=v(0x48)), FAIL, T, "hw_thermal"),
    ("gpu.clocks", gpu3(clock_events=v(0x80)), FAIL, T, "power_brake"),
    ("gpu.clocks", gpu3(clock_events=v(0x20)), WARN, T, "sw_thermal"),
    ("gpu.pcie", gpu3(pcie_width=v(8)), FAIL, T, "pcie_width"),
    ("gpu.pcie", gpu3(pcie_width=v(0)), UNKNOWN, T, "pcie_width_zero"),
    ("gpu.pcie", gpu3(pcie_generation=v(3), processes=v([7])), WARN, T, "pcie_gen"),
    ("gpu.nvlink", gpu3(nvlinks=v(17)), FAIL, T, "nvlink_down"),
    ("gpu.fabric", gpu3(fabric=v([3, 5])), FAIL, T, "fabric_status"),
    ("gpu.fabric", gpu3(fabric=v([2, 0])), UNKNOWN, T, "fabric_not_ready"),
    ("gpu.fabric", gpu3(fabric=v(None)), UNKNOWN, T, "fabric_garbage"),
    ("gpu.mode", gpu3(persistence=v(0)), WARN, T, "persistence_off"),
    ("gpu.mode", gpu3(mig=v([1, 1])), FAIL, CONF, "mig_mode"),
    ("gpu.temperature", gpu3(temperature_c=v(91)), WARN, T, "gpu_hot"),
    ("gpu.xid", lines(XID.format(79)), FAIL, T, "xid_79"),
    ("gpu.xid", lines(XID.format(64)), FAIL, H, "xid_64"),
    ("gpu.xid", lines(XID.format(31)), WARN, APP, "xid_31"),
    ("gpu.xid", lines(XID.format(999)), WARN, T, "xid_999"),
    ("gpu.xid", {**lines(XID.format(31)), "xid.jobs": {"0000:3b:00": 3}}, FAIL, H, "xid_repeated"),
    ("gpu.xid", lines("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24001, Fatal, Link 5"), FAIL, T, "sxid_fatal"),
    ("gpu.xid", lines("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 11012, Non-fatal, Link 5"), WARN, T, "sxid"),
    ("gpu.xid", node(kernel__lost=True), WARN, T, "kernel_log_lost"),
    ("kernel.log", lines("EXT4-fs (nvme0n1p2): Remounting filesystem read-only"), FAIL, T, "remount_ro"),
    ("kernel.log", lines("mce: [Hardware Error]: Machine check events logged"), WARN, T, "mce_corrected"),
    (
        "kernel.log",
        lines("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: 8c00004000010090"),
        WARN,
        T,
        "mce_corrected",
    ),
    ("kernel.log", lines("[Hardware Error]: Corrected error, no action required."), WARN, T, "mce_corrected"),
    ("kernel.log", lines("{1}[Hardware Error]: event severity: corrected"), WARN, T, "mce_corrected"),
    ("kernel.log", lines("mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 7: bd80000000100134"), FAIL, T, "mce"),
    ("kernel.log", lines("mce: [Hardware Error]: CPU 1: Machine Check Exception: 5 Bank 4: 0"), FAIL, T, "mce"),
    ("kernel.log", lines("[Hardware Error]: Uncorrected, software restartable error."), FAIL, T, "mce"),
    ("kernel.log", lines("mce: Uncorrected hardware memory error in user-access at 3f00"), FAIL, T, "mce"),
    ("kernel.log", lines("{1}[Hardware Error]: event severity: fatal"), FAIL, T, "mce"),
    ("kernel.log", lines("INFO: task python:77 blocked for more than 120 seconds."), WARN, T, "hung_task"),
    ("kernel.log", lines("Out of memory: Killed process 77 (python)"), WARN, APP, "oom"),
    ("kernel.log", lines("pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received"), FAIL, T, "aer_fatal"),
    (
        "disk.local",
        node(**{"disk./scratch": {"read_only": True, "write": "Read-only file system"}}),
        FAIL,
        T,
        "read_only",
    ),
    ("disk.local", node(**{"disk./scratch": {"free_percent": 1.0, "write": "ok"}}), FAIL, T, "full"),
    (
        "disk.local",
        node(**{"disk./scratch": {"free_percent": 50.0, "write": "Input/output error"}}),
        FAIL,
        T,
        "write_probe",
    ),
    ("disk.local", node(**{"disk./scratch": {"error": "No such file or directory"}}), FAIL, CONF, "disk_missing"),
    ("disk.nvme", node(nvme__devices=["nvme0"]), FAIL, H, "nvme_count"),
    ("disk.nvme", node(nvme__nvme1={"percentage_used": 95, "critical_warning": 0}), WARN, T, "nvme_worn"),
    ("disk.nvme", node(nvme__nvme1={"percentage_used": 5, "critical_warning": 4}), FAIL, H, "nvme_critical"),
    ("disk.nvme", node(nvme__nvme1={"missing_tool": "smartctl"}), WARN, CONF, "smart_missing"),
    ("disk.nvme", node(nvme__nvme1={"error": "smartctl exited 2 without a health log"}), UNKNOWN, T, "smart_unread"),
    ("mounts", node(mounts__table={"/shared": None}), FAIL, T, "not_mounted"),
    ("mounts", node(**{"mount./shared": {"probing": True}}), UNKNOWN, T, "mount_slow"),
    ("mounts", node(**{"mount./shared": {"probing": True}, "mount.hung": {"/shared": 2}}), UNKNOWN, T, "mount_slow"),
    ("mounts", node(**{"mount./shared": {"probing": True}, "mount.hung": {"/shared": 30}}), FAIL, T, "mount_hang"),
    ("mounts", node(**{"mount./shared": {"error": "Stale file handle"}}), FAIL, T, "mount_error"),
    ("host.cpus", node(host__cpus_online=191), FAIL, H, "cpus_missing"),
    ("host.memory", node(host__memory_mb=1_900_000), FAIL, H, "memory_missing"),
    ("host.clock", node(clock__state={"synchronized": False}), WARN, CONF, "clock_unsynced"),
    ("net.infiniband", node(ib__ports=healthy()["ib.ports"][:7]), FAIL, T, "ib_down"),
    (
        "net.infiniband",
        node(ib__ports=[{**p, "rate": "100 Gb/sec"} for p in healthy()["ib.ports"]]),
        FAIL,
        T,
        "ib_rate",
    ),
    ("net.infiniband", node(ib__ports=[{**p, "link_downed": 99} for p in healthy()["ib.ports"]]), WARN, T, "ib_flaps"),
    ("net.ethernet", node(eth__eth0={"present": False}), FAIL, H, "eth_missing"),
    ("net.ethernet", node(eth__eth0={"present": True, "operstate": "down"}), FAIL, T, "eth_down"),
    ("pcie.aer", node(pcie__fatal={"0000:3b:00.0": 2}), FAIL, T, "aer_fatal"),
    ("pcie.aer", node(pcie__nonfatal={"0000:3b:00.0": 2}), WARN, T, "aer_nonfatal"),
    ("container.run", node(container__run={"exit": 1, "last": "cannot mount"}), FAIL, T, "container_fails"),
    ("container.run", node(container__run={"error": "No such file or directory"}), FAIL, CONF, "container_missing"),
    ("slurm.conf", node(**{"slurm_conf.sha256": "cd" * 32}), FAIL, CONF, "slurm_conf_drift"),
]


@pytest.mark.parametrize(
    ("name", "values", "status", "cls", "code"), FAULTS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_fault_is_found_and_classed(
    name: str, values: dict[str, Any], status: CheckStatus, cls: CheckClass, code: str
) -> None:
    result = judge(name, values)
    assert (result.status, result.code) == (status, code), result
    assert result.cls is cls
    assert len(result.detail) <= 80
    if status is FAIL:
        assert result.source, "a failing result says where its limit comes from"
        if cls.letter:
            assert format_reason(DrainEvent(name, cls.letter, code, "00000000", result.detail))


@pytest.mark.parametrize("name", sorted(all_checks()))
def test_a_check_without_facts_has_not_passed(name: str) -> None:
    ctx = context(CheckContext.PROLOG)
    result = all_checks()[name].judge(Facts(ended=dict.fromkeys(all_checks()[name].NEEDS, "timeout")), ctx)
    assert result.status in (UNKNOWN, SKIP), result
    if result.status is SKIP:
        assert name == "host.clock", "only the clock has nothing to say without a time service"


@pytest.mark.parametrize("name", sorted(all_checks()))
@pytest.mark.parametrize("garbage", [None, 7, "x", [], {}, [[1]], {"v": "x"}, {"e": 3}])
def test_garbage_is_an_answer_or_a_caught_error_and_never_ok_for_a_gpu(name: str, garbage: Any) -> None:
    values = dict.fromkeys(healthy(), garbage)
    try:
        result = judge(name, values, context(CheckContext.PROLOG))
    except (TypeError, ValueError, AttributeError, LookupError):
        return  # the runner turns this into UNKNOWN
    if name.startswith("gpu.") and name not in ("gpu.xid", "gpu.nvml"):
        assert result.status is not OK


def test_a_job_on_a_shared_node_is_judged_by_its_own_gpus() -> None:
    values = gpu3(ecc_volatile_uncorrected=v(1))
    other = context(CheckContext.PROLOG, job=Job(1, gpus=(0, 1)))
    mine = context(CheckContext.PROLOG, job=Job(1, gpus=(3,)))
    assert judge("gpu.ecc", values, other).status is OK
    assert judge("gpu.ecc", values, mine).status is FAIL


def test_an_xid_on_a_neighbours_gpu_refuses_no_job_and_drains_the_node_all_the_same() -> None:
    values = lines(XID.format(79))
    for i in range(8):
        values[f"gpu.{i}"]["pci"] = v(f"00000000:{0x38 + i:02X}:00.0")  # 3b is gpu 3
        values[f"gpu.{i}"]["minor"] = v(i)

    def prolog(*gpus: int) -> CheckStatus:
        return judge("gpu.xid", values, context(CheckContext.PROLOG, job=Job(1, gpus=gpus))).status

    assert (prolog(0, 1), prolog(3)) == (OK, FAIL)
    assert judge("gpu.xid", values).status is FAIL, "a full round judges all"
    assert judge("gpu.xid", values, context(CheckContext.PROLOG, job=Job(1, gpus=None))).status is FAIL
    values["kernel.lines"].append([200.0, "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24001, Fatal, Link 5"])
    assert prolog(0, 1) is FAIL, "a switch is everybody's"
    values["kernel.lines"].pop()
    values["gpu.3"] = {"index": 3, "handle": e("GpuIsLost")}
    assert prolog(0, 1) is FAIL, "nobody knows any more whose it is"


@pytest.mark.parametrize(
    "text",
    [
        "mce: CPU supports 32 MCE banks",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: CPU12: Core temperature/speed normal",
        "Memory failure handling: enabled",
    ],
)
def test_what_a_healthy_kernel_says_of_machine_checks_is_no_finding(text: str) -> None:
    assert judge("kernel.log", lines(text)).status is OK


def test_processes_left_on_a_gpu_fail_a_prolog_and_only_warn_a_person() -> None:
    values = gpu3(processes=v([4242]))
    assert judge("gpu.leftover", values, context(CheckContext.PROLOG)).code == "gpu_process"
    assert judge("gpu.leftover", values, context(CheckContext.CLI)).status is WARN
    values = gpu3(memory=v({"total": 80 << 30, "used": 20 << 30}))
    assert judge("gpu.leftover", values, context(CheckContext.PROLOG)).code == "gpu_memory"


def test_gpus_are_matched_by_device_file_not_by_the_librarys_order() -> None:
    values = healthy()
    for i in range(8):
        values[f"gpu.{i}"]["minor"] = v(7 - i)
    values["gpu.0"]["ecc_volatile_uncorrected"] = v(1)  # /dev/nvidia7
    assert judge("gpu.ecc", values, context(CheckContext.PROLOG, job=Job(1, gpus=(7,)))).status is FAIL
    assert judge("gpu.ecc", values, context(CheckContext.PROLOG, job=Job(1, gpus=(0,)))).status is OK


def test_a_job_without_gpus_is_not_refused_for_its_neighbours_processes() -> None:
    values = gpu3(processes=v([4242]))
    cpu_job = context(CheckContext.PROLOG, job=Job(1, gpus=None))
    assert judge("gpu.leftover", {**values, "job.lists": True}, cpu_job).status is SKIP
    assert judge("gpu.leftover", values, cpu_job).status is WARN, "whose they are is not known"


def test_old_row_remaps_and_lifetime_errors_pass() -> None:
    values = gpu3(ecc_aggregate_corrected=v(250_000), ecc_aggregate_uncorrected=v(9), remap=v([0, 5, 0, 0]))
    result = judge("gpu.ecc", values)
    assert result.status is OK
    assert result.evidence["gpu3.aggregate_corrected"] == "250000"
    assert judge("gpu.remap", values).status is OK


def test_gpus_without_a_feature_are_not_faulty() -> None:
    values = healthy()
    for i in range(8):
        for name in ("ecc_volatile_uncorrected", "ecc_volatile_corrected", "remap", "nvlinks", "mig", "recovery"):
            values[f"gpu.{i}"][name] = e("NotSupported")
    for check in ("gpu.ecc", "gpu.remap", "gpu.nvlink", "gpu.recovery"):
        assert judge(check, values).status is SKIP
    for i in range(8):
        values[f"gpu.{i}"]["recovery"] = e("FunctionNotFound")
    assert judge("gpu.recovery", values).status is SKIP


def test_a_gpu_that_was_not_reached_before_a_hang_is_unknown() -> None:
    values = healthy()
    del values["gpu.7"]
    result = judge("gpu.ecc", values, ended={"nvml": "timeout"})
    assert result.status is UNKNOWN
    assert "gpu7" in result.detail


def test_an_acknowledged_xid_counts_no_more_and_a_later_one_does() -> None:
    values = {**lines(XID.format(79)), "ack.kernel_s": 100.5}
    assert judge("gpu.xid", values).status is OK
    values["kernel.lines"].append([200.0, XID.format(79)])
    assert judge("gpu.xid", values).status is FAIL


def test_a_site_overrides_an_xid_and_the_result_says_so() -> None:
    ctx = context(checks=CheckSettings(xid_actions={"109": "reboot", "79": "none"}))
    result = judge("gpu.xid", lines(XID.format(109)), ctx)
    assert (result.status, result.action, result.source) == (FAIL, FixAction.REBOOT, "site override")
    assert judge("gpu.xid", lines(XID.format(79)), ctx).status is OK


def test_a_users_quota_is_not_the_nodes_fault() -> None:
    values = node(**{"disk./scratch": {"free_percent": 50.0, "write": "Disk quota exceeded"}})
    assert judge("disk.local", values).status is OK


def test_a_node_without_gpus_skips_gpu_checks_only() -> None:
    ctx = context()
    bare = type(ctx)(ctx.context, type(ctx.settings)(hardware=Hardware(cpus=192)), load_sku(""), None)
    for name in all_checks():
        if name.startswith("gpu."):
            assert judge(name, node(nvml__init=e("LibraryNotFound")), bare).status is SKIP
    assert judge("host.cpus", node(host__cpus_online=3), bare).status is FAIL


def test_an_unknown_sku_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="did you mean 'h200-8'"):
        load_sku("h200-x8")
    with pytest.raises(ConfigError, match="no file of limits"):
        load_sku("../../etc/passwd")


def test_every_limit_names_its_source() -> None:
    for name in sku_names():
        sku = load_sku(name)
        for field in sku.__slots__:
            limit = getattr(sku, field)
            if hasattr(limit, "source"):
                assert limit.source.split(":")[0].split(" ")[0] in {"vendor", "guess", "measured", "operators'", "NVMe"}
