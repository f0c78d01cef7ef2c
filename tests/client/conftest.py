"""One real server for the tests of the client; each test uses its own topics."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.server import Server
from topics.client import Topics

_numbers = itertools.count(1)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("client") / "data", shards=2) as server:
        yield server


def url_of(server: Server) -> str:
    return "http://{}:{}".format(*server.address)


@pytest.fixture
def url(server: Server) -> str:
    return url_of(server)


@pytest.fixture
def client(url: str) -> Iterator[Topics]:
    with Topics(url) as client:
        yield client


@pytest.fixture
def name() -> str:
    """The name of a topic that does not exist yet."""
    return f"client-{next(_numbers):04d}"
