"""Backups of the catalog: base backups, an archive of the write-ahead log, and the way back to any moment.

A base backup plus every later segment of the log is the database as it was at any moment since. `archive_settings`
makes a server hand each finished segment over at least once a minute, `base_backup` takes and verifies a copy, and
`RestoreFrom` tells an embedded server, or an operator, how to come back.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kinemill.errors import ConfigError, ConflictError, DeadlineError, ExternalError, NotFoundError

if TYPE_CHECKING:
    from kinemill.process import Account

__all__ = ["RestoreFrom", "archive_settings", "base_backup", "prepare_restore"]

_PLAIN = re.compile(r"[A-Za-z0-9_./+@:-]+")
_PARTIAL = ".partial"


def _plain(folder: Path) -> str:
    """A path that a shell and postgresql.conf both read as it is.

    Raises:
        ConfigError: It holds a blank, a quote or the like.
    """
    text = str(folder.absolute())
    if not _PLAIN.fullmatch(text):
        raise ConfigError(f"{text!r}: for the log archive choose a path of letters, digits and _./+@:- only")
    return text


def archive_settings(archive: Path, *, every_s: int = 60) -> dict[str, str]:
    """Lines of postgresql.conf that archive the log into `archive`, each segment whole or not at all.

    Args:
        archive: A folder that the server's account can write, best on another machine's disk.
        every_s: A segment is handed over at least this often: what a lost machine can cost.
    """
    place = _plain(archive)
    # A server that dies right after handing a segment over hands it over again: the same bytes are no error, or it
    # would try for ever and fill its disk with the log. Other bytes are, and what is there stays.
    command = (
        f"if test -e {place}/%f; then cmp -s %p {place}/%f; else"
        f" cp %p {place}/.%f{_PARTIAL} && sync {place}/.%f{_PARTIAL} && mv {place}/.%f{_PARTIAL} {place}/%f; fi"
        f" && sync {place}"
    )
    return {
        "wal_level": "replica",
        "archive_mode": "on",
        "archive_timeout": f"'{int(every_s)}s'",
        "archive_command": f"'{command}'",
    }


def base_backup(url: str, target: Path, programs: Path, *, timeout_s: float = 86_400.0) -> Path:
    """A verified copy of the whole cluster at `target`, taken while it works.

    Args:
        url: libpq's, of an account with the right REPLICATION. A password in it goes to the program by its
            environment: anybody may read a command line.
        target: Must not exist; appears only when it is complete and verified.
        programs: Folder of pg_basebackup and pg_verifybackup, of the server's own major version.
        timeout_s: Of the copy.

    Raises:
        ConfigError: The URL holds a client key's password, which no environment carries.
        ConflictError: `target` exists.
        DeadlineError: It took longer than `timeout_s`; nothing is left.
        ExternalError: A program failed; nothing is left.
    """
    place, secret = _without_secret(url)
    if target.exists():
        raise ConflictError(f"{target} exists; a backup is never written over another")
    partial = target.with_name(f".{target.name}{_PARTIAL}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        _run(
            [
                str(programs / "pg_basebackup"),
                f"--dbname={place}",
                f"--pgdata={partial}",
                "--format=plain",
                "--wal-method=stream",
                "--checkpoint=fast",
                "--manifest-checksums=SHA256",
                "--no-password",
            ],
            timeout_s,
            secret,
        )
        _run([str(programs / "pg_verifybackup"), "--exit-on-error", "--quiet", str(partial)], timeout_s)
        partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def _without_secret(url: str) -> tuple[str, dict[str, str]]:
    """Where the server is, as libpq reads it, and what goes by the environment instead."""
    import psycopg
    from psycopg.conninfo import conninfo_to_dict, make_conninfo

    try:
        parts = {k: str(v) for k, v in conninfo_to_dict(url).items() if v is not None}
    except psycopg.ProgrammingError:
        raise ConfigError("the catalog's URL is none that libpq reads") from None  # its words may repeat a secret
    if "sslpassword" in parts:
        raise ConfigError("the catalog's URL holds an sslpassword; give the backup a client key without one")
    password = parts.pop("password", None)
    return make_conninfo("", **parts), {} if password is None else {"PGPASSWORD": password}


def _run(argv: list[str], timeout_s: float, secret: Mapping[str, str] | None = None) -> None:
    env = {k: v for k, v in os.environ.items() if k.startswith("PG") or k == "PATH"} | {"LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=env | dict(secret or {}),
        )
    except subprocess.TimeoutExpired as exc:
        raise DeadlineError(f"{Path(argv[0]).name} was not done after {timeout_s:.0f} s") from exc
    if done.returncode:
        raise ExternalError(f"{Path(argv[0]).name} ended with {done.returncode}: {done.stderr.strip()[-600:]}")


@dataclass(frozen=True, slots=True)
class RestoreFrom:
    """A base backup, and how far to replay the log on top of it."""

    backup: Path
    archive: Path | None = None
    """None: only the backup itself."""
    until: datetime | None = None
    """With its time zone; None means to the end of the archive."""

    def settings(self) -> dict[str, str]:
        """Lines of postgresql.conf; the server ends its recovery by itself and takes writes."""
        lines = {"recovery_target_action": "'promote'", "restore_command": "'false'"}
        if self.archive is not None:
            lines["restore_command"] = f"'cp {_plain(self.archive)}/%f %p'"
        if self.until is not None:
            if self.until.tzinfo is None:
                raise ConfigError("restore until which moment? the time needs its zone")
            lines["recovery_target_time"] = f"'{self.until.isoformat()}'"
        return lines


def prepare_restore(source: RestoreFrom, data: Path, account: Account | None) -> None:
    """Fill the empty folder `data` from the backup and mark it for recovery; PG_VERSION is written last.

    Raises:
        NotFoundError: There is no backup.
    """
    if not (source.backup / "PG_VERSION").exists():
        raise NotFoundError(f"{source.backup} holds no base backup (no PG_VERSION)")
    last = source.backup / "PG_VERSION"
    for entry in source.backup.iterdir():
        if entry == last:
            continue
        if entry.is_dir():
            shutil.copytree(entry, data / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, data / entry.name)
    (data / "recovery.signal").touch()
    shutil.copy2(last, data / "PG_VERSION")
    for entry in (data, *data.rglob("*")):
        if account is not None:
            os.chown(entry, account.uid, account.gid, follow_symlinks=False)
        if not entry.is_symlink():
            entry.chmod(0o700 if entry.is_dir() else 0o600)
