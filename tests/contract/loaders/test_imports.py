"""What importing costs: manifests and orders need no torch, the package itself needs nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "pandas", "av", "numpy", "pyarrow", "prometheus_client", "obstore")


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(*[m for m in {HEAVY} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return set(out.stdout.split())


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import kinemill.loaders", set()),
        ("import kinemill.loaders.commands", set()),
        ("import kinemill.loaders.manifest", {"numpy", "pyarrow"}),
        ("import kinemill.loaders.order, kinemill.loaders.sampler, kinemill.loaders.index", {"numpy", "pyarrow"}),
        ("from kinemill.loaders import Manifest, steps, ReadSettings", {"numpy", "pyarrow"}),
    ],
)
def test_nothing_heavier_is_imported_than_is_needed(code: str, allowed: set[str]) -> None:
    assert loaded_by(code) <= allowed


def test_every_public_name_can_be_imported() -> None:
    import kinemill.loaders as package

    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nope'"):
        _ = package.Nope
