"""What others reported against their node checks, one test each: the input, and what ours does with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinemill.agents.checks import all_checks
from kinemill.agents.metrics import STALE_S, write_metrics
from kinemill.agents.policy import decide
from kinemill.agents.runner import Report
from kinemill.agents.settings import AgentsSettings, Hardware
from kinemill.agents.skus import load_sku
from kinemill.contracts.checks import CheckClass, CheckContext, CheckResult, CheckStatus
from support.agents import context, e, healthy, judge, v

FAIL, WARN, OK, SKIP, UNKNOWN = (
    CheckStatus.FAIL,
    CheckStatus.WARN,
    CheckStatus.OK,
    CheckStatus.SKIP,
    CheckStatus.UNKNOWN,
)


def said(*texts: str, at: float = 100.0) -> dict[str, Any]:
    """A healthy node whose kernel said these things."""
    return {**healthy(), "kernel.lines": [[at + i, t] for i, t in enumerate(texts)]}


def xid(number: int, text: str = "") -> str:
    return f"NVRM: Xid (PCI:0000:3b:00): {number}, {text}"


def test_a_row_remap_that_is_logged_every_minute_is_no_event() -> None:
    """mej/nhc#147: XID 63 was found every minute and never meant anything."""
    result = judge("gpu.xid", said(*[xid(63, "Row Remapper: new row marked for remapping")] * 50))
    assert result.status is OK
    assert not decide([result], CheckContext.PROLOG).report


def test_a_mount_of_a_user_who_was_logged_in_is_not_demanded() -> None:
    """mej/nhc#27: a generated configuration demanded /run/user/1000. Ours demands what the inventory states only."""
    facts = {**healthy(), "mounts.table": {"/shared": "nfs4 rw"}}
    assert judge("mounts", facts).status is OK
    assert context().settings.hardware.mounts == ("/shared",)


def test_a_daemon_or_gpu_that_nobody_stated_is_not_demanded() -> None:
    """NVIDIA/deepops#703 and #701: NFS on nodes that serve none; a guessed GPU count drained the cluster."""
    ctx = context()
    bare = type(ctx)(CheckContext.PROLOG, AgentsSettings(hardware=Hardware(scratch_dirs=())), load_sku(""), None)
    results = [m.judge_or_skip(bare) for m in map(Checked, all_checks())]
    assert {r.status for r in results if r.check not in ("kernel.log", "host.clock", "pcie.aer", "disk.nvme")} == {SKIP}
    assert not decide(results, CheckContext.PROLOG).refuse


class Checked:
    """A check on a node without facts worth naming."""

    def __init__(self, name: str) -> None:
        self.module = all_checks()[name]

    def judge_or_skip(self, ctx: Any) -> CheckResult:
        """Its answer."""
        from kinemill.agents.facts import Facts

        return self.module.judge(Facts(healthy(), dict.fromkeys(self.module.NEEDS, "ok")), ctx)


def test_a_tool_that_is_missing_cannot_fail_a_prolog() -> None:
    """NVIDIA/deepops#215: a tuning tool was missing for the running kernel and the prolog failed."""
    facts = {**healthy(), "nvme.nvme1": {"missing_tool": "smartctl"}}
    result = judge("disk.nvme", facts)
    assert (result.status, result.cls) == (WARN, CheckClass.CONFIG)
    assert CheckContext.PROLOG not in all_checks()["disk.nvme"].CHECK.contexts
    assert not decide([result], CheckContext.PERIODIC).drain


def test_an_old_xid_ends_with_the_boot_or_with_an_acknowledgement() -> None:
    """Azure/azurehpc PR#648 and leptonai/gpud#1072: an old XID kept the node drained until the log rotated."""
    facts = said(xid(79))
    assert judge("gpu.xid", facts).status is FAIL
    assert judge("gpu.xid", {**facts, "ack.kernel_s": 100.0}).status is OK
    assert judge("gpu.xid", {**healthy(), "kernel.lines": []}).status is OK, "another boot has another log"


def test_links_are_counted_against_the_sku_not_against_the_most_there_are() -> None:
    """Azure/azurehpc-health-checks#162: 12 of 18 NVLinks by design."""
    facts = healthy("a100-8")
    assert facts["gpu.0"]["nvlinks"] == v(12)
    assert judge("gpu.nvlink", facts, context(sku="a100-8")).status is OK
    assert (
        judge("gpu.nvlink", {**facts, "gpu.0": {**facts["gpu.0"], "nvlinks": v(11)}}, context(sku="a100-8")).status
        is FAIL
    )


def test_a_fabric_that_completed_without_success_is_broken() -> None:
    """Azure/azhpc-images#506: state "Completed", status "Insufficient Resources"."""
    facts = healthy()
    facts["gpu.5"]["fabric"] = v([3, 16])
    result = judge("gpu.fabric", facts)
    assert (result.status, result.code) == (FAIL, "fabric_status")


