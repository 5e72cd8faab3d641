"""The shims, as Slurm runs them: no PATH, no HOME; a broken agent lets jobs through, a fault does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinemill.agents.hooks import hook_path
from support.process import patient_python


def run_hook(tmp_path: Path, python: str, toml: str = "", hook: str = "prolog") -> subprocess.CompletedProcess[str]:
    """Run one shim with the environment Slurm gives it."""
    config = tmp_path / "etc"
    config.mkdir(exist_ok=True)
    paths = {"state_dir": "state", "run_dir": "run", "kernel_log": "kmsg"}
    text = "".join(f'{key} = "{tmp_path / name}"\n' for key, name in paths.items()) + toml
    (config / "agents.toml").write_text(text)
    (tmp_path / "kmsg").touch()
    env = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_UID": "1000",
        "KINEMILL_CONFIG_DIR": str(config),
        "KINEMILL_AGENT_PYTHON": python,
        "KINEMILL_RUN_DIR": str(tmp_path / "shim"),
    }
    return subprocess.run(
        ["/bin/sh", str(hook_path(hook))], env=env, capture_output=True, text=True, check=False, cwd="/", timeout=300
    )


NO_DISKS = "[hardware]\nscratch_dirs = []\n"


@pytest.mark.parametrize("hook", ["prolog", "epilog", "healthcheck"])
def test_a_healthy_node_lets_the_job_through_in_silence(tmp_path: Path, hook: str) -> None:
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS, hook)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "shim" / "agent_missing").exists()
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert (verdict["event"], verdict["reason"]) == ("", "")
    assert (tmp_path / "run" / "verdict.json").stat().st_mode & 0o777 == 0o600


def test_a_measured_fault_refuses_and_leaves_a_reason_for_the_reporter(tmp_path: Path) -> None:
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "cpus = 100000\n")
    assert done.returncode == 1
    assert "host.cpus" in done.stderr
    verdict = json.loads((tmp_path / "run" / "verdict.json").read_text())
    assert verdict["reason"].startswith(f"kinemill1|host.cpus|H|cpus_missing|{verdict['event']}|")
    assert verdict["job_id"] == 77
    again = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "cpus = 100000\n")
    assert again.returncode == 1
    assert json.loads((tmp_path / "run" / "verdict.json").read_text())["event"] == verdict["event"]


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "missing"),
        ("exit 1", "crash: a traceback also exits 1"),
        ("exit 2", "usage"),
        ("kill -9 $$", "killed"),
        ("exit 78", "a broken configuration"),
    ],
)
def test_a_broken_agent_never_drains_a_node_and_is_counted(tmp_path: Path, script: str | None, why: str) -> None:
    python = tmp_path / "python"
    if script is not None:
        python.write_text(f"#!/bin/sh\n{script}\n")
        python.chmod(0o755)
    done = run_hook(tmp_path, str(python))
    assert done.returncode == 0, why
    (line,) = (tmp_path / "shim" / "agent_missing").read_text().splitlines()
    assert line.split()[1] == "prolog"


@pytest.mark.parametrize("hook", ["prolog", "epilog", "healthcheck"])
def test_a_log_that_takes_no_word_holds_no_job_up(tmp_path: Path, hook: str) -> None:
    """A node whose journal hangs is sick enough to lose its agent too."""
    (tmp_path / "logger").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "logger").chmod(0o755)
    shim = hook_path(hook).read_text()
    assert "PATH=/usr/sbin" in shim
    env = {"KINEMILL_AGENT_PYTHON": str(tmp_path / "none"), "KINEMILL_RUN_DIR": str(tmp_path / "shim")}
    command = ["/bin/sh", "-c", shim.replace("PATH=/usr/sbin", f"PATH={tmp_path}:/usr/sbin")]
    done = subprocess.run(command, env=env, capture_output=True, check=False, cwd="/", timeout=300)
    assert done.returncode == 0
    assert (tmp_path / "shim" / "agent_missing").exists()


def test_a_misspelt_setting_is_let_through_and_counted_not_drained(tmp_path: Path) -> None:
    done = run_hook(tmp_path, patient_python(tmp_path), "[hardware]\ngpu = 8\n")
    assert done.returncode == 0
    assert "did you mean 'gpus'" in done.stderr
    assert (tmp_path / "shim" / "agent_missing").exists()


def test_the_second_unknown_in_a_row_refuses(tmp_path: Path) -> None:
    toml = NO_DISKS + 'gpus = 8\n[checks]\ndisabled = ["gpu.nvml"]\n'
    missing = run_hook(tmp_path, patient_python(tmp_path), toml)
    assert missing.returncode == 0
    second = run_hook(tmp_path, patient_python(tmp_path), toml)
    assert second.returncode == 1
    assert "|T|" in json.loads((tmp_path / "run" / "verdict.json").read_text())["reason"]


def test_a_missing_library_refuses_at_once(tmp_path: Path) -> None:
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "gpus = 8\n")
    assert done.returncode == 1
    assert "library_missing" in json.loads((tmp_path / "run" / "verdict.json").read_text())["reason"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could have written there anyway; run as root")
def test_a_state_folder_that_cannot_be_written_does_not_change_the_decision(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file where the folder should be")
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "cpus = 100000\n")
    assert done.returncode == 1
    assert "could not be written" in done.stderr


WORDS = "host.cpus FAIL cpus_missing"


@pytest.mark.parametrize("core", ["", 'log_format = "json"\n', 'log_format = "json"\nlog_level = "error"\n'])
def test_what_a_hook_says_is_one_json_line_an_event(tmp_path: Path, core: str) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "core.toml").write_text(core)
    (tmp_path / "state").write_text("a file where the folder should be")
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "cpus = 100000\n")
    assert done.returncode == 1
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    told = [line for line in lines if line.get("check") == "host.cpus"]
    assert [(line["level"], line["logger"], line["status"]) for line in told] == [
        ("error", "kinemill.agents.hook", "FAIL")
    ]
    assert told[0]["message"].startswith(WORDS)
    unwritten = [line["level"] for line in lines if "could not be written" in line["message"]]
    assert bool(unwritten) is ("error" not in core)
    assert set(unwritten) <= {"warning"}


def test_a_hook_says_it_as_text_where_core_asks_for_that(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "core.toml").write_text('log_format = "text"\n')
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + "cpus = 100000\n")
    assert done.returncode == 1
    assert f" error   {WORDS}" in done.stderr
    assert "{" not in done.stderr


@pytest.mark.parametrize(("toml", "code"), [("cpus = 100000\n", 1), ("", 0)])
def test_a_broken_core_toml_decides_over_no_job(tmp_path: Path, toml: str, code: int) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "core.toml").write_text("log_fromat = 'json'\n")
    done = run_hook(tmp_path, patient_python(tmp_path), NO_DISKS + toml)
    assert done.returncode == code
    assert not (tmp_path / "shim" / "agent_missing").exists()
    messages = [json.loads(line)["message"] for line in done.stderr.splitlines()]
    if code:
        assert "did you mean 'log_format'" in messages[0]
        assert any(message.startswith(WORDS) for message in messages)
    else:
        assert messages == []


def test_a_command_of_the_node_logs_in_the_same_format(tmp_path: Path) -> None:
    (tmp_path / "kmsg").touch()
    (tmp_path / "state").write_text("a file where the folder should be")
    (tmp_path / "agents.toml").write_text(
        f'state_dir = "{tmp_path}/state"\nrun_dir = "{tmp_path}/run"\nkernel_log = "{tmp_path}/kmsg"\n'
    )
    (tmp_path / "core.toml").write_text('log_format = "json"\n')
    done = subprocess.run(
        [Path(sys.executable).parent / "kinemill-node", "check", "host.cpus", "--json"],
        env={**os.environ, "KINEMILL_CONFIG_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert json.loads(done.stdout)["results"][0]["check"] == "host.cpus"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert any("could not be written" in line["message"] and line["level"] == "warning" for line in lines)


def test_python_is_isolated_from_the_jobs_folder(tmp_path: Path) -> None:
    evil = tmp_path / "kinemill"
    evil.mkdir()
    (evil / "__init__.py").write_text("raise SystemExit(100)")
    done = subprocess.run(
        [sys.executable, "-I", "-m", "kinemill.agents.cli", "facts"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0
    assert "boot_id" in done.stdout
