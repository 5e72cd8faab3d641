"""What the documents tell a reader to type exists."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from kinemill.cli import GROUPS
from support.repo import DISTRIBUTIONS, ROOT, project, tracked

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [path for path in tracked("*.md") if path.name != "CHANGELOG.md"]
MAKEFILES = [ROOT / "Makefile", *sorted((ROOT / "mk").glob("*.mk"))]
TARGETS = {
    name for file in MAKEFILES for name in re.findall(r"^([a-z][a-z%-]*):", file.read_text(), flags=re.MULTILINE)
}


def typed(path: Path) -> list[str]:
    """Return what a document tells to type: indented or fenced lines, and code spans."""
    text = path.read_text()
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    indented = re.findall(r"^ {4,}(.+)$", text, flags=re.MULTILINE)
    return [*"\n".join(fenced).splitlines(), *indented, *re.findall(r"`([^`\n]+)`", text)]


def test_the_documents_and_the_targets_are_found() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert {"demo", "test", "setup", "lint", "full-%"} <= TARGETS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_make_target_in_a_document_exists(path: Path) -> None:
    matches = [re.match(r"\s*(?:[A-Z_]+=\S+ )*(?:sudo )?make ([a-z][a-z-]*)", line) for line in typed(path)]
    named = {match[1] for match in matches if match}
    known = TARGETS | {name for name in named if name.startswith("full-") and "full-%" in TARGETS}
    assert named - known == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_group_in_a_document_exists(path: Path) -> None:
    tables = [project(name)["entry-points"] for name in DISTRIBUTIONS]
    installed = {group for table in tables for group in table.get("kinemill.commands", {})}
    # A decision may name a command that is still to come; what a reader is told to type has to be there.
    known = installed | set(GROUPS) if path.parent.name == "adr" else installed
    matches = [re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?kinemill ([a-z][a-z-]*)", line) for line in typed(path)]
    assert {match[1] for match in matches if match} - known == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_in_a_document_leads_somewhere(path: Path) -> None:
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_every_target_is_explained() -> None:
    help_text = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT), "help"], check=True, capture_output=True, text=True
    ).stdout
    public = {name for name in TARGETS if not name.startswith("lint-")}
    assert {name for name in public if f"make {name} " not in help_text} == set()
