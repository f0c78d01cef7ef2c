"""Routers into queues and out of them, caps and ages of the dest (§6, §10)."""

from __future__ import annotations

import time

import pytest

from tests.contract.retained import gap, page_of
from tests.support.api import Api, data, ok
from tests.support.copies import arrived, forwarded, kept, passed, route
from tests.support.queues import HOUR_MS, Queue, counters, until
from tests.support.sse import seqs

Ends = tuple[str, str]

# --- queues


def test_copies_are_the_jobs_of_a_queue(api: Api, ends: Ends) -> None:
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
    assert data(kept(api, source)) == ["a", "b", "c", "d"], "acks are of the dest"


def test_a_source_that_is_a_queue_goes_on_with_its_jobs(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, source)
    route(api, source, dest)
    queue.push("a", "b")
    arrived(api, dest, "a", "b")
    queue.ack(queue.claim("w", 2))
    queue.push("c")
    arrived(api, dest, "a", "b", "c")
    assert queue.counters() == counters(ready=1)


def test_jobs_that_are_acked_before_they_are_forwarded_are_passed_over(
    api: Api, ends: Ends
) -> None:
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


def test_a_claim_that_waits_gets_a_copy(api: Api, ends: Ends) -> None:
    source, dest = ends
    queue = Queue.create(api, dest)
    route(api, source, dest)
    with Api(api.address) as other:
        for number in range(5):
            ok(other.append(source, number))
            (job,) = queue.claim("w", wait_ms=10_000)
            assert job["data"] == number
            queue.ack([job])


# --- caps and ages of the dest


def test_the_dest_keeps_as_many_copies_as_its_cap_allows(api: Api, ends: Ends) -> None:
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


def test_the_dest_keeps_as_many_bytes_of_copies_as_its_cap_allows(api: Api, ends: Ends) -> None:
    source, dest = ends
    ok(api.put(dest, {"cap_bytes": 10_000}), 201)
    name = route(api, source, dest)
    for number in range(30):
        ok(api.append(source, f"{number:02}" + "x" * 1000))
    passed(api, name)
    found = kept(api, dest)
    assert 8 <= len(found) <= 9
    assert seqs(found)[-1] == 30
    assert api.state(dest)["bytes"] <= 10_000


def test_the_age_of_a_copy_counts_from_when_it_was_forwarded(api: Api, ends: Ends) -> None:
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
    assert data(found) in (["second"], []), "the first is too old, the second is not yet"


@pytest.mark.slow
def test_a_copy_goes_when_it_is_too_old_for_the_dest_and_no_other(api: Api, ends: Ends) -> None:
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
