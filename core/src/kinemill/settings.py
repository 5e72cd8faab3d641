"""Settings: a TOML file and the environment into a frozen dataclass that refuses unknown keys.

Order, later wins: the dataclass's defaults, `/etc/kinemill/<plane>.toml` (or the file given), the
environment variable a field names in its metadata, what the caller overrides (command-line flags).
Every value remembers where it came from. Secrets never stand in TOML: `read_env_file` reads them
from a file that only its owner can read. A URL in the environment may hold one, so `hide_secrets`
stands before whatever shows settings.
"""

from __future__ import annotations

import dataclasses
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Generic, TypeVar, get_args, get_type_hints

from kinemill.errors import ConfigError, ContractError, UnknownKeyError
from kinemill.records import decode, nearest

__all__ = [
    "CoreSettings",
    "Loaded",
    "cache_dir",
    "config_path",
    "hide_secrets",
    "load_settings",
    "read_env_file",
    "settings_classes",
]

T = TypeVar("T")

_SECRET = re.compile(r"password|passwd|secret|token|credential|private_key|access_key", re.IGNORECASE)
_URL_USER = re.compile(r"(?P<head>[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@:]*:)[^/?#\s]*(?=@)")
_URL_OPTION = re.compile(r"(?P<head>[?&](?P<name>[^=&#\s]+)=)[^&#\s]+")
_ENV_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)=(?P<value>.*)")


def cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where local copies lie: KINEMILL_CACHE_DIR, else `cache_dir` of core.toml, else the default.

    The default is /var/cache/kinemill as root, else the user's XDG cache.
    """
    env = os.environ if environ is None else environ
    loaded = load_settings(CoreSettings, plane="core", environ=env)
    return loaded.value.cache_dir if "cache_dir" in loaded.origins else _default_cache_dir(env)


def _default_cache_dir(environ: Mapping[str, str] | None = None) -> Path:
    if os.geteuid() == 0:
        return Path("/var/cache/kinemill")
    env = os.environ if environ is None else environ
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinemill"


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Settings that every plane shares."""

    REMOVED: ClassVar[Mapping[str, str]] = {
        "state_dir": "it did nothing; take it out (the node agents' own stands in agents.toml)",
        "run_dir": "it did nothing; take it out (the node agents' own stands in agents.toml)",
    }
    """Keys that were once settings, and what to do about one that still stands in a file."""
    cache_dir: Path = field(default_factory=_default_cache_dir, metadata={"env": "KINEMILL_CACHE_DIR"})
    """Local cache: manifests, scratch of ingestion, images."""
    log_format: str = field(default="auto", metadata={"env": "KINEMILL_LOG_FORMAT"})
    """`auto` is text on a terminal and JSON lines elsewhere; `text`, `json`."""
    log_level: str = field(default="info", metadata={"env": "KINEMILL_LOG_LEVEL"})
    """`debug`, `info`, `warning` or `error`; of kinemill's own lines (other libraries': warnings and errors)."""

    def __post_init__(self) -> None:
        if self.log_format not in ("auto", "text", "json"):
            raise ValueError(f"log_format '{self.log_format}': one of auto, text, json")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ValueError(f"log_level '{self.log_level}': one of debug, info, warning, error")


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """Settings, and where each one came from."""

    value: T
    origins: dict[str, str]
    """Dotted setting name -> `default`, a file, `$VARIABLE` or `command line`."""

    def rows(self) -> list[tuple[str, Any, str]]:
        """(name, value, origin) of every leaf, in declared order."""
        return [(name, value, self.origins.get(name, "default")) for name, value in _leaves(self.value)]


def config_path(plane: str, environ: Mapping[str, str] | None = None) -> Path:
    """`<plane>.toml` in KINEMILL_CONFIG_DIR, else in /etc/kinemill."""
    env = os.environ if environ is None else environ
    return Path(env.get("KINEMILL_CONFIG_DIR") or "/etc/kinemill") / f"{plane}.toml"


