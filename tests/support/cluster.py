"""Real clusters for tests: one per suite and size in a test run, brought back to a clean state before each test."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import pytest

from support.layers import skip

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

__all__ = ["SUITES", "Clusters", "need_sandbox", "wait_for"]

T = TypeVar("T")

# Suite -> the Slurm that it brings.
SUITES = {"bookworm": "22.05.8", "trixie": "24.11.5"}


def need_sandbox() -> None:
    """Skip where this machine cannot run nodes."""
    from kinemill.control.sandbox.host import lacks

    found = lacks(for_images=True)
    if found:
        skip(f"no sandbox here: lacks {', '.join(lack.what for lack in found)}", run="make test as root")


def wait_for(what: str, ready: Callable[[], T | None], *, deadline_s: float = 240, every_s: float = 0.25) -> T:
    """Ask until the answer is true; generous, since nothing here is about speed."""
    from kinemill.control.sandbox.anchor import until

    return until(what, ready, deadline_s=deadline_s, every_s=every_s)


class Clusters:
    """The clusters of one test run."""

    def __init__(self) -> None:
        self._up: dict[tuple[str, int], Cluster] = {}

    def get(self, suite: str, nodes: int = 2) -> Cluster:
        """A clean cluster: a controller `ctl` and compute nodes `n1` to `nN`, brought up at the first call.

        Args:
            suite: One of `SUITES`.
            nodes: Compute nodes.
        """
        from kinemill.control.sandbox.cluster import Cluster
        from kinemill.errors import UnavailableError

        need_sandbox()
        cluster = self._up.get((suite, nodes))
        if cluster is None:
            computes = [f"n{index + 1}" for index in range(nodes)]
            name = f"t{os.getpid() % 10**6}-{suite[0]}{nodes}"
            try:
                cluster = Cluster.up("ctl", computes, image=f"{suite}-slurm", name=name, owned=True)
            except UnavailableError as error:
                skip(f"no image {suite}-slurm and the package mirror does not answer ({error})", run="make test online")
            self._up[suite, nodes] = cluster
        else:
            cluster.settle()
        return cluster

    def reports(self) -> Iterator[tuple[str, str]]:
        """The daemons' logs of every cluster."""
        for (suite, nodes), cluster in self._up.items():
            yield f"cluster {suite} with {nodes} nodes", cluster.report()

    def down(self) -> None:
        """Remove all of them."""
        for cluster in self._up.values():
            cluster.down()
        self._up.clear()


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    """The clusters of this run; gone at its end, and swept by the next run if this one is killed."""
    found = Clusters()
    yield found
    found.down()


@pytest.fixture
def slurm_cluster(clusters: Clusters, request: pytest.FixtureRequest) -> Callable[..., Cluster]:
    """`slurm_cluster(suite, nodes)`: a clean cluster; its logs are shown where the test fails."""

    def get(suite: str, nodes: int = 2) -> Cluster:
        cluster = clusters.get(suite, nodes)
        request.node.stash[_USED] = [*request.node.stash.get(_USED, []), cluster]
        return cluster

    return get


_USED: pytest.StashKey[list[Cluster]] = pytest.StashKey()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """Add the logs of the clusters that a failed test used."""
    report = yield
    if call.when == "call" and report.failed:  # type: ignore[attr-defined]  # pytest types the yield as None
        for cluster in item.stash.get(_USED, []):
            report.sections.append((f"logs of {cluster.image}", cluster.report()))  # type: ignore[attr-defined]  # as above
    return report
