"""One deploy from start to end: read, lock, check everything, run, say what came of it."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from kinemill.contracts import ExitCode
from kinemill.control.deploy.engine import Order, environment, play
from kinemill.control.deploy.lock import DeployLock, lock_name, operator
from kinemill.control.deploy.places import RunFolder, find_inventory, find_repo, prune, work_folder
from kinemill.control.deploy.preflight import preflight_roles, tools, version_findings
from kinemill.control.deploy.reach import look_at
from kinemill.control.deploy.reading import Question, Reading, Target, ask, sops_environment, variable_folders
from kinemill.control.deploy.record import INTERRUPTED, Finding, RunRecord, exit_code
from kinemill.control.deploy.redact import Redactor
from kinemill.control.deploy.report import page
from kinemill.control.deploy.show import Show
from kinemill.control.deploy.tally import Tally, message_of
from kinemill.control.settings import DeploySettings
from kinemill.errors import UsageError
from kinemill.records import dumps

__all__ = ["Request", "deploy"]

_KEPT = {
    "runner_on_ok",
    "runner_on_failed",
    "runner_on_unreachable",
    "playbook_on_task_start",
    "playbook_on_play_start",
}


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asked for.

    Attributes:
        inventory: As typed.
        here: Where it was typed.
        repo: The repository; None to look for it from `here` upwards.
        playbook: Relative to the repository.
        limit: As `ansible-playbook --limit`; empty for all hosts.
        tags: As `ansible-playbook --tags`; empty for all.
        check: Change nothing, show what would change.
        vault_password_files: Paths.
        vault_ids: `label@path` each.
        become_password: Where it was asked for.
        forks: Hosts at a time; 0 for what ansible.cfg says.
    """

    inventory: str
    here: Path
    repo: Path | None = None
    playbook: str = "site.yml"
    limit: str = ""
    tags: str = ""
    check: bool = False
    vault_password_files: tuple[str, ...] = ()
    vault_ids: tuple[str, ...] = ()
    become_password: str | None = None
    forks: int = 0


def deploy(request: Request, settings: DeploySettings, show: Show, stop: Callable[[], bool]) -> RunRecord:
    """Run it.

    Args:
        request: What to do.
        settings: Where and how.
        show: Told what happens.
        stop: Whether the operator wants to stop; asked often.

    Returns:
        The record; also in the run's folder, with its report.

    Raises:
        UsageError: No such inventory, playbook or limit.
        UnavailableError: Somebody else deploys this cluster.
        KinemillError: A folder, lock or tool cannot be used.
    """
    repo = find_repo(request.repo or request.here)
    inventory = find_inventory(request.inventory, repo, here=request.here)
    playbook = repo / request.playbook
    if not playbook.is_file():
        raise UsageError(f"no playbook {request.playbook} in {repo}")
    order = _order(request, repo, inventory, playbook)
    show.step("reading the inventory")
    reading = ask(
        Question(str(inventory), str(repo), request.limit, request.vault_password_files, request.vault_ids),
        environment={**os.environ, **environment(order)},
    )
    redactor = Redactor([*reading.secrets, *_passwords(request)])
    name = inventory.stem if inventory.is_file() else inventory.name
    with _work() as work:
        targets = [_lock_target(target, repo) for target in reading.targets] or [str(inventory)]
        with DeployLock(settings.lock_dir, lock_name(name, targets), work=work, now=_now()) as lock:
            if lock.took_over is not None:
                show.warn(f"the last run of this cluster ended without a word: {lock.took_over}; going on from there")
            folder = RunFolder.make(settings.runs_dir, name, _now())
            record = _new_record(request, name, repo, folder)
            _keep(folder, record)
            folder.point_latest()
            try:
                run = _Run(request, settings, order, reading, redactor, record, folder, work, show, stop)
                run.check()
                if record.state == "running":
                    run.play()
            except BaseException as error:
                record.state, record.exit_code = "failed", int(ExitCode.FINDING)
                record.note = redactor.text(f"{type(error).__name__}: {error}")
                raise
            finally:
                _finish(folder, record, redactor)
                prune(settings.runs_dir, name, settings.keep_runs)
    return record


