"""What each XID means for the node, with where that judgement comes from. Sites may override a row."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinemill.contracts.checks import FixAction

__all__ = ["XIDS", "XidEvent", "XidRule", "parse_xid", "pci_key", "rule_for"]


@dataclass(frozen=True, slots=True)
class XidRule:
    """One row: what to do about an XID."""

    action: str
    """`none`, `watch`, `reset`, `reboot`, `isolate`, or `app` (the job's own fault until it repeats)."""
    text: str
    source: str

    @property
    def fix(self) -> FixAction:
        """The action as a check's fix."""
        return FixAction(self.action) if self.action != "app" else FixAction.WATCH


_VENDOR = "vendor's XID catalog"
_AGREED = "public node-check suites agree"
_DISPUTED = "public node-check suites disagree; the milder reading is shipped"

XIDS: dict[int, XidRule] = {
    13: XidRule("app", "graphics engine exception", _AGREED),
    31: XidRule("app", "memory page fault", _AGREED),
    43: XidRule("app", "GPU stopped processing", _AGREED),
    45: XidRule("app", "preemptive clean-up", _AGREED),
    48: XidRule("reset", "double-bit ECC error", _AGREED),
    56: XidRule("reset", "display engine error", _VENDOR),
    57: XidRule("reset", "video memory interface error", _VENDOR),
    58: XidRule("reset", "unstable video memory interface", _VENDOR),
    62: XidRule("reset", "internal micro-controller halt", _AGREED),
    63: XidRule("none", "row remap recorded; gpu.remap judges it", _AGREED),
    64: XidRule("isolate", "row remap failed", _AGREED),
    65: XidRule("reset", "video processor exception", _VENDOR),
    68: XidRule("watch", "video processor exception", _DISPUTED),
    69: XidRule("app", "graphics engine class error", _VENDOR),
    73: XidRule("watch", "NVENC2 error", _VENDOR),
    74: XidRule("reset", "NVLink error", _AGREED),
    79: XidRule("reboot", "GPU has fallen off the bus", _AGREED),
    92: XidRule("watch", "high single-bit ECC rate; gpu.ecc judges it", _DISPUTED),
    94: XidRule("app", "contained ECC error", _AGREED),
    95: XidRule("reset", "uncontained ECC error", _AGREED),
    109: XidRule("watch", "context switch timeout", _DISPUTED),
    119: XidRule("reset", "GSP RPC timeout", _AGREED),
    120: XidRule("reset", "GSP error", _AGREED),
    140: XidRule("reset", "unrecovered ECC error", _AGREED),
    143: XidRule("reset", "GPU initialization error", _AGREED),
    154: XidRule("watch", "recovery action changed; gpu.recovery judges it", _VENDOR),
}

_UNLISTED = XidRule("watch", "not in the table", "not in the table: watched, never drained")
_XID = re.compile(r"NVRM: Xid \(PCI:(?P<pci>[0-9A-Fa-f:.]{1,20})\): (?P<number>\d{1,4})\b")
_SXID = re.compile(r"SXid \(PCI:(?P<pci>[0-9A-Fa-f:.]{1,20})\): (?P<number>\d{1,6}), (?P<severity>Fatal|Non-fatal)")


@dataclass(frozen=True, slots=True)
class XidEvent:
    """One XID or SXid line of the kernel log."""

    at_s: float
    """Seconds since boot."""
    pci: str
    number: int
    switch: bool = False
    """True for an NVSwitch's SXid."""
    fatal: bool = False


def parse_xid(at_s: float, text: str) -> XidEvent | None:
    """The event in one kernel line, or None."""
    found = _XID.search(text)
    if found:
        return XidEvent(at_s, pci_key(found["pci"]), int(found["number"]))
    found = _SXID.search(text)
    if found:
        return XidEvent(at_s, pci_key(found["pci"]), int(found["number"]), True, found["severity"] == "Fatal")
    return None


def pci_key(address: str) -> str:
    """A GPU's address as XID lines write it: NVML's `00000000:3B:00.0` and the kernel's `0000:3b:00` are one."""
    match = re.fullmatch(
        r"(?P<domain>[0-9a-fA-F]{4,8}):(?P<bus>[0-9a-fA-F]{2}):(?P<device>[0-9a-fA-F]{2})(?:\.\d)?", address
    )
    if match is None:
        return address.lower()
    return f"{match['domain'][-4:]}:{match['bus']}:{match['device']}".lower()


def rule_for(number: int, overrides: dict[str, str] | None = None) -> XidRule:
    """The rule for an XID: the site's own action where it states one, else the table's, else watch."""
    rule = XIDS.get(number, _UNLISTED)
    own = (overrides or {}).get(str(number))
    return XidRule(own, rule.text, "site override") if own is not None else rule
