"""Every fault at once: what the inventory says, what is installed here, whom one can reach."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from kinemill.control.deploy.reading import Target, has_collection
from kinemill.control.deploy.record import Finding

__all__ = ["TESTED_CORE", "judge_versions", "needed_collections", "preflight_roles", "tools", "version_findings"]

TESTED_CORE = ((2, 19), (2, 20))
"""ansible-core from the first up to, and without, the second."""
_OLDEST_PYTHON = (3, 11)

_TASK = re.compile(r"^\s*(?:- )?(?P<name>[a-z_][a-z0-9_]*\.[a-z_][a-z0-9_]*)\.[a-z_][a-z0-9_.]*:(?:\s|$)")
_OVER_SSH = frozenset({"ssh", "smart", "paramiko", "paramiko_ssh"})


def tools() -> dict[str, str]:
    """What runs here, by name; an empty version where it is not installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("ansible-core", "ansible-runner", "kinemill-control"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def judge_versions(found: dict[str, str]) -> list[Finding]:
    """Compare what runs here with what the roles were tested with.

    Args:
        found: As `tools` gives it.
    """
    findings: list[Finding] = []
    low, high = TESTED_CORE
    core = found.get("ansible-core", "")
    if not core:
        text = "ansible-core is not installed beside this Python"
        findings.append(Finding("version", "ansible-core", text, "install kinemill-control again"))
    elif not low <= _numbers(core) < high:
        text = f"ansible-core {core} is here; the roles need {low[0]}.{low[1]} and below {high[0]}.{high[1]}"
        action = f"install 'ansible-core>={low[0]}.{low[1]},<{high[0]}.{high[1]}'"
        findings.append(Finding("version", "ansible-core", text, action))
    if not found.get("ansible-runner"):
        findings.append(Finding("version", "ansible-runner", "is not installed", "install kinemill-control again"))
    if _numbers(found.get("python", "")) < _OLDEST_PYTHON:
        findings.append(Finding("version", "python", f"{found.get('python')} is too old", "3.11 or newer is needed"))
    return findings


def version_findings(repo: Path, targets: Iterable[Target]) -> list[Finding]:
    """What is missing on this machine: tools, collections, ssh."""
    findings = judge_versions(tools())
    for name, where in sorted(needed_collections(repo).items()):
        if not has_collection(name, repo):
            action = f"ansible-galaxy collection install {name}"
            findings.append(Finding("version", where, f"needs the collection {name}, which is not installed", action))
    if any(target.connection in _OVER_SSH for target in targets) and shutil.which("ssh") is None:
        findings.append(Finding("version", "ssh", "no program ssh here", "apt-get install openssh-client"))
    return findings


def needed_collections(repo: Path) -> dict[str, str]:
    """Collections whose modules roles and playbooks name, each with the first place that does."""
    found: dict[str, str] = {}
    for pattern in ("roles/*/tasks/**/*.y*ml", "roles/*/handlers/*.y*ml", "playbooks/**/*.y*ml"):
        for path in sorted(repo.glob(pattern)):
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                match = _TASK.match(line)
                if match and not match["name"].startswith("ansible.builtin"):
                    found.setdefault(match["name"], f"{path.relative_to(repo)}:{number}")
    return found


def preflight_roles(repo: Path) -> Sequence[str]:
    """Roles that say themselves what they would refuse."""
    return sorted(path.parent.parent.name for path in repo.glob("roles/*/tasks/preflight.yml"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d+", text)[:2])
