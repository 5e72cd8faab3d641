#!/usr/bin/python3
"""Ansible module: give slurmdbd's database user a new password, in the database and in slurmdbd.conf, or in neither.

The password is made here, is root's and slurm's alone, and is never an argument, a result or a log line.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_slurmdbd_password
short_description: Change the password of slurmdbd's database user
description:
  - Where C(slurmdbd.conf) holds no password (the user comes in over the socket, as role slurm_controller sets it up)
    there is nothing to change, and C(socket) is true.
  - Run it on the host of database and slurmdbd; restart slurmdbd afterwards.
author: kinemill
options:
  path:
    description: The file.
    type: path
    default: /etc/slurm/slurmdbd.conf
"""

EXAMPLES = r"""
- name: Change it
  kinemill_slurmdbd_password:
"""

PASSWORD_BYTES = 24
_LINE = re.compile(r"^(?P<key>[A-Za-z]+)\s*=\s*(?P<value>.*?)\s*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def settings(text: str) -> dict[str, str]:
    """The keys of slurmdbd.conf, lower case."""
    return {match["key"].lower(): match["value"] for match in _LINE.finditer(text)}


def replaced(text: str, password: str) -> str:
    """The file with another password; every other line as it was."""
    return re.sub(r"(?im)^(storagepass\s*=\s*).*$", lambda match: match[1] + password, text)


def accounts_sql(user: str) -> str:
    """Lists the hosts for which the database knows the user."""
    return f"SELECT Host FROM mysql.global_priv WHERE User = '{user}';\n"  # noqa: S608 (the name is checked before)


def change_sql(user: str, hosts: list[str], password: str) -> str:
    """Changes the user's password for all its hosts."""
    return "".join(f"ALTER USER '{user}'@'{host}' IDENTIFIED BY '{password}';\n" for host in hosts)


def write(path: Path, text: str) -> None:
    """Replace the file, with the rights that it had."""
    found = path.stat()
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as handle:
            handle.write(text)
            handle.flush()
            os.fchown(handle.fileno(), found.st_uid, found.st_gid)
            os.fchmod(handle.fileno(), stat.S_IMODE(found.st_mode) & 0o600)
            os.fsync(handle.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def rotate(path: Path, sql: Callable[[str], str], *, dry: bool = False) -> bool:
    """Change the password; False where there is none.

    Args:
        path: slurmdbd.conf.
        sql: Runs statements as the database's administrator and returns what they print.
        dry: Look only.

    Raises:
        ValueError: The database is elsewhere, or does not know the user; nothing was changed.
        OSError: The file could not be written; the database has its old password again.
    """
    text = path.read_text(encoding="utf-8")
    found = settings(text)
    old = found.get("storagepass", "")
    if not old:
        return False
    user, host = found.get("storageuser", "slurm"), found.get("storagehost", "localhost")
    if host not in ("localhost", "127.0.0.1", "::1"):
        raise ValueError(f"the database runs on {host}, not here; change the password there and in {path}")
    if _NAME.fullmatch(user) is None or re.search(r"['\\]", old):
        raise ValueError(f"{path}: the user's name or password holds characters that are not handled here")
    hosts = [line for line in sql(accounts_sql(user)).splitlines() if re.fullmatch(r"[A-Za-z0-9_.:%-]+", line)]
    if not hosts:
        raise ValueError(f"the database knows no user {user}")
    if dry:
        return True
    password = secrets.token_hex(PASSWORD_BYTES)
    sql(change_sql(user, hosts, password))
    try:
        write(path, replaced(text, password))
    except OSError:
        sql(change_sql(user, hosts, old))
        raise
    return True


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "default": "/etc/slurm/slurmdbd.conf"}}, supports_check_mode=True
    )

    def sql(statements: str) -> str:
        code, out, _ = module.run_command(["mariadb", "--batch", "--skip-column-names"], data=statements)
        if code != 0:  # its own words may repeat the statement, which holds the password
            raise ValueError("the database refused; as root, does `mariadb` let you in over the socket?")
        return str(out)

    try:
        changed = rotate(Path(module.params["path"]), sql, dry=module.check_mode)
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, socket=not changed)


if __name__ == "__main__":
    main()
