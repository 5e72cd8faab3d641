"""Logging: one JSON line per event on nodes, text on a terminal, with the fields we search by.

Fields bound by `bind` travel with the thread or task: run_id, step, episode_id, node, job_id,
attempt. Values are cleaned so that hostile file names cannot forge a second line.
"""

from __future__ import annotations

import contextlib
import contextvars
import datetime as dt
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import TextIO

from kinemill.errors import UsageError

__all__ = ["FIELDS", "JsonFormatter", "TextFormatter", "bind", "logs_from_settings", "setup_logs"]

FIELDS = ("run_id", "step", "episode_id", "node", "job_id", "attempt")
"""What may be bound; one vocabulary for every plane, so that one search finds all lines of a run."""

_bound: contextvars.ContextVar[Mapping[str, str]] = contextvars.ContextVar(
    "kinemill_log_fields", default=MappingProxyType({})
)
_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_CONTROL = {i: f"\\x{i:02x}" for i in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\\t"}


@contextlib.contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Add fields to every line logged inside the block.

    Raises:
        UsageError: A field outside `FIELDS`.
    """
    for name in fields:
        if name not in FIELDS:
            raise UsageError(f"log field '{name}' is not one of {', '.join(FIELDS)}")
    token = _bound.set({**_bound.get(), **{k: str(v) for k, v in fields.items() if v is not None}})
    try:
        yield
    finally:
        _bound.reset(token)


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    extra = {k: v for k, v in vars(record).items() if k not in _PLAIN}
    return {**_bound.get(), **extra}


class JsonFormatter(logging.Formatter):
    """One JSON object a line: ts (UTC, RFC 3339), level, logger, message, bound and extra fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a value that JSON does not know becomes its `str`."""
        stamp = dt.datetime.fromtimestamp(record.created, dt.UTC)
        line: dict[str, object] = {
            "ts": stamp.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """`12:31:07 warning message  (episode_id=... step=...)`; control characters shown, never sent."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, with a traceback below it where there is one."""
        clock = dt.datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = " ".join(f"{k}={v}" for k, v in _fields_of(record).items())
        text = f"{clock} {record.levelname.lower():<7} {record.getMessage()}" + (f"  ({fields})" if fields else "")
        text = text.translate(_CONTROL)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def setup_logs(*, fmt: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Send all logging to `stream` (default stderr), replacing earlier handlers.

    Args:
        fmt: `json`, `text`, or `auto`: text where the stream is a terminal, JSON elsewhere.
        level: `debug`, `info`, `warning` or `error`; of kinemill's own lines. Other libraries' chatter below a
            warning is left out.
        stream: Where lines go.

    Raises:
        UsageError: Another format or level.
    """
    out = stream or sys.stderr
    number = logging.getLevelNamesMapping().get(level.upper())
    if fmt not in ("auto", "json", "text") or number is None:
        raise UsageError(f"logs: format '{fmt}' (auto, json, text) or level '{level}' is not known")
    as_json = fmt == "json" or (fmt == "auto" and not out.isatty())
    handler = logging.StreamHandler(out)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("kinemill").setLevel(number)


def logs_from_settings() -> None:
    """`setup_logs` as `log_format` and `log_level` of core's settings say; commands call it at their start.

    Raises:
        ConfigError: core.toml, or a variable that stands for it, is wrong.
    """
    from kinemill.settings import CoreSettings, load_settings

    settings = load_settings(CoreSettings, plane="core").value
    setup_logs(fmt=settings.log_format, level=settings.log_level)
