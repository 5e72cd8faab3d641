"""Servers that kinemill starts for itself: one private folder each, one owner, nothing left behind.

A server lives in an `OwnedFolder` (mode 0700, locked by flock as long as its owner lives), listens on
`Ports` that stay reserved while it runs, and is a `Child` whose identity is on disk before it executes
its first instruction. So whoever takes the folder next, even after the owner was killed with SIGKILL or
the machine lost power, finds the leftovers and ends them first. Works as root and as an ordinary user,
and needs no XDG_RUNTIME_DIR. Linux only; standard library only.
"""

from __future__ import annotations

from kinemill.process.account import Account, reachable, unprivileged_account
from kinemill.process.child import Child, ProcessId
from kinemill.process.folder import OwnedFolder, private_folder, socket_folder, state_root
from kinemill.process.ports import Ports

__all__ = [
    "Account",
    "Child",
    "OwnedFolder",
    "Ports",
    "ProcessId",
    "private_folder",
    "reachable",
    "socket_folder",
    "state_root",
    "unprivileged_account",
]
