"""`kinemill.contracts.Store` on any S3: obstore for reading and lists, conditional writes of our own."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

from kinemill.contracts.store import ObjectMeta, Progress
from kinemill.errors import (
    ConfigError,
    ConflictError,
    ExternalError,
    KinemillError,
    NotFoundError,
    TruncatedError,
    UnavailableError,
)
from kinemill.store.config import Credentials, S3Address
from kinemill.store.counts import Counting, count
from kinemill.store.fork import obstore_usable
from kinemill.store.http import S3Http
from kinemill.store.parallel import Lanes, download
from kinemill.store.retry import Retry

if TYPE_CHECKING:
    import obstore.store

__all__ = ["AsyncS3Store", "S3Store"]

T = TypeVar("T")
_NONCE = "x-amz-meta-kinemill-put"
_ONE_PUT_BYTES = 64 << 20
_PART_BYTES = 64 << 20
_PARTS_MAX = 10_000
_PAGE_KEYS = 1000
_STATUS = re.compile(r"status code: (\d{3})")
_TRANSIENT_4XX = (408, 429)


class S3Store:
    """A bucket and prefix of an S3 service.

    Thread-safe. After a fork it goes on through the standard library's HTTP, since obstore cannot; after a
    pickle it opens again, with credentials from the new process' environment unless they were given by hand.

    Args:
        address: Bucket, prefix and endpoint.
        credentials: None means from the environment or the 0600 file, see `Credentials.find`.
        retry: Bounds on trying again.
        timeout_s: Of one request.
    """

    def __init__(
        self,
        address: S3Address,
        credentials: Credentials | None = None,
        *,
        retry: Retry | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.address = address
        self._given = credentials
        self._retry = retry or Retry()
        self._timeout_s = timeout_s
        self._open()

    def _open(self) -> None:
        self._credentials = self._given or Credentials.find()
        self._http = S3Http(self.address, self._credentials, timeout_s=self._timeout_s)
        self._lanes = Lanes()
        self._lock = threading.Lock()
        self._obstore: obstore.store.S3Store | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {
            "address": self.address,
            "_given": self._given,
            "_retry": self._retry,
            "_timeout_s": self._timeout_s,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        """`s3://bucket/prefix?endpoint=...`; never a secret."""
        return self.address.url

    def _client(self) -> obstore.store.S3Store:
        with self._lock:
            if self._obstore is None:
                self._obstore = open_obstore(self.address, self._credentials, self._timeout_s)
            return self._obstore

    def _call(self, what: str, body: Callable[[int], T]) -> T:
        def counted(attempt: int) -> T:
            with Counting(what.partition(" ")[0]):
                return body(attempt)

        return self._retry.call(f"{self.url}: {what}", counted)

    def _meta(self, found: Any) -> ObjectMeta:
        return _meta(found, self.address.prefix)

    # ---- reading

    def get(self, key: str) -> bytes:
        """The whole object."""
        full = self.address.key(key)
        if not obstore_usable():
            return self._call(f"get {key}", lambda _: self._http.get(full))
        import obstore as obs

        def body(_: int) -> bytes:
            with _translated(self.url, key):
                return bytes(obs.get(self._client(), full).bytes())

        return self._call(f"get {key}", body)

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`, in one request."""
        return bytes(self._fetch(key, start, length, etag))

    def _fetch(self, key: str, start: int, length: int, etag: str | None) -> memoryview:
        if start < 0 or length < 0:
            raise TruncatedError(f"{self.url}/{key}: no object has bytes {start}..{start + length}")
        if length == 0:
            return memoryview(b"")
        full = self.address.key(key)
        fetch = self._fetch_obstore if obstore_usable() else self._fetch_http
        data = self._call(f"get {key} at {start}", lambda _: fetch(key, full, start, length, etag))
        if len(data) != length:
            raise TruncatedError(
                f"{self.url}: {key} ends at byte {start + len(data)}, wanted {start}..{start + length}"
            )
        return data

    def _fetch_http(self, key: str, full: str, start: int, length: int, etag: str | None) -> memoryview:
        return memoryview(self._http.get_range(full, start, length, etag))

    def _fetch_obstore(self, key: str, full: str, start: int, length: int, etag: str | None) -> memoryview:
        import obstore as obs

        options: dict[str, Any] = {"range": (start, start + length)}
        if etag is not None:
            options["if_match"] = f'"{etag}"'
        with _translated(self.url, key):
            result = obs.get(self._client(), full, options=options)  # type: ignore[arg-type]  # a TypedDict, built above
            return memoryview(result.bytes())

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One request a range, several at once."""
        return self._lanes.map(lambda one: self.get_range(key, *one), ranges)

    def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        full = self.address.key(key)
        if not obstore_usable():
            meta, _ = self._call(f"head {key}", lambda _: self._http.head(full))
            return ObjectMeta(key, meta.size_bytes, meta.etag, meta.modified_ns)
        import obstore as obs

        def body(_: int) -> ObjectMeta:
            with _translated(self.url, key):
                return self._meta(obs.head(self._client(), full))

        return self._call(f"head {key}", body)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """Key order, page by page; a page that fails is asked for again."""
        page, token = self.list_page(prefix, None, _PAGE_KEYS)
        yield from page
        while token is not None:
            page, token = self.list_page(prefix, token, _PAGE_KEYS)
            yield from page

    def download(
        self,
        key: str,
        path: Path,
        *,
        etag: str | None = None,
        size_bytes: int | None = None,
        part_bytes: int = 8 << 20,
        progress: Progress | None = None,
    ) -> ObjectMeta:
        """To a local file by parallel ranges, all of one version of the object."""
        meta = self.head(key) if size_bytes is None else ObjectMeta(key, size_bytes, etag)
        pinned = etag or meta.etag
        full = self.address.key(key)

        def fill(fd: int, start: int, length: int) -> int:
            # Not by obstore, which hands over each part whole in fresh memory: a small buffer is 1.3 times as fast.
            return self._call(
                f"get {key} at {start}", lambda _: self._http.get_range_into(full, start, length, pinned, fd)
            )

        return download(self._lanes, fill, meta, path, part_bytes=part_bytes, progress=progress)

    # ---- writing

    def put_if_absent(self, key: str, data: bytes | Path) -> ObjectMeta:
        """Create; of racing callers exactly one is told that it did."""
        if isinstance(data, Path):
            with data.open("rb") as file:
                return self._create_from(key, file, os.fstat(file.fileno()).st_size)
        return self._put(key, data, {"if-none-match": "*"})

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectMeta:
        """Replace while `etag` still holds."""
        try:
            return self._put(key, data, {"if-match": f'"{etag}"'})
        except NotFoundError as exc:
            raise ConflictError(f"{self.url}/{key}: gone, so it has no etag {etag} any more") from exc

    def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> ObjectMeta:
        full = self.address.key(key)
        headers = {**condition, _NONCE: secrets.token_hex(8)}

        def body(attempt: int) -> ObjectMeta:
            try:
                etag = self._http.put(full, data, len(data), headers)
            except ConflictError:
                return self._mine(key, full, headers[_NONCE], attempt)
            return ObjectMeta(key, len(data), etag)

        return self._call(f"put {key}", body)

    def _mine(self, key: str, full: str, nonce: str, attempt: int) -> ObjectMeta:
        """A refused write may have been ours: its answer was lost and we tried again. The nonce tells."""
        if attempt > 1:
            try:
                meta, found = self._http.head(full)
            except NotFoundError:
                found = {}
            if found.get(_NONCE) == nonce:
                return ObjectMeta(key, meta.size_bytes, meta.etag, meta.modified_ns)
        raise ConflictError(f"{self.url}: {key} exists already, or has changed")

    def _create_from(self, key: str, file: IO[bytes], size: int) -> ObjectMeta:
        full = self.address.key(key)
        nonce = {_NONCE: secrets.token_hex(8)}
        create = {"if-none-match": "*"}
        if size <= _ONE_PUT_BYTES:

            def once(attempt: int) -> ObjectMeta:
                file.seek(0)
                try:
                    return ObjectMeta(key, size, self._http.put(full, file, size, {**create, **nonce}))
                except ConflictError:
                    return self._mine(key, full, nonce[_NONCE], attempt)

            return self._call(f"put {key}", once)
        return self._create_parts(key, file, size, max(_PART_BYTES, -(-size // _PARTS_MAX)))

    def create_in_parts(self, key: str, path: Path, *, part_bytes: int) -> ObjectMeta:
        """`put_if_absent` of a file as a multipart upload with parts of `part_bytes` (5 MiB or more)."""
        with path.open("rb") as file:
            return self._create_parts(key, file, os.fstat(file.fileno()).st_size, part_bytes)

    def _create_parts(self, key: str, file: IO[bytes], size: int, part: int) -> ObjectMeta:
        full = self.address.key(key)
        nonce = {_NONCE: secrets.token_hex(8)}
        create = {"if-none-match": "*"}
        upload = self._call(f"put {key}", lambda _: self._http.create_multipart(full, nonce))
        try:
            etags = []
            for start in range(0, size, part):

                def piece(_: int, start: int = start) -> str:
                    file.seek(start)
                    number, length = start // part + 1, min(part, size - start)
                    return self._http.put_part(full, upload, number, file, length)

                etags.append(self._call(f"put {key} at {start}", piece))

            def finish(attempt: int) -> ObjectMeta:
                try:
                    return ObjectMeta(key, size, self._http.complete_multipart(full, upload, etags, create))
                except (ConflictError, NotFoundError):
                    return self._mine(key, full, nonce[_NONCE], attempt)

            return self._call(f"put {key}", finish)
        except BaseException:
            # The first error is the one to tell; the bucket's own lifecycle rule takes parts that stay.
            with contextlib.suppress(KinemillError):
                self._http.abort_multipart(full, upload)
            raise

    def delete(self, key: str) -> None:
        """Remove; a missing key is no error."""
        self._call(f"delete {key}", lambda _: self._http.delete(self.address.key(key)))

    # ---- for `kinemill.store.check`

    def put_with_headers(self, key: str, data: bytes, headers: Mapping[str, str]) -> str | None:
        """One unconditional PUT with further headers; the etag."""
        return self._call(f"put {key}", lambda _: self._http.put(self.address.key(key), data, len(data), headers))

    def list_page(self, prefix: str, token: str | None, page_keys: int) -> tuple[Sequence[ObjectMeta], str | None]:
        """One page of `list`, and the token of the next."""
        cut = len(self.address.prefix) + 1 if self.address.prefix else 0
        full = self.address.key(prefix)
        page, following = self._call(f"list {prefix}", lambda _: self._http.list_page(full, token, page_keys))
        return [ObjectMeta(m.key[cut:], m.size_bytes, m.etag, m.modified_ns) for m in page], following

    def with_other_secret(self) -> S3Store:
        """The same bucket with a secret that is not ours."""
        wrong = Credentials(self._credentials.access_key, secrets.token_urlsafe(30))
        return S3Store(self.address, wrong, retry=Retry(attempts=1), timeout_s=self._timeout_s)


class AsyncS3Store:
    """The reading half for event loops. Not for forked children: open a `S3Store` there."""

    def __init__(
        self,
        address: S3Address,
        credentials: Credentials | None = None,
        *,
        retry: Retry | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        self.address = address
        self._retry = retry or Retry()
        self._client = open_obstore(address, credentials or Credentials.find(), timeout_s)

    @property
    def url(self) -> str:
        """As `S3Store.url`."""
        return self.address.url

    async def get(self, key: str) -> bytes:
        """The whole object."""
        import obstore as obs

        async def body(_: int) -> bytes:
            with Counting("get"), _translated(self.url, key):
                return bytes(await (await obs.get_async(self._client, self.address.key(key))).bytes_async())

        return await self._retry.call_async(f"{self.url}: get {key}", body)

    async def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`, in one request."""
        import obstore as obs

        options: dict[str, Any] = {"range": (start, start + length)}
        if etag is not None:
            options["if_match"] = f'"{etag}"'

        async def body(_: int) -> bytes:
            with Counting("get"), _translated(self.url, key):
                full = self.address.key(key)
                result = await obs.get_async(self._client, full, options=options)  # type: ignore[arg-type]  # a TypedDict
                return bytes(await result.bytes_async())

        if length == 0:
            return b""
        data = await self._retry.call_async(f"{self.url}: get {key} at {start}", body)
        if len(data) != length:
            raise TruncatedError(
                f"{self.url}: {key} ends at byte {start + len(data)}, wanted {start}..{start + length}"
            )
        return data

    async def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        import obstore as obs

        async def body(_: int) -> ObjectMeta:
            with Counting("head"), _translated(self.url, key):
                return _meta(await obs.head_async(self._client, self.address.key(key)), self.address.prefix)

        return await self._retry.call_async(f"{self.url}: head {key}", body)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectMeta]:
        """In key order."""
        import obstore as obs

        try:
            with _translated(self.url, prefix):
                async for page in obs.list(self._client, self.address.key(prefix) or None):
                    count("list")
                    for found in page:
                        yield _meta(found, self.address.prefix)
        except KinemillError as exc:
            count("list", exc)
            raise


