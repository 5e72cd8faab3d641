"""Loads the plugin that gives every test its layer, its deadline and its say about skips."""

from __future__ import annotations

pytest_plugins = ["support.layers"]
