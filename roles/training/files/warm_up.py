"""Make bytecode by running what every rank runs at its start; building an optimizer alone imports torch's compiler."""

import importlib
import pathlib
import sys

import torch

from kinemill.training import Muon

for name in ("torch.distributed.run", "kinemill.loaders", "kinemill.training.commands.run"):
    importlib.import_module(name)
for build in (torch.optim.AdamW, Muon):
    model = torch.nn.Linear(2, 2, bias=False)
    optimizer = build(model.parameters(), lr=0.1)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
pathlib.Path(sys.prefix, ".kinemill-warm").touch()
print(torch.__version__)
