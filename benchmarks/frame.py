"""The frame of every benchmark: declared figures, interleaved repeats, CPU and memory of processes, one JSON line.

A benchmark is one file, ``benchmarks/<name>.py``::

    from frame import Bench

    bench = Bench("loaders_vla", __doc__)
    bench.declare("cpu_vs_peer", unit="x", better="higher", bar=3.0, against="LeRobot v3, same frames, same run")
    bench.declare("pss_vs_peer", unit="x", better="lower", bar=0.6, against="LeRobot v3, 2 workers")

    rounds = bench.interleave({"peer": read_with_peer, "ours": read_with_ours}, repeats=bench.pick(quick=3, full=9))
    bench.record("cpu_vs_peer", rounds.ratio("peer", "ours", of="cpu_s"))
    memory = bench.interleave({"peer": read_with_peer, "ours": read_with_ours}, repeats=1, pss=True)
    bench.record("pss_vs_peer", memory.ratio("ours", "peer", of="pss_bytes"))
    bench.finish()

The last line on stdout is one JSON object ``{"name", "machine", "figures": [{"id", "value", "unit", "better", "bar",
"ok", "against"}]}``; everything for people goes to stderr. The exit status is 1 if a figure misses its bar.

A machine is never quiet, so absolute times mean little: A and B run in turns inside one round, the figure is the median
of the ratios within the rounds, and CPU time counts before wall time. ``against`` says what it is measured against.
CPU and memory come from separate rounds (``pss=True``), because watching memory costs CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Bench", "Rounds", "Sample", "cpu_seconds", "machine", "measure", "pss_bytes", "run_command"]

Better = Literal["higher", "lower"]
Metric = Literal["cpu_s", "wall_s", "pss_bytes"]
QUICK_S: Final = 50.0
PSS_EVERY_S: Final = 0.1
_T = TypeVar("_T")
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


# ---- measuring processes


def _children(pid: int) -> list[int]:
    """Return all living descendants of ``pid``; one that ends meanwhile is left out."""
    found: list[int] = []
    queue = [pid]
    while queue:
        folder = f"/proc/{queue.pop()}/task"
        try:
            threads = os.listdir(folder)  # noqa: PTH208 - Path.glob raises half-way where the process ends meanwhile
        except OSError:
            continue
        for thread in threads:
            try:
                kids = [int(text) for text in Path(folder, thread, "children").read_text().split()]
            except OSError:
                continue
            found += kids
            queue += kids
    return found


def cpu_seconds() -> float:
    """Return the CPU seconds (user and system) of this process and of all its descendants, living and reaped.

    Threads count. Living children are read from /proc in ticks of 10 ms, so let a measured body last 0.2 s or more if
    it uses workers.
    """
    reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + reaped.ru_utime + reaped.ru_stime
    for pid in _children(os.getpid()):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            continue
        total += sum(int(ticks) for ticks in fields[11:15]) / TICKS_PER_S  # utime, stime, and those of its own reaped
    return total


def pss_bytes(pid: int | None = None) -> int:
    """Return the proportional set size in bytes of a process (default: this one) and its descendants.

    PSS shares each page among the processes that map it, so a manifest mapped by eight workers counts once.
    """
    top = os.getpid() if pid is None else pid
    total = 0
    for one in [top, *_children(top)]:
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class _PssPeak:
    """Samples PSS in a thread while a body runs; ``bytes`` is the highest seen."""

    def __init__(self, pid: int | None = None) -> None:
        self.bytes = 0
        self._pid = pid
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="pss", daemon=True)

    def _watch(self) -> None:
        while not self._stop.is_set():
            self.bytes = max(self.bytes, pss_bytes(self._pid))
            self._stop.wait(PSS_EVERY_S)

    def __enter__(self) -> Self:
        self.bytes = pss_bytes(self._pid)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = max(self.bytes, pss_bytes(self._pid))


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one body.

    Attributes:
        cpu_s: CPU seconds of the process and its descendants.
        wall_s: seconds on the clock.
        pss_bytes: highest PSS seen; 0 if it was not watched.
        result: what the body returned.
    """

    cpu_s: float
    wall_s: float
    pss_bytes: int = 0
    result: Any = None


