"""Fixtures of the agents on real nodes."""

from __future__ import annotations

from support.agents_live import agents_site

__all__ = ["agents_site"]
