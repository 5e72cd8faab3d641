"""Store addresses: what a URL may say."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.errors import ConfigError
from kinemill.store.config import Credentials, S3Address, parse_s3_url

NAMES = st.text(st.characters(categories=("L", "N", "P", "S", "Zs")), min_size=1, max_size=20)


@given(
    prefix=st.lists(NAMES.filter(lambda n: "/" not in n), max_size=3),
    endpoint=st.sampled_from(["", "http://127.0.0.1:8333", "https://s3.example.org"]),
    region=st.sampled_from(["us-east-1", "eu-central-1"]),
    style=st.sampled_from(["path", "host"]),
)
def test_an_address_comes_back_from_its_url(prefix: list[str], endpoint: str, region: str, style: str) -> None:
    address = S3Address("corpus", "/".join(prefix), endpoint, region, style)
    assert parse_s3_url(address.url, {}) == address


def test_the_environment_fills_what_the_url_leaves_open() -> None:
    found = parse_s3_url("s3://b/p", {"AWS_ENDPOINT_URL": "http://x:1/", "AWS_REGION": "r"})
    assert (found.endpoint, found.region) == ("http://x:1", "r")
    assert parse_s3_url("s3://b?endpoint=http://y", {"AWS_ENDPOINT_URL": "http://x:1"}).endpoint == "http://y"


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "http://b",
        "s3://k:s@b",
        "s3://b?endpoint=ftp://x",
        "s3://b?endpoint=http://k:s@x",
        "s3://b?style=x",
        "s3://b?x=1",
    ],
)
def test_wrong_addresses_are_refused_without_repeating_secrets(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_s3_url(url, {})
    assert "k:s" not in str(caught.value)


def test_credentials_show_no_secret() -> None:
    pair = Credentials.find({"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_SESSION_TOKEN": "tok"})
    assert "hush" not in repr(pair)
    assert "tok" not in repr(pair)
    with pytest.raises(ConfigError):
        Credentials.find({"AWS_ACCESS_KEY_ID": "key"})


def test_importing_the_store_loads_no_client() -> None:
    script = "import sys, kinemill.store; print(sorted({'obstore', 'numpy', 'pyarrow'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
