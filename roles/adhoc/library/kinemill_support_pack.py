#!/usr/bin/python3
"""Ansible module: put what hosts said into one archive that its owner alone reads."""

from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_support_pack
short_description: Write a support bundle
description:
  - Writes C(<folder>/<name>-<time>.tar.gz) with mode 0600, one folder for each host. Never over an existing file.
author: kinemill
options:
  folder:
    description: Where; made with mode 0700 where it is not there.
    type: path
    required: true
  name:
    description: Begins the file's name.
    type: str
    required: true
  hosts:
    description: Host to file name to text.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Pack
  kinemill_support_pack:
    folder: build/support
    name: sandbox
    hosts: {n1: {uname.txt: Linux}}
"""


def pack(folder: Path, name: str, hosts: dict[str, dict[str, str]], *, now: float) -> Path:
    """Write the archive and return its path.

    Raises:
        FileExistsError: One of this second is there.
        ValueError: A name that would lead out of the archive's folder.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}"
    path = folder / f"{stem}.tar.gz"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "wb") as handle, tarfile.open(fileobj=handle, mode="w:gz") as tar:
            for host, parts in sorted(hosts.items()):
                for part, text in sorted(parts.items()):
                    inside = Path(stem, host, part)
                    if ".." in inside.parts or Path(host).name != host or Path(part).is_absolute():
                        raise ValueError(f"{host}/{part} is no name for a bundle")
                    data = text.encode("utf-8", "replace")
                    info = tarfile.TarInfo(str(inside))
                    info.size, info.mtime, info.mode = len(data), int(now), 0o600
                    tar.addfile(info, io.BytesIO(data))
    except BaseException:
        path.unlink()
        raise
    return path


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "hosts": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=True, path="")
    asked: dict[str, Any] = module.params
    try:
        path = pack(Path(asked["folder"]), asked["name"], asked["hosts"], now=time.time())
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, path=str(path), bytes=path.stat().st_size)


if __name__ == "__main__":
    main()