@pytest.mark.parametrize(
    ("jobs", "status", "cls"), [(1, WARN, CheckClass.APP), (2, WARN, CheckClass.APP), (3, FAIL, CheckClass.HARD)]
)
def test_an_application_xid_in_job_after_job_is_hardware(jobs: int, status: CheckStatus, cls: CheckClass) -> None:
    """NVIDIA/NVSentinel#270: XID 13 again and again on the same GPU."""
    result = judge("gpu.xid", {**said(xid(13)), "xid.jobs": {"0000:3b:00": jobs}})
    assert (result.status, result.cls) == (status, cls)
    assert decide([result], CheckContext.PERIODIC).drain is (jobs == 3)


def test_an_idle_gpu_with_no_use_is_healthy() -> None:
    """GoogleCloudPlatform/slurm-gcp#223: a prolog that took 0 % utilisation for broken."""
    ctx = context(CheckContext.PROLOG)
    for name, module in all_checks().items():
        if CheckContext.PROLOG in module.CHECK.contexts:
            assert judge(name, healthy(), ctx).status in (OK, SKIP), name


def test_a_read_only_spool_is_the_nodes_fault_and_a_users_quota_is_not() -> None:
    """ROCm/spur#538: a read-only spool relaunched a job four times a second; EDQUOT is the user's own."""
    sick = {**healthy(), "disk./scratch": {"read_only": True, "write": "Read-only file system"}}
    assert decide([judge("disk.local", sick)], CheckContext.PROLOG).refuse
    full = {**healthy(), "disk./scratch": {"free_percent": 50.0, "write": "Disk quota exceeded"}}
    assert not decide([judge("disk.local", full)], CheckContext.PROLOG).refuse


def test_a_contained_error_does_not_take_the_gpu_away() -> None:
    """NVIDIA/gpu-operator#1065: XID 94 disabled a GPU for ever."""
    result = judge("gpu.xid", said(xid(94, "Contained: SM")))
    assert (result.status, result.cls) == (WARN, CheckClass.APP)
    assert not decide([result], CheckContext.EPILOG).drain


@pytest.mark.parametrize("error", ["LibraryNotFound", "DriverNotLoaded"])
def test_a_driver_that_is_gone_is_a_fault_where_gpus_are_stated(error: str) -> None:
    """facebookresearch/gcm warns only, a runner that guesses the platform from nvidia-smi skips."""
    facts = {**healthy(), "nvml.init": e(error)}
    assert decide([judge("gpu.nvml", facts)], CheckContext.PROLOG).refuse


def shown(tmp_path: Path, *results: CheckResult, now: int) -> str:
    settings = AgentsSettings(state_dir=tmp_path / "state", run_dir=tmp_path / "run", textfile_dir=tmp_path / "prom")
    from kinemill.agents.facts import Facts

    write_metrics(settings, Report(results, Facts(), 0.1), now)
    return (tmp_path / "prom" / "kinemill_node.prom").read_text()


def test_a_result_that_is_no_longer_measured_is_no_longer_shown(tmp_path: Path) -> None:
    """NVIDIA/gpu-monitoring-tools#188: stale values as healthy. NVIDIA/dcgm-exporter#500: a last XID for ever."""
    shown(tmp_path, CheckResult("container.run", OK), CheckResult("gpu.ecc", FAIL), now=1000)
    soon = shown(tmp_path, CheckResult("gpu.ecc", OK), now=1030)
    assert 'kinemill_check_result{check="container.run",class="transient"} 0' in soon
    assert 'kinemill_check_result{check="gpu.ecc",class="transient"} 0' in soon
    late = shown(tmp_path, CheckResult("gpu.ecc", OK), now=1001 + STALE_S)
    assert "container.run" not in late
    assert "kinemill_agent_last_success_timestamp" in late
    assert "xid" not in late, "a kernel message is an event; its check is a state"


def test_a_fault_whose_class_changes_leaves_no_second_series(tmp_path: Path) -> None:
    shown(tmp_path, CheckResult("gpu.remap", FAIL, CheckClass.HARD), now=1000)
    text = shown(tmp_path, CheckResult("gpu.remap", OK), now=1010)
    assert text.count("kinemill_check_result{") == 1


def test_durations_add_up_over_runs(tmp_path: Path) -> None:
    shown(tmp_path, CheckResult("gpu.ecc", OK, seconds=0.2), now=1000)
    text = shown(tmp_path, CheckResult("gpu.ecc", OK, seconds=0.04), now=1010)
    assert 'kinemill_check_seconds_count{check="gpu.ecc"} 2' in text
    assert 'kinemill_check_seconds_bucket{check="gpu.ecc",le="0.05"} 1' in text
    assert 'kinemill_check_seconds_sum{check="gpu.ecc"} 0.24' in text


def test_a_file_of_missing_agents_that_somebody_planted_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "agent_missing").symlink_to("/etc/passwd")
    assert "agent_missing" not in shown(tmp_path, CheckResult("a", OK), now=1)
    (tmp_path / "run" / "agent_missing").unlink()
    (tmp_path / "run" / "agent_missing").write_text("1 prolog 127\n2 prolog 1\n3 evil 1\nshort\n")
    text = shown(tmp_path, CheckResult("a", OK), now=1)
    assert 'kinemill_agent_missing_total{hook="prolog"} 2' in text
    assert "evil" not in text
