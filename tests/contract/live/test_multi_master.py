"""Three nodes that write to a mirror of two topics and watch both: each gets the others' records,
none of its own, and every write terminates.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from tests.contract.live.test_httpx import HttpxSource
from tests.support.api import Api, ok
from tests.support.copies import forwarded, kept, lag, route
from tests.support.event_sources import TIMEOUT_S, Address, at, records
from tests.support.queues import until
from tests.support.routers import names_for
from tests.support.sse import session

NODES = ("n1", "n2", "n3")
WRITES = 5
HOPS = 8  # copies that a mirror makes of a record
Mirror = tuple[str, str]
Wait = Callable[[int], list[Any]]


@pytest.fixture(params=[(0, 1), (1, 1)], ids=["two shards", "one shard"])
def mirror(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[Mirror]:
    one, other = names_for(topic, request.param)
    route(api, one, other)
    route(api, other, one, allow_cycle=True)
    yield one, other
    for name in (one, other):
        ok(api.delete(name))


@contextmanager
def event_stream(address: Address, mirror: Mirror, node: str) -> Iterator[Wait]:
    """Data that a node gets from both topics, once it is so many records; by httpx-sse."""
    with Api(address) as api:
        url = session(api, mirror, node=node)["stream_url"]
    with HttpxSource(at(address, url)) as source:
        yield lambda count: records(source.wait(lambda events: len(records(events)) >= count))


@contextmanager
def web_socket(address: Address, mirror: Mirror, node: str) -> Iterator[Wait]:
    """The same by websockets."""
    client = pytest.importorskip("websockets.sync.client", reason="the dev extra has it")
    found: list[Any] = []
    with client.connect(at(address, "/v0/ws", "ws"), proxy=None, max_size=None) as socket:
        for name in mirror:
            command = {"op": "subscribe", "topic": name, "from_seq": 0, "node": node}
            socket.send(json.dumps(command))

        def wait(count: int) -> list[Any]:
            while len(found) < count:
                message = json.loads(socket.recv(timeout=TIMEOUT_S))
                assert message["op"] in ("subscribed", "record", "caught_up"), message
                found.extend(record["data"] for record in message.get("records", []))
            return found

        yield wait


def write(address: Address, mirror: Mirror, node: str) -> None:
    """A node writes to the two topics in turn."""
    with Api(address) as api:
        for number in range(WRITES):
            ok(api.append(mirror[number % 2], f"{node} {number}", node=node))


def at_rest(api: Api, *names: str) -> list[int]:
    """What two routers have forwarded, once it stands still."""

    def look() -> list[int]:
        return [forwarded(api, name) for name in names]

    return until(
        look, lambda before: not any(lag(api, name) for name in names) and look() == before, 20
    )


@pytest.mark.slow
@pytest.mark.parametrize("listen", [event_stream, web_socket])
def test_each_node_gets_the_records_of_the_others_and_every_write_terminates(
    api: Api,
    mirror: Mirror,
    listen: Callable[[Address, Mirror, str], AbstractContextManager[Wait]],
) -> None:
    found: dict[str, Counter[str]] = {}
    open_all = threading.Barrier(len(NODES))

    def live(node: str) -> None:
        with listen(api.address, mirror, node) as wait:
            open_all.wait(TIMEOUT_S)
            write(api.address, mirror, node)
            found[node] = Counter(wait(WRITES * (len(NODES) - 1) * (1 + HOPS)))

    nodes = [threading.Thread(target=live, args=(node,)) for node in NODES]
    for thread in nodes:
        thread.start()
    for thread in nodes:
        thread.join()
    for node in NODES:
        others = [each for each in NODES if each != node]
        expected = {f"{each} {number}" for each in others for number in range(WRITES)}
        assert found[node] == dict.fromkeys(expected, 1 + HOPS)
    total = WRITES * len(NODES)
    one, other = mirror
    there, back = at_rest(api, f"{one}->{other}", f"{other}->{one}")
    assert there + back == total * HOPS
    assert len(kept(api, one)) + len(kept(api, other)) == total * (1 + HOPS)
