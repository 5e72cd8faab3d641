"""Runs one playbook through ansible-runner, so that nothing it writes outlives the run or is left to run alone."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.errors import MissingToolError

__all__ = ["BECOME_PROMPT", "Ended", "Order", "environment", "play"]

BECOME_PROMPT = r"^BECOME password.*:\s*?$"
_GRACE_S = 40.0
"""How long the tether, which gives Ansible 20 s, may take to end it."""


@dataclass(frozen=True, slots=True)
class Order:
    """One run of ansible-playbook.

    Attributes:
        repo: The folder to run in; its ansible.cfg counts.
        playbook: The playbook.
        inventory: Absolute path.
        hosts: Hosts to stay with; empty for all.
        arguments: Further arguments; never a secret.
        environment: Variables beside those of this process.
        extra: Variables for the playbook; never a secret.
        become_password: Typed into Ansible's own prompt where it is given.
        forks: Hosts at a time; 0 for what ansible.cfg says.
    """

    repo: Path
    playbook: Path
    inventory: str
    hosts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    become_password: str | None = None
    forks: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """How it ended.

    Attributes:
        status: ansible-runner's word: `successful`, `failed`, `canceled`, `timeout`.
        code: ansible-playbook's exit code.
    """

    status: str
    code: int


def play(order: Order, *, work: Path, on_event: Callable[[dict[str, Any]], None], stop: Callable[[], bool]) -> Ended:
    """Run it and wait.

    Ansible is asked to end (SIGINT) when `stop` says so, and killed with its workers where it does not within 20 s. It
    is also ended when this process dies; see `tether`.

    Args:
        order: What to run.
        work: An empty private folder, best in memory: ansible-runner writes environment and raw results into it.
        on_event: Called with every event, in order, secrets still in it.
        stop: Asked about once a second.

    Raises:
        MissingToolError: ansible-playbook is not installed beside this Python.
    """
    from ansible_runner import Runner, RunnerConfig

    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    program = Path(sys.executable).parent / "ansible-playbook"
    if not program.exists():
        raise MissingToolError(f"{program} is not there; install kinemill-control again, it brings ansible-core")
    (work / "env").mkdir(mode=0o700)
    (work / "env" / "settings").write_text(json.dumps({"pexpect_timeout": 1, "suppress_output_file": True}))
    record = work / "pid"
    config = RunnerConfig(
        private_data_dir=str(work),
        project_dir=str(order.repo),
        playbook=str(order.playbook),
        inventory=order.inventory,
        limit=_limit(order, work),
        cmdline=shlex.join(_arguments(order, work)),
        forks=order.forks or None,
        envvars=environment(order),
        passwords={BECOME_PROMPT: order.become_password} if order.become_password is not None else None,
        fact_cache_type="",
        ident="ansible",
        quiet=True,
    )
    config.prepare()
    tether = Path(__file__).with_name("tether.py")
    command = [str(program), *config.command[1:]]
    config.command = [sys.executable, "-P", str(tether), str(os.getpid()), str(record), *command]

    def handle(event: dict[str, Any]) -> bool:
        on_event(event)
        return False  # it is not written to disk

    runner = Runner(config=config, event_handler=handle, cancel_callback=_Canceller(stop, record))
    status, code = runner.run()
    return Ended(str(status), int(code if code is not None else 1))


class _Canceller:
    """Asks Ansible to end, then lets ansible-runner kill it."""

    def __init__(self, stop: Callable[[], bool], record: Path) -> None:
        self._stop = stop
        self._record = record
        self._asked_s = 0.0

    def __call__(self) -> bool:
        if not self._stop():
            return False
        if self._asked_s:
            return time.monotonic() - self._asked_s > _GRACE_S
        self._asked_s = time.monotonic()
        try:
            os.kill(int(self._record.read_text()), signal.SIGINT)
        except (OSError, ValueError):
            return True
        return False


def _limit(order: Order, work: Path) -> str | None:
    if not order.hosts:
        return None
    path = work / "hosts"
    path.write_text("".join(f"{host}\n" for host in order.hosts))
    return f"@{path}"


def _arguments(order: Order, work: Path) -> list[str]:
    arguments = list(order.arguments)
    if order.become_password is not None:
        arguments.append("--ask-become-pass")
    if order.extra:
        path = work / "extra.json"
        path.write_text(json.dumps(dict(order.extra)))
        arguments += ["--extra-vars", f"@{path}"]
    return arguments


def environment(order: Order) -> dict[str, str]:
    """What Ansible sees beside our own environment; ansible-runner would else turn the check of host keys off."""
    chosen = {
        "ANSIBLE_HOST_KEY_CHECKING": "True",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_NOCOWS": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_RETRY_FILES_ENABLED": "False",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        **order.environment,
    }
    config = order.repo / "ansible.cfg"
    if config.is_file() and not os.environ.get("ANSIBLE_CONFIG"):
        chosen["ANSIBLE_CONFIG"] = str(config)
    with contextlib.suppress(KeyError):
        # Whoever sets it wins over the repository's.
        chosen["ANSIBLE_HOST_KEY_CHECKING"] = os.environ["ANSIBLE_HOST_KEY_CHECKING"]
    return chosen
