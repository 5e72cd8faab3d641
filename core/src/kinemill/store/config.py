"""Store addresses and credentials: what a URL may say, and where secrets come from instead."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from kinemill.errors import ConfigError, UnknownKeyError
from kinemill.records import nearest
from kinemill.settings import read_env_file

__all__ = ["Credentials", "S3Address", "parse_s3_url"]

_OPTIONS = ("endpoint", "region", "style")
CREDENTIALS_FILE = "KINEMILL_S3_CREDENTIALS_FILE"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An S3 key pair. Its text form shows no secret."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> Credentials:
        """From the file that KINEMILL_S3_CREDENTIALS_FILE names, else from AWS_* variables.

        The file has lines `AWS_ACCESS_KEY_ID=...`, as a systemd EnvironmentFile has, and mode 0600.

        Raises:
            ConfigError: Neither is set, or the file can be read by others.
        """
        values = environ
        named = environ.get(CREDENTIALS_FILE)
        if named:
            values = read_env_file(Path(named))
        key, secret = values.get("AWS_ACCESS_KEY_ID"), values.get("AWS_SECRET_ACCESS_KEY")
        if not key or not secret:
            where = named or "the environment"
            raise ConfigError(
                f"no AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in {where}: set them,"
                f" or point {CREDENTIALS_FILE} at a file of mode 0600 that holds them"
            )
        return cls(key, secret, values.get("AWS_SESSION_TOKEN") or None)


@dataclass(frozen=True, slots=True)
class S3Address:
    """Where a bucket is; no secret in it.

    `s3://<bucket>/<prefix>?endpoint=http://host:port&region=...&style=path|host`
    """

    bucket: str
    prefix: str = ""
    endpoint: str = ""
    """Empty: Amazon's own for `region`."""
    region: str = "us-east-1"
    style: str = "path"
    """`path` (endpoint/bucket/key) or `host` (bucket.endpoint/key)."""

    @property
    def url(self) -> str:
        """The address as text; `parse_s3_url` reads it back."""
        options = {"endpoint": self.endpoint} if self.endpoint else {}
        if self.region != "us-east-1":
            options["region"] = self.region
        if self.style != "path":
            options["style"] = self.style
        path = f"/{quote(self.prefix)}" if self.prefix else ""
        return f"s3://{self.bucket}{path}" + (f"?{urlencode(options, safe=':/')}" if options else "")

    def key(self, key: str) -> str:
        """`key` below this address's prefix."""
        return f"{self.prefix}/{key}" if self.prefix else key


def parse_s3_url(url: str, environ: Mapping[str, str] = os.environ) -> S3Address:
    """`s3://bucket/prefix?endpoint=...`; what the URL does not say comes from AWS_ENDPOINT_URL and AWS_REGION.

    Raises:
        ConfigError: No bucket, or a secret in the URL.
    """
    parts = urlsplit(url)
    if parts.username or parts.password or "@" in parts.netloc:
        raise ConfigError("a store URL holds no credentials: put them into the environment or a file of mode 0600")
    if parts.scheme != "s3" or not parts.netloc:
        raise ConfigError(f"{url!r} is not s3://<bucket>/<prefix>")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            close = nearest(name, _OPTIONS)
            raise UnknownKeyError(
                f"store URL: unknown option '{name}'" + (f"; did you mean '{close}'?" if close else "")
            )
    endpoint = options.get("endpoint") or environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL") or ""
    if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
        raise ConfigError(f"endpoint {endpoint!r}: expected http://host:port or https://host")
    if "@" in endpoint:
        raise ConfigError("an endpoint holds no credentials: put them into the environment or a file of mode 0600")
    style = options.get("style", "path")
    if style not in ("path", "host"):
        raise ConfigError(f"style={style!r}: it is 'path' or 'host'")
    return S3Address(
        bucket=parts.netloc,
        prefix=unquote(parts.path).strip("/"),
        endpoint=endpoint.rstrip("/"),
        region=options.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1",
        style=style,
    )
