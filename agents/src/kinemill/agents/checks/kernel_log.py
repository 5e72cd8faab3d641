"""Faults that the kernel wrote down since boot: hung tasks, machine checks, PCIe, NVMe, file systems, memory."""

from __future__ import annotations

import re

from kinemill.agents.checks import Finding, fail, ok, warn, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.checks._kernel import kernel_lines, kernel_missing, lost_lines
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, CheckStatus, FixAction

CHECK = Check(
    "kernel.log", 1, ALWAYS, help="hung tasks, machine checks, PCIe and NVMe errors, remounts, OOM since boot"
)
NEEDS = ("kernel_log",)

_FAIL, _WARN = CheckStatus.FAIL, CheckStatus.WARN
# The kernel says "Machine check events logged" for corrected errors too, which memory has all its life. What was not
# corrected shows as an exception, by its word, or by bit 61 (UC) of the bank's status, in the first of 16 hex digits.
_UNCORRECTED = re.compile(
    r"(?:\[Hardware Error\]|mce:).*(?:Machine Check Exception|Uncorrected|System Fatal|(?:severity|type): fatal"
    r"|Bank \d{1,3}: [2367abef][0-9a-f]{15}\b)"
)
_RULES = (
    ("remount_ro", re.compile(r"Remounting filesystem read-only"), _FAIL, FixAction.REBOOT),
    ("fs_corrupt", re.compile(r"EXT4-fs error|XFS.*(?:corruption|shutdown)"), _FAIL, FixAction.REBOOT),
    ("mce", _UNCORRECTED, _FAIL, FixAction.REBOOT),
    ("mce_corrected", re.compile(r"\[Hardware Error\]"), _WARN, FixAction.WATCH),
    ("aer_fatal", re.compile(r"AER: .*(?<!Non-)Fatal|severity=Uncorrected \(Fatal\)"), _FAIL, FixAction.REBOOT),
    ("nvme_gone", re.compile(r"nvme\d+: (?:controller is down|Removing after probe failure)"), _FAIL, FixAction.REBOOT),
    ("hung_task", re.compile(r"blocked for more than \d+ seconds"), _WARN, FixAction.WATCH),
    ("io_error", re.compile(r"I/O error, dev nvme"), _WARN, FixAction.WATCH),
    ("oom", re.compile(r"Out of memory: Killed process|oom-kill:"), _WARN, FixAction.NONE),
)


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on what a reboot must cure, WARN on what a job may have caused."""
    del ctx
    missing = kernel_missing(facts)
    if missing is not None:
        return worst(CHECK, [missing])
    counts: dict[str, int] = {}
    first: dict[str, str] = {}
    for _, text in kernel_lines(facts):
        for code, pattern, _, _ in _RULES:
            if pattern.search(text):
                counts[code] = counts.get(code, 0) + 1
                first.setdefault(code, text)
                break
    findings: list[Finding] = []
    for code, _, status, action in _RULES:
        if code in counts:
            cls = CheckClass.APP if code == "oom" else CheckClass.TRANSIENT
            make = fail if status is _FAIL else warn
            findings.append(make(code, f"{counts[code]}x {first[code]}", cls=cls, action=action, source="kernel"))
    findings += lost_lines(facts)
    return worst(CHECK, findings or [ok("nothing since boot")], {k: str(v) for k, v in counts.items()})
