"""What an inventory says, read by a child process: faults, hosts, and the secrets that must not get out.

A child, because Ansible takes its settings from the environment when it is imported, writes warnings wherever it likes,
and runs other people's code: inventory scripts, vault password programs, SOPS. It answers on a pipe; nothing touches a
disk. Run as `python -m kinemill.control.deploy.reading`, question and answer as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kinemill.control.deploy.record import Finding
from kinemill.errors import KinemillError, UsageError
from kinemill.records import dumps, loads

__all__ = [
    "Question",
    "Reading",
    "Target",
    "ask",
    "encrypted_files",
    "has_collection",
    "judge_secrets",
    "sops_environment",
    "variable_folders",
]

_VAULT_HEADER = b"$ANSIBLE_VAULT;"
_SOPS_NAMES = (".sops.yml", ".sops.yaml", ".sops.json")
_SECRET_NAME = re.compile(
    r"(password|passwd|passphrase|secret|token|credential|private_key|access_key)s?$", re.IGNORECASE
)
_PLACEHOLDER = re.compile(
    r"^(change[-_ ]?me.*|replace[-_ ]?me.*|todo|fixme|x{3,}|\*{3,}|password|secret|example|dummy|<.*>|your[-_ ].*)$",
    re.IGNORECASE,
)
_ABOUT_VAULT = re.compile(r"vault|decrypt|sops", re.IGNORECASE)
_DEADLINE_S = 120.0
_BIG = 4 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """What to read.

    Attributes:
        inventory: Absolute path.
        repo: The repository.
        limit: As `ansible-playbook --limit`; empty for all.
        vault_password_files: Paths.
        vault_ids: `label@path` each.
    """

    inventory: str
    repo: str
    limit: str = ""
    vault_password_files: tuple[str, ...] = ()
    vault_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """How a host is reached.

    Attributes:
        name: Its name in the inventory.
        address: Name or address to connect to.
        port: Port.
        connection: Ansible's connection plugin.
        way: The user's further ssh arguments; two test beds may use one name.
    """

    name: str
    address: str
    port: int = 22
    connection: str = "ssh"
    way: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read.

    Attributes:
        findings: What is wrong.
        targets: Every host.
        chosen: Names of those that the limit leaves.
        secrets: What must not get out.
        usage: A fault of the command line, such as a limit that names nobody; empty where there is none.
    """

    findings: tuple[Finding, ...] = ()
    targets: tuple[Target, ...] = ()
    chosen: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)
    usage: str = ""


