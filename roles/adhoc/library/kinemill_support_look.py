#!/usr/bin/python3
"""Ansible module: what a host can say about a fault: versions, states, settings, logs, evidence; no secret in it."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_support_look
short_description: Collect what a support case needs
description:
  - Runs commands that only look, each with a deadline, and reads the ends of logs. Changes nothing.
  - Passwords, tokens, keys and the values of environment files on this host are replaced before anything is returned.
author: kinemill
options:
  controller:
    description: Whether Slurm's controller runs here, so that it is asked for the whole cluster.
    type: bool
    default: false
  agents:
    description: The agents' venv on this host.
    type: path
    required: true
  lines:
    description: Last lines of each log.
    type: int
    default: 2000
  log_dir:
    description: Folder of Slurm's logs.
    type: path
    default: /var/log/slurm
  config_dir:
    description: Folder of Slurm's settings.
    type: path
    default: /etc/slurm
  state_dir:
    description: Folder of our state.
    type: path
    default: /var/lib/kinemill
  etc_dir:
    description: Folder of our settings.
    type: path
    default: /etc/kinemill
  run_dir:
    description: Folder of what a boot clears.
    type: path
    default: /run/kinemill
"""

EXAMPLES = r"""
- name: Look
  kinemill_support_look:
    agents: /opt/kinemill/agents/current
"""

GONE = "[removed]"
PART_BYTES = 512 * 1024
"""Of each text; of a longer one the end is kept."""
COMMAND_S = 30
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# What a line may call a secret, in settings, logs, environments and SQL. The value goes, the name stays.
_NAMED = re.compile(
    r"(?i)((?:[a-z0-9_.-]*(?:pass(?:word|wd|phrase)?|secret|token|credential|api_?key|access_?key(?:_id)?|private_?key)"
    r"[a-z0-9_.-]*)[\"']?\s*(?:[=:]|\bis\b)\s*)(\"[^\"\n]*\"|'[^'\n]*'|[^\s,;\"']+)"
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9+/=_.~-]{6,}")
_IDENTIFIED = re.compile(r"(?i)(identified\s+by\s+)('[^'\n]*'|\"[^\"\n]*\")")
_URL = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://[^/\s:@]*):[^/\s@]+@")
_SHAPES = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),  # JSON web tokens
    re.compile(r"\bMUNGE:[A-Za-z0-9+/=]{16,}:?"),  # sealed credentials
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\b(?:gh[pousr]_|glpat-|hf_|xox[abp]-)[A-Za-z0-9_-]{12,}"),
    re.compile(r"\b[0-9a-fA-F]{64,}\b"),  # keys in hex; digests of this length go with them
)
LEAST_SECRET = 6


def secrets_here(paths: Iterable[Path], settings: Iterable[Path], environments: Iterable[Path]) -> list[str]:
    """Values on this host that must not leave it, the longest first.

    Args:
        paths: Files whose whole content is a secret.
        settings: Files with lines such as `StoragePass=...`.
        environments: Files of which every value is one.
    """
    found: set[str] = set()
    for path in paths:
        raw = _bytes(path)
        text = raw.decode("latin-1").strip()
        found |= {text, text[:32], text[-32:], raw.hex()[:64]} if raw else set()
    for path in settings:
        found |= {match[2].strip("\"'") for match in _NAMED.finditer(_bytes(path).decode("utf-8", "replace"))}
    for path in environments:
        for line in _bytes(path).decode("utf-8", "replace").splitlines():
            found.add(line.partition("=")[2].strip().strip("\"'"))
    return sorted((one for one in found if len(one) >= LEAST_SECRET), key=len, reverse=True)


def scrub(text: str, secrets: Sequence[str] = ()) -> str:
    """The text without secrets: those that are known, and whatever looks like one."""
    for secret in secrets:
        text = text.replace(secret, GONE)
    for shape in _SHAPES:
        text = shape.sub(GONE, text)
    text = _IDENTIFIED.sub(rf"\1{GONE}", text)
    text = _URL.sub(rf"\1:{GONE}@", text)
    text = _BEARER.sub(rf"\1 {GONE}", text)
    return _NAMED.sub(rf"\1{GONE}", text)


def tail(path: Path, lines: int) -> str:
    """The last lines of a file; nothing where it is not an ordinary one."""
    return "\n".join(_bytes(path, last=PART_BYTES).decode("utf-8", "replace").splitlines()[-lines:])


def _bytes(path: Path, *, last: int | None = None) -> bytes:
    if not path.is_file() or path.is_symlink():
        return b""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(fd, "rb") as handle:
        try:
            if last is not None and os.fstat(fd).st_size > last:
                handle.seek(-last, os.SEEK_END)
            return handle.read(64 << 20)
        except OSError:
            return b""


