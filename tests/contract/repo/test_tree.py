"""The tree: six distributions, one namespace, and nothing in it that belongs to one machine."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

from support.repo import DISTRIBUTIONS, ROOT, name_of, project, tracked

# Spelled in pieces, so that this file does not name them either.
REGISTRY_HOSTS = re.compile(
    "|".join(["py" + r"pi\.org", "python" + "hosted", r"deb" + r"\.debian", "registry" + r"\.npm"])
)
MACHINE_PATHS = re.compile(r"(?<![\w./-])/" + r"(?:work|root|home/\w+|tmp/k)/[\w.]")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_is_complete(name: str) -> None:
    table = project(name)
    package = ROOT / name / "src" / "kinemill"
    assert table["name"] == f"kinemill-{name}"
    assert table["license"] == "Apache-2.0"
    assert not (package / "__init__.py").exists(), "the namespace is shared: no __init__.py at this level"
    assert (package / "py.typed" if name == "core" else package / name / "py.typed").is_file()


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distributions_readme_names_what_it_needs(name: str) -> None:
    text = (ROOT / name / "README.md").read_text().lower()
    assert len(text) > 200
    missing = [
        dependency for dependency in map(name_of, project(name)["dependencies"]) if dependency.split("-")[0] not in text
    ]
    assert missing == []


def test_all_distributions_have_one_version() -> None:
    assert len({project(name)["version"] for name in DISTRIBUTIONS}) == 1


def test_every_command_group_belongs_to_the_distribution_that_declares_it() -> None:
    wrong = [
        f"{name}: {group} = {target}"
        for name in DISTRIBUTIONS
        for group, target in project(name).get("entry-points", {}).get("kinemill.commands", {}).items()
        if not target.startswith("kinemill." if name == "core" else f"kinemill.{name}")
    ]
    assert wrong == []


def test_no_file_names_a_package_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in tracked():
        if path.suffix in {".png", ".mcap", ".bin", ".parquet", ".gz"}:
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for pattern in (REGISTRY_HOSTS, MACHINE_PATHS):
            found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_hooks_are_local() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"] for repo in config["repos"]} == {"local"}
    assert {hook["language"] for repo in config["repos"] for hook in repo["hooks"]} == {"system"}


def test_ansible_lint_is_strict_offline_and_skips_no_rule() -> None:
    config = yaml.safe_load((ROOT / ".ansible-lint").read_text())
    assert config["profile"] == "production"
    assert config["offline"] is True
    assert not {"skip_list", "warn_list"} & set(config)


def test_pytest_turns_warnings_into_errors_and_mypy_is_strict() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert tools["pytest"]["ini_options"]["filterwarnings"][0] == "error"
    assert tools["mypy"]["strict"] is True
    assert tools["importlinter"]["root_packages"] == ["kinemill"]


def test_every_decision_is_listed_and_has_a_status() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    pages = sorted(folder.glob("[0-9]*.md"))
    assert [path.name for path in pages if f"({path.name})" not in index] == []
    assert [path.name for path in pages if "\nStatus: " not in path.read_text()] == []
    numbers = [path.name[:4] for path in pages]
    assert len(numbers) == len(set(numbers)), "two decisions have one number"


def test_the_log_of_long_runs_is_a_table() -> None:
    lines = (ROOT / "docs" / "full-runs.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("|")][2:]
    bad = [
        row
        for row in rows
        if not re.fullmatch(r"\| \d{4}-\d\d-\d\d \| [\w-]+ \| [0-9a-f]{7,40} \| [\d.]+ \| .+ \|", row)
    ]
    assert bad == [], "date | area | commit | minutes | result"
