"""Runs a plan on this machine: recordings side by side, steps in order, nothing left behind."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kinemill.clock import SystemClock
from kinemill.contracts import Clock, QuarantineRecord, RunStatus, StepResult, StepStatus, Store
from kinemill.errors import ConflictError, EnvironmentFault, KinemillError, StateError
from kinemill.pipelines.adapters import VendorSpec
from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.ingest.ledger import Ledger
from kinemill.pipelines.ingest.plan import IngestPlan, PlanItem, plan_drop
from kinemill.pipelines.ingest.sandbox import Sandbox, SandboxLimits

__all__ = ["IngestReport", "ingest_drop", "run_plan"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IngestReport:
    """How a run ended."""

    batch: str
    status: RunStatus
    recordings: int
    """In the drop."""
    done_before: int
    """Of them, those that an earlier run had finished."""
    published: int
    """Episodes published by this run."""
    bytes_published: int = 0
    put_aside: int = 0
    """Episodes and recordings that this run put aside."""
    quarantined: tuple[QuarantineRecord, ...] = ()
    """Everything of this batch that lies aside, from earlier runs too."""
    failed: tuple[str, ...] = ()
    """Recordings that a fault of ours stopped; the next run tries them again."""
    warnings: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    """Sums of the steps' counts, such as `convert.passthrough`."""
    seconds: float = 0.0


def ingest_drop(
    drop: Path,
    vendor: VendorSpec | str | Path,
    *,
    store: Store,
    ledger: Ledger,
    work_dir: Path,
    profile: str = "vla",
    delivery: str | None = None,
    workers: int | None = None,
    limits: SandboxLimits | None = None,
    on_event: Callable[[Event], None] | None = None,
    clock: Clock | None = None,
) -> IngestReport:
    """Ingest what is not ingested yet of one drop.

    Args:
        drop: The vendor's folder, or one file of it. It is only read.
        vendor: The vendor: its spec, the name of one that comes with kinemill, or the path of its YAML.
        store: Where episodes go.
        ledger: What is done, and where it is recorded.
        work_dir: Scratch; one folder may serve many drops.
        profile: Rendition profile to make.
        delivery: What to call the drop; its folder's name where None.
        workers: Recordings side by side; one per core where None.
        limits: Of each child that parses.
        on_event: Told what happens, from several threads, one call at a time.
        clock: For time stamps of records.

    Raises:
        ConflictError: Another run of this batch is at it on this machine.
        EnvironmentFault: The work folder is full or cannot be written.
        ConfigError: The vendor's YAML is wrong.
    """
    plan = plan_drop(drop, vendor, ledger=ledger, work_dir=work_dir, profile=profile, delivery=delivery)
    return run_plan(
        plan,
        store=store,
        ledger=ledger,
        work_dir=work_dir,
        workers=workers,
        limits=limits,
        on_event=on_event,
        clock=clock,
    )


def run_plan(
    plan: IngestPlan,
    *,
    store: Store,
    ledger: Ledger,
    work_dir: Path,
    workers: int | None = None,
    limits: SandboxLimits | None = None,
    on_event: Callable[[Event], None] | None = None,
    clock: Clock | None = None,
) -> IngestReport:
    """Run a plan; arguments as for `ingest_drop`."""
    from kinemill.pipelines.steps import steps

    started = time.monotonic()
    told = threading.Lock()

    put_aside = 0

    def tell(event: Event) -> None:
        nonlocal put_aside
        with told:
            put_aside += event.kind == "quarantine"
            if on_event is not None:
                on_event(event)

    tell(Event("plan", "", plan.batch, {"recordings": len(plan.items), "to_do": len(plan.to_do)}))
    for item in plan.items:
        if item.done:
            tell(Event("skip", item.source.key, "ingested before, with the same input and settings"))
    outcome = _Outcome()
    if plan.to_do:
        with _scratch(work_dir, plan.batch) as scratch:
            ledger.run_started(plan.batch, plan.vendor.vendor, plan.delivery, {"recordings": len(plan.items)})
            runner = _Runner(
                plan, store, ledger, scratch, limits or SandboxLimits(), tell, clock or SystemClock(), outcome
            )
            non_critical = [s.spec.name for s in steps() if not s.spec.critical]
            try:
                runner.run(workers or os.cpu_count() or 1)
            except BaseException:
                with suppress(KinemillError):
                    ledger.run_ended(plan.batch, non_critical)
                raise
            outcome.status = ledger.run_ended(plan.batch, non_critical)
    report = IngestReport(
        batch=plan.batch,
        status=RunStatus.FAILED if outcome.failed else outcome.status,
        recordings=len(plan.items),
        done_before=len(plan.items) - len(plan.to_do),
        published=outcome.counts.get("publish.published", 0),
        bytes_published=outcome.counts.get("publish.bytes", 0),
        put_aside=put_aside,
        quarantined=tuple(ledger.quarantined(plan.batch)),
        failed=tuple(outcome.failed),
        warnings=(*(f.message for f in plan.findings), *outcome.warnings),
        counts=dict(sorted(outcome.counts.items())),
        seconds=round(time.monotonic() - started, 3),
    )
    tell(Event("end", "", report.batch, {"published": report.published, "seconds": report.seconds}))
    return report


