"""Connecting to the catalog: where its URL comes from, and how sessions are bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit, urlunsplit

import psycopg
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from kinemill.errors import (
    ConfigError,
    ConflictError,
    DataError,
    ExternalError,
    KinemillError,
    StateError,
    UnavailableError,
)

__all__ = ["URL_VARIABLE", "catalog_url", "connect_engine", "public_url", "sqlalchemy_url", "translated"]

URL_VARIABLE = "KINEMILL_CATALOG_URL"
_SECRET_OPTIONS = ("password", "sslpassword")

# All names are qualified. The server's own search_path would put the schema of a user `kinemill` first.
_OPTIONS = " ".join(
    f"-c {name}={value}"
    for name, value in {
        "lock_timeout": "30s",
        "idle_in_transaction_session_timeout": "60s",
        "timezone": "UTC",
        "application_name": "kinemill",
        "search_path": "public",
    }.items()
)


def catalog_url(given: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """The catalog's URL: `given`, else the environment's KINEMILL_CATALOG_URL.

    Raises:
        ConfigError: Neither is set.
    """
    url = given or environ.get(URL_VARIABLE, "")
    if not url:
        raise ConfigError(f"no catalog: set {URL_VARIABLE}=postgresql://user@host/database (password in PGPASSFILE)")
    return url


def sqlalchemy_url(url: str) -> str:
    """`postgresql://...` for SQLAlchemy with psycopg 3.

    Raises:
        ConfigError: Not a PostgreSQL URL.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or scheme.split("+")[0] not in ("postgresql", "postgres"):
        raise ConfigError(f"catalog URL {public_url(url)!r}: expected postgresql://user@host/database")
    return f"postgresql+psycopg://{rest}"


def public_url(url: str) -> str:
    """The URL as a log may show it: without a password, wherever libpq would take one."""
    head, mark, query = url.partition("?")
    options = [one for one in query.split("&") if unquote(one.split("=", 1)[0]) not in _SECRET_OPTIONS]
    shown = head + (mark + "&".join(options) if options else "")
    parts = urlsplit(shown)
    if "@" not in parts.netloc:
        return shown
    who, _, where = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{who.split(':')[0]}@{where}"))


def connect_engine(url: str, *, pool_size: int = 5) -> sa.Engine:
    """An engine whose sessions cannot hold back the export for ever: see the time limits above."""
    return sa.create_engine(
        sqlalchemy_url(url),
        pool_size=pool_size,
        max_overflow=10,
        pool_pre_ping=True,
        connect_args={"options": _OPTIONS, "connect_timeout": 10},
    )


_BY_STATE: dict[str, type[KinemillError]] = {
    "KM001": StateError,
    "KM002": StateError,
    "KM003": StateError,
    "KM004": StateError,
    "23505": ConflictError,
    "23P01": ConflictError,
    "23503": DataError,
    "23514": DataError,
    "23502": DataError,
    "42P01": ConfigError,
    "3F000": ConfigError,
    "53100": UnavailableError,
    "53300": UnavailableError,
    "55P03": UnavailableError,
    "40001": UnavailableError,
    "40P01": UnavailableError,
}


_LOST = (OperationalError, InterfaceError, psycopg.OperationalError, psycopg.InterfaceError)


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Database errors as ours, without the statement's values (they are long, and may be private)."""
    try:
        yield
    except (DBAPIError, psycopg.Error) as exc:  # COPY speaks to the driver itself
        origin = exc.orig if isinstance(exc, DBAPIError) else exc
        state = getattr(origin, "sqlstate", None) or ""
        diagnosis = getattr(origin, "diag", None)
        text = getattr(diagnosis, "message_primary", None) or str(origin).strip()
        constraint = getattr(diagnosis, "constraint_name", None)
        detail = f" (constraint {constraint})" if constraint else ""
        message = f"{what}: {text}{detail}"
        kind = _BY_STATE.get(state)
        if kind is None and state[:2] == "22":
            kind = DataError
        if kind is None and (state[:2] in ("08", "57", "53") or isinstance(exc, _LOST)):
            kind = UnavailableError
        if kind is ConfigError:
            message += "; run `kinemill catalog upgrade`"
        raise (kind or ExternalError)(message) from exc
