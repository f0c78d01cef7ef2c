"""A dest that is full and rejects holds its router at the record that has no room (§6)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.deleting import erase
from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, forwarded, kept, lag, passed, route, shown
from tests.support.queues import Queue, until
from tests.support.routers import names_for
from tests.support.sse import seqs

Ends = tuple[str, str]
FULL_S = 0.3  # a router that is held has tried again by then


pytestmark = pytest.mark.slow


def held(api: Api, dest: str, *expected: Any) -> None:
    """The dest holds this, now and later."""
    arrived(api, dest, *expected)
    time.sleep(FULL_S)
    assert data(kept(api, dest)) == [*expected]


def small(api: Api, dest: str, **config: Any) -> None:
    ok(api.put(dest, {"discard": "reject", **config}), 201)


@pytest.mark.parametrize("batch", [1, 7], ids=["single records", "one batch"])
def test_a_full_dest_holds_the_router_at_the_record(api: Api, ends: Ends, batch: int) -> None:
    source, dest = ends
    small(api, dest, cap_records=3)
    name = route(api, source, dest)
    for first in range(0, 7, batch):
        ok(api.append(source, *range(first, first + batch)))
    held(api, dest, 0, 1, 2)
    refused(api.append(dest, "direct"), 422, "topic_full")
    found = shown(api, name)
    assert (found["forwarded_total"], found["lag_records"]) == (3, 4)
    assert data(kept(api, source)) == [*range(7)], "the source is as it was"
    ok(erase(api, dest, {"before_seq": 2}))
    held(api, dest, 1, 2, 3)
    assert seqs(kept(api, dest)) == [2, 3, 4]
    ok(erase(api, dest, {"before_seq": 5}))
    held(api, dest, 4, 5, 6)
    assert seqs(kept(api, dest)) == [5, 6, 7]
    found = shown(api, name)
    assert (found["forwarded_total"], found["lag_records"], found["lag_ms"]) == (7, 0, 0)


def test_a_relaxed_cap_lets_the_router_go_on(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_records=2)
    name = route(api, source, dest)
    ok(api.append(source, *range(50)))
    arrived(api, dest, 0, 1)
    ok(api.put(dest, {"cap_records": 20}))
    arrived(api, dest, *range(20))
    ok(api.put(dest, {"cap_records": 0}))
    found = arrived(api, dest, *range(50))
    assert seqs(found) == [*range(1, 51)]
    assert (forwarded(api, name), lag(api, name)) == (50, 0)


def test_a_dest_that_discards_the_oldest_lets_the_router_go_on(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_records=2)
    name = route(api, source, dest)
    ok(api.append(source, *range(10)))
    arrived(api, dest, 0, 1)
    ok(api.put(dest, {"discard": "old"}))
    arrived(api, dest, 8, 9)
    assert forwarded(api, name) == 10


def test_bytes_fill_a_dest_too(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_bytes=5000)
    name = route(api, source, dest)
    large = [f"{number}" + "x" * 1000 for number in range(9)]
    ok(api.append(source, *large))
    held(api, dest, *large[:4])
    assert lag(api, name) == 5
    ok(erase(api, dest, {"before_seq": 3}))
    held(api, dest, *large[2:6])
    ok(api.put(dest, {"cap_bytes": 0}))
    arrived(api, dest, *large[2:])


def test_a_record_that_is_larger_than_the_dest_holds_the_router(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_bytes=2000)
    name = route(api, source, dest)
    ok(api.append(source, "a", "x" * 3000, "b"))
    held(api, dest, "a")
    ok(erase(api, dest, {"before_seq": 2}))
    held(api, dest)
    assert (forwarded(api, name), lag(api, name)) == (1, 2)
    ok(api.put(dest, {"cap_bytes": 10_000}))
    arrived(api, dest, "x" * 3000, "b")


def test_acks_make_room_in_a_queue(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, dest, discard="reject", cap_records=2)
    name = route(api, source, dest)
    ok(api.append(source, *range(20)))
    done: list[int] = []
    while len(done) < 20:
        jobs = queue.claim("w", 2, wait_ms=10_000)
        assert jobs, "the next jobs come when there is room"
        done += data(jobs)
        queue.ack(jobs)
    assert done == [*range(20)]
    assert (forwarded(api, name), lag(api, name)) == (20, 0)


def test_lag_is_the_age_and_the_number_of_what_waits(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_records=1)
    name = route(api, source, dest)
    ok(api.append(source, "a"))
    arrived(api, dest, "a")
    assert (shown(api, name)["lag_records"], shown(api, name)["lag_ms"]) == (0, 0)
    ok(api.append(source, "b", "c"))
    began = time.monotonic()
    time.sleep(0.1)
    first = shown(api, name)
    took_ms = (time.monotonic() - began) * 1000
    assert first["lag_records"] == 2
    assert 90 <= first["lag_ms"] <= took_ms + 1000
    ok(erase(api, source, {"before_seq": 3}))
    ok(api.append(source, "d"))
    found = shown(api, name)
    assert found["lag_records"] == 2, "deleted records do not wait"
    ok(api.put(dest, {"cap_records": 9}))
    arrived(api, dest, "a", "c", "d")
    assert (shown(api, name)["lag_records"], shown(api, name)["lag_ms"]) == (0, 0)


def test_what_is_deleted_while_it_waits_is_passed_over(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, dest, cap_records=1)
    name = route(api, source, dest)
    ok(
        api.append(
            source, records=[{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(10)]
        )
    )
    arrived(api, dest, 0)
    ok(erase(api, source, {"match": "odd"}))
    ok(erase(api, source, {"before_seq": 4}))
    ok(api.put(dest, {"cap_records": 100}))
    found = arrived(api, dest, 0, 4, 6, 8)
    assert seqs(found) == [1, 2, 3, 4]
    passed(api, name)
    assert forwarded(api, name) == 4
    assert ok(api.diff(dest))["tombstone"] is None


def test_a_full_dest_holds_no_other_router_of_the_source(api: Api, topic: str) -> None:
    source, full, same, other = names_for(topic, [0, 0, 0, 1])
    small(api, full, cap_records=1)
    names = [route(api, source, dest) for dest in (full, same, other)]
    for number in range(10):
        ok(api.append(source, number))
    for dest in (same, other):
        arrived(api, dest, *range(10))
    arrived(api, full, 0)
    assert [lag(api, name) for name in names] == [9, 0, 0]
    ok(api.put(full, {"cap_records": 100}))
    arrived(api, full, *range(10))
    ok(api.append(source, "after"))
    for dest in (full, same, other):
        arrived(api, dest, *range(10), "after")
    ok(api.delete(source))


def test_a_full_end_of_a_chain_holds_what_is_before_it(api: Api, topic: str) -> None:
    first, middle, last = names_for(topic, [0, 1, 0])
    small(api, middle, cap_records=3)
    small(api, last, cap_records=2)
    names = [route(api, first, middle), route(api, middle, last)]
    ok(api.append(first, *range(10)))
    held(api, middle, 0, 1, 2)
    held(api, last, 0, 1)
    assert [lag(api, name) for name in names] == [7, 1]
    ok(api.put(last, {"cap_records": 100}))
    arrived(api, last, 0, 1, 2)
    ok(erase(api, middle, {"before_seq": 4}))
    arrived(api, last, *range(6))
    ok(api.put(middle, {"cap_records": 100}))
    arrived(api, last, *range(10))
    ok(api.delete(first))
    ok(api.delete(middle))


@pytest.mark.parametrize("of", ["ephemeral", "fsync"], ids=lambda value: f"of {value}")
@pytest.mark.parametrize("to", ["ephemeral", "fsync"], ids=lambda value: f"to {value}")
def test_backpressure_in_any_class(api: Api, ends: Ends, of: str, to: str) -> None:
    source, dest = ends
    ok(api.put(source, {"durability": of}), 201)
    small(api, dest, cap_records=2, durability=to)
    name = route(api, source, dest)
    for number in range(5):
        ok(api.append(source, number))
    held(api, dest, 0, 1)
    ok(api.put(dest, {"cap_records": 100}))
    arrived(api, dest, *range(5))
    assert forwarded(api, name) == 5


def test_a_source_that_rejects_is_not_fuller_for_a_held_router(api: Api, ends: Ends) -> None:
    source, dest = ends
    small(api, source, cap_records=5)
    small(api, dest, cap_records=1)
    route(api, source, dest)
    ok(api.append(source, *range(5)))
    arrived(api, dest, 0)
    refused(api.append(source, "more"), 422, "topic_full")
    ok(erase(api, source, {"before_seq": 6}))
    ok(api.append(source, "more"))
    ok(erase(api, dest, {"before_seq": 2}))
    until(lambda: data(kept(api, dest)), lambda found: found == ["more"])
