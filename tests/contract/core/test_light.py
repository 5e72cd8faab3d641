"""What must stay light: start-up, and the standard library at core's surface."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import pytest

from kinemill.cli import GROUPS

FLOORS = ("core", "control", "agents", "pipelines", "loaders", "training")
HEAVY = ("numpy", "pyarrow", "torch", "av", "mcap", "obstore", "sqlalchemy", "duckdb", "pynvml", "ansible", "rich")


def modules_after(code: str) -> set[str]:
    """Top-level modules loaded after `code` in a fresh interpreter."""
    script = f"{code}\nimport sys, json\nprint(json.dumps(sorted({{m.split('.')[0] for m in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "code",
    [
        "import kinemill.contracts, kinemill.records, kinemill.settings, kinemill.logs, kinemill.clock",
        "import kinemill.store, kinemill.store.memory, kinemill.slurm, kinemill.slurm.fake",
        "import kinemill.cli; kinemill.cli.run(kinemill.cli.cli, 'kinemill', ['--help'])",
        "import kinemill.agents.cli; kinemill.agents.cli.run(kinemill.agents.cli.node, 'kinemill-node', ['--help'])",
        "import kinemill.episode",
        "import kinemill.control, kinemill.agents, kinemill.pipelines, kinemill.loaders, kinemill.training",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert not modules_after(code) & set(HEAVY)


def test_contracts_need_only_the_standard_library() -> None:
    extra = modules_after("import kinemill.contracts") - set(sys.stdlib_module_names) - {"kinemill", "__main__"}
    baseline = modules_after("pass")  # editable installs and coverage hooks of this environment
    assert not {m for m in extra - baseline if not m.startswith("_")}


def test_every_entry_point_is_in_the_table_and_loads_a_command() -> None:
    import click

    for floor in FLOORS:
        for point in distribution(f"kinemill-{floor}").entry_points.select(group="kinemill.commands"):
            assert GROUPS[point.name][0] == floor, point
            assert isinstance(point.load(), click.Command), point


def test_every_command_has_help_with_an_example() -> None:
    import click

    from kinemill.agents.cli import node

    def walk(command: click.Command, name: str) -> None:
        assert command.help, name
        assert "Example" in command.help, f"{name}: its help has no example"
        if isinstance(command, click.Group):
            ctx = click.Context(command)
            for sub in command.list_commands(ctx):
                found = command.get_command(ctx, sub)
                assert found is not None
                walk(found, f"{name} {sub}")

    walk(node, "kinemill-node")
    for floor in FLOORS:
        for point in distribution(f"kinemill-{floor}").entry_points.select(group="kinemill.commands"):
            walk(point.load(), f"kinemill {point.name}")


def test_config_show_prints_value_and_origin(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('probe_root = "/elsewhere"\n')
    env = {**os.environ, "KINEMILL_CONFIG_DIR": str(tmp_path), "KINEMILL_LOG_LEVEL": "debug"}
    tool = Path(sys.executable).parent / "kinemill"
    done = subprocess.run(
        [tool, "config", "show", "--json"], capture_output=True, text=True, env=env, check=True, timeout=300
    )
    rows = {(r["plane"], r["name"]): (r["value"], r["origin"]) for r in json.loads(done.stdout)["settings"]}
    assert rows["agents", "probe_root"] == ("/elsewhere", str(tmp_path / "agents.toml"))
    assert rows["core", "log_level"] == ("debug", "$KINEMILL_LOG_LEVEL")
    assert rows["core", "log_format"] == ("auto", "default")


def test_config_show_hides_the_passwords_of_urls() -> None:
    secrets = {
        "KINEMILL_CATALOG_URL": "postgresql://kim:hunter2@db/kinemill",
        "KINEMILL_STORE_URL": "s3://corpus/p?endpoint=http://h:1&secret_access_key=hunter3",
    }
    tool = Path(sys.executable).parent / "kinemill"
    for form in ([], ["--json"]):
        done = subprocess.run(
            [tool, "config", "show", "pipelines", *form],
            capture_output=True,
            text=True,
            env={**os.environ, **secrets},
            check=True,
            timeout=300,
        )
        assert "hunter" not in done.stdout + done.stderr
        assert "postgresql://kim:***@db/kinemill" in done.stdout
        assert "s3://corpus/p?endpoint=http://h:1&secret_access_key=***" in done.stdout


@pytest.mark.parametrize(("name", "lines"), [("debug", 2), ("warning", 1)])
def test_commands_log_as_the_settings_say(tmp_path: Path, name: str, lines: int) -> None:
    (tmp_path / "core.toml").write_text(f'log_format = "json"\nlog_level = "{name}"\n')
    code = (
        "import click, logging, sys; from kinemill import cli\n"
        "@click.command()\n"
        "def speak():\n"
        "    for log in (logging.getLogger('kinemill.x'), logging.getLogger('library')):\n"
        "        log.debug('quiet'); log.info('chatter') if log.name == 'library' else None\n"
        "    logging.getLogger('kinemill.x').warning('loud')\n"
        "cli.cli.add_command(speak); sys.argv = ['kinemill', 'speak']; cli.main()"
    )
    env = {**os.environ, "KINEMILL_CONFIG_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True, timeout=300
    )
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["message"]) for line in said] == [
        ("kinemill.x", "quiet"),
        ("kinemill.x", "loud"),
    ][-lines:]


def test_a_broken_core_is_told_once_and_stops_every_other_command(tmp_path: Path) -> None:
    (tmp_path / "core.toml").write_text("log_levle = 'info'\n")
    env = {**os.environ, "KINEMILL_CONFIG_DIR": str(tmp_path)}
    env.pop("KINEMILL_CACHE_DIR", None)
    tool = Path(sys.executable).parent / "kinemill"
    for words in (["config", "show"], ["train", "strategy", "--model", "7b"]):
        done = subprocess.run([tool, *words], capture_output=True, text=True, env=env, check=False, timeout=300)
        assert done.returncode == 78
        assert done.stderr.count("unknown key 'log_levle'; did you mean 'log_level'?") == 1
    assert "Traceback" not in done.stderr


def test_config_show_of_a_misspelt_setting_exits_78_with_the_right_name(tmp_path: Path) -> None:
    (tmp_path / "agents.toml").write_text('prob_root = "/x"\n')
    env = {**os.environ, "KINEMILL_CONFIG_DIR": str(tmp_path)}
    tool = Path(sys.executable).parent / "kinemill"
    done = subprocess.run([tool, "config", "show"], capture_output=True, text=True, env=env, check=False, timeout=300)
    assert done.returncode == 78
    assert "did you mean 'probe_root'" in done.stderr
    done = subprocess.run([tool, "config", "show", "agent"], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert "did you mean 'agents'" in done.stderr
