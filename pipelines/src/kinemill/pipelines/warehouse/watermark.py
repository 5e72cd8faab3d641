"""How far an export has come, in the catalog's own count: what a reader goes on from and a target remembers."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Watermark"]


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far the export has come: the last outbox row in order of (xid, seq)."""

    epoch: str
    """Of the database cluster that the transaction ids count in; another one after a restore."""
    xid: int
    seq: int

    def properties(self) -> dict[str, str]:
        """As they stand in a snapshot's summary."""
        return {"kinemill.epoch": self.epoch, "kinemill.xid": str(self.xid), "kinemill.seq": str(self.seq)}

    @classmethod
    def from_properties(cls, found: dict[str, str]) -> Watermark | None:
        """Read it back; None where a snapshot carries none."""
        try:
            return cls(found["kinemill.epoch"], int(found["kinemill.xid"]), int(found["kinemill.seq"]))
        except KeyError:
            return None
