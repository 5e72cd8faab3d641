"""What an agent remembers between runs: cached facts, UNKNOWN streaks, the open fault, XIDs by job.

Everything is bound to a boot: another boot id makes it void, save the XIDs by job and the open
fault. The folder is root's alone. A damaged or missing file is an empty memory, never a crash.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinemill.agents.facts import Facts
from kinemill.agents.files import read_json, write_json
from kinemill.contracts.checks import CheckResult, CheckStatus

__all__ = ["DAY_S", "Memory", "OpenFault"]

DAY_S = 86_400
_MAX_ROWS = 2_000
_CACHED_PROBES = ("disk_health", "container", "host")


@dataclass(frozen=True, slots=True)
class OpenFault:
    """The fault that drained this node, until clean passes have closed it."""

    event: str
    check: str
    letter: str
    code: str
    detail: str
    boot_id: str
    at_s: int
    passes: int = 0
    last_pass_s: int = 0


class Memory:
    """The agent's memory in `folder`."""

    def __init__(self, folder: Path, boot_id: str | None, now_s: int) -> None:
        self._folder = folder
        self._boot = boot_id or "unknown"
        self._now_s = now_s

    def _load(self, name: str, *, this_boot: bool = True) -> dict[str, Any]:
        data = read_json(self._folder, f"{name}.json")
        if not isinstance(data, dict) or (this_boot and data.get("boot") != self._boot):
            return {}
        return data

    def _save(self, name: str, data: dict[str, Any]) -> None:
        write_json(self._folder, f"{name}.json", {**data, "boot": self._boot})

    def cached_facts(self) -> Facts | None:
        """Facts of slow probes read earlier in this boot, with their age."""
        data = self._load("facts")
        if not data:
            return None
        ages: dict[str, float] = {}
        for probe, at in (data.get("at") or {}).items():
            age = self._now_s - float(at)
            if age >= 0:  # a clock that jumped back makes the cache void
                ages[probe] = age
        return Facts(dict(data.get("values") or {}), dict.fromkeys(ages, "ok"), ages)

    def keep_facts(self, facts: Facts) -> None:
        """Keep what slow probes read freshly in this run."""
        data = self._load("facts")
        values, at = dict(data.get("values") or {}), dict(data.get("at") or {})
        prefixes = {"disk_health": "nvme.", "container": "container.", "host": "host."}
        fresh = [p for p in _CACHED_PROBES if facts.ended.get(p) == "ok" and not facts.age_s.get(p)]
        if not fresh:
            return
        for probe in fresh:
            values.update({k: v for k, v in facts.values.items() if k.startswith(prefixes[probe])})
            at[probe] = self._now_s
        self._save("facts", {"values": values, "at": at})

    def count_unknowns(self, results: Iterable[CheckResult]) -> dict[str, int]:
        """Check -> UNKNOWNs in a row in the prolog, `results` included; remembered."""
        before = self._load("unknowns").get("streaks") or {}
        streaks = dict(before)
        for result in results:
            if result.status is CheckStatus.UNKNOWN:
                streaks[result.check] = int(before.get(result.check, 0)) + 1
            elif result.status is not CheckStatus.SKIP:
                streaks.pop(result.check, None)
        if streaks != before:
            self._save("unknowns", {"streaks": streaks})
        return streaks

    def acknowledge(self, kernel_s: float) -> None:
        """A person has looked: kernel lines up to `kernel_s` seconds after boot count no more."""
        self._save("acknowledged", {"kernel_s": kernel_s})

    def acknowledged_s(self) -> float:
        """Seconds since boot of the last acknowledgement in this boot."""
        return float(self._load("acknowledged").get("kernel_s") or 0.0)

    def record_app_xids(self, job_id: int, devices: Iterable[str]) -> None:
        """Remember that an application XID was seen on these PCI devices during a job."""
        rows = self._xid_rows()
        rows += [[pci, job_id, self._now_s] for pci in sorted(set(devices)) if not self._known(rows, pci, job_id)]
        self._save("xids", {"rows": rows[-_MAX_ROWS:]})

    def xid_jobs(self) -> dict[str, int]:
        """PCI device -> distinct jobs with an application XID within the last day."""
        jobs: dict[str, set[int]] = {}
        for pci, job_id, _ in self._xid_rows():
            jobs.setdefault(pci, set()).add(job_id)
        return {pci: len(ids) for pci, ids in jobs.items()}

    def _xid_rows(self) -> list[list[Any]]:
        rows = self._load("xids", this_boot=False).get("rows") or []
        good = [r for r in rows if isinstance(r, list) and len(r) == 3 and isinstance(r[2], int)]
        return [r for r in good if 0 <= self._now_s - r[2] < DAY_S]

    @staticmethod
    def _known(rows: list[list[Any]], pci: str, job_id: int) -> bool:
        return any(r[0] == pci and r[1] == job_id for r in rows)

    def open_fault(self) -> OpenFault | None:
        """The fault that is open, also from before a reboot."""
        data = self._load("fault", this_boot=False)
        try:
            return OpenFault(**data["fault"])
        except (KeyError, TypeError):
            return None

    def open(self, cause: CheckResult, letter: str) -> OpenFault:
        """Open a fault, or keep the open one of the same check and code; clean passes start over."""
        old = self.open_fault()
        event = (
            old.event
            if old is not None and (old.check, old.code) == (cause.check, cause.code)
            else secrets.token_hex(4)
        )
        fault = OpenFault(event, cause.check, letter, cause.code or "fail", cause.detail, self._boot, self._now_s)
        self._write_fault(fault)
        return fault

    def clean_pass(self, fault: OpenFault) -> OpenFault:
        """One clean full pass more."""
        after = OpenFault(**{**_fields(fault), "passes": fault.passes + 1, "last_pass_s": self._now_s})
        self._write_fault(after)
        return after

    def close(self) -> None:
        """The fault is over: the node works again."""
        self._save("fault", {})

    def _write_fault(self, fault: OpenFault) -> None:
        self._save("fault", {"fault": _fields(fault)})


def _fields(fault: OpenFault) -> dict[str, Any]:
    return {name: getattr(fault, name) for name in OpenFault.__slots__}
