"""A job asks for its node to be looked at: a file in a drop box. Root believes nothing in it and checks for itself.

The box is `<run_dir>/requests`, root's, mode 1733: anybody may put a file there, nobody else can list,
read or replace it. Only that a file is there counts; its name, its content and its links do not.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import stat
from pathlib import Path

from kinemill.errors import EnvironmentFault

__all__ = ["BOX", "ask", "take_requests"]

BOX = "requests"
_MOST = 200


def ask(run_dir: Path) -> None:
    """Ask root to check this node now.

    Raises:
        EnvironmentFault: There is no box, or it takes nothing.
    """
    name = f"{os.getuid()}-{os.getpid()}-{os.urandom(4).hex()}"
    box = run_dir / BOX
    try:
        os.close(os.open(box / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    except OSError as exc:
        raise EnvironmentFault(
            f"{box}: takes no request ({exc.strerror}); are the node agents installed on this node?"
        ) from exc


def take_requests(run_dir: Path) -> list[str]:
    """Empty the box; one line about each asker, for the log.

    A box that is not root's own folder is left alone.
    """
    try:
        fd = os.open(run_dir / BOX, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return []
    lines: list[str] = []
    try:
        if os.fstat(fd).st_uid != os.geteuid():
            return [f"kinemill-node: {run_dir / BOX} is not ours and was left alone"]
        counts: dict[int, int] = {}
        with os.scandir(fd) as entries:
            for number, entry in enumerate(entries):
                if number >= _MOST:
                    break
                with contextlib.suppress(OSError):  # a folder, or gone meanwhile
                    st = os.stat(entry.name, dir_fd=fd, follow_symlinks=False)
                    if stat.S_ISDIR(st.st_mode):
                        os.rmdir(entry.name, dir_fd=fd)
                    else:
                        os.unlink(entry.name, dir_fd=fd)
                    counts[st.st_uid] = counts.get(st.st_uid, 0) + 1
        lines = [f"kinemill-node: {_who(uid)} asked {n}x for this check" for uid, n in sorted(counts.items())]
    finally:
        os.close(fd)
    return lines


def _who(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return f"uid {uid}"
