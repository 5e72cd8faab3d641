"""What an agent remembers between runs: cached facts, UNKNOWN streaks, the open fault, XIDs and their jobs.

Everything is bound to a boot: another boot id makes it void, save the XIDs by job, notes that have
not reached Slurm, and the open fault. The folder is root's alone. A damaged or missing file is an
empty memory, never a crash. Runs that overlap (a prolog beside the timer) take turns by a lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinemill.agents.facts import Facts
from kinemill.agents.files import private_dir, read_json, write_json
from kinemill.agents.xids import XidEvent
from kinemill.contracts.checks import CheckResult, CheckStatus
from kinemill.errors import KinemillError
from kinemill.records import decode

__all__ = ["DAY_S", "Memory", "OpenFault"]

DAY_S = 86_400
_MAX_ROWS = 2_000
_MAX_NOTES = 100
_MAX_EVENTS = 500
_LOCK_S = 2.0
_CACHED_PROBES = {"disk_health": "nvme.", "container": "container.", "clock": "clock."}
"""Probe -> prefix of its facts."""


def _numbers(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(x, int | float) for x in value.values())


def _rows(*kinds: type) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        rows = value if isinstance(value, list) else [None]
        return all(isinstance(r, list) and len(r) == len(kinds) and all(map(isinstance, r, kinds)) for r in rows)

    return fits


_SHAPES: dict[str, dict[str, Callable[[Any], bool]]] = {
    "facts": {"at": _numbers, "values": lambda v: isinstance(v, dict)},
    "unknowns": {"streaks": _numbers},
    "acknowledged": {"kernel_s": lambda v: isinstance(v, int | float)},
    "events": {"rows": _rows(float, str)},
    "hung": {"first": _numbers},
    "jobs": {"marks": _numbers, "taken": _numbers},
    "xids": {"rows": _rows(str, int, int)},
    "notes": {"rows": _rows(int, str, int)},
}
"""File -> what its fields must be to be believed: after a roll-back another version's files lie here."""


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
    """When it was first found; a later run that finds it again does not move it."""
    passes: int = 0
    last_pass_s: int = 0