def ask(question: Question, *, environment: Mapping[str, str], deadline_s: float = _DEADLINE_S) -> Reading:
    """Let a child read the inventory.

    Args:
        question: What to read.
        environment: The child's environment.
        deadline_s: When to give up: a vault password program may wait for somebody.

    Raises:
        UsageError: The limit names nobody.
        KinemillError: The child broke; the message holds its last words.
    """
    command = [sys.executable, "-P", "-m", "kinemill.control.deploy.reading"]
    try:
        done = subprocess.run(
            command, input=json.dumps(asdict(question)), capture_output=True, text=True, timeout=deadline_s,
            cwd=question.repo, env=dict(environment), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        text = f"reading it took longer than {deadline_s:.0f} s"
        action = "an inventory script or a vault password program does not answer; run ansible-inventory --list"
        return Reading((Finding("inventory", question.inventory, text, action),))
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise KinemillError(f"{question.inventory}: reading it broke: {last}")
    reading = loads(Reading, done.stdout, where="the inventory's reader")
    if reading.usage:
        raise UsageError(reading.usage)
    return reading


def encrypted_files(folders: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Files that hold something encrypted.

    Args:
        folders: Where variables may lie.

    Returns:
        Those of Ansible's vault, whole or in part, and those of SOPS.
    """
    vault: list[Path] = []
    sops: list[Path] = []
    for folder in folders:
        paths = [folder] if folder.is_file() else sorted(path for path in folder.rglob("*") if path.is_file())
        for path in paths:
            if path.name.endswith(_SOPS_NAMES):
                sops.append(path)
                continue
            try:
                if path.stat().st_size <= _BIG and _VAULT_HEADER in path.read_bytes():
                    vault.append(path)
            except OSError:
                continue
    return vault, sops


def judge_secrets(name: str, value: Any, where: str, *, encrypted: bool) -> Finding | None:
    """Whether a variable that is named like a secret is one.

    Args:
        name: The variable.
        value: Its value in plain text.
        where: `file:line`.
        encrypted: Whether the inventory keeps it encrypted.
    """
    if not isinstance(value, str) or not _SECRET_NAME.search(name) or "{{" in value:
        return None
    if not value.strip() or _PLACEHOLDER.match(value.strip()):
        return Finding("secret", where, f"{name} still holds a placeholder", "put the real secret there, in the vault")
    if not encrypted:
        action = f"encrypt it: ansible-vault encrypt_string --name {name}"
        return Finding("secret", where, f"{name} stands in plain text", action, fatal=False)
    return None


def variable_folders(inventory: Path, repo: Path) -> list[Path]:
    """Where Ansible looks for variables: beside the inventory and beside the playbook."""
    found = [inventory]
    beside = inventory.parent if inventory.is_file() else None
    for above in (beside, repo, repo / "playbooks"):
        if above is not None:
            found += [above / name for name in ("group_vars", "host_vars") if (above / name).is_dir()]
    return found


def _read(question: Question) -> Reading:
    """In the child."""
    from ansible.cli import CLI
    from ansible.errors import AnsibleError
    from ansible.parsing.dataloader import DataLoader
    from ansible.plugins.loader import init_plugin_loader

    init_plugin_loader()
    vault_files, sops_files = encrypted_files(variable_folders(Path(question.inventory), Path(question.repo)))
    findings: list[Finding] = []
    loader = DataLoader()
    passwords: list[tuple[str, Any]] = []
    try:
        passwords = CLI.setup_vault_secrets(
            loader,
            vault_ids=list(question.vault_ids) + _identities(),
            vault_password_files=list(question.vault_password_files),
            auto_prompt=False,
        )
    except AnsibleError as error:
        findings.append(Finding("secret", "vault password", _plain(error), "check --vault-password-file"))
    if vault_files and not passwords and not findings:
        names = ", ".join(_short(path) for path in vault_files[:5])
        action = "give --vault-password-file FILE or set ANSIBLE_VAULT_PASSWORD_FILE"
        findings.append(Finding("secret", names, "holds secrets of the vault, and no vault password is given", action))
    findings += _sops_findings(sops_files)
    secrets: set[str] = set()
    for _, password in passwords:
        secrets.add(bytes(password.bytes).decode("utf-8", "replace"))
    whole = _whole_files(vault_files, loader, findings) if passwords else {}
    sops_names = _sops_names(sops_files)
    settings = _settings(question, findings, sops_names if passwords else None)
    for name, value, where, sealed in settings:
        held = sealed or name in sops_names or any(where.startswith(f"{path}:") for path in whole)
        if held:
            secrets |= set(_leaves(value))
        finding = judge_secrets(name, value, where, encrypted=held)
        if finding is not None:
            findings.append(finding)
            if not finding.fatal:
                secrets |= set(_leaves(value))
    for leaves in whole.values():
        secrets |= leaves
    targets, chosen, usage = _targets(question, loader, findings)
    return Reading(tuple(sorted(set(findings))), tuple(targets), tuple(chosen), tuple(sorted(secrets)), usage)


def _identities() -> list[str]:
    from ansible import constants

    return [str(one) for one in constants.config.get_config_value("DEFAULT_VAULT_IDENTITY_LIST") or []]


def _settings(
    question: Question, findings: list[Finding], undecided: set[str] | None
) -> list[tuple[str, Any, str, bool]]:
    """Every variable with its plain value, its place and whether it was sealed; adds what is wrong to the findings.

    `undecided` are variables that may stay encrypted without being at fault; None where there is no password at all.
    """
    from kinemill.control.inventory import declared_variables, inventory_settings, judge, removed_variables

    roles = Path(question.repo) / "roles"
    gone = roles / "platform_validate" / "files" / "removed_variables.yml"
    try:
        settings = inventory_settings([question.inventory])
    except KinemillError as error:
        # A file that cannot be decrypted is told already; then the same again in Ansible's words helps nobody.
        if not (any(finding.fatal for finding in findings) and _ABOUT_VAULT.search(str(error))):
            findings.append(Finding("inventory", "inventory", str(error)))
        return []
    try:
        faults = judge(settings, declared_variables(roles), removed_variables(gone) if gone.is_file() else {})
        findings += [Finding("inventory", fault.where, fault.message) for fault in faults]
    except KinemillError as error:
        findings.append(Finding("inventory", _short(roles), str(error)))
    for setting in settings:
        if setting.sealed and setting.templated and undecided is not None and setting.name not in undecided:
            action = "give the password that it was encrypted with"
            findings.append(Finding("secret", setting.where, f"{setting.name} cannot be decrypted", action))
    return [(s.name, s.value, s.where, s.sealed) for s in settings if not s.templated]


def _whole_files(paths: Iterable[Path], loader: Any, findings: list[Finding]) -> dict[str, set[str]]:
    """Every text in the files that are encrypted as a whole, by the file's name as places show it."""
    from ansible.errors import AnsibleError

    found: dict[str, set[str]] = {}
    for path in paths:
        if not path.read_bytes().startswith(_VAULT_HEADER):
            continue
        try:
            found[_short(path)] = set(_leaves(loader.load_from_file(str(path))))
        except AnsibleError as error:
            action = "give the password that it was encrypted with"
            findings.append(Finding("secret", _short(path), _plain(error).split(": ", 1)[0], action))
    return found


def _sops_findings(paths: list[Path]) -> list[Finding]:
    """What is missing for SOPS to be of use."""
    if not paths:
        return []
    names = ", ".join(_short(path) for path in paths[:5])
    missing: list[Finding] = []
    if not has_collection("community.sops", Path.cwd()):
        action = "install the collection: ansible-galaxy collection install community.sops"
        missing.append(Finding("secret", names, "is encrypted with SOPS, and community.sops is not installed", action))
    if shutil.which("sops") is None:
        action = "install sops and its key, or keep the secrets in Ansible's vault"
        missing.append(
            Finding("secret", names, "is encrypted with SOPS, and the program sops is not installed", action)
        )
    return missing


def has_collection(name: str, repo: Path) -> bool:
    """Whether a collection is installed, beside this Python or where Ansible looks for them.

    Args:
        name: `namespace.name`.
        repo: The repository; its `collections` folder counts.
    """
    namespace, _, short = name.partition(".")
    places = [*sys.path, *os.environ.get("ANSIBLE_COLLECTIONS_PATH", "").split(":")]
    places += [
        str(Path.home() / ".ansible" / "collections"),
        "/usr/share/ansible/collections",
        str(repo / "collections"),
    ]
    return any((Path(place) / "ansible_collections" / namespace / short).is_dir() for place in places if place)


def sops_environment(folders: Iterable[Path], repo: Path) -> dict[str, str]:
    """What lets Ansible read files of SOPS; empty where there are none, or where they cannot be read here."""
    _, sops = encrypted_files(folders)
    if not sops or shutil.which("sops") is None or not has_collection("community.sops", repo):
        return {}
    return {"ANSIBLE_VARS_ENABLED": "host_group_vars,community.sops.sops"}


def _sops_names(paths: Iterable[Path]) -> set[str]:
    """Variables that files of SOPS set; YAML and JSON both load as YAML."""
    import yaml

    names: set[str] = set()
    for path in paths:
        try:
            document = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        names |= {str(name) for name in document} if isinstance(document, Mapping) else set()
    return names - {"sops"}


def _leaves(value: Any) -> Iterable[str]:
    """Every scalar inside a value, as text; yes and no are no secrets."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif value is not None and not isinstance(value, bool):
        yield str(value)


def _targets(question: Question, loader: Any, findings: list[Finding]) -> tuple[list[Target], list[str], str]:
    """Every host with the way to it, the names that the limit leaves, and what is wrong with the limit."""
    from ansible.errors import AnsibleError
    from ansible.inventory.manager import InventoryManager
    from ansible.template import Templar
    from ansible.vars.manager import VariableManager

    try:
        inventory = InventoryManager(loader=loader, sources=[question.inventory])
        manager = VariableManager(loader=loader, inventory=inventory)
        targets = [_target(host, manager.get_vars(host=host), loader, Templar) for host in inventory.get_hosts("all")]
    except AnsibleError:
        return [], [], ""  # told already, with the place
    chosen = [target.name for target in targets]
    if not targets:
        findings.append(Finding("inventory", _short(Path(question.inventory)), "it names no host", "fill hosts.yml"))
    elif question.limit:
        try:
            inventory.subset(question.limit)
            chosen = [str(host.name) for host in inventory.get_hosts("all")]
        except AnsibleError as error:
            return targets, [], f"--limit {question.limit}: {_plain(error)}"
        if not chosen:
            known = ", ".join([target.name for target in targets][:12])
            return targets, [], f"--limit {question.limit} leaves no host; there are {known}"
    return targets, chosen, ""


def _target(host: Any, variables: Mapping[str, Any], loader: Any, templar_class: Any) -> Target:
    from ansible import constants
    from ansible.errors import AnsibleError

    templar = templar_class(loader=loader, variables=variables)

    def value(name: str, default: str = "") -> str:
        raw = variables.get(name)
        if raw is None:
            return default
        try:
            return str(templar.template(raw))
        except AnsibleError:
            return str(raw)

    port = value("ansible_port") or value("ansible_ssh_port") or "22"
    way = " ".join(value(f"ansible_ssh_{name}_args") for name in ("common", "extra")).strip()
    return Target(
        name=str(host.name),
        address=value("ansible_host") or value("ansible_ssh_host") or str(host.name),
        port=int(port) if port.isdigit() else 0,
        connection=value("ansible_connection", str(constants.DEFAULT_TRANSPORT)),
        way=way,
    )


def _plain(error: BaseException) -> str:
    return " ".join(str(error).split())


def _short(path: Path) -> str:
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def main() -> None:
    """Question on standard input, answer on standard output; what Ansible prints goes to standard error."""
    question = loads(Question, sys.stdin.read(), where="question")
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer:
        os.dup2(2, 1)
        answer.write(dumps(_read(question)))


if __name__ == "__main__":
    main()
