#!/usr/bin/python3
"""Ansible module: bring several folders and files of a node to their stated content and rights in one step."""

from __future__ import annotations

import grp
import os
import pwd
import secrets
import stat
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_files
short_description: Write several files in one step
description:
  - Makes folders, then writes files, each by a new file beside it, fsync and rename.
  - What is right already is not touched. A link or anything else in the place of a file is refused, never followed.
  - Owner and group are those of the user that runs it unless given, so root's on a node.
  - Set C(no_log) on the task where a content is secret.
author: kinemill
options:
  folders:
    description:
      - Folders, with path, mode, owner and group; those above one must exist or stand before it, or are made as root's
        where C(parents) is set.
    type: list
    elements: dict
    default: []
  files:
    description:
      - Files, with path, mode, owner, group, and either C(content) or C(source), an ordinary file of the node to copy.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Write the settings
  kinemill_files:
    folders:
      - path: /etc/thing
    files:
      - path: /etc/thing/a.conf
        content: "{{ lookup('ansible.builtin.template', 'a.conf.j2') }}"
        mode: "0640"
        group: thing
"""

RIGHTS: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "required": True},
    "owner": {"type": "str"},
    "group": {"type": "str"},
}


def number(mode: str) -> int:
    """A mode such as `0644`.

    Raises:
        ValueError: It is not octal, or lets everybody write.
    """
    found = int(mode, 8)
    if found & stat.S_IWOTH and not found & stat.S_ISVTX:
        raise ValueError(f"mode {mode} lets everybody write")
    return found


def wanted_rights(one: dict[str, Any]) -> tuple[int, int, int]:
    """Mode, uid, gid.

    Raises:
        ValueError: The mode is none.
        KeyError: The node has no such user or group.
    """
    owner, group = one.get("owner"), one.get("group")
    uid = os.geteuid() if owner is None else pwd.getpwnam(owner).pw_uid
    gid = os.getegid() if group is None else grp.getgrnam(group).gr_gid
    return number(one["mode"]), uid, gid


def rights(path: str) -> tuple[int, int, int, int] | None:
    """Kind, mode, uid, gid of what is there, or None."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    return stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid


def bring_folder(one: dict[str, Any], *, dry: bool) -> bool:
    """Make a folder or set its rights; True where something differed."""
    path = one["path"]
    if one.get("parents") and not dry:
        Path(path).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    wanted = wanted_rights(one)
    found = rights(path)
    if found is not None and found[0] != stat.S_IFDIR:
        raise ValueError(f"{path} is no folder")
    if found is not None and found[1:] == wanted:
        return False
    if not dry:
        if found is None:
            Path(path).mkdir(0o700, exist_ok=True)  # another node may make a shared folder at the same time
        os.chown(path, wanted[1], wanted[2])
        Path(path).chmod(wanted[0])
    return True


def wanted_content(one: dict[str, Any]) -> bytes:
    """What a file should hold.

    Raises:
        ValueError: Its source is no ordinary file.
    """
    if one.get("source") is None:
        return bytes(one["content"].encode("utf-8"))
    fd = os.open(one["source"], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as handle:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{one['source']} is no ordinary file")
        return handle.read()


def bring_file(one: dict[str, Any], *, dry: bool) -> bool:
    """Write a file; True where something differed."""
    path, content = Path(one["path"]), wanted_content(one)
    wanted = wanted_rights(one)
    found = rights(one["path"])
    if found is not None and found[0] != stat.S_IFREG:
        raise ValueError(f"{path} is no ordinary file")
    if found is not None and found[1:] == wanted and path.read_bytes() == content:
        return False
    if dry:
        return True
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as handle:
            handle.write(content)
            handle.flush()
            os.fchown(handle.fileno(), wanted[1], wanted[2])
            os.fchmod(handle.fileno(), wanted[0])
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink()
        raise
    return True


def main() -> None:
    """Entry."""
    folder = {**RIGHTS, "mode": {"type": "str", "default": "0755"}, "parents": {"type": "bool", "default": False}}
    file = {
        **RIGHTS,
        "mode": {"type": "str", "default": "0644"},
        "content": {"type": "str"},
        "source": {"type": "path"},
    }
    one_of = {"mutually_exclusive": [["content", "source"]], "required_one_of": [["content", "source"]]}
    module = AnsibleModule(
        argument_spec={
            "folders": {"type": "list", "elements": "dict", "options": folder, "default": []},
            "files": {"type": "list", "elements": "dict", "options": file, "default": [], **one_of},
        },
        supports_check_mode=True,
    )
    written: list[str] = []
    for kind, bring in (("folders", bring_folder), ("files", bring_file)):
        for one in module.params[kind]:
            try:
                if bring(one, dry=module.check_mode):
                    written.append(one["path"])
            except (OSError, ValueError, KeyError) as error:
                if module.check_mode and isinstance(error, KeyError):  # a package that is not there yet makes the user
                    written.append(one["path"])
                    continue
                module.fail_json(msg=f"{one['path']}: {error}", written=written)
    module.exit_json(changed=bool(written), written=written)


if __name__ == "__main__":
    main()
