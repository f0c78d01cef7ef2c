"""A browser, a page, and servers whose responses the page may read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.client.conftest import url_of
from tests.client.subscribing import InNode, InPage, node, page_server
from tests.support import chromium
from tests.support.server import Server
from topics.client import Topics

KEY = "page-key"
Run = Callable[..., InPage | InNode]


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with page_server() as page:
        yield page


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Chromium]:
    with chromium.opened(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(params=["chromium", "node"])
def run(request: pytest.FixtureRequest, page: str) -> Iterator[Run]:
    """Return the function ``run(program, **options)``."""
    opened: list[InPage | InNode] = []

    def run_one(program: str, **options: Any) -> InPage | InNode:
        if request.param == "node":
            opened.append(InNode(node(), options, program))
        else:
            opened.append(InPage(request.getfixturevalue("browser"), page, options, program))
        return opened[-1]

    yield run_one
    for each in opened:
        if isinstance(each, InNode):
            each.kill()
        else:
            each.close()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, page: str) -> Iterator[Server]:
    """A server with keys that allows only the origin of the page."""
    keys = f"{KEY},reader:read:client-:"
    data_dir = tmp_path_factory.mktemp("guarded") / "data"
    with Server(data_dir, api_keys=keys, cors_origins=page.rstrip("/")) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        yield server


@pytest.fixture(scope="module")
def unguarded(tmp_path_factory: pytest.TempPathFactory, page: str) -> Iterator[Server]:
    """A server without keys that allows the origin of the page."""
    data_dir = tmp_path_factory.mktemp("unguarded") / "data"
    with Server(data_dir, cors_origins=page.rstrip("/")) as server:
        server.env["TOPICS_PORT"] = str(server.port)
        yield server


@pytest.fixture
def client(guarded: Server) -> Iterator[Topics]:
    with Topics(url_of(guarded), key=KEY) as client:
        yield client
