"""Which account a server runs as: ourselves, or an unprivileged one where we are root and it must not be."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from kinemill.errors import EnvironmentFault

__all__ = ["Account", "reachable", "unprivileged_account"]


@dataclass(frozen=True, slots=True)
class Account:
    """A user of this machine."""

    name: str
    uid: int
    gid: int


def unprivileged_account(preferred: tuple[str, ...] = ("postgres", "nobody")) -> Account | None:
    """The first of `preferred` that exists, or None where this process is not root.

    Raises:
        EnvironmentFault: Root, and none of them exists.
    """
    if os.geteuid() != 0:
        return None
    for name in preferred:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise EnvironmentFault(f"root may not run this server, and no account of {', '.join(preferred)} exists: add one")


def reachable(path: Path, account: Account | None) -> bool:
    """True if `account` (None: ourselves) may pass through every folder above `path`."""
    if account is None:
        return True
    for folder in path.absolute().parents:
        try:
            found = folder.stat()
        except OSError:
            return False
        if found.st_uid == account.uid:
            wanted = stat.S_IXUSR
        elif found.st_gid == account.gid:
            wanted = stat.S_IXGRP
        else:
            wanted = stat.S_IXOTH
        if not found.st_mode & wanted:
            return False
    return True
