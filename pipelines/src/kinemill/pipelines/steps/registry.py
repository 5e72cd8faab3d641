"""Finds steps (one module each in this package) and puts them in order."""

from __future__ import annotations

import functools
import hashlib
import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeVar

from kinemill import records
from kinemill.contracts import Clock, StepResult, StepSpec, StepStatus, Store
from kinemill.errors import ConfigError, StateError
from kinemill.pipelines.adapters.base import Source
from kinemill.pipelines.adapters.vendor import VendorSpec
from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.ingest.ledger import Ledger
from kinemill.pipelines.ingest.sandbox import Sandbox

__all__ = ["Step", "StepContext", "step", "steps"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepContext:
    """Everything that a step may touch."""

    batch: str
    delivery: str
    source: Source
    vendor: VendorSpec
    profile: str
    input_digest: str
    """sha256 over the recording, the vendor's YAML and the versions of what reads it."""
    input_bytes: int
    workdir: Path
    """Empty for the first step; private to this recording and this run."""
    sandbox: Sandbox
    store: Store
    ledger: Ledger
    clock: Clock
    tell: Callable[[Event], None]

    def save(self, name: str, value: object) -> str:
        """Write a record as JSON into the work folder; returns its sha256."""
        text = records.dumps(value)
        temporary = self.workdir / f".{name}.new"
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.workdir / name)
        return hashlib.sha256(text.encode()).hexdigest()

    def load(self, kind: type[T], name: str) -> T:
        """A record that an earlier step saved.

        Raises:
            StateError: That step did not run here.
        """
        path = self.workdir / name
        if not path.is_file():
            raise StateError(f"{self.source.key}: {name} is not in the work folder: run the steps in order")
        return records.loads(kind, path.read_text(encoding="utf-8"), where=name)

    def result(self, spec: StepSpec, status: StepStatus, **fields: object) -> StepResult:
        """A result of `spec` on this recording."""
        return StepResult(self.batch, spec.name, spec.version, status, self.input_digest, **fields)  # type: ignore[arg-type]  # the caller names StepResult's own fields


@dataclass(frozen=True, slots=True)
class Step:
    """One step: what it needs, and what it does."""

    spec: StepSpec
    run: Callable[[StepContext], StepResult]


def step(spec: StepSpec) -> Callable[[Callable[[StepContext], StepResult]], Step]:
    """Make a function a step: `STEP = step(StepSpec(...))(function)`, or as a decorator."""
    return lambda run: Step(spec, run)


@functools.cache
def steps() -> tuple[Step, ...]:
    """All steps, each after those it requires.

    Raises:
        ConfigError: Two of one name, a requirement that is none, or a circle.
    """
    found: dict[str, Step] = {}
    for info in sorted(pkgutil.iter_modules([str(Path(__file__).parent)]), key=lambda m: m.name):
        module = importlib.import_module(f"{__package__}.{info.name}")
        candidate = getattr(module, "STEP", None)
        if isinstance(candidate, Step):
            if candidate.spec.name in found:
                raise ConfigError(f"two steps are called '{candidate.spec.name}'")
            found[candidate.spec.name] = candidate
    return order(found)


def order(found: dict[str, Step]) -> tuple[Step, ...]:
    """`found` in an order in which each step comes after those it requires; by name where free."""
    for each in found.values():
        for name in each.spec.requires:
            if name not in found:
                raise ConfigError(f"step '{each.spec.name}' requires '{name}', which is no step")
            if each.spec.critical and not found[name].spec.critical:
                raise ConfigError(f"critical step '{each.spec.name}' requires '{name}', which may fail")
    sorter = TopologicalSorter({n: found[n].spec.requires for n in sorted(found)})
    try:
        return tuple(found[name] for name in sorter.static_order())
    except CycleError as exc:
        raise ConfigError(f"steps require each other in a circle: {' > '.join(exc.args[1])}") from exc
