"""The agents' log lines: as core's `log_format` and `log_level` say, and never a reason for a hook to fail.

Set up when the first line is due: logging costs 15 ms that a healthy prolog does not owe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

__all__ = ["logger", "set_up"]


def set_up() -> None:
    """Set logging up for this process, unless a program that calls us has done so.

    A broken core.toml is told, and the default format used: where lines go must not decide over a job.
    """
    import logging

    from kinemill.errors import ConfigError
    from kinemill.logs import logs_from_settings, setup_logs

    if logging.getLogger().handlers:
        return
    try:
        logs_from_settings()
    except ConfigError as exc:
        setup_logs()
        logging.getLogger(__name__).warning("log lines come out in the default format: %s", exc)


def logger(name: str) -> logging.Logger:
    """The logger of that name, in a process that may not have set logging up yet."""
    import logging

    set_up()
    return logging.getLogger(name)
