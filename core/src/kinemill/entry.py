"""Where `kinemill` and `kinemill-node` start: Ctrl-C ends them without a traceback from the first import on.

A command imports for a tenth of a second to some seconds before it does anything. An interrupt raised in there comes
out of the middle of other people's modules, or is swallowed by one; nothing has begun that wants an end, so the process
just goes. `allow_cleanup` gives Ctrl-C back to the command once its own code begins.
"""

try:
    import importlib
    import os
    import signal
    import sys
    from types import FrameType
except KeyboardInterrupt:
    raise SystemExit(130) from None

__all__ = ["allow_cleanup", "main", "start"]

_INTERRUPTED = 130


def _leave(_signum: int, _frame: FrameType | None) -> None:
    os.write(2, f"{sys.argv[0].rpartition('/')[2]}: interrupted\n".encode())
    os._exit(_INTERRUPTED)


def start(module: str) -> None:
    """Import a module that may be heavy and run its `main`.

    Args:
        module: Its name; `main` takes nothing and ends the process.
    """
    try:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores it
            signal.signal(signal.SIGINT, _leave)
        importlib.import_module(module).main()
    except KeyboardInterrupt:  # before the handler stood, or as the command's own code came and went
        sys.exit(_INTERRUPTED)


def allow_cleanup() -> None:
    """From here on Ctrl-C is KeyboardInterrupt: the command's own code runs, and may have something to end."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> None:
    """Entry of the `kinemill` script."""
    start("kinemill.cli")