# ---- obstore


def open_obstore(address: S3Address, credentials: Credentials, timeout_s: float) -> obstore.store.S3Store:
    """obstore's client; its own retries are off, since `Retry` is the one policy."""
    import obstore.store

    options: dict[str, Any] = {
        "aws_access_key_id": credentials.access_key,
        "aws_secret_access_key": credentials.secret_key,
        "aws_region": address.region,
        "aws_virtual_hosted_style_request": address.style == "host",
    }
    if credentials.session_token:
        options["aws_session_token"] = credentials.session_token
    if address.endpoint:
        options["aws_endpoint"] = address.endpoint
    return obstore.store.S3Store(
        address.bucket,
        config=options,  # type: ignore[arg-type]  # a TypedDict, built above
        client_options={
            "allow_http": address.endpoint.startswith("http://"),
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
        },
        retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=timeout_s)},
    )


def _meta(found: Any, prefix: str) -> ObjectMeta:
    key = str(found["path"])
    etag = found.get("e_tag")
    modified = found.get("last_modified")
    return ObjectMeta(
        key=key[len(prefix) + 1 :] if prefix else key,
        size_bytes=int(found["size"]),
        etag=str(etag).strip('"') if etag else None,
        modified_ns=int(modified.timestamp() * 1000) * 10**6 if modified is not None else None,
    )


