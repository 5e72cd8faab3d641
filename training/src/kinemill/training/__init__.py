"""What steps the model inside the training job. Importing this imports no torch; naming `Muon` does."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinemill.training.muon.optimizer import Muon
    from kinemill.training.muon.split import split_params

__all__ = ["Muon", "split_params"]

_HOME = {
    "Muon": "kinemill.training.muon.optimizer",
    "split_params": "kinemill.training.muon.split",
}


def __getattr__(name: str) -> object:
    """Import the module that holds `name` when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """The public names, whether or not they were imported yet."""
    return sorted({*globals(), *_HOME})
