"""One server of each version for all tests of the catalog, started when the first test needs it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.store.embedded import S3Server
from support.catalog import fresh_catalog, postgres, servers
from support.catalog_export import Place


@pytest.fixture(scope="session")
def wheel() -> Iterator[PostgresServer]:
    """PostgreSQL 18 from the wheel."""
    with postgres("wheel") as server:
        yield server


@pytest.fixture(scope="session")
def debian() -> Iterator[PostgresServer]:
    """Debian's own."""
    with postgres("debian") as server:
        yield server


@pytest.fixture(params=servers())
def server(request: pytest.FixtureRequest) -> PostgresServer:
    """Each of them in turn."""
    found: PostgresServer = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def catalog(server: PostgresServer) -> Iterator[Catalog]:
    """An empty catalog on each server in turn."""
    with fresh_catalog(server) as made:
        yield made


@pytest.fixture
def one(wheel: PostgresServer) -> Iterator[Catalog]:
    """An empty catalog, on one server: for what does not depend on its version."""
    with fresh_catalog(wheel) as made:
        yield made


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    """An object store."""
    with S3Server() as started:
        yield started


@pytest.fixture
def place(catalog: Catalog, s3: S3Server) -> Place:
    return Place(catalog, s3)


@pytest.fixture
def only(one: Catalog, s3: S3Server) -> Place:
    return Place(one, s3)