def _order(request: Request, repo: Path, inventory: Path, playbook: Path) -> Order:
    arguments = [word for path in request.vault_password_files for word in ("--vault-password-file", path)]
    arguments += [word for label in request.vault_ids for word in ("--vault-id", label)]
    sops = {} if os.environ.get("ANSIBLE_VARS_ENABLED") else sops_environment(variable_folders(inventory, repo), repo)
    return Order(
        repo=repo,
        playbook=playbook,
        inventory=str(inventory),
        arguments=tuple(arguments),
        environment=sops,
        become_password=request.become_password,
        forks=request.forks,
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """What the parts of a run share."""

    request: Request
    settings: DeploySettings
    order: Order
    reading: Reading
    redactor: Redactor
    record: RunRecord
    folder: RunFolder
    work: Path
    show: Show
    stop: Callable[[], bool]

    def check(self) -> None:
        """Collect what is wrong; the record's state says whether the run may go on."""
        record, chosen = self.record, set(self.reading.chosen)
        targets = [target for target in self.reading.targets if target.name in chosen]
        findings = [*self.reading.findings, *version_findings(self.order.repo, targets)]
        if record.versions["ansible-core"] and record.versions["ansible-runner"]:
            self.show.step(f"reaching {len(targets)} host{'s' if len(targets) != 1 else ''}")
            answers = look_at(
                self.order,
                targets,
                roles=preflight_roles(self.order.repo),
                redactor=self.redactor,
                work=self.work / "look",
                timeout_s=self.settings.reach_timeout_s,
                connect_timeout_s=self.settings.connect_timeout_s,
                stop=self.stop,
            )
            findings += answers.findings
            record.nodes = answers.looks
        if not targets and not any(finding.fatal for finding in findings):
            findings.append(Finding("inventory", self.order.inventory, "no host could be read from it"))
        record.findings = tuple(sorted({_hidden(finding, self.redactor) for finding in findings}))
        if self.stop():
            record.state, record.exit_code = "interrupted", INTERRUPTED
            record.note = "stopped before anything was touched"
        elif any(finding.fatal for finding in record.findings):
            record.state = "refused"
            record.exit_code = exit_code(record.findings, [], ended_well=False)
            record.note = "nothing was touched"

    def play(self) -> None:
        """Run the playbook and take down what it does."""
        request, record = self.request, self.record
        tally = Tally(self.order.repo)
        for host in self.reading.chosen:
            tally.expect(host)
        with _Notes(self.folder, self.redactor) as notes:

            def take(event: dict[str, Any]) -> None:
                tally.feed(notes.take(event))
                self.show.progress(tally)

            with self.show.running(tally):
                ended = play(self._order(), work=self.work / "play", on_event=take, stop=self.stop)
        tally.end(_now().isoformat())
        record.hosts, record.roles, record.failures = tally.hosts, tuple(tally.roles), tuple(tally.failures)
        if self.stop():
            record.state, record.exit_code = "interrupted", INTERRUPTED
            record.note = f"stopped in {tally.role or 'the start'}; the same command goes on from what is there"
            return
        well = ended.status == "successful" and ended.code == 0
        record.exit_code = int(exit_code(record.findings, record.failures, ended_well=well))
        record.state = ("checked" if request.check else "deployed") if well else "failed"
        if not well and request.check:
            record.note = "a check cannot see past what an earlier task would have installed; nothing was changed"
        if not well and all(failure.tolerated for failure in tally.failures):
            record.note = (
                tally.complaint or f"ansible-playbook ended with {ended.code} ({ended.status}); see output.txt"
            )

    def _order(self) -> Order:
        arguments = list(self.order.arguments)
        if self.request.check:
            arguments += ["--check", "--diff"]
        if self.request.tags:
            arguments += ["--tags", self.request.tags]
        # The control host's own plays build what the nodes install; a limit must not leave them out.
        hosts = tuple(dict.fromkeys((*self.reading.chosen, "localhost"))) if self.request.limit else ()
        return replace(self.order, arguments=tuple(arguments), hosts=hosts)


class _Notes:
    """Keeps output and events of a run, secrets taken out."""

    def __init__(self, folder: RunFolder, redactor: Redactor) -> None:
        self._redactor = redactor
        self._output = folder.open("output.txt")
        self._events = folder.open("events.jsonl")
        self._loose: list[str] = []

    def take(self, event: dict[str, Any]) -> dict[str, Any]:
        """Note one event; returns it without secrets."""
        text = str(event.get("stdout", "")).replace("\r\n", "\n")
        if event.get("event") == "verbose":
            # Lines come one by one, and a wrapped warning may break a secret in two: look at them together.
            self._loose.append(text)
        else:
            self._flush()
            if text.strip():
                self._output.add(self._redactor.text(text).rstrip("\n") + "\n")
        clean: dict[str, Any] = self._redactor.value(event)
        if clean.get("event") in _KEPT:
            self._events.add(json.dumps(_brief(clean), sort_keys=True) + "\n")
        return clean

    def _flush(self) -> None:
        if self._loose:
            lines = "".join(line if line.endswith("\n") else f"{line}\n" for line in self._loose)
            self._output.add(self._redactor.text(lines))
            self._loose = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._output.close()
        self._events.close()


def _brief(event: Mapping[str, Any]) -> dict[str, Any]:
    """What of an event is worth keeping: who, what, when; a result's content only where it failed."""
    data = event.get("event_data") or {}
    result = data.get("res") or {}
    brief: dict[str, Any] = {"event": event.get("event"), "time": event.get("created")}
    for name in ("play", "role", "task", "task_path", "host", "duration"):
        if data.get(name) not in (None, ""):
            brief[name] = data[name]
    if "changed" in result:
        brief["changed"] = bool(result["changed"])
    if event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
        brief["message"] = message_of(result)
    return brief


def _new_record(request: Request, name: str, repo: Path, folder: RunFolder) -> RunRecord:
    return RunRecord(
        inventory=name,
        playbook=request.playbook,
        check=request.check,
        limit=request.limit,
        operator=operator(),
        host=platform.node(),
        pid=os.getpid(),
        started=_now().isoformat(timespec="seconds"),
        revision=_revision(repo),
        versions=tools(),
        folder=str(folder.path),
    )


def _finish(folder: RunFolder, record: RunRecord, redactor: Redactor) -> None:
    now = _now()
    record.ended = now.isoformat(timespec="seconds")
    record.seconds = round((now - datetime.datetime.fromisoformat(record.started)).total_seconds(), 1)
    _keep(folder, record)
    folder.write("report.html", redactor.text(page(record)))


def _keep(folder: RunFolder, record: RunRecord) -> None:
    folder.write("run.json", dumps(record, indent=1) + "\n")


def _hidden(finding: Finding, redactor: Redactor) -> Finding:
    return replace(finding, message=redactor.text(finding.message), action=redactor.text(finding.action))


def _passwords(request: Request) -> list[str]:
    return [request.become_password] if request.become_password else []


def _lock_target(target: Target, repo: Path) -> str:
    """What a lock is about: where the inventory connects to; this machine itself only within one checkout."""
    if target.connection == "local":
        return f"local:{repo}"
    return f"{target.address}:{target.port} {target.way}"


@contextlib.contextmanager
def _work() -> Iterator[Path]:
    work = work_folder()
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _revision(repo: Path) -> str:
    """The commit, with `+` where files differ from it; empty outside of git."""
    try:
        done = subprocess.run(
            ["git", "-C", str(repo), "describe", "--always", "--dirty=+", "--exclude=*"],
            capture_output=True, text=True, timeout=20, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _now() -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time.time(), datetime.UTC)
