#!/usr/bin/python3
"""Ansible module: take what is ours off a host, and nothing else; first what Slurm calls, later the rest."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_uninstall
short_description: Take what is ours off a host
description:
  - C(hooks) removes the files that were laid beside a vendor's hooks, told by their own second line, and empties the
    file that a vendor's slurm.conf includes and leaves to us (it stays, for Slurm would not start without it).
  - C(rest) stops and removes our units, venvs, hooks, settings and what the agents remember. The cluster's munge key
    and the note of the first contact stay.
  - Links are removed, never followed.
author: kinemill
options:
  step:
    description: Which part.
    type: str
    choices: [hooks, rest]
    required: true
  config_dir:
    description: Folder of Slurm's settings; drop-ins are looked for below it.
    type: path
    default: /etc/slurm
  also:
    description: Further folders with a vendor's hooks.
    type: list
    elements: path
    default: []
  include:
    description: The file that a vendor's slurm.conf includes; none when empty.
    type: str
    default: ""
  opt_dir:
    description: Folder of planes and hooks.
    type: path
    default: /opt/kinemill
  etc_dir:
    description: Folder of settings.
    type: path
    default: /etc/kinemill
  state_dir:
    description: Folder of state.
    type: path
    default: /var/lib/kinemill
  run_dir:
    description: Folder of what a boot clears.
    type: path
    default: /run/kinemill
  units_dir:
    description: Folder of systemd's units.
    type: path
    default: /etc/systemd/system
  tmpfiles_dir:
    description: Folder of systemd's tmpfiles.
    type: path
    default: /etc/tmpfiles.d
"""

EXAMPLES = r"""
- name: Take our hooks out of a vendor's Slurm
  kinemill_uninstall:
    step: hooks
    include: /etc/slurm/site.conf
"""

HOOK_MARK = "# Written by Ansible (role slurm_hooks)."
INCLUDE_MARK = "# Written by Ansible (role slurm_controller)."
UNITS = "kinemill-node-*"
SMALL = 4096


def head(path: Path) -> str:
    """The first bytes of an ordinary file; nothing of anything else."""
    if not path.is_file() or path.is_symlink():
        return ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(fd, "rb") as handle:
        return handle.read(SMALL).decode("utf-8", "replace")


def drop_ins(folders: Sequence[Path]) -> list[Path]:
    """Files of ours beside a vendor's hooks."""
    found = {path for folder in folders if folder.is_dir() for path in folder.rglob("*")}
    return sorted(path for path in found if any(line.startswith(HOOK_MARK) for line in head(path).splitlines()[1:2]))


def emptied(text: str) -> str:
    """The included file without our lines; the same where it is not ours."""
    if not text.startswith(INCLUDE_MARK):
        return text
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith("#"))


def take_hooks(asked: dict[str, Any], *, dry: bool) -> list[str]:
    """The step `hooks`; the paths that changed."""
    folders = [Path(asked["config_dir"]), *map(Path, asked["also"])]
    changed = []
    for path in drop_ins(folders):
        changed.append(str(path))
        if not dry:
            path.unlink()
    include = Path(asked["include"]) if asked["include"] else None
    if include is not None and not include.is_symlink() and include.is_file():
        text = include.read_text(encoding="utf-8")
        if emptied(text) != text:
            changed.append(str(include))
            if not dry:
                replace(include, emptied(text))
    return changed


def replace(path: Path, text: str) -> None:
    """Write a file anew, with the rights that it had."""
    found = path.stat()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fchown(handle.fileno(), found.st_uid, found.st_gid)
        os.fchmod(handle.fileno(), stat.S_IMODE(found.st_mode))
        os.fsync(handle.fileno())
    temporary.replace(path)


def ours(asked: dict[str, Any]) -> list[Path]:
    """What the step `rest` removes, where it is there."""
    opt, etc, state, run = (Path(asked[name]) for name in ("opt_dir", "etc_dir", "state_dir", "run_dir"))
    wanted = [opt / "agents", opt / "hooks", etc / "agents.toml", etc / "disable.d", state / "agents"]
    wanted += [state / "wheelhouses", run, Path(asked["tmpfiles_dir"], "kinemill-node.conf")]
    wanted += sorted(Path(asked["units_dir"]).glob(UNITS))
    for path in wanted:
        if not path.is_absolute() or len(path.parts) < 3:
            raise ValueError(f"{path} is no place of ours")
    return [path for path in wanted if path.is_symlink() or path.exists()]


def take_rest(asked: dict[str, Any], systemctl: Callable[[list[str]], None], *, dry: bool) -> list[str]:
    """The step `rest`; the paths that went."""
    paths = ours(asked)
    if dry or not paths:
        return [str(path) for path in paths]
    units = [path.name for path in paths if path.match(UNITS) and path.parent == Path(asked["units_dir"])]
    if units:  # what starts them first, then what runs
        systemctl(["disable", "--now", *sorted(units, key=lambda name: name.endswith(".service"))])
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for folder in ("opt_dir", "etc_dir", "state_dir"):
        try:
            Path(asked[folder]).rmdir()
        except OSError:  # something that is not the agents' lies there
            continue
    if units:
        systemctl(["daemon-reload"])
        systemctl(["reset-failed", UNITS])
    return [str(path) for path in paths]


def main() -> None:
    """Entry."""
    places = {
        "config_dir": "/etc/slurm", "opt_dir": "/opt/kinemill", "etc_dir": "/etc/kinemill",
        "state_dir": "/var/lib/kinemill", "run_dir": "/run/kinemill",
        "units_dir": "/etc/systemd/system", "tmpfiles_dir": "/etc/tmpfiles.d",
    }  # fmt: skip
    module = AnsibleModule(
        argument_spec={
            "step": {"type": "str", "choices": ["hooks", "rest"], "required": True},
            "also": {"type": "list", "elements": "path", "default": []},
            "include": {"type": "str", "default": ""},
            **{name: {"type": "path", "default": path} for name, path in places.items()},
        },
        supports_check_mode=True,
    )

    def systemctl(words: list[str]) -> None:
        module.run_command(["systemctl", *words], check_rc=words[0] != "reset-failed")

    try:
        if module.params["step"] == "hooks":
            gone = take_hooks(module.params, dry=module.check_mode)
        else:
            gone = take_rest(module.params, systemctl, dry=module.check_mode)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(gone), gone=gone)


if __name__ == "__main__":
    main()