def measure(body: Callable[[], object], *, pss: bool = False) -> Sample:
    """Run ``body`` once and return what it cost.

    Args:
        body: what to measure.
        pss: also watch memory. Reading smaps costs CPU time of its own, so do not take CPU figures from such a run.
    """
    if pss:
        start = time.perf_counter()
        with _PssPeak() as peak:
            result = body()
        return Sample(0.0, time.perf_counter() - start, peak.bytes, result)
    start, cpu = time.perf_counter(), cpu_seconds()
    result = body()
    return Sample(cpu_seconds() - cpu, time.perf_counter() - start, 0, result)


def run_command(
    argv: Sequence[str], *, env: Mapping[str, str] | None = None, ok: Sequence[int] = (0,), pss: bool = False
) -> Sample:
    """Run a command to its end and return its exact CPU time (from the kernel's accounting, not from ticks).

    Its output is thrown away. PYTHONDONTWRITEBYTECODE is removed: a Python command would compile its modules each time.
    With ``pss`` the highest PSS of the command and its descendants is watched from outside, which costs it nothing.

    Raises:
        RuntimeError: it ended with a status that is not in ``ok``.
    """
    clean = dict(os.environ if env is None else env)
    clean.pop("PYTHONDONTWRITEBYTECODE", None)
    start = time.perf_counter()
    child = subprocess.Popen(list(argv), env=clean, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    with _PssPeak(child.pid) if pss else contextlib.nullcontext(_PssPeak()) as peak:
        _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in ok:
        raise RuntimeError(f"{' '.join(argv)}: ended with status {child.returncode}")
    return Sample(usage.ru_utime + usage.ru_stime, time.perf_counter() - start, peak.bytes)


# ---- rounds


@dataclass(frozen=True, slots=True)
class Rounds:
    """Samples of several bodies that took turns: ``samples[name][round]``."""

    samples: dict[str, list[Sample]]

    def values(self, name: str, *, of: Metric = "cpu_s") -> list[float]:
        """Return one figure of one body, a value a round."""
        return [float(getattr(sample, of)) for sample in self.samples[name]]

    def median(self, name: str, *, of: Metric = "cpu_s") -> float:
        """Return the median over the rounds."""
        return statistics.median(self.values(name, of=of))

    def ratio(self, top: str, bottom: str, *, of: Metric = "cpu_s") -> float:
        """Return the median over the rounds of ``top / bottom`` within a round."""
        return statistics.median(self.ratios(top, bottom, of=of))

    def ratios(self, top: str, bottom: str, *, of: Metric = "cpu_s") -> list[float]:
        """Return ``top / bottom`` of each round; a zero below means that the body was too short to measure.

        Raises:
            ValueError: a value below is zero.
        """
        below = self.values(bottom, of=of)
        if min(below) <= 0.0:
            raise ValueError(f"{bottom}: {of} is 0 in a round: measure more work a round, or watch that figure")
        return [a / b for a, b in zip(self.values(top, of=of), below, strict=True)]

    def difference(self, top: str, bottom: str, *, of: Metric = "cpu_s") -> float:
        """Return the median over the rounds of ``top - bottom`` within a round."""
        pairs = zip(self.values(top, of=of), self.values(bottom, of=of), strict=True)
        return statistics.median(a - b for a, b in pairs)


# ---- figures and the report


@dataclass(slots=True)
class _Figure:
    id: str
    unit: str
    better: Better
    bar: float | None
    against: str
    value: float | None = None
    why_not: str = ""

    @property
    def ok(self) -> bool | None:
        """Return whether the bar is met; None if there is no bar, or the machine could not measure it."""
        if self.bar is None or self.why_not:
            return None
        if self.value is None:
            return False
        return self.value >= self.bar if self.better == "higher" else self.value <= self.bar

    def as_json(self) -> dict[str, object]:
        return {
            "id": self.id,
            "value": self.value,
            "unit": self.unit,
            "better": self.better,
            "bar": self.bar,
            "ok": self.ok,
            "against": self.against,
        }


@dataclass(slots=True)
class Bench:
    """One benchmark: its figures, its options, its report.

    Args:
        name: as the file is named.
        doc: the module's docstring; its first line is the description under ``--help``.
        argv: arguments, for tests; default: the command line.
    """

    name: str
    doc: str | None = None
    argv: Sequence[str] | None = None
    quick: bool = field(init=False)
    _figures: dict[str, _Figure] = field(init=False, default_factory=dict)
    _start: float = field(init=False, default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        """Read the command line."""
        summary = (self.doc or self.name).strip().splitlines()[0]
        parser = argparse.ArgumentParser(prog=f"benchmarks/{self.name}.py", description=summary)
        parser.add_argument(
            "--quick", action="store_true", help=f"fewer rounds and smaller data: under {QUICK_S:.0f} s"
        )
        self.quick = parser.parse_args(self.argv).quick

    def pick(self, *, quick: _T, full: _T) -> _T:
        """Return the size for this run."""
        return quick if self.quick else full

    def declare(self, figure: str, *, unit: str, better: Better, against: str, bar: float | None = None) -> None:
        """Promise a figure before anything is measured.

        Args:
            figure: short identifier, unique in this benchmark.
            unit: "x" for a ratio, else e.g. "s", "MB/s".
            better: which way is better.
            against: the peer or physical bound it is measured against, in the same run.
            bar: what it has to reach (at least, or at most); None for a figure that is only told.
        """
        if figure in self._figures:
            raise ValueError(f"{self.name}: figure {figure} is declared twice")
        self._figures[figure] = _Figure(figure, unit, better, bar, against)

    def interleave(
        self, bodies: Mapping[str, Callable[[], object]], *, repeats: int, warm_up: int = 1, pss: bool = False
    ) -> Rounds:
        """Run the bodies in turns; every other round backwards, so that neither always goes first.

        Args:
            bodies: name -> what to run; what each returns stays in its ``Sample``. A body that returns a ``Sample``
                (from ``run_command``, or from a child process that measured itself) counts with that.
            repeats: rounds that count.
            warm_up: rounds before that, which do not.
            pss: watch memory instead of CPU.
        """
        samples: dict[str, list[Sample]] = {name: [] for name in bodies}
        for turn in range(warm_up + repeats):
            order = list(bodies) if turn % 2 == 0 else list(bodies)[::-1]
            for name in order:
                sample = measure(bodies[name], pss=pss)
                if isinstance(sample.result, Sample):
                    sample = sample.result
                if turn >= warm_up:
                    samples[name].append(sample)
                self.say(
                    f"round {turn - warm_up + 1:>2} {name:<24} cpu {sample.cpu_s:8.3f} s  wall {sample.wall_s:8.3f} s"
                )
        return Rounds(samples)

    def record(self, figure: str, value: float) -> None:
        """Note the measured value of a declared figure."""
        self._figures[figure].value = float(f"{value:.4g}")

    def leave_out(self, figure: str, why: str) -> None:
        """Note that this machine cannot measure a declared figure, e.g. for want of a GPU."""
        self._figures[figure].why_not = why

    def say(self, text: str) -> None:
        """Print a line for people."""
        sys.stderr.write(f"{self.name}: {text}\n")

    def report(self) -> dict[str, object]:
        """Return the JSON object of the last line."""
        return {
            "name": self.name,
            "machine": machine(),
            "figures": [figure.as_json() for figure in self._figures.values()],
        }

    def finish(self) -> NoReturn:
        """Print the report and leave: status 0, or 1 if a bar is missed or a declared figure was never measured."""
        for figure in self._figures.values():
            sign = {True: "ok", False: "MISSED", None: "-"}[figure.ok]
            bar = "" if figure.bar is None else f" (bar {'>=' if figure.better == 'higher' else '<='} {figure.bar:g})"
            value = "not measured" if figure.value is None else f"{figure.value:g} {figure.unit}"
            note = f": {figure.why_not}" if figure.why_not else ""
            self.say(f"{sign:<6} {figure.id} = {value}{bar} against {figure.against}{note}")
        took = time.perf_counter() - self._start
        self.say(
            f"{took:.1f} s" + (f", over the {QUICK_S:.0f} s of a quick run" if self.quick and took > QUICK_S else "")
        )
        sys.stdout.write(json.dumps(self.report(), allow_nan=False) + "\n")
        sys.stdout.flush()
        raise SystemExit(1 if any(figure.ok is False for figure in self._figures.values()) else 0)


def machine() -> str:
    """Describe this machine in a line: processor, cores, memory, kernel, Python."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{model}, {cores} cores, {gib:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"
