"""No module needs one that needs it: not through an import inside a function, nor one for types only, either."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from support.repo import DISTRIBUTIONS, ROOT

SOURCES = [ROOT / name / "src" for name in DISTRIBUTIONS]


def modules(sources: list[Path]) -> dict[str, Path]:
    """Dotted name -> file."""
    found = {}
    for source in sources:
        for path in source.rglob("*.py"):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def needs(name: str, path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of ours that a file imports, wherever in it."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            start = parents[: len(parents) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            found |= {inner if (inner := f"{base}.{alias.name}") in known else base for alias in node.names}
    return (found & set(known)) - {name}


def circle(sources: list[Path]) -> list[str]:
    """One circle, its first module at both ends; empty where there is none."""
    known = modules(sources)
    try:
        TopologicalSorter({name: needs(name, path, known) for name, path in known.items()}).prepare()
    except CycleError as exc:
        return list(exc.args[1])
    return []


def test_no_modules_import_each_other() -> None:
    assert len(modules(SOURCES)) > 200
    assert circle(SOURCES) == []


@pytest.mark.parametrize(
    "text",
    [
        "import kin.a",
        "from kin import a",
        "from kin.a import X",
        "from . import a",
        "from .a import X",
        "def f():\n    from kin.a import X",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from kin.a import X",
    ],
)
def test_a_circle_is_found_however_it_hides(tmp_path: Path, text: str) -> None:
    (tmp_path / "kin").mkdir()
    (tmp_path / "kin" / "__init__.py").touch()
    (tmp_path / "kin" / "a.py").write_text("from kin.b import Y\n")
    (tmp_path / "kin" / "b.py").write_text("Y = 1\n")
    assert circle([tmp_path]) == []
    (tmp_path / "kin" / "b.py").write_text(text)
    assert set(circle([tmp_path])) == {"kin.a", "kin.b"}
