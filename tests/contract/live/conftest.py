"""Streams and servers for clients of other projects. Tests of clients that are not installed are
skipped.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.api import Api, ok
from tests.support.event_sources import KEY
from tests.support.queues import Queue
from tests.support.relay import Relay
from tests.support.server import Server
from tests.support.sse import session


@pytest.fixture
def url(api: Api, topic: str) -> str:
    """The path of a stream of a topic that contains the record "old"."""
    ok(api.append(topic, "old"), 201)
    return str(session(api, [topic])["stream_url"])


@pytest.fixture
def relay(server: Server) -> Iterator[Relay]:
    with Relay(server.address) as relay:
        yield relay


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("guarded-live") / "data", api_keys=KEY) as server:
        yield server


@pytest.fixture
def guarded_api(guarded: Server) -> Iterator[Api]:
    with Api(guarded.address, token=KEY) as api:
        yield api


@pytest.fixture
def guarded_queue(guarded_api: Api, topic: str) -> Queue:
    """An empty queue of a server with keys."""
    return Queue.create(guarded_api, topic)
