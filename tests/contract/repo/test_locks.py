"""The locks: complete, equal across planes, for any index, and without torch."""

from __future__ import annotations

import re

import pytest
from packaging.requirements import Requirement

from support.repo import DISTRIBUTIONS, ROOT, lock_pins, name_of, project

LOCKS = ("all", *DISTRIBUTIONS, "airflow")
OUTSIDE = {"torch", "triton"}  # installed by pip before the locks


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_no_index_and_no_host(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    assert re.findall(r".*(?:://|--index|--extra-index|--find-links|--trusted-host|\bfile:).*", text) == []


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_holds_no_torch_and_no_gpu_stack(name: str) -> None:
    gpu = {pin for pin in lock_pins(name) if pin in OUTSIDE or pin.startswith(("nvidia-", "cuda-", "triton"))}
    assert gpu <= {"nvidia-ml-py"}


@pytest.mark.parametrize("name", LOCKS)
def test_every_pin_has_its_hashes(name: str) -> None:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    entries = re.findall(r"^\S+==.*(?:\n    .*)*", text, flags=re.MULTILINE)
    assert entries
    assert [entry.split(" ")[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("plane", DISTRIBUTIONS)
def test_every_dependency_of_a_distribution_is_in_its_planes_lock(plane: str) -> None:
    pins = lock_pins(plane)
    table = project(plane)
    wanted = list(table["dependencies"])
    for extra in table.get("optional-dependencies", {}).values():
        wanted += extra
    for text in wanted:
        requirement = Requirement(text)
        name = name_of(requirement.name)
        if name.startswith("kinemill-") or name in OUTSIDE:
            continue
        assert name in pins, f"{plane}: {text} is not in requirements/{plane}.txt: make lock"
        assert all(requirement.specifier.contains(version) for version in pins[name]), (
            f"{plane}: {text} is locked at {pins[name]}: make lock"
        )


@pytest.mark.parametrize("name", ["dev", "airflow"])
def test_every_hand_written_requirement_is_locked(name: str) -> None:
    lines = (ROOT / "requirements" / f"{name}.in").read_text().splitlines()
    wanted = {name_of(line) for line in lines if line and not line.startswith("#")}
    assert wanted
    assert wanted - set(lock_pins("all" if name == "dev" else name)) == set()


@pytest.mark.parametrize("plane", DISTRIBUTIONS)
def test_a_plane_runs_the_versions_that_are_tested_together(plane: str) -> None:
    everything = lock_pins("all")
    assert {name: versions for name, versions in lock_pins(plane).items() if everything.get(name) != versions} == {}


def test_the_versions_that_ran_together_are_the_ones_locked() -> None:
    pins = lock_pins("all") | {name: found for name, found in lock_pins("airflow").items() if "airflow" in name}
    lines = (ROOT / "requirements" / "pins.in").read_text().splitlines()
    pinned = [Requirement(line) for line in lines if line and not line.startswith("#")]
    assert len(pinned) > 10
    for requirement in pinned:
        versions = pins[name_of(requirement.name)]
        assert all(requirement.specifier.contains(version) for version in versions), f"{requirement}: {versions}"


def test_agents_stay_light() -> None:
    assert set(lock_pins("agents")) == {"click", "nvidia-ml-py"}
