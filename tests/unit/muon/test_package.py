"""The package's surface: lazy, and torch.optim.Muon's where it says so."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch

import kinemill.training
from kinemill.training import Muon


def test_importing_the_package_and_the_command_imports_no_torch() -> None:
    code = (
        "import sys, kinemill.training, kinemill.training.muon, kinemill.training.commands.train;"
        "import kinemill.training.muon.decide, kinemill.training.muon.plan;"
        "sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_unknown_names_are_unknown() -> None:
    with pytest.raises(AttributeError, match="Moun"):
        _ = kinemill.training.Moun
    assert {"Muon", "split_params"} <= set(dir(kinemill.training))


def test_the_first_nine_arguments_are_torchs() -> None:
    ours = list(inspect.signature(Muon.__init__).parameters.values())[1:]
    theirs = list(inspect.signature(torch.optim.Muon.__init__).parameters.values())[1:]

    assert [(p.name, p.default) for p in ours[:9]] == [(p.name, p.default) for p in theirs]
    assert all(p.kind is p.KEYWORD_ONLY for p in ours[9:])


@pytest.mark.parametrize("method", ["state_dict", "load_state_dict", "add_param_group", "step"])
def test_overridden_methods_keep_the_names_of_their_arguments(method: str) -> None:
    # torch.distributed.checkpoint calls load_state_dict(state_dict=...): a renamed argument breaks it.
    ours = inspect.signature(getattr(Muon, method)).parameters
    theirs = inspect.signature(getattr(torch.optim.Optimizer, method)).parameters

    assert list(ours) == list(theirs)
