"""Routers into and out of queues, and full dests (§6, §10)."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.contract.deleting import erase
from tests.contract.retained import gap, page_of
from tests.support.api import Api, data, ok, refused
from tests.support.copies import arrived, forwarded, kept, lag, passed, route, shown
from tests.support.queues import HOUR_MS, Queue, counters, until
from tests.support.routers import names_for
from tests.support.sse import seqs

Ends = tuple[str, str]

# --- queues


def test_copies_in_a_queue_are_jobs(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, dest)
    name = route(api, source, dest)
    ok(api.append(source, "a", "b", "c"))
    jobs = queue.claim_all(3)
    assert data(jobs) == ["a", "b", "c"]
    queue.ack(jobs[:2])
    queue.nack(jobs[2:])
    ok(api.append(source, "d"))
    jobs = queue.claim_all(2)
    assert (data(jobs), [job["deliveries"] for job in jobs]) == (["c", "d"], [2, 1])
    queue.ack(jobs)
    queue.becomes()
    assert forwarded(api, name) == 4
    assert data(kept(api, source)) == ["a", "b", "c", "d"], "an ack in the dest changed the source"


def test_jobs_that_are_acked_before_they_are_forwarded_are_skipped(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, source)
    ok(api.put(dest, {"discard": "reject", "cap_records": 1}), 201)
    name = route(api, source, dest)
    queue.push(*range(6))
    arrived(api, dest, 0)
    jobs = queue.claim("w", 6)
    queue.ack([job for job in jobs if job["data"] in (1, 2, 4)])
    ok(api.put(dest, {"cap_records": 100}))
    found = arrived(api, dest, 0, 3, 5)
    assert seqs(found) == [1, 2, 3]
    passed(api, name)
    assert forwarded(api, name) == 3
    assert ok(api.diff(dest))["tombstone"] is None


def test_a_copy_has_no_delay(api: Api, ends: Ends) -> None:
    source, dest = ends
    origin, queue = Queue.create(api, source), Queue.create(api, dest)
    route(api, source, dest)
    ok(api.append(source, records=[{"data": "late", "delay_ms": HOUR_MS}]))
    assert data(queue.claim_all(1)) == ["late"]
    assert origin.counters() == counters(delayed=1)


# --- caps and ages of the dest


def test_the_cap_of_the_dest_limits_its_copies(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"cap_records": 3}), 201)
    name = route(api, source, dest)
    for number in range(10):
        ok(api.append(source, number))
    found = arrived(api, dest, 7, 8, 9)
    assert seqs(found) == [8, 9, 10]
    assert gap(page_of(api, dest, 0), "cap") == (1, 7)
    assert forwarded(api, name) == 10
    assert len(kept(api, source)) == 10
    ok(api.append(source, *range(10, 20)))
    arrived(api, dest, 17, 18, 19)


def test_the_age_of_a_copy_starts_when_it_is_forwarded(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"discard": "reject", "cap_records": 1, "ttl_ms": 60_000}), 201)
    name = route(api, source, dest)
    ok(api.append(source, "first", "second"))
    arrived(api, dest, "first")
    time.sleep(0.4)
    ok(api.put(dest, {"cap_records": 10}))
    copy = arrived(api, dest, "first", "second")[1]
    assert copy["$ts"] - kept(api, source)[1]["$ts"] >= 400
    ok(api.put(dest, {"ttl_ms": 350}))
    assert forwarded(api, name) == 2
    found = kept(api, dest)
    assert data(found) in (["second"], []), "only the first copy may have expired"


@pytest.mark.slow
def test_copies_expire_by_the_ttl_of_their_own_dest(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"ttl_ms": 300}), 201)
    name = route(api, source, dest)
    ok(api.append(source, "a", "b"))
    passed(api, name)
    until(lambda: api.state(dest)["count"], lambda count: count == 0)
    assert gap(page_of(api, dest, 0), "ttl") == (1, 2)
    assert data(kept(api, source)) == ["a", "b"]
    ok(api.put(source, {"ttl_ms": 1}))
    ok(api.put(dest, {"ttl_ms": 0}))
    ok(api.put(source, {"ttl_ms": 5000}))
    ok(api.append(source, "c"))
    arrived(api, dest, "c")
    ok(api.put(source, {"ttl_ms": 1}))
    until(lambda: api.state(source)["count"], lambda count: count == 0)
    arrived(api, dest, "c")


FULL_S = 0.3  # a router that is blocked retries within this time


def held(api: Api, dest: str, *expected: Any) -> None:
    """Wait until the dest contains these records, and check that it still does later."""
    arrived(api, dest, *expected)
    time.sleep(FULL_S)
    assert data(kept(api, dest)) == [*expected]


def small(api: Api, dest: str, **config: Any) -> None:
    ok(api.put(dest, {"discard": "reject", **config}), 201)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7], ids=["single records", "one batch"])
def test_a_router_waits_at_the_record_that_a_full_dest_rejects(
    api: Api, ends: Ends, batch: int
) -> None:
    source, dest = ends
    small(api, dest, cap_records=3)
    name = route(api, source, dest)
    for first in range(0, 7, batch):
        ok(api.append(source, *range(first, first + batch)))
    held(api, dest, 0, 1, 2)
    refused(api.append(dest, "direct"), 422, "topic_full")
    found = shown(api, name)
    assert (found["forwarded_total"], found["lag_records"]) == (3, 4)
    assert data(kept(api, source)) == [*range(7)], "the source has changed"
    ok(erase(api, dest, {"before_seq": 2}))
    held(api, dest, 1, 2, 3)
    assert seqs(kept(api, dest)) == [2, 3, 4]
    ok(erase(api, dest, {"before_seq": 5}))
    held(api, dest, 4, 5, 6)
    assert seqs(kept(api, dest)) == [5, 6, 7]
    found = shown(api, name)
    assert (found["forwarded_total"], found["lag_records"], found["lag_ms"]) == (7, 0, 0)


@pytest.mark.slow
def test_a_router_waits_at_a_dest_that_is_full_by_bytes(api: Api, ends: Ends) -> None:
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


@pytest.mark.slow
def test_a_router_waits_at_a_record_that_exceeds_the_cap_of_the_dest(api: Api, ends: Ends) -> None:
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


@pytest.mark.slow
def test_acks_free_capacity_in_a_queue(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, dest, discard="reject", cap_records=2)
    name = route(api, source, dest)
    ok(api.append(source, *range(20)))
    done: list[int] = []
    while len(done) < 20:
        jobs = queue.claim("w", 2, wait_ms=10_000)
        assert jobs, "no job arrived after the acks"
        done += data(jobs)
        queue.ack(jobs)
    assert done == [*range(20)]
    assert (forwarded(api, name), lag(api, name)) == (20, 0)


@pytest.mark.slow
def test_lag_is_the_age_and_the_number_of_waiting_records(api: Api, ends: Ends) -> None:
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
    assert found["lag_records"] == 2, "deleted records count as waiting"
    ok(api.put(dest, {"cap_records": 9}))
    arrived(api, dest, "a", "c", "d")
    assert (shown(api, name)["lag_records"], shown(api, name)["lag_ms"]) == (0, 0)


@pytest.mark.slow
def test_waiting_records_that_are_deleted_are_skipped(api: Api, ends: Ends) -> None:
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


@pytest.mark.slow
def test_a_full_dest_does_not_delay_other_routers_of_the_source(api: Api, topic: str) -> None:
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


@pytest.mark.slow
def test_a_full_last_topic_blocks_the_chain_before_it(api: Api, topic: str) -> None:
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