@dataclass(slots=True)
class _Outcome:
    counts: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    status: RunStatus = RunStatus.SUCCESS
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, result: StepResult) -> None:
        with self.lock:
            for name, value in result.counts.items():
                key = f"{result.step}.{name}"
                self.counts[key] = self.counts.get(key, 0) + value
            if result.status is StepStatus.WARN and result.counts.get("left") != 0:  # else quarantine says it
                self.warnings += result.messages


@dataclass(slots=True)
class _Runner:
    plan: IngestPlan
    store: Store
    ledger: Ledger
    scratch: Path
    limits: SandboxLimits
    tell: Callable[[Event], None]
    clock: Clock
    outcome: _Outcome
    stopping: threading.Event = field(default_factory=threading.Event)
    boxes: set[Sandbox] = field(default_factory=set)

    def run(self, workers: int) -> None:
        pool = ThreadPoolExecutor(max_workers=max(1, workers), thread_name_prefix="ingest")
        largest_first = sorted(self.plan.to_do, key=lambda i: -i.size_bytes)
        waiting: set[Future[None]] = {pool.submit(self._recording, item) for item in largest_first}
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.5, return_when=FIRST_COMPLETED)
                for future in finished:
                    future.result()
        except BaseException:  # Ctrl-C included: children go first, then the threads that wait for them
            self.stopping.set()
            for future in waiting:
                future.cancel()
            for box in list(self.boxes):
                box.kill()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _recording(self, item: PlanItem) -> None:
        """All steps of one recording. Bad data end in quarantine; a fault of ours is told, and tried again later."""
        key = item.source.key
        if self.stopping.is_set():
            return
        token = self._claim(item)
        if token is None:
            return
        self.tell(Event("start", key, "", {"bytes": item.size_bytes}))
        workdir = self.scratch / hashlib.sha256(key.encode()).hexdigest()[:16]
        try:
            workdir.mkdir(mode=0o700)
            with Sandbox(self.limits) as box, self._renewed(token):
                self.boxes.add(box)
                try:
                    last = self._steps(item, workdir, box)
                finally:
                    self.boxes.discard(box)
            self.ledger.finish(token, last)
            self.tell(Event("done", key, last.status.value))
        except KinemillError as exc:
            self._release(token, str(exc))
            if self.stopping.is_set():
                return
            self._failed(key, f"{key}: {exc}" if key not in str(exc) else str(exc))
            if isinstance(exc, EnvironmentFault):
                raise  # no room or no rights: every other recording would fail in the same way
        except BaseException as exc:
            self._release(token, f"{type(exc).__name__}: {exc}")
            if self.stopping.is_set():
                return
            raise
        finally:
            shutil.rmtree(workdir, ignore_errors=True)

    def _steps(self, item: PlanItem, workdir: Path, box: Sandbox) -> StepResult:
        """Run the steps; returns what to record as the completion of the recording."""
        from kinemill.pipelines.steps import StepContext, steps
        from kinemill.pipelines.steps.publish import SPEC as PUBLISH

        ctx = StepContext(
            batch=self.plan.batch,
            delivery=self.plan.delivery,
            source=item.source,
            vendor=self.plan.vendor,
            profile=self.plan.profile,
            input_digest=item.input_digest,
            input_bytes=item.size_bytes,
            workdir=workdir,
            sandbox=box,
            store=self.store,
            ledger=self.ledger,
            clock=self.clock,
            tell=self.tell,
        )
        result: StepResult | None = None
        for each in steps():
            if not each.spec.critical and each.spec.name in self.plan.vendor.skip_steps:
                continue
            self.tell(Event("step", item.source.key, each.spec.name))
            begun = time.monotonic()
            try:
                result = each.run(ctx)
            except KinemillError as exc:
                if each.spec.critical:
                    raise
                _log.warning(
                    "%s: step %s failed; the run is degraded",
                    item.source.key,
                    each.spec.name,
                    exc_info=True,
                    extra={"run_id": self.plan.batch, "step": each.spec.name},
                )
                self.ledger.record(ctx.result(each.spec, StepStatus.FAILED, messages=(str(exc)[:2000],)))
                continue
            result = replace(result, seconds=round(time.monotonic() - begun, 3))
            self.outcome.add(result)
            if each.spec.name == PUBLISH.name:
                continue
            self.ledger.record(result)
            if result.counts.get("left") == 0:
                text = (*result.messages, f"nothing of it was left after {each.spec.name}")
                return ctx.result(PUBLISH, StepStatus.SKIPPED, messages=text)
        if result is None or result.step != PUBLISH.name:
            raise StateError("the last step has to be 'publish'")
        return result

    def _failed(self, key: str, text: str) -> None:
        with self.outcome.lock:
            self.outcome.failed.append(text)
        self.tell(Event("failed", key, text))

    def _release(self, token: str, why: str) -> None:
        with suppress(KinemillError):
            self.ledger.release(token, why)

    def _claim(self, item: PlanItem) -> str | None:
        """The right to work on a recording; None where it is done meanwhile or another run holds on to it.

        A run that was killed leaves its claim until the lease ends: that is waited for.
        """
        from kinemill.pipelines.steps.publish import SPEC as PUBLISH

        key = (self.plan.batch, PUBLISH.name, PUBLISH.version, item.input_digest)
        deadline = time.monotonic() + self.ledger.lease_s * 1.5
        told = False
        while not self.stopping.is_set():
            token = self.ledger.claim(*key)
            if token is not None:
                return token
            if self.ledger.finished(*key) is not None:
                self.tell(Event("skip", item.source.key, "finished by another run meanwhile"))
                return None
            if time.monotonic() > deadline:
                self._failed(item.source.key, f"{item.source.key}: another run works on it; run again when that ended")
                return None
            if not told:
                told = True
                text = f"claimed by another run; waiting at most {self.ledger.lease_s:g} s for it to renew or let go"
                self.tell(Event("wait", item.source.key, text))
            self.stopping.wait(0.5)
        return None

    @contextmanager
    def _renewed(self, token: str) -> Iterator[None]:
        """Renew a claim until the end of the block."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(self.ledger.lease_s / 4):
                with suppress(KinemillError):  # a claim that was lost is noticed when the result is written
                    self.ledger.renew(token)

        thread = threading.Thread(target=beat, name="ingest-renew", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


@contextmanager
def _scratch(work_dir: Path, batch: str) -> Iterator[Path]:
    """A private folder for one run of `batch`, alone on this machine; leftovers of killed runs are removed.

    Raises:
        ConflictError: A run of this batch lives.
        EnvironmentFault: The folder cannot be made.
    """
    name = hashlib.sha256(batch.encode()).hexdigest()[:16]
    home = work_dir / "ingest"
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = os.open(home / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise EnvironmentFault(f"{home}: the work folder cannot be used ({exc.strerror}); name another one") from exc
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            holder = os.pread(lock, 32, 0).decode(errors="replace").strip()
            raise ConflictError(f"batch {batch}: process {holder or '?'} is ingesting it already") from exc
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        for old in home.glob(f"{name}-*"):
            shutil.rmtree(old, ignore_errors=True)
        folder = home / f"{name}-{uuid.uuid4().hex[:8]}"
        folder.mkdir(mode=0o700)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
