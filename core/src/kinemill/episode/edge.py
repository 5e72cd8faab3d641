"""Between the commands and the world: files and stores to read from, a terminal to write to."""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import click

from kinemill.errors import ConflictError, EnvironmentFault, NotFoundError, UsageError

if TYPE_CHECKING:
    from kinemill.contracts.store import Store
    from kinemill.episode.scan import FileSource, StoreSource

__all__ = ["EdgeGroup", "create", "new_file", "opened", "place", "progress_bar", "say", "size_text"]


class EdgeCommand(click.Command):
    """A command whose troubles with files are one line, not a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise
        except OSError as exc:
            name = exc.filename if isinstance(exc.filename, str) else ctx.command_path
            raise EnvironmentFault(f"{name}: {exc.strerror or exc}{_ADVICE.get(exc.errno or 0, '')}") from exc


_ADVICE: Final = {
    errno.EACCES: "; look at the rights of the file and of its folder",
    errno.EROFS: "; name a place that can be written to",
    errno.ENOENT: "; make its folder first",
    errno.ENOSPC: "; make room, or name another place",
}


class EdgeGroup(click.Group):
    command_class = EdgeCommand


def say(text: str, *, err: bool = False) -> None:
    """Print for people: nothing from a file steers the terminal, nor does a sign stop us that it cannot show."""
    stream = sys.stderr if err else sys.stdout
    safe = "".join(c if c.isprintable() or c == "\n" or "\udc80" <= c <= "\udcff" else "\ufffd" for c in text)
    try:
        click.echo(safe, err=err)
    except UnicodeEncodeError:
        encoding = stream.encoding or "ascii"
        click.echo(safe.encode(encoding, "replace").decode(encoding), err=err)


def _local(name: str) -> Path | None:
    """The path of a local file; None for an object in a store.

    Raises:
        NotFoundError: There is no such file.
        UsageError: It is something else, such as a folder.
    """
    if name.startswith("file://"):
        parts = urlsplit(name, allow_fragments=False)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise UsageError(f"{name!r}: a local file is file:///absolute/path")
        path = Path(unquote(parts.path))
    elif "://" in name:
        return None
    else:
        path = Path(name)
    if path.is_file():
        return path
    if path.is_dir():
        raise UsageError(f"{name}: a folder; name the files in it")
    if path.exists():
        raise UsageError(f"{name}: no regular file, so no part of it can be read twice; copy it to one")
    raise NotFoundError(f"{name}: no such file")


def place(name: str) -> tuple[Store, str]:
    """Store and key of a path or URL, for reading."""
    from kinemill.store.files import FileStore
    from kinemill.store.opening import open_store

    path = _local(name)
    if path is not None:
        return FileStore(path.absolute().parent, make=False), path.name
    head, _, query = name.partition("?")
    folder, _, key = head.rpartition("/")
    store = open_store(folder + (f"?{query}" if query else ""))
    return store, unquote(key) if name.startswith("s3://") else key


@contextmanager
def opened(name: str) -> Iterator[FileSource | StoreSource]:
    from kinemill.episode.scan import FileSource, StoreSource

    path = _local(name)
    if path is None:
        with StoreSource(*place(name)) as opened:
            yield opened
        return
    with FileSource(path) as found:
        yield found


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error where that is a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None
        return
    try:
        from rich.console import Console
        from rich.progress import Progress
    except ImportError:
        yield None
        return
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def new_file(path: Path) -> None:
    """Look whether a file can be made, before the work for it is done.

    Raises:
        ConflictError: It is there.
        EnvironmentFault: Its folder is not, or cannot be written to.
    """
    if path.exists() or path.is_symlink():
        raise ConflictError(f"{path}: exists already; nothing is overwritten")
    if not path.parent.is_dir():
        raise EnvironmentFault(f"{path}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise EnvironmentFault(f"{path}: folder {path.parent} cannot be written to; name another place")


def create(path: Path, data: bytes) -> None:
    """A whole file or none, and never over another."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with temporary.open("xb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.link(temporary, path)
    except FileExistsError as exc:
        raise ConflictError(f"{path}: exists already; nothing is overwritten") from exc
    finally:
        temporary.unlink(missing_ok=True)


def size_text(n: int) -> str:
    """Bytes for people: 62.4 KB."""
    size = float(n)
    for unit in ("B", "KB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
