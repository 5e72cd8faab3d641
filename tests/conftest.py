"""Loads the plugin that gives every test its layer, its deadline and its say about skips."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

pytest_plugins = ["support.layers"]

_INTERN = sys.intern
_ANSIBLE = {"ansible", "cluster", "control"}
_replaced: list[Callable[[str], str]] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ansible replaces `sys.intern` where it is imported, and torch's compiler accepts only the real one.

    No product process imports both; this one does, so each test gets the one of its own side.
    """
    if sys.intern is not _INTERN:
        _replaced[:] = [sys.intern]
    sys.intern = _replaced[0] if _replaced and _ANSIBLE & set(item.path.parts) else _INTERN
