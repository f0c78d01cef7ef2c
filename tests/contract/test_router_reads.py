"""Who reads a dest sees what was acknowledged in its source: a read first lets the copies come, in
bounded time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import Api, data, ok
from tests.support.copies import arrived, route
from tests.support.queues import HOUR_MS, Queue, until
from tests.support.routers import delete, names_for, path_of, put
from tests.support.server import Server
from tests.support.sse import CAUGHT_UP, watch
from tests.support.ws import Socket, subscribe
from topics.actors.shard.routing.barriers import BARRIER_S

Ends = tuple[str, str]
TURNS = 20
BOUND_S = 12.0  # of a call that a stopped process must not keep
ROWS = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 1, 0), (1, 0, 0, 1)]


@pytest.fixture(params=ROWS, ids=str)
def row(request: pytest.FixtureRequest, api: Api, topic: str) -> Iterator[list[str]]:
    """A chain of topics, the first of which feeds all others."""
    names = names_for(topic, request.param)
    for source, dest in itertools.pairwise(names):
        route(api, source, dest)
    yield names
    for name in names:
        ok(api.delete(name))


def sees(read: Callable[[], Any], wanted: Any) -> None:
    """What is read is this: at once, or later if something stood still for so long that the read
    waited no more.
    """
    began = time.monotonic()
    found = read()
    if found != wanted and time.monotonic() - began >= BARRIER_S:
        found = until(read, lambda found: bool(found == wanted))
    assert found == wanted


def diffed(api: Api, topic: str, count: int) -> tuple[int, Any]:
    page = ok(api.diff(topic, from_seq=count - 1))
    return page["head_seq"], data(page["records"])


def stated(api: Api, topic: str, _: int) -> tuple[int, Any]:
    state = api.state(topic)
    return state["head_seq"], [state["count"]]


def watched(api: Api, topic: str, count: int) -> tuple[int, Any]:
    with watch(api, {topic: {"from_seq": count - 1}}) as stream:
        told = stream.told([topic])
        return told.of(CAUGHT_UP)[-1]["head_seq"], told.data()


@pytest.mark.parametrize(("read", "turns"), [(diffed, TURNS), (stated, TURNS), (watched, 3)])
def test_a_read_sees_what_was_acknowledged(
    api: Api, row: list[str], read: Callable[[Api, str, int], Any], turns: int
) -> None:
    for number in range(1, turns + 1):
        ok(api.append(row[0], number))
        sees(partial(read, api, row[-1], number), (number, [number]))


def test_a_claim_gets_what_was_acknowledged(api: Api, row: list[str]) -> None:
    ok(api.delete(row[-1]))
    queue = Queue.create(api, row[-1], lease_ms=HOUR_MS)
    route(api, row[-2], row[-1])
    for number in range(TURNS):
        ok(api.append(row[0], number))
        sees(lambda: data(queue.claim()), [number])


def test_a_subscription_begins_with_what_was_acknowledged(
    api: Api, row: list[str], socket: Socket
) -> None:
    ok(api.append(row[0], "a", "b"))
    assert data(subscribe(socket, row[-1], from_seq=0)) == ["a", "b"]


def test_a_tail_of_the_dest_begins_behind_what_was_acknowledged(api: Api, row: list[str]) -> None:
    ok(api.append(row[0], "before"))
    with watch(api, {row[-1]: {"tail": True}}) as stream:
        assert stream.told([row[-1]]).records == []
        ok(api.append(row[0], "after"))
        assert data(stream.records(1)) == ["after"]


@pytest.mark.parametrize("of", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("to", ["ephemeral", "memory", "disk", "fsync"])
def test_classes_make_no_difference(api: Api, ends: Ends, of: str, to: str) -> None:
    source, dest = ends
    ok(api.put(source, {"durability": of}), 201)
    ok(api.put(dest, {"durability": to}), 201)
    route(api, source, dest)
    for number in range(5):
        ok(api.append(source, number))
        assert data(ok(api.diff(dest, from_seq=number))["records"]) == [number]


def test_a_read_of_a_dest_that_is_full_does_not_wait(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    route(api, source, dest)
    ok(api.append(source, "a", "b"))
    began = time.monotonic()
    for _ in range(5):
        assert data(ok(api.diff(dest))["records"]) == ["a"]
        assert api.state(dest)["head_seq"] == 1
    assert time.monotonic() - began < BOUND_S


def test_a_read_in_a_circle_does_not_wait_for_itself(api: Api, ends: Ends) -> None:
    source, dest = ends
    route(api, source, dest, allow_cycle=True)
    route(api, dest, source, allow_cycle=True)
    began = time.monotonic()
    for number in range(5):
        ok(api.append(source, number))
        assert number in data(api.read(dest))
        ok(api.append(dest, -number - 1))
        assert -number - 1 in data(api.read(source))
    assert time.monotonic() - began < BOUND_S


# --- a shard that does not answer


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "data", shards=2) as server:
        server.wait_roles(3)
        yield server


@contextmanager
def stopped(server: Server, shard: int) -> Iterator[None]:
    """The shard stands still. It may be replaced meanwhile."""
    pid = server.roles()[f"shard {shard}"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        if pid in server.pids():
            os.kill(pid, signal.SIGCONT)


@contextmanager
def bounded() -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < BOUND_S


@pytest.mark.slow
@pytest.mark.parametrize("shard", [0, 1])
def test_a_read_does_not_hang_while_the_shard_of_its_source_stands_still(
    own: Server, shard: int
) -> None:
    source, dest = names_for("t", [shard, 1 - shard])
    with Api(own.address) as api:
        route(api, source, dest)
        ok(api.append(source, "a"))
        arrived(api, dest, "a")
        with stopped(own, shard):
            with bounded():
                assert data(ok(api.diff(dest))["records"]) == ["a"]
            with bounded():
                assert api.state(dest)["head_seq"] == 1
            with bounded():
                ok(api.append(dest, "direct"))
            with bounded(), watch(api, [dest]) as stream:
                assert stream.told([dest]).data() == ["a", "direct"]


@pytest.mark.slow
@pytest.mark.parametrize("shard", [0, 1])
def test_a_source_is_acknowledged_while_the_shard_of_its_dest_stands_still(
    own: Server, shard: int
) -> None:
    source, dest = names_for("t", [1 - shard, shard])
    with Api(own.address) as api:
        route(api, source, dest)
        ok(api.append(source, "a"))
        arrived(api, dest, "a")
        with stopped(own, shard), bounded():
            for number in range(10):
                ok(api.append(source, number))
            assert data(ok(api.diff(source))["records"]) == ["a", *range(10)]
        arrived(api, dest, "a", *range(10))


@pytest.mark.slow
def test_forwarding_goes_on_without_the_shard_that_owns_the_routers(own: Server) -> None:
    source, dest, owned = names_for("t", [1, 1, 0])
    with Api(own.address) as api, Api(own.address) as other:
        route(api, source, dest)
        ok(api.append(source, "a"))
        arrived(api, dest, "a")
        with stopped(own, 0):
            with bounded():
                ok(api.append(source, "b"))
                assert data(ok(api.diff(dest))["records"]) == ["a", "b"]
            with bounded():
                assert put(other, "late", source, owned).status == 503
        arrived(api, dest, "a", "b")


@pytest.mark.slow
def test_calls_about_a_stopped_shard_delay_no_other(tmp_path: Path) -> None:
    """Those about others wait for none of them."""
    names = names_for("t", [2, 0, 1, 0, 1, 1, 0], 3)
    stuck, near, far, source, dest, gone, other = names
    with Server(tmp_path / "data", shards=3) as server:
        server.wait_roles(4)

        def hang(method: str, path: str, body: object = None) -> None:
            with Api(server.address, timeout_s=60) as api, contextlib.suppress(OSError):
                api.call(method, path, body)

        with Api(server.address) as api:
            for name in names:
                ok(api.put(name), 201)
            route(api, other, gone)
            with stopped(server, 2):
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
                ok(api.call("DELETE", f"/v0/topics/{gone}"))
                took_s = time.monotonic() - began
                assert took_s < BOUND_S / 3
            for thread in waiting:
                thread.join()
