"""What a package hands out by name on first use is never hidden by a module of that name."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LAZY = sorted(
    path for path in ROOT.glob("*/src/kinemill/**/__init__.py") if "def __getattr__(" in path.read_text("utf-8")
)


def exported(path: Path) -> set[str]:
    """Names in `__all__`."""
    for node in ast.parse(path.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and [t.id for t in node.targets if isinstance(t, ast.Name)] == ["__all__"]:
            return set(ast.literal_eval(node.value))
    return set()


def test_there_are_such_packages() -> None:
    assert len(LAZY) >= 2


@pytest.mark.parametrize("path", LAZY, ids=lambda path: path.parent.name)
def test_no_module_has_the_name_of_something_that_its_package_exports(path: Path) -> None:
    # importing a module sets its name in the package, and then nobody asks `__getattr__` any more
    modules = {one.stem for one in path.parent.iterdir() if one.suffix == ".py" or one.is_dir()}
    assert not exported(path) & modules
