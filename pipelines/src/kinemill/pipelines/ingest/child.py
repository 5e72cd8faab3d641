"""The process that parses what somebody else wrote: few rights, little memory, no credentials, no network.

Started by `kinemill.pipelines.ingest.sandbox`. It reads one JSON request a line from its standard input and
answers with JSON lines: any number of `progress`, then one `result` or one `error`.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def _confine(order: dict[str, Any]) -> str:
    """Give up what parsing does not need; returns how the network was taken away.

    The order matters: nothing of the request is parsed and no heavy library is loaded before.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != order["parent"]:
        raise SystemExit(75)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    os.umask(0o077)
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_AS, order["memory_bytes"]),
        (resource.RLIMIT_FSIZE, order["file_bytes"]),
    ):
        resource.setrlimit(limit, (value, value))
    cpu_s = order["cpu_s"]
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 5))
    if os.geteuid() == 0:
        return "own" if libc.unshare(_CLONE_NEWNET) == 0 else "shared"
    return "own" if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) == 0 else "shared"


def _handle(request: dict[str, Any], tell: Callable[[dict[str, Any]], None]) -> Any:
    from kinemill.pipelines.adapters import Source, VendorSpec, adapter
    from kinemill.records import decode

    source = decode(Source, request["source"], where="source")
    vendor = decode(VendorSpec, request["vendor"], where="vendor")
    if request["op"] == "inspect":
        return adapter(source.adapter).inspect(source, vendor)
    if request["op"] == "convert":
        from kinemill.pipelines.ingest.convert import convert_episode

        return convert_episode(
            source,
            vendor,
            int(request["index"]),
            episode_id=uuid.UUID(request["episode_id"]),
            vendor_key=request.get("vendor_key", ""),
            profile=request["profile"],
            out=Path(request["out"]),
            progress=lambda frames: tell({"progress": frames}),
        )
    raise ValueError(f"no operation {request['op']!r}")


def _code(exc: BaseException) -> str:
    """A short code for why a recording could not be read."""
    from kinemill import errors

    if isinstance(exc, MemoryError | errors.LimitError):
        return "too_much_memory" if isinstance(exc, MemoryError) else "over_limit"
    names = {
        errors.TruncatedError: "truncated",
        errors.CorruptError: "corrupt",
        errors.UnsupportedError: "unsupported",
        errors.UsageError: "unsupported",
    }
    return next((code for kind, code in names.items() if isinstance(exc, kind)), "unreadable")


def _serve(stdin: IO[str], tell: Callable[[dict[str, Any]], None]) -> None:
    from kinemill.errors import DataError, KinemillError, UsageError
    from kinemill.records import encode

    for line in stdin:
        request = json.loads(line)
        try:
            tell({"result": encode(_handle(request, tell))})
        except (DataError, UsageError, MemoryError) as exc:
            text = str(exc) or "it needs more memory than it is allowed"
            tell({"error": {"code": _code(exc), "message": text, "data": True}})
        except OSError as exc:
            # The disk is ours, not the vendor's: full or gone.
            tell({"error": {"code": f"os_{exc.errno}", "message": str(exc), "data": False, "errno": exc.errno or 0}})
        except KinemillError as exc:
            tell({"error": {"code": type(exc).__name__, "message": str(exc), "data": False, "errno": 0}})
        except Exception as exc:  # noqa: BLE001 - libraries fail in any way on hostile bytes; the traceback goes to the log
            import traceback

            traceback.print_exc()
            text = f"reading it fails with {type(exc).__name__}: {str(exc)[:200]}"
            tell({"error": {"code": "unreadable", "message": text, "data": True}})


def main() -> None:
    """Confine, say so, serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)  # a library that prints must not break the protocol

    def tell(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, allow_nan=False) + "\n")
        answers.flush()

    order = json.loads(sys.stdin.readline())
    network = _confine(order)
    tell({"ready": True, "network": network})
    _serve(sys.stdin, tell)


if __name__ == "__main__":
    main()