def ask(argv: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What a command printed, and how it ended."""
    try:
        done = subprocess.run(
            list(argv), env={**os.environ, "LC_ALL": "C", **(environment or {})}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=COMMAND_S, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return "(no such command here)"
    except subprocess.TimeoutExpired as late:
        return f"{(late.stdout or b'').decode('utf-8', 'replace')}\n(no end after {COMMAND_S} s)"
    text = done.stdout.decode("utf-8", "replace")
    return text if done.returncode == 0 else f"{text}\n(exit {done.returncode})"


def commands(asked: dict[str, str], *, controller: bool) -> dict[str, list[str]]:
    """What is asked, by the name of the file that keeps the answer."""
    node = f"{asked['agents']}/bin/kinemill-node"
    journal = ["journalctl", "--no-pager", "--output=short-iso", f"--lines={asked['lines']}"]
    found = {
        "versions.txt": ["dpkg-query", "--show", "slurm*", "munge", "mariadb-server", "nvidia*", "enroot*", "podman"],
        "uname.txt": ["uname", "--all"],
        "units.txt": ["systemctl", "list-units", "--all", "--no-pager", "slurm*", "munge*", "mariadb*", "kinemill*"],
        "failed.txt": ["systemctl", "list-units", "--failed", "--no-pager"],
        "timers.txt": ["systemctl", "list-timers", "--all", "--no-pager"],
        "disks.txt": ["df", "--human-readable", "--local"],
        "memory.txt": ["free", "--mebi"],
        "journal-kinemill.txt": [*journal, "--unit=kinemill*"],
        "journal-slurm.txt": [*journal, "--unit=slurm*", "--unit=munge", "--unit=mariadb"],
        "journal-hooks.txt": [*journal, "--identifier=kinemill"],
        "kernel.txt": [*journal, "--dmesg"],
        "agents-facts.txt": [node, "facts", "--json"],
        "agents-check.json": [node, "check", "--json"],
        "agents-version.txt": [node, "--version"],
        "gpus.txt": ["nvidia-smi", "--query"],
    }  # fmt: skip
    if controller:
        found |= {
            "sinfo.txt": ["sinfo", "--Node", "--long"],
            "reasons.txt": ["sinfo", "--list-reasons", "--long"],
            "sdiag.txt": ["sdiag"],
            "config.txt": ["scontrol", "show", "config"],
            "nodes.txt": ["scontrol", "--details", "show", "node"],
            "jobs.txt": ["scontrol", "--details", "show", "job"],
            "reservations.txt": ["scontrol", "show", "reservation"],
            "queue.txt": ["squeue", "--all", "--long"],
            "accounting.txt": ["sacct", "--allusers", "--allocations", "--duplicates", "--starttime=now-1days",
                               "--format=jobid,state,exitcode,nodelist,start,end,qos,account"],
            "policy.txt": ["sacctmgr", "--noheader", "show", "qos", "format=name,priority,preempt,grptres"],
            "sprio.txt": ["sprio", "--long"],
        }  # fmt: skip
    return found


def files(asked: dict[str, str]) -> dict[str, Path]:
    """What is read, by the name in the bundle. Never slurmdbd.conf, never a key, never an environment file."""
    logs = sorted(Path(asked["log_dir"]).glob("*.log"))
    settings = [Path(asked["config_dir"]) / name for name in ("slurm.conf", "gres.conf", "cgroup.conf")]
    ours = [*Path(asked["etc_dir"]).glob("*.toml"), *Path(asked["state_dir"], "agents").glob("*.json")]
    ours += [Path(asked["run_dir"], name) for name in ("verdict.json", "agent_missing")]
    return {
        **{f"logs/{path.name}": path for path in logs},
        **{f"settings/{path.name}": path for path in settings},
        **{f"kinemill/{path.name}": path for path in sorted(ours)},
        "os-release.txt": Path("/usr/lib/os-release"),
    }


def collect(asked: dict[str, str], *, controller: bool) -> dict[str, str]:
    """Everything, by file name, scrubbed."""
    lines = int(asked["lines"])
    secrets = secrets_here(
        [Path("/etc/munge/munge.key"), Path(asked["state_dir"], "munge.key")],
        [Path(asked["config_dir"], "slurmdbd.conf"), Path("~root/.my.cnf").expanduser()],
        [*Path(asked["etc_dir"]).glob("*.env"), *Path(asked["etc_dir"]).glob("*/*.env")],
    )
    found = {name: tail(path, lines) for name, path in files(asked).items()}
    environment = {
        "KINEMILL_CONFIG_DIR": asked["etc_dir"],
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    }
    found |= {name: ask(argv, environment) for name, argv in commands(asked, controller=controller).items()}
    found["collected.txt"] = time.strftime("%Y-%m-%dT%H:%M:%SZ\n", time.gmtime())
    return {name: scrub(text, secrets)[-PART_BYTES:] for name, text in found.items() if text}


def main() -> None:
    """Entry."""
    places = {
        "log_dir": "/var/log/slurm", "config_dir": "/etc/slurm", "state_dir": "/var/lib/kinemill",
        "etc_dir": "/etc/kinemill", "run_dir": "/run/kinemill",
    }  # fmt: skip
    module = AnsibleModule(
        argument_spec={
            "controller": {"type": "bool", "default": False},
            "agents": {"type": "path", "required": True},
            "lines": {"type": "int", "default": 2000},
            **{name: {"type": "path", "default": path} for name, path in places.items()},
        },
        supports_check_mode=True,
    )
    asked = {name: str(value) for name, value in module.params.items()}
    module.exit_json(changed=False, parts=collect(asked, controller=module.params["controller"]))


if __name__ == "__main__":
    main()
