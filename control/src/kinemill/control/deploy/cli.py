"""`kinemill deploy`: the command line of a run."""

from __future__ import annotations

import os
import signal
import stat
import sys
from pathlib import Path
from types import FrameType

import click

from kinemill.records import dumps

__all__ = ["deploy"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.command()
@click.argument("inventory")
@click.option("--check", is_flag=True, help="Check everything, then show what would change; change nothing.")
@click.option("--limit", default="", help="Hosts or groups, as ansible-playbook takes them; '!gpu007' leaves one out.")
@click.option("--tags", default="", help="Only these tags, such as base_verify.")
@click.option("--playbook", default="site.yml", show_default=True, help="Below the repository.")
@click.option(
    "--vault-password-file", "vault_files", multiple=True, type=click.Path(path_type=Path, dir_okay=False),
    help="File or program with the vault's password; ANSIBLE_VAULT_PASSWORD_FILE does the same.",
)  # fmt: skip
@click.option("--vault-id", "vault_ids", multiple=True, help="LABEL@FILE, for more than one vault.")
@click.option("--ask-become-pass", is_flag=True, help="Ask for the sudo password.")
@click.option(
    "--become-password-file", type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file with it, readable by you alone.",
)  # fmt: skip
@click.option("--forks", default=0, help="Hosts at a time; ansible.cfg's figure unless given.")
@click.option("--repo", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder with site.yml.")
@click.option("--runs", type=click.Path(path_type=Path, file_okay=False), help="Where runs are kept.")
@click.option("--keep", type=click.IntRange(1), help="How many runs are kept.")
@click.option("--reach-timeout", type=click.IntRange(1), help="Seconds that all nodes together may take to answer.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def deploy(
    *,
    inventory: str,
    check: bool,
    limit: str,
    tags: str,
    playbook: str,
    vault_files: tuple[Path, ...],
    vault_ids: tuple[str, ...],
    ask_become_pass: bool,
    become_password_file: Path | None,
    forks: int,
    repo: Path | None,
    runs: Path | None,
    keep: int | None,
    reach_timeout: int | None,
    as_json: bool,
) -> None:
    """Run the playbook for INVENTORY, a folder or a name below inventories.

    Everything that can be checked is checked first, and every fault is told at once: the inventory, secrets, versions,
    whether each node can be reached and is what the inventory says. Nothing is touched unless all of it holds.

    \b
    Exit: 0 done, 1 a node needs a person, 2 bad request, 75 try again (a node does not answer, somebody else deploys),
    78 inventory, secret or version is wrong, 130 interrupted.
    Example: kinemill deploy sandbox --check
    """
    from kinemill.control.deploy.run import Request
    from kinemill.control.deploy.run import deploy as run
    from kinemill.control.deploy.show import Show, summary
    from kinemill.control.settings import ControlSettings
    from kinemill.settings import load_settings

    settings = load_settings(
        ControlSettings,
        plane="control",
        overrides={
            "deploy.runs_dir": str(runs.absolute()) if runs else None,
            "deploy.keep_runs": keep,
            "deploy.reach_timeout_s": reach_timeout,
        },
    ).value.deploy
    here = Path.cwd()
    request = Request(
        inventory=inventory,
        here=here,
        repo=repo,
        playbook=playbook,
        limit=limit,
        tags=tags,
        check=check,
        vault_password_files=tuple(str(_absolute(path)) for path in vault_files),
        vault_ids=tuple(_vault_id(text) for text in vault_ids),
        become_password=_become_password(ask_become_pass, become_password_file),
        forks=forks,
    )
    stopper = _Stopper()
    before = {number: signal.signal(number, stopper.ask) for number in _SIGNALS}
    try:
        record = run(request, settings, Show(quiet=as_json and not sys.stderr.isatty()), stopper.asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    click.echo(dumps(record) if as_json else summary(record))
    if record.exit_code:
        sys.exit(record.exit_code)


class _Stopper:
    """Remembers that the operator wants to stop; Ansible is then asked to, and given time."""

    def __init__(self) -> None:
        self._asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """A signal's handler."""
        del frame
        if not self._asked:
            os.write(2, b"\nstopping: Ansible ends what it is doing (20 s at most)\n")
        self._asked = True

    def asked(self) -> bool:
        return self._asked


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _vault_id(text: str) -> str:
    """`label@path` with the path made absolute, for Ansible runs elsewhere."""
    label, at, path = text.rpartition("@")
    if not path or path == "prompt" or "prompt_ask" in path:
        raise click.UsageError(f"--vault-id {text}: name a file, LABEL@FILE")
    return f"{label}{at}{_absolute(Path(path))}"


def _become_password(ask: bool, path: Path | None) -> str | None:
    if ask and path is not None:
        raise click.UsageError("give either --ask-become-pass or --become-password-file")
    if ask:
        return str(click.prompt("sudo password", hide_input=True, err=True))
    if path is None:
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise click.UsageError(f"{path}: mode {mode:04o} lets others in; run: chmod 600 {path}")
    return path.read_text(encoding="utf-8").strip()
