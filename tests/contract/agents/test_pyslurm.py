"""The optional backend: over a stand-in with pyslurm's names, and over the real one where a build is installed."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any, ClassVar

import pytest

from kinemill.agents.slurm_pyslurm import PySlurm, open_admin
from kinemill.contracts import SlurmAdmin
from kinemill.errors import MissingToolError, NotFoundError, StateError, UnavailableError, UsageError
from support.layers import skip_if


class PyslurmError(Exception):
    """As pyslurm's."""


class Node:
    """As pyslurm's: attributes of a node, or the changes that `modify` applies."""

    table: ClassVar[dict[str, Node]] = {}

    def __init__(self, name: str | None = None, **changes: Any) -> None:
        self.name, self.changes = name, changes
        self.state, self.reason, self.reason_user, self.reason_time = "IDLE", None, None, 0
        self.boot_time, self.slurm_version, self.extra, self.comment = 1000, "26.05.5", None, None
        self.configured_gres, self.allocated_gres, self.allocated_tres = {"gpu:h200": 8}, {}, {}
        self.partitions, self.total_cpus, self.real_memory = "main", 16, 64000

    def modify(self, changes: Node) -> None:
        """Apply."""
        node = self.table[str(self.name)]
        for key, value in changes.changes.items():
            setattr(node, key, value)
        if changes.changes.get("state") == "DRAIN":
            node.state, node.reason_user, node.reason_time = "IDLE+DRAIN", "root", 2000
        if changes.changes.get("state") == "RESUME":
            node.state, node.reason = "IDLE", None


class Nodes:
    """As pyslurm's."""

    error: ClassVar[str] = ""

    @classmethod
    def load(cls) -> dict[str, Node]:
        """All nodes."""
        if cls.error:
            raise PyslurmError(cls.error)
        return Node.table


class Reservations:
    """As pyslurm's."""

    @staticmethod
    def load() -> dict[str, Any]:
        """One reservation."""
        one = types.SimpleNamespace(
            name="r", nodes="n[1-2]", start_time=10, end_time=20, flags=["MAINTENANCE"], users=["root"], accounts=None
        )
        return {"r": one}


@pytest.fixture
def admin() -> PySlurm:
    """The backend over the stand-in."""
    Node.table = {name: Node(name) for name in ("n1", "n2")}
    Nodes.error = ""
    module = types.SimpleNamespace(Node=Node, Nodes=Nodes, Reservations=Reservations, PyslurmError=PyslurmError)
    return PySlurm(module)


def test_nodes_drain_and_resume(admin: PySlurm) -> None:
    assert isinstance(admin, SlurmAdmin)
    admin.drain("n1", "kinemill1|a|T|b|00000000|c")
    node = admin.nodes(["n1"])[0]
    assert (node.states, node.reason_uid, node.reason_time_s) == ({"IDLE", "DRAIN"}, 0, 2000)
    admin.resume("n1")
    assert admin.nodes(["n1"])[0].reason == ""
    admin.set_extra("n2", "{}")
    assert admin.nodes(["n2"])[0].extra == "{}"


def test_it_refuses_what_the_others_refuse(admin: PySlurm) -> None:
    with pytest.raises(NotFoundError, match="n9"):
        admin.nodes(["n9"])
    with pytest.raises(NotFoundError, match="n9"):
        admin.drain("n9", "x")
    with pytest.raises(StateError, match="n2"):
        admin.resume("n2")
    with pytest.raises(UsageError):
        admin.drain("n1", "two\nlines")
    with pytest.raises(UsageError):
        admin.drain("ALL", "x")
    with pytest.raises(NotFoundError, match="nobody"):
        admin.delete_reservation("nobody")
    Nodes.error = "Unable to contact slurm controller (connect failure)"
    with pytest.raises(UnavailableError):
        admin.nodes()


def test_reservations(admin: PySlurm) -> None:
    (found,) = admin.reservations()
    assert (found.nodes, found.flags) == (("n1", "n2"), {"MAINT"})


def test_without_pyslurm_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyslurm", None)
    with pytest.raises(MissingToolError, match="or use the commands"):
        open_admin()


@skip_if(
    importlib.util.find_spec("pyslurm") is None,
    "pyslurm is not installed (it is tied to one Slurm release and to no package of ours)",
    run="make test on a cluster's node with the pyslurm build of its release",
)
def test_the_real_one_lists_nodes() -> None:
    assert all(node.states for node in open_admin().nodes())
