"""Root's own files: written whole or not at all, in folders that only root may write, links never followed."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from kinemill.errors import EnvironmentFault

__all__ = ["private_dir", "read_json", "write_json", "write_text"]

_MAX_BYTES = 4 << 20


def private_dir(path: Path, mode: int = 0o700) -> int:
    """Open a folder of ours, creating its last part; the caller closes the descriptor.

    Raises:
        EnvironmentFault: It is a link, not a folder, somebody else's, or writable by others.
    """
    with contextlib.suppress(FileExistsError):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=mode)
        except FileExistsError:
            raise
        except OSError as exc:
            raise EnvironmentFault(f"{path}: cannot create the folder ({exc.strerror})") from exc
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise EnvironmentFault(f"{path}: is no folder of ours ({exc.strerror})") from exc
    st = os.fstat(fd)
    if st.st_uid != os.geteuid() or stat.S_IMODE(st.st_mode) & 0o022:
        os.close(fd)
        raise EnvironmentFault(
            f"{path}: owned by uid {st.st_uid}, mode {stat.S_IMODE(st.st_mode):04o}; others may write it"
        )
    return fd


def write_text(
    folder: Path, name: str, text: str, *, mode: int = 0o600, folder_mode: int = 0o700, durable: bool = False
) -> None:
    """Replace `folder/name` by temp and rename; readers see the old text or the new one.

    Args:
        folder: Ours; made if it is not there.
        name: File name.
        text: Its new content.
        mode: Its permissions.
        folder_mode: The folder's, where it is made.
        durable: Sync before the rename. What a power cut may cost (this boot's caches) need not wait for a disk.

    Raises:
        EnvironmentFault: The folder is not ours, or the disk refuses.
    """
    directory = private_dir(folder, folder_mode)
    temporary = f".{name}.{os.urandom(6).hex()}"
    try:
        fd = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=directory
        )
        with os.fdopen(fd, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            if durable:
                os.fsync(stream.fileno())
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError as exc:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=directory)
        raise EnvironmentFault(f"{folder}/{name}: cannot write ({exc.strerror})") from exc
    finally:
        os.close(directory)


def write_json(folder: Path, name: str, value: Any, *, durable: bool = False) -> None:
    """`write_text` of JSON."""
    write_text(folder, name, json.dumps(value, sort_keys=True) + "\n", durable=durable)


def read_json(folder: Path, name: str) -> Any:
    """What `write_json` wrote; None where it is missing, not ours, too big, or not JSON (it is a cache or a list)."""
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as stream:
        st = os.fstat(stream.fileno())
        ours = st.st_uid in (0, os.geteuid()) and not stat.S_IMODE(st.st_mode) & 0o022
        if not stat.S_ISREG(st.st_mode) or not ours or st.st_size > _MAX_BYTES:
            return None
        try:
            return json.loads(stream.read())
        except (ValueError, RecursionError):
            return None
