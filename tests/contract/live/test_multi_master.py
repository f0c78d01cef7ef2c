"""Three nodes write to a mirror of two topics and watch both. Each node gets the records of the
other nodes and none of its own, and the forwarding of every write terminates.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

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


@pytest.fixture(params=[(0, 1), (1, 1)], ids=["two shards", "one shard"])
def mirror(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[Mirror]:
    one, other = names_for(topic, request.param)
    route(api, one, other)
    route(api, other, one, allow_cycle=True)
    yield one, other
    for name in (one, other):
        ok(api.delete(name))


def write(address: Address, mirror: Mirror, node: str) -> None:
    """Write as a node to the two topics alternately."""
    with Api(address) as api:
        for number in range(WRITES):
            ok(api.append(mirror[number % 2], f"{node} {number}", node=node))


def settled_counts(api: Api, *names: str) -> list[int]:
    """Return the forwarded counts of two routers once they stop changing."""

    def read_counts() -> list[int]:
        return [forwarded(api, name) for name in names]

    return until(
        read_counts,
        lambda before: not any(lag(api, name) for name in names) and read_counts() == before,
        20,
    )


@pytest.mark.slow
def test_each_node_gets_only_records_of_the_others_and_forwarding_terminates(
    api: Api, mirror: Mirror
) -> None:
    found: dict[str, Counter[str]] = {}
    open_all = threading.Barrier(len(NODES))

    count = WRITES * (len(NODES) - 1) * (1 + HOPS)

    def live(node: str) -> None:
        with Api(api.address) as own:
            url = session(own, mirror, node=node)["stream_url"]
        with HttpxSource(at(api.address, url)) as source:
            open_all.wait(TIMEOUT_S)
            write(api.address, mirror, node)
            events = source.wait(lambda events: len(records(events)) >= count)
            found[node] = Counter(records(events))

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
    forward, back = settled_counts(api, f"{one}->{other}", f"{other}->{one}")
    assert forward + back == total * HOPS
    assert len(kept(api, one)) + len(kept(api, other)) == total * (1 + HOPS)
