"""A server on a disk that fills up, alone in a mount namespace: `unshare --mount catalog_disk.py postgres|weed FOLDER`.

Not imported by tests but run by one, so that the small disk is gone with the process, however that ends.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from kinemill.errors import KinemillError
from kinemill.process import ProcessId, unprivileged_account
from kinemill.store.retry import Retry

PATIENCE_S = 120.0


@contextlib.contextmanager
def disk(folder: Path, size_mb: int) -> Iterator[None]:
    """A tmpfs of that size on `folder`."""
    account = unprivileged_account()
    owner = f",uid={account.uid},gid={account.gid}" if account else ""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=0755{owner}", "tmpfs", str(folder)], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, *, leave: int = 0) -> Path:
    """Take the room that is left, all but `leave` bytes."""
    ballast = folder / "ballast"
    with ballast.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while (room := os.statvfs(folder)).f_bavail * room.f_frsize > leave:
            file.write(bytes(min(1 << 20, room.f_bavail * room.f_frsize - leave)))
    return ballast


def postgres(folder: Path) -> dict[str, object]:
    """Register until the disk is full, make room, go on."""
    from kinemill.pipelines.catalog import Catalog
    from kinemill.pipelines.catalog.embedded import PostgresServer
    from support.catalog import pair

    settings = {"max_wal_size": "'32MB'", "min_wal_size": "'32MB'", "shared_buffers": "'16MB'"}
    with (
        disk(folder, 256),
        PostgresServer(folder / "pg", binaries="wheel", settings=settings) as server,
        Catalog(server.url) as catalog,
    ):
        catalog.upgrade()

        def some() -> list[str]:
            return [done.episode_id for done in catalog.register_episodes([pair(chunks=60) for _ in range(50)])]

        kept = some()
        ballast = fill(folder, leave=2 << 20)
        error = None
        for _ in range(2000):
            try:
                kept += some()
            except KinemillError as exc:
                error = exc
                break
        log = (server.folder / "postgres.log").read_text(errors="replace")
        ballast.unlink()
        deadline = time.monotonic() + PATIENCE_S
        restarts = 0
        while True:
            try:
                after = some()
                break
            except KinemillError:
                if time.monotonic() > deadline:
                    raise
                # Out of room for its log the server ends itself, as it must; systemd or a person starts it again.
                if server.pid is None or ProcessId.of(server.pid) is None:
                    restarts += 1
                    server.restart()
                time.sleep(0.1)
        found = {row.card.episode_id for row in catalog.episodes()}
        return {
            "error": f"{type(error).__name__}: {error}",
            "transient": bool(error and error.transient),
            "told_by_server": "No space left on device" in log or "No space left" in str(error),
            "kept": len(kept),
            "lost": len({*kept, *after} - found),
            "surplus": len(found - {*kept, *after}),
            "restarts": restarts,
        }


def weed(folder: Path) -> dict[str, object]:
    """Put until the disk is full, make room, go on."""
    from kinemill.store.embedded import S3Server

    with disk(folder, 256), S3Server(folder / "s3") as server:
        store = server.store(retry=Retry(attempts=3, deadline_s=20))
        digests: dict[str, str] = {}

        def put(number: int) -> None:
            data = os.urandom(1 << 20)
            store.put_if_absent(f"k{number:04}", data)
            digests[f"k{number:04}"] = hashlib.sha256(data).hexdigest()

        for number in range(4):
            put(number)
        ballast = fill(folder, leave=8 << 20)
        error = None
        for number in range(4, 400):
            try:
                put(number)
            except KinemillError as exc:
                error = exc
                break
        full = len(digests)
        log = (server.folder / "weed.log").read_text(errors="replace")
        readable = sum(hashlib.sha256(store.get(key)).hexdigest() == sha for key, sha in list(digests.items()))
        ballast.unlink()
        deadline = time.monotonic() + PATIENCE_S
        tries = 0
        while True:
            tries += 1
            try:
                put(1000 + tries)
                break
            except KinemillError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        server.restart()
        wrong = [k for k, sha in digests.items() if hashlib.sha256(store.get(k)).hexdigest() != sha]
        server.kill()  # a regular stop waits 20 s for nothing
        return {
            "error": f"{type(error).__name__}: {error}",
            "transient": bool(error and error.transient),
            "told_by_server": "no space left" in log.lower(),
            "kept": full,
            "readable_while_full": readable,
            "lost": len(wrong),
            "tries": tries,
        }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    print(json.dumps({"postgres": postgres, "weed": weed}[sys.argv[1]](Path(sys.argv[2]))))
