"""`kinemill episode` on objects of a real S3 server: what is asked of it, and what people are told."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner, Result

from kinemill.contracts.episode import Receipt
from kinemill.episode.commands import episode
from kinemill.episode.publishing import publish
from kinemill.errors import NotFoundError
from kinemill.records import loads
from kinemill.store.embedded import S3Server
from kinemill.store.s3 import S3Store
from support.episode import small_episode
from support.loaders_proxy import Relay


class Site(NamedTuple):
    """An episode in a bucket, behind a relay that counts."""

    url: str
    relay: Relay
    environ: dict[str, str]
    receipt: Receipt

    def run(self, *args: object) -> Result:
        self.relay.clear()
        return CliRunner().invoke(episode, [str(a) for a in args], env=self.environ)

    @property
    def asked(self) -> Counter[str]:
        return self.relay.counted[0]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    path = tmp_path_factory.mktemp("s3") / "e.mcap"
    data, receipt = small_episode(2, 2, 60)
    path.write_bytes(data)
    with S3Server() as server, Relay(server.endpoint) as relay:
        address = replace(server.address, endpoint=relay.endpoint)
        key = publish(S3Store(address, server.credentials), path, receipt).key
        environ = {
            "AWS_ACCESS_KEY_ID": server.credentials.access_key,
            "AWS_SECRET_ACCESS_KEY": server.credentials.secret_key,
        }
        folder, _, query = address.url.partition("?")
        yield Site(f"{folder}/{key}?{query}", relay, environ, receipt)


def test_info_and_index_take_the_end_of_an_object_alone(site: Site) -> None:
    result = site.run("info", site.url, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["episode_id"] == site.receipt.episode_id
    assert site.asked["GET range"] == 1
    assert sum(site.asked.values()) == 2  # and its size
    whole = site.run("index", site.url, "--receipt")
    assert loads(Receipt, whole.output) == site.receipt


def test_verify_reads_an_object_and_its_name(site: Site) -> None:
    result = site.run("verify", site.url, "--deep")
    assert (result.exit_code, result.output[:3]) == (0, "ok ")


def test_frames_and_repack_read_from_a_bucket(site: Site, tmp_path: Path) -> None:
    assert site.run("frames", site.url, tmp_path / "sheet.png").exit_code == 0
    result = site.run("repack", site.url, tmp_path / "e.mcap", "--json")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "e.mcap").read_bytes() == small_episode(2, 2, 60)[0]


def test_an_object_that_is_not_there(site: Site) -> None:
    lost = site.run("info", site.url.replace("/vla-", "/none-"))
    assert isinstance(lost.exception, NotFoundError)
    # and of several, the others are looked at
    both = site.run("verify", site.url.replace("/vla-", "/none-"), site.url)
    assert (both.exit_code, both.stdout[:3]) == (1, "ok ")