class Memory:
    """The agent's memory in `folder`."""

    def __init__(self, folder: Path, boot_id: str | None, now_s: int) -> None:
        self._folder = folder
        self._boot = boot_id or "unknown"
        self._now_s = now_s

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Our turn to read and write; after two seconds without it we go on: a hook must end.

        Raises:
            EnvironmentFault: The folder cannot be used.
        """
        directory = private_dir(self._folder)
        try:
            fd = os.open("lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError:
            fd = -1
        finally:
            os.close(directory)
        try:
            until = time.monotonic() + _LOCK_S
            while fd >= 0:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    if time.monotonic() > until:
                        break
                    time.sleep(0.01)
            yield
        finally:
            if fd >= 0:
                os.close(fd)

    def _load(self, name: str, *, this_boot: bool = True) -> dict[str, Any]:
        data = read_json(self._folder, f"{name}.json")
        if not isinstance(data, dict) or (this_boot and data.get("boot") != self._boot):
            return {}
        shapes = _SHAPES.get(name, {})
        return {k: v for k, v in data.items() if k not in shapes or shapes[k](v)}

    def _save(self, name: str, data: dict[str, Any]) -> None:
        # What another boot still believes must be on the disk; the rest is void after a power cut anyway.
        durable = name in ("fault", "notes", "xids")
        write_json(self._folder, f"{name}.json", {**data, "boot": self._boot}, durable=durable)

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
        fresh = [p for p in _CACHED_PROBES if facts.ended.get(p) == "ok" and not facts.age_s.get(p)]
        if not fresh:
            return
        for probe in fresh:
            values.update({k: v for k, v in facts.values.items() if k.startswith(_CACHED_PROBES[probe])})
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

    def kernel_events(self) -> list[list[Any]]:
        """[seconds since boot, text] of XID lines seen earlier in this boot: the kernel's buffer forgets them."""
        rows = self._load("events").get("rows") or []
        return [r for r in rows if isinstance(r, list) and len(r) == 2 and isinstance(r[0], int | float)]

    def keep_kernel_events(self, lines: Iterable[tuple[float, str]]) -> None:
        """Remember XID lines; what is known already is not written again."""
        known = self.kernel_events()
        have = {(r[0], r[1]) for r in known}
        new = [[at, text] for at, text in lines if (at, text) not in have]
        if new:
            self._save("events", {"rows": (known + new)[-_MAX_EVENTS:]})

    def told(self) -> tuple[str, int]:
        """The report that last reached Slurm, and its age in seconds; an empty text where none has."""
        data = self._load("told")
        at = data.get("at")
        return (str(data.get("text") or ""), self._now_s - at) if isinstance(at, int) else ("", 0)

    def keep_told(self, text: str) -> None:
        """This report has reached Slurm."""
        self._save("told", {"text": text, "at": self._now_s})

    def hung_mounts(self) -> dict[str, int]:
        """Mount -> seconds since it was first found silent, for those silent in the last round that looked."""
        first = self._load("hung").get("first") or {}
        return {m: self._now_s - at for m, at in first.items() if 0 <= self._now_s - at < DAY_S}

    def keep_hung_mounts(self, silent: Iterable[str]) -> None:
        """Remember which mounts did not answer in this round; one that answered is forgotten."""
        before = {m: self._now_s - age for m, age in self.hung_mounts().items()}
        after = {m: before.get(m, self._now_s) for m in silent}
        if after != before:
            self._save("hung", {"first": after})

    def job_begins(self, job_id: int, kernel_s: float, *, has_list: bool = True) -> None:
        """The kernel's clock when a job's prolog ran: XIDs before it are not the job's.

        Args:
            job_id: The job.
            kernel_s: Stamp of the kernel's last line.
            has_list: Whether Slurm named the job's GPUs.
        """
        data = self._load("jobs")
        marks = dict(data.get("marks") or {})
        marks[str(job_id)] = kernel_s
        marks = dict(sorted(marks.items(), key=lambda kv: kv[1])[-_MAX_ROWS:])
        lists = bool(data.get("lists")) or has_list
        self._save("jobs", {"marks": marks, "taken": data.get("taken") or {}, "lists": lists})

    def lists_seen(self) -> bool:
        """Whether Slurm names GPUs on this node: then a job without a list has none."""
        return bool(self._load("jobs").get("lists"))

    def job_ends(self, job_id: int, events: Iterable[XidEvent]) -> list[XidEvent]:
        """Attribute application XIDs to the job that just ended; each event counts for one job only.

        Args:
            job_id: The job.
            events: Application XIDs on its GPUs since boot.

        Returns:
            The events that are this job's: after its prolog, and not counted for an earlier one.
        """
        data = self._load("jobs")
        marks, taken = dict(data.get("marks") or {}), dict(data.get("taken") or {})
        since = marks.pop(str(job_id), None)
        floor = -1.0 if since is None else float(since)
        mine = [e for e in events if e.at_s > max(floor, float(taken.get(e.pci, -1.0)))]
        for event in mine:
            taken[event.pci] = max(event.at_s, float(taken.get(event.pci, -1.0)))
        if mine or since is not None:
            self._save("jobs", {"marks": marks, "taken": taken, "lists": bool(data.get("lists"))})
        if mine:
            rows = self._xid_rows()
            devices = sorted({e.pci for e in mine})
            rows += [[pci, job_id, self._now_s] for pci in devices if not self._known(rows, pci, job_id)]
            self._save("xids", {"rows": rows[-_MAX_ROWS:]})
        return mine

    def add_note(self, job_id: int, text: str) -> None:
        """Queue a note for a job; the reporter brings it to Slurm."""
        rows = [[job, old, self._now_s - waited] for job, old, waited in self.notes() if job != job_id]
        self._save("notes", {"rows": [*rows, [job_id, text, self._now_s]][-_MAX_NOTES:]})

    def notes(self) -> list[tuple[int, str, int]]:
        """(job, text, seconds it has waited) of notes that have not reached Slurm."""
        rows = self._load("notes", this_boot=False).get("rows") or []
        return [(job, text, self._now_s - at) for job, text, at in rows]

    def drop_note(self, job_id: int) -> None:
        """The note has arrived, or never can."""
        rows = [[job, text, self._now_s - waited] for job, text, waited in self.notes() if job != job_id]
        self._save("notes", {"rows": rows})

    def xid_jobs(self) -> dict[str, int]:
        """PCI device -> distinct jobs with an application XID within the last day."""
        jobs: dict[str, set[int]] = {}
        for pci, job_id, _ in self._xid_rows():
            jobs.setdefault(pci, set()).add(job_id)
        return {pci: len(ids) for pci, ids in jobs.items()}

    def _xid_rows(self) -> list[list[Any]]:
        rows = self._load("xids", this_boot=False).get("rows") or []
        return [r for r in rows if 0 <= self._now_s - r[2] < DAY_S]

    @staticmethod
    def _known(rows: list[list[Any]], pci: str, job_id: int) -> bool:
        return any(r[0] == pci and r[1] == job_id for r in rows)

    def open_fault(self) -> OpenFault | None:
        """The fault that is open, also from before a reboot."""
        data = self._load("fault", this_boot=False).get("fault")
        try:
            return None if data is None else decode(OpenFault, data, where="fault.json")
        except KinemillError:
            return None

    def open(self, cause: CheckResult, letter: str) -> OpenFault:
        """Open a fault, or keep the open one of the same check and code; clean passes start over."""
        old = self.open_fault()
        same = old is not None and (old.check, old.code) == (cause.check, cause.code or "fail")
        event, at_s = (old.event, old.at_s) if old is not None and same else (os.urandom(4).hex(), self._now_s)
        fault = OpenFault(event, cause.check, letter, cause.code or "fail", cause.detail, self._boot, at_s)
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
