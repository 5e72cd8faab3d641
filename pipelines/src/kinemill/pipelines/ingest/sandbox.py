"""Runs the parsing of vendor media in a child that cannot do much harm, and survives what it does to itself."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from kinemill.errors import DataError, DeadlineError, EnvironmentFault, LimitError, UnavailableError
from kinemill.pipelines.adapters.base import Source, SourceFacts
from kinemill.pipelines.adapters.vendor import VendorSpec
from kinemill.pipelines.gates.measure import Converted
from kinemill.records import decode, encode

__all__ = ["Sandbox", "SandboxLimits", "VendorDataError"]

T = TypeVar("T")
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "TMPDIR")
"""All that a child sees of our environment: no tokens, no passwords, no proxies."""


class VendorDataError(DataError):
    """The recording cannot be read; `code` says why in one word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one child may use."""

    memory_bytes: int = 4 << 30
    """Address space, so a little more than what it touches."""
    cpu_s: int = 3600
    file_bytes: int = 64 << 30
    """Of one file that it writes."""
    wall_s: float = 7200.0
    """Of one request."""


class Sandbox:
    """One child, for the requests of one recording. A context manager; one thread at a time.

    Args:
        limits: For the child's whole life, but for `wall_s`.

    Attributes:
        network: `own` where the child has a network of its own, which is none; `shared` where this kernel or
            container does not allow that.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        self._limits = limits or SandboxLimits()
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._buffer = b""
        self._stopped = False
        self.network = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> subprocess.Popen[bytes]:
        env = {k: os.environ[k] for k in _PASSED_ON if k in os.environ}
        env |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "ARROW_NUM_THREADS": "1"}
        env["ARROW_DEFAULT_MEMORY_POOL"] = "system"
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the child
        self._buffer = b""
        self._stopped = False
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "kinemill.pipelines.ingest.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=env,
            close_fds=True,
            start_new_session=True,
        )
        self._process = process
        order = {
            "parent": os.getpid(),
            "memory_bytes": self._limits.memory_bytes,
            "cpu_s": self._limits.cpu_s,
            "file_bytes": self._limits.file_bytes,
        }
        self._send(process, order)
        answer = self._line(process, time.monotonic() + 120)
        if answer is None or "ready" not in answer:
            text = self._tail()
            self.close()
            raise UnavailableError(f"the parser's process did not start: {text or 'no message'}")
        self.network = str(answer.get("network", ""))
        return process

    def _send(self, process: subprocess.Popen[bytes], message: dict[str, Any]) -> None:
        assert process.stdin is not None  # noqa: S101 - a pipe was asked for
        with suppress(BrokenPipeError):  # its end is noticed when the answer is read
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> dict[str, Any] | None:
        """The next message, or None where the child ended.

        Raises:
            DeadlineError: Nothing came in time; the child is killed.
        """
        assert process.stdout is not None  # noqa: S101 - a pipe was asked for
        fd = process.stdout.fileno()
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([fd], [], [], left)[0]:
                self.close()
                raise DeadlineError("the parser's process did not answer in time and was stopped")
            part = os.read(fd, 1 << 20)
            if not part:
                return None
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found

    def _request(
        self,
        op: str,
        source: Source,
        vendor: VendorSpec,
        *,
        kind: type[T],
        progress: Callable[[int], None],
        **more: Any,
    ) -> T:
        process = self._process or self._start()
        self._send(process, {"op": op, "source": encode(source), "vendor": encode(vendor), **more})
        deadline = time.monotonic() + self._limits.wall_s
        try:
            while True:
                answer = self._line(process, deadline)
                if answer is None:
                    raise self._ended(process, source)
                if "progress" in answer:
                    progress(int(answer["progress"]))
                elif "result" in answer:
                    return decode(kind, answer["result"], where=f"the parser's answer about {source.key}")
                elif "error" in answer:
                    raise _fault(answer["error"], source)
        except DeadlineError as exc:
            text = f"{source.key}: reading it took longer than {self._limits.wall_s:g} s and was stopped"
            raise VendorDataError("too_slow", text) from exc

    def _ended(self, process: subprocess.Popen[bytes], source: Source) -> Exception:
        """Why the child is gone, as an exception about the recording."""
        status = process.wait()
        tail = self._tail()
        stopped = self._stopped
        self.close()
        if stopped:
            return UnavailableError(f"{source.key}: reading it was stopped")
        if status == -signal.SIGKILL:
            # Nothing that a file does ends this way: its own limits come first.
            return UnavailableError(
                f"{source.key}: somebody killed the process that read it, perhaps for want of memory on this machine: "
                "run again, with fewer --workers"
            )
        if status == -signal.SIGXCPU:
            return VendorDataError("too_slow", f"{source.key}: reading it used more than {self._limits.cpu_s} s of CPU")
        if status == -signal.SIGXFSZ:
            return VendorDataError(
                "over_limit", f"{source.key}: its episode is larger than {self._limits.file_bytes} bytes"
            )
        if status < 0:
            name = signal.Signals(-status).name
            text = f"{source.key}: the process that read it died of {name}; the file is damaged or hostile"
            if "MemoryError" in tail or "bad_alloc" in tail or "Cannot allocate" in tail:
                return VendorDataError("too_much_memory", f"{source.key}: reading it needs more memory than is allowed")
            return VendorDataError("parser_died", text)
        return LimitError(f"{source.key}: the parser's process ended with status {status}: {tail[-300:]}")

    def _tail(self) -> str:
        if self._log is None:
            return ""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - 4000))
        return self._log.read().decode("utf-8", "replace").strip()

    def inspect(self, source: Source, vendor: VendorSpec) -> SourceFacts:
        """`Adapter.inspect` in the child.

        Raises:
            VendorDataError: The recording broke its reader.
        """
        return self._request("inspect", source, vendor, kind=SourceFacts, progress=lambda _: None)

    def convert(
        self,
        source: Source,
        vendor: VendorSpec,
        index: int,
        *,
        episode_id: str,
        profile: str,
        out: str,
        vendor_key: str = "",
        progress: Callable[[int], None] = lambda _: None,
    ) -> Converted:
        """`convert_episode` in the child; arguments as there.

        Raises:
            VendorDataError: The episode cannot be read.
            EnvironmentFault: The disk is full or gone.
        """
        return self._request(
            "convert",
            source,
            vendor,
            kind=Converted,
            progress=progress,
            index=index,
            episode_id=episode_id,
            profile=profile,
            out=out,
            vendor_key=vendor_key,
        )

    def kill(self) -> None:
        """End the child from any thread; the one that waits for its answer sees it end."""
        self._stopped = True
        process = self._process
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the child, at once."""
        self.kill()
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):
                        pipe.close()
            process.wait()
        if self._log is not None:
            self._log.close()
            self._log = None


def _fault(error: dict[str, Any], source: Source) -> Exception:
    message = str(error.get("message", ""))
    text = message if source.key in message else f"{source.key}: {message}"
    if error.get("data"):
        return VendorDataError(str(error.get("code", "unreadable")), text)
    if error.get("errno") in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentFault(f"{text}: no room left in the work folder; nothing was published of this recording")
    return EnvironmentFault(text)