def load_settings(
    cls: type[T],
    *,
    plane: str,
    path: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Loaded[T]:
    """Read the settings of one plane.

    Args:
        cls: Frozen dataclass; nested dataclasses are TOML tables.
        plane: `core`, `agents`, ...; names the default file, which may be missing.
        path: A file to read instead, which may not be missing.
        overrides: Dotted name -> value from command-line flags; None values are left out.
        environ: Instead of `os.environ`.

    Raises:
        UnknownKeyError: A key that `cls` does not declare; names a close one, or what to do where `cls.REMOVED` knows
            the key.
        ConfigError: Unreadable file, bad TOML, wrong type or forbidden value; a password in the file or a flag.
    """
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise ConfigError(f"{plane}: {cls!r} is not a settings class (a frozen dataclass)")
    env = os.environ if environ is None else environ
    source = path or config_path(plane, env)
    data = _read_toml(source, required=path is not None)
    _refuse_secrets(data, known={name for name, _, _ in _fields(cls)}, where=str(source))
    origins = {name: str(source) for name in _keys(data)}
    for name, env_name, kind in _fields(cls):
        if env_name and env.get(env_name):
            _put(data, name, _from_text(env[env_name], kind, env_name))
            origins[name] = f"${env_name}"
    for name, value in (overrides or {}).items():
        if value is not None:
            if isinstance(value, str) and hide_secrets(value) != value:
                raise ConfigError(
                    f"command line: '{name}' is a URL with a password in it, and anybody may read a command line. Put "
                    "it into the environment, from a file of mode 0600"
                )
            _put(data, name, value)
            origins[name] = "command line"
    try:
        value = decode(cls, data, where=str(source))
    except UnknownKeyError:
        raise
    except ContractError as exc:
        text = str(exc)  # it names the file; what came from elsewhere is that place's fault
        elsewhere = (origin for name, origin in origins.items() if origin != str(source) and name in text)
        raise ConfigError(text.replace(str(source), next(elsewhere, str(source)), 1)) from exc
    return Loaded(value, origins)


def settings_classes() -> dict[str, type]:
    """Plane -> settings class, from entry points `kinemill.settings` of the kinemill distributions."""
    from importlib.metadata import distributions  # it brings the email package along, which a prolog does not owe

    found: dict[str, type] = {"core": CoreSettings}
    for dist in distributions():
        if (dist.metadata["Name"] or "").startswith("kinemill-"):
            for point in dist.entry_points.select(group="kinemill.settings"):
                found[point.name] = point.load()
    return found


def read_env_file(path: Path) -> dict[str, str]:
    """NAME=value lines of a file that only its owner can read: where secrets live.

    Raises:
        ConfigError: Missing, readable or writable by others, a link, or a line that is no assignment.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise ConfigError(f"{path}: cannot read the environment file ({exc.strerror})") from exc
    with os.fdopen(handle, encoding="utf-8") as stream:
        mode = os.fstat(stream.fileno()).st_mode
        if not stat.S_ISREG(mode) or stat.S_IMODE(mode) & 0o077:
            raise ConfigError(f"{path}: mode {stat.S_IMODE(mode):04o} lets others in; run: chmod 600 {path}")
        lines = stream.read().splitlines()
    values: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        match = _ENV_LINE.fullmatch(text)
        if match is None:
            raise ConfigError(f"{path}:{number}: expected NAME=value")  # the line itself may be a secret
        value = match["value"].strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        values[match["name"]] = value
    return values


def _read_toml(path: Path, *, required: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as exc:
        if required:
            raise ConfigError(f"{path}: no such settings file") from exc
        return {}
    except OSError as exc:
        raise ConfigError(f"{path}: cannot read the settings ({exc.strerror})") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: not valid TOML ({exc})") from exc


def hide_secrets(text: str) -> str:
    """`text` with `***` for the passwords of URLs in it: after the user's name, and in options such as `?token=`."""
    text = _URL_USER.sub(r"\g<head>***", text)
    return _URL_OPTION.sub(lambda m: f"{m['head']}***" if _SECRET.search(m["name"]) else m[0], text)


def _refuse_secrets(data: Mapping[str, Any], known: set[str], where: str) -> None:
    for name, value in _strings(data):
        if hide_secrets(value) != value:
            raise ConfigError(
                f"{where}: '{name}' is a URL with a password in it; settings hold no secrets. Put it into the "
                "environment, from a file of mode 0600"
            )
    for name in _keys(data):
        if name not in known and _SECRET.search(name.rsplit(".", 1)[-1]) and nearest(name, known) is None:
            raise UnknownKeyError(
                f"{where}: '{name}' looks like a secret; settings hold none. Put it into a 0600 environment file"
            )


def _fields(cls: type, prefix: str = "") -> list[tuple[str, str | None, Any]]:
    hints = get_type_hints(cls)
    rows: list[tuple[str, str | None, Any]] = []
    for f in dataclasses.fields(cls):
        kind = hints[f.name]
        name = f"{prefix}{f.name}"
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            rows += _fields(kind, f"{name}.")
        else:
            rows.append((name, f.metadata.get("env"), kind))
    return rows


def _leaves(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for f in dataclasses.fields(value):
        item = getattr(value, f.name)
        if dataclasses.is_dataclass(item):
            rows += _leaves(item, f"{prefix}{f.name}.")
        else:
            rows.append((f"{prefix}{f.name}", item))
    return rows


def _keys(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        names += _keys(value, f"{name}.") if isinstance(value, Mapping) else [name]
    return names


def _strings(data: Any, name: str = "") -> list[tuple[str, str]]:
    """(dotted name, text) of every text in plain data."""
    if isinstance(data, str):
        return [(name, data)]
    if isinstance(data, Mapping):
        return [row for k, v in data.items() for row in _strings(v, f"{name}.{k}" if name else str(k))]
    return [row for v in data for row in _strings(v, name)] if isinstance(data, list) else []


def _put(data: dict[str, Any], dotted: str, value: Any) -> None:
    *tables, leaf = dotted.split(".")
    for table in tables:
        data = data.setdefault(table, {})
    data[leaf] = value


def _from_text(text: str, kind: Any, name: str) -> Any:
    """An environment variable's text as the field's plain type; the decoder judges the rest."""
    members = get_args(kind)
    if len(members) == 2 and NoneType in members:  # a variable that is set is never None
        kind = next(member for member in members if member is not NoneType)
    if kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"${name}: '{text}' is not a yes or no")
    if kind in (int, float):
        try:
            return kind(text)
        except ValueError as exc:
            raise ConfigError(f"${name}: '{text}' is not a number") from exc
    return text