class _translated:  # noqa: N801 - reads as a with-statement
    """obstore's errors as ours."""

    def __init__(self, url: str, key: str) -> None:
        self._where = f"{url}: {key}"

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: object) -> None:
        if exc is None or isinstance(exc, KinemillError) or not isinstance(exc, Exception):
            return
        import obstore.exceptions as oe

        text = " ".join(str(exc).split())[:400]
        if isinstance(exc, oe.NotFoundError | FileNotFoundError):
            raise NotFoundError(f"{self._where}: not there") from exc
        if isinstance(exc, oe.PreconditionError | oe.NotModifiedError | oe.AlreadyExistsError):
            raise ConflictError(f"{self._where}: the object changed, or exists ({text})") from exc
        if isinstance(exc, oe.PermissionDeniedError | oe.UnauthenticatedError):
            raise ConfigError(f"{self._where}: denied; check the credentials ({text})") from exc
        if isinstance(exc, oe.GenericError | OSError):
            status = int(found[1]) if (found := _STATUS.search(text)) else 0
            if status == 416 or "range started at" in text.lower():
                raise TruncatedError(f"{self._where}: the object ends before the range asked for") from exc
            if "non-partial" in text.lower():
                raise ExternalError(
                    f"{self._where}: a ranged GET was answered whole: this store ignores ranges"
                ) from exc
            if 400 <= status < 500 and status not in _TRANSIENT_4XX:
                raise ExternalError(f"{self._where}: {text}") from exc
            raise UnavailableError(f"{self._where}: {text}") from exc
