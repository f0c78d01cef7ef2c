"""Forwarding is asynchronous (§6): readers of a dest can wait for copies, but no other call of a
dest waits for a router.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.contract.deleting import erase
from tests.support.api import Api, data, ok
from tests.support.copies import arrived, kept, passed, route
from tests.support.queues import HOUR_MS, Queue
from tests.support.routers import delete, names_for, path_of, put
from tests.support.server import Server
from tests.support.sse import watch
from tests.support.ws import Socket, subscribe

Ends = tuple[str, str]
ROUNDS = 5
WAIT_MS = 30_000
BOUND_S = 12.0  # for a call that a stopped process must not delay
ROWS = [(0, 0), (1, 0), (0, 1, 0), (1, 0, 0, 1)]


@pytest.fixture(params=ROWS, ids=str)
def row(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[list[str]]:
    """A chain of topics. The last one is a queue."""
    names = names_for(topic, request.param)
    Queue.create(api, names[-1], lease_ms=HOUR_MS)
    for source, dest in itertools.pairwise(names):
        route(api, source, dest)
    yield names
    for name in names:
        ok(api.delete(name))


# --- waiting readers


def test_a_lag_of_0_means_that_the_dest_has_every_record(api: Api, row: list[str]) -> None:
    routers = [f"{source}->{dest}" for source, dest in itertools.pairwise(row)]
    for number in range(1, ROUNDS + 1):
        ok(api.append(row[0], number))
        passed(api, *routers)
        assert data(kept(api, row[-1])) == [*range(1, number + 1)]
        assert api.state(row[-1])["count"] == number


def test_a_long_poll_gets_each_copy(api: Api, row: list[str]) -> None:
    for number in range(ROUNDS):
        ok(api.append(row[0], number))
        page = ok(api.diff(row[-1], from_seq=number, wait_ms=WAIT_MS))
        assert (data(page["records"]), page["head_seq"]) == ([number], number + 1)


def test_a_waiting_claim_gets_each_copy(api: Api, row: list[str]) -> None:
    queue = Queue(api, row[-1])
    for number in range(ROUNDS):
        ok(api.append(row[0], number))
        assert data(queue.claim("w", wait_ms=WAIT_MS)) == [number]


def test_a_watch_and_a_subscription_get_each_copy(api: Api, row: list[str], socket: Socket) -> None:
    subscribe(socket, row[-1], from_seq=0)
    with watch(api, [row[-1]]) as stream:
        for number in range(ROUNDS):
            ok(api.append(row[0], number))
            assert data(stream.records(1)) == data(socket.records(1)) == [number]


def test_a_tail_of_the_dest_starts_after_the_existing_copies(api: Api, row: list[str]) -> None:
    ok(api.append(row[0], "before"))
    arrived(api, row[-1], "before")
    with watch(api, {row[-1]: {"tail": True}}) as stream:
        assert stream.read_until_caught_up([row[-1]]).records == []
        ok(api.append(row[0], "after"))
        assert data(stream.records(1)) == ["after"]


def test_a_delete_in_the_dest_removes_existing_copies_and_no_later_ones(
    api: Api, ends: Ends
) -> None:
    source, dest = ends
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    ok(api.append(source, records=[{"data": data, "tag": "t"} for data in ("a", "b")]))
    arrived(api, dest, "a")
    assert ok(erase(api, dest, {"match": "t"}))["deleted"] == 1
    arrived(api, dest, "b")
    passed(api, name)


# --- a shard that does not respond


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        server.wait_roles(3)
        yield server


@contextmanager
def bounded() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < BOUND_S


@pytest.mark.slow
@pytest.mark.parametrize("shard", [0, 1])
def test_a_stopped_shard_does_not_block_the_other_ends_of_its_routers(
    own: Server, shard: int
) -> None:
    """The stopped shard has the dest of one router and the source of another."""
    source, dest, other = names_for("t", [1 - shard, shard, 1 - shard])
    with Api(own.address) as api:
        route(api, source, dest)
        route(api, dest, other)
        ok(api.append(source, "a"))
        arrived(api, other, "a")
        with own.stopped(f"shard {shard}"), bounded():
            for number in range(10):
                ok(api.append(source, number))
            assert data(kept(api, source)) == ["a", *range(10)]
            ok(api.append(other, "direct"))
            assert data(kept(api, other)) == ["a", "direct"]
        arrived(api, other, "a", "direct", *range(10))


@pytest.mark.slow
def test_forwarding_continues_without_the_shard_that_owns_the_routers(own: Server) -> None:
    source, dest, owned = names_for("t", [1, 1, 0])
    with Api(own.address) as api, Api(own.address) as other:
        route(api, source, dest)
        with own.stopped("shard 0"):
            ok(api.append(source, "a"))
            arrived(api, dest, "a")
            with bounded():
                assert put(other, "late", source, owned).status == 503


@pytest.mark.slow
def test_calls_to_a_stopped_shard_do_not_delay_other_calls(tmp_path: Path) -> None:
    """Calls about topics of other shards do not wait for them."""
    names = names_for("t", [2, 0, 1, 0, 1, 1, 0], 3)
    stuck, near, far, source, dest, deleted, other = names
    with Server(tmp_path / "data", shards=3) as server:
        server.wait_roles(4)

        def hang(method: str, path: str, body: object = None) -> None:
            with Api(server.address, timeout_s=60) as api, contextlib.suppress(OSError):
                api.call(method, path, body)

        with Api(server.address) as api:
            for name in names:
                ok(api.put(name), 201)
            route(api, other, deleted)
            with server.stopped("shard 2"):
                calls = (
                    ("PUT", path_of("from"), {"source": stuck, "dest": far}),
                    ("PUT", path_of("to"), {"source": near, "dest": stuck}),
                    ("DELETE", f"/v0/topics/{stuck}", None),
                )
                waiting = [threading.Thread(target=hang, args=call) for call in calls]
                for thread in waiting:
                    thread.start()
                time.sleep(0.3)
                began = time.monotonic()
                for number in range(3):
                    ok(put(api, f"between{number}", source, dest), 201)
                    ok(delete(api, f"between{number}"))
                ok(api.call("DELETE", f"/v0/topics/{deleted}"))
                took_s = time.monotonic() - began
                assert took_s < BOUND_S / 3
            for thread in waiting:
                thread.join()
