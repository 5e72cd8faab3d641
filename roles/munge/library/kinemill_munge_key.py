#!/usr/bin/python3
"""Ansible module: a cluster's munge key, made once and read ever after."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_munge_key
short_description: Make a munge key once, and read it
description:
  - Makes a key of 1024 random bits, as hex digits, in a file that root alone reads, unless the file is there.
  - Returns the key, so set C(no_log) on the task.
author: kinemill
options:
  path:
    description: The file.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Make the key
  kinemill_munge_key:
    path: /var/lib/kinemill/munge.key
  no_log: true
"""

KEY_BYTES = 128
LEAST_CHARACTERS = 64


def make(path: str) -> None:
    """Write a new key; nobody ever sees a part of it."""
    temporary = f"{path}.{secrets.token_hex(4)}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as handle:
        handle.write(secrets.token_hex(KEY_BYTES))
        handle.flush()
        os.fsync(handle.fileno())
    Path(temporary).replace(path)


def read(path: str) -> str | None:
    """The key, or None where there is none.

    Raises:
        ValueError: Others can read it, or it is too short to be one.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, encoding="ascii") as handle:
        found = os.fstat(handle.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ValueError(f"{path}: others than its owner can reach it; remove it and every node gets a new key")
        key = handle.read()
    if len(key) < LEAST_CHARACTERS:
        raise ValueError(f"{path}: too short for a key; remove it and every node gets a new one")
    return key


def main() -> None:
    """Entry."""
    module = AnsibleModule(argument_spec={"path": {"type": "path", "required": True}}, supports_check_mode=True)
    path = module.params["path"]
    try:
        key = read(path)
        changed = key is None
        if key is None:
            if module.check_mode:
                module.exit_json(changed=True, key="")
            make(path)
            key = read(path)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, key=key)


if __name__ == "__main__":
    main()
