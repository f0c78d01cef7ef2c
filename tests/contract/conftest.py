"""One real server for all contract tests; each test uses its own topics."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from tests.contract.deleting import TAGS, fill
from tests.specs.judge import Specifications
from tests.support.api import Api, Wire, ok
from tests.support.model import TopicModel
from tests.support.queues import Queue, names_on
from tests.support.server import Server
from tests.support.traffic_checks import checks
from tests.support.ws import Socket

SPECIFICATIONS = Specifications()
_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def specifications() -> Iterator[None]:
    """Check every response of the contract tests against the specifications."""
    checks.append(SPECIFICATIONS)
    yield
    checks.remove(SPECIFICATIONS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run a server with two shards. At the end it must stop cleanly, and no child process may have
    been replaced during the tests.
    """
    with Server(tmp_path_factory.mktemp("contract") / "data", shards=2) as server:
        before = server.wait_roles(3)
        yield server
        assert server.roles() == before, f"a child died and was replaced:\n{server.log_tail}"


@pytest.fixture
def api(server: Server) -> Iterator[Api]:
    with Api(server.address) as api:
        yield api


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    with Wire(server.address) as wire:
        yield wire


@pytest.fixture
def socket(server: Server) -> Iterator[Socket]:
    with Socket(server.address) as socket:
        yield socket


@pytest.fixture(scope="session")
def new_name() -> Callable[[], str]:
    """Return a function that makes names which no other test uses."""
    return lambda: f"topic-{next(_numbers):05d}"


@pytest.fixture
def topic(new_name: Callable[[], str]) -> str:
    """The name of a topic that does not exist yet."""
    return new_name()


@pytest.fixture
def filled(api: Api, topic: str) -> TopicModel:
    """Ten records with ``TAGS`` in ``topic``."""
    return fill(api, topic, TAGS)


@pytest.fixture
def queue(api: Api, topic: str) -> Queue:
    """An empty queue with the default config."""
    return Queue.create(api, topic)


@pytest.fixture(params=["same shard", "another shard"])
def pair(request: pytest.FixtureRequest, api: Api, topic: str) -> tuple[Queue, str]:
    """A queue whose jobs are delivered twice, and the name of its dead-letter topic, which does not
    exist yet.
    """
    same, other = names_on(topic)
    name = same if request.param == "same shard" else other
    return Queue.create(api, topic, max_deliveries=2, dead_letter=name), name


@pytest.fixture(params=["same shard", "another shard"])
def ends(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[tuple[str, str]]:
    """Names of a source and a dest that do not exist yet. At the end they are deleted with their
    routers.
    """
    same, other = names_on(topic)
    dest = same if request.param == "same shard" else other
    yield topic, dest
    for name in (topic, dest):
        ok(api.delete(name))
