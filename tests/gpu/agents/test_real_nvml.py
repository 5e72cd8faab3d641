"""The GPU checks on a real driver: every reading is a value or "not supported", never garbage, and in time."""

from __future__ import annotations

import os
from pathlib import Path

from kinemill.agents.context import context_for
from kinemill.agents.node import run_node
from kinemill.agents.runner import PROBE_S, run_probes
from kinemill.agents.settings import AgentsSettings, Hardware
from kinemill.contracts.checks import CheckContext, CheckStatus


def settings(tmp_path: Path) -> AgentsSettings:
    gpus = len([p for p in Path("/dev").glob("nvidia[0-9]*") if p.name.removeprefix("nvidia").isdigit()])
    paths = {"state_dir": tmp_path / "state", "run_dir": tmp_path / "run"}
    return AgentsSettings(hardware=Hardware(gpus=gpus, scratch_dirs=()), **paths)


def test_every_gpu_is_read_within_the_probes_time(tmp_path: Path) -> None:
    facts = run_probes(context_for(CheckContext.CLI, settings(tmp_path), os.environ), ["nvml"])
    assert facts.ended == {"nvml": "ok"}
    assert facts.spent_s["nvml"] < PROBE_S
    for gpu in facts.gpus():
        errors = {name: r.error for name, r in gpu.readings.items() if r.error and not r.not_supported}
        assert errors == {}, f"gpu{gpu.index}"
        assert str(gpu.get("uuid").value).startswith("GPU-")
        assert gpu.get("minor").error is None


def test_a_healthy_machine_has_no_failing_gpu_check(tmp_path: Path) -> None:
    names = ["gpu.nvml", "gpu.count", "gpu.recovery", "gpu.remap", "gpu.ecc", "gpu.mode", "gpu.clocks"]
    outcome = run_node(CheckContext.CLI, settings(tmp_path), names=names)
    bad = [r for r in outcome.report.results if r.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN)]
    assert bad == []
