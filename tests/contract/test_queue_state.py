"""The state of a queue (§1.2, §10.7), jobs that retention or a delete takes, and queues as logs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    counters,
    data,
    numbers,
)
from tests.support.sse import seqs, watch


def test_a_queue_shows_its_type_and_counters(queue: Queue) -> None:
    state = queue.api.state(queue.name)
    assert (state["type"], state["config"]["type"]) == ("queue", "queue")
    assert state["queue"] == counters()


def test_a_log_has_no_queue_object(api: Api, topic: str) -> None:
    ok(api.append(topic, 1), 201)
    assert "queue" not in api.state(topic)


def test_counters_follow_a_job_through_its_life(queue: Queue) -> None:
    queue.push(*range(4))
    assert queue.counters() == counters(ready=4)
    jobs = queue.claim("w", 3)
    assert queue.counters() == counters(ready=1, in_flight=3)
    queue.ack(jobs[:1])
    assert queue.counters() == counters(ready=1, in_flight=2)
    queue.nack(jobs[1:2])
    assert queue.counters() == counters(ready=2, in_flight=1)
    queue.extend(jobs[2:], lease_ms=SHORT_MS)
    queue.becomes(ready=3)
    queue.nack(queue.claim("w"), delay_ms=HOUR_MS)
    assert queue.counters() == counters(ready=2)
    ok(queue.api.append(queue.name, records=[{"data": "later", "delay_ms": HOUR_MS}]))
    assert queue.counters() == counters(ready=2, delayed=1)
    assert queue.api.state(queue.name)["count"] == 4


def test_every_answer_tells_the_counters_of_the_state(queue: Queue) -> None:
    queue.push(*range(6))
    body = queue.claimed("w", 4)
    assert body["ready"] == queue.counters()["ready"] == 2
    jobs = body["claimed"]
    for settle, some in ((queue.ack, jobs[:1]), (queue.nack, jobs[1:3])):
        body = settle(some)
        found = queue.counters()
        assert (body["ready"], body["in_flight"]) == (found["ready"], found["in_flight"])


def test_ready_and_in_flight_are_the_count(queue: Queue) -> None:
    queue.push(*range(20))
    for _ in range(5):
        jobs = queue.claim("w", 3)
        queue.ack(jobs[:1])
        queue.nack(jobs[1:2])
        state = queue.api.state(queue.name)
        assert state["queue"]["ready"] + state["queue"]["in_flight"] == state["count"]
    assert state["count"] == 15


@pytest.mark.parametrize("changed", ["queue", "log"])
def test_a_type_never_changes(api: Api, topic: str, changed: str) -> None:
    ok(api.put(topic, {"type": {"queue": "log", "log": "queue"}[changed]}), 201)
    refused(api.put(topic, {"type": changed}), 409, "topic_exists_incompatible")


# --- a queue is a topic


def test_jobs_show_in_a_diff_whatever_becomes_of_them(queue: Queue) -> None:
    queue.push("ready", "held", "hidden", "acked")
    jobs = {job["data"]: job for job in queue.claim("w", 4)}
    queue.nack([jobs["ready"]])
    queue.nack([jobs["hidden"]], delay_ms=HOUR_MS)
    queue.ack([jobs["acked"]])
    assert [record["data"] for record in queue.api.read(queue.name)] == ["ready", "held", "hidden"]


def test_reading_and_watching_claim_nothing(queue: Queue) -> None:
    queue.push(*range(3))
    held = queue.claim("w")
    before = queue.counters(), queue.leases()
    with watch(queue.api, [queue.name], node="w") as stream:
        assert stream.told([queue.name]).data() == [0, 1, 2]
        queue.api.read(queue.name)
        queue.push(3)
        stream.records(1)
    assert queue.counters() == counters(ready=3, in_flight=1)
    assert (before[0]["in_flight"], before[1]) == (1, queue.leases())
    assert queue.ack(held)["acked"] == 1


def test_a_job_does_not_show_its_lease_to_readers(queue: Queue) -> None:
    queue.push("a")
    queue.claim("w")
    (record,) = queue.api.read(queue.name)
    assert set(record) == {"$seq", "$ts", "data"}


def test_a_queue_made_anew_starts_afresh(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(5))
    jobs = queue.claim("w", 2)
    queue.nack(queue.claim("w"), delay_ms=HOUR_MS)
    ok(api.delete(topic))
    queue = Queue.create(api, topic)
    assert queue.counters() == counters()
    queue.push(*"abcdef")
    assert queue.counters() == counters(ready=6)
    assert queue.ack(jobs)["skipped"] == numbers(jobs)
    assert [(job["data"], job["deliveries"]) for job in queue.claim("w", 9)] == [
        (letter, 1) for letter in "abcdef"
    ]


# --- jobs that something else takes

TTL_MS = 300


def delete(queue: Queue) -> None:
    queue.erase(match="old")


def cap(queue: Queue) -> None:
    """Four more jobs in a queue with room for four."""
    queue.configure(cap_records=4)
    queue.push(*"cap!")


def expire(queue: Queue) -> None:
    """The first four jobs are older than this TTL."""
    time.sleep(TTL_MS / 1000 + 0.1)
    queue.configure(ttl_ms=TTL_MS)


TAKES: list[tuple[Callable[[Queue], None], int]] = [(delete, 0), (cap, 4), (expire, 0)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("take", "fresh"), TAKES, ids=[f"10.7 {take.__name__}" for take, _ in TAKES]
)
def test_a_job_that_is_taken_leaves_every_counter(
    queue: Queue, take: Callable[[Queue], None], fresh: int
) -> None:
    for name in ("ready", "held", "hidden", "delayed"):
        late = {"delay_ms": HOUR_MS} if name == "delayed" else {}
        ok(queue.api.append(queue.name, records=[{"data": name, "tag": "old", **late}]))
    (freed, held, hidden) = queue.claim("w", 3, lease_ms=HOUR_MS)
    queue.nack([freed])
    queue.nack([hidden], delay_ms=HOUR_MS)
    assert queue.counters() == counters(ready=1, in_flight=1, delayed=1)
    take(queue)
    assert queue.counters() == counters(ready=fresh)
    assert queue.leases() == []
    assert queue.ack([held])["skipped"] == [held["$seq"]]
    assert queue.extend([held])["skipped"] == [held["$seq"]]
    assert queue.nack([held])["skipped"] == [held["$seq"]]
    assert queue.counters() == counters(ready=fresh)
    assert data(queue.claim("w", 9)) == list("cap!")[:fresh]


@pytest.mark.slow
def test_an_expired_record_is_never_delivered(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "old", ttl_ms=200)
    queue.becomes()
    queue.configure(ttl_ms=HOUR_MS)
    queue.push("new")
    assert data(queue.claim("w", 5)) == ["new"]


@pytest.mark.slow
def test_a_reclaim_of_an_expired_record_delivers_nothing(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a")
    assert data(queue.claim("w", lease_ms=SHORT_MS)) == ["a"]
    time.sleep(0.3)
    queue.configure(ttl_ms=200)
    assert queue.claim("other", 5) == []
    assert queue.counters() == counters()


def test_a_cap_takes_the_oldest_jobs_held_or_not(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(5), cap_records=5)
    jobs = queue.claim("w", 2)
    queue.push("x")
    assert queue.counters() == counters(ready=4, in_flight=1)
    assert queue.ack(jobs)["skipped"] == [1]
    assert queue.counters() == counters(ready=4)


def test_an_eviction_of_jobs_is_told_to_readers_and_not_to_workers(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, *range(5), cap_records=3)
    assert ok(api.diff(topic))["tombstone"]["reason"] == "cap"
    assert data(queue.claim("w", 9)) == [2, 3, 4]


def test_a_delete_of_all_jobs_leaves_an_empty_queue(queue: Queue) -> None:
    queue.push(*range(10))
    queue.claim("w", 3)
    queue.erase(before_seq=11)
    assert queue.counters() == counters()
    assert queue.push("new") == [11]
    assert numbers(queue.claim("w", 5)) == [11]


def test_claims_pass_over_deleted_jobs(queue: Queue) -> None:
    records: list[dict[str, Any]] = [
        {"data": number, "tag": f"t{number % 3}"} for number in range(30)
    ]
    ok(queue.api.append(queue.name, records=records))
    queue.erase(match="t1")
    jobs = queue.claim("w", 15) + queue.claim("w", 15)
    assert data(jobs) == [number for number in range(30) if number % 3 != 1]


def test_a_queue_that_holds_only_leased_jobs_is_not_empty(queue: Queue) -> None:
    queue.push("a")
    jobs = queue.claim("w")
    refused(queue.api.delete(queue.name, if_empty="true"), 409, "topic_not_empty")
    queue.ack(jobs)
    assert ok(queue.api.delete(queue.name, if_empty="true"))["deleted"] is True


def test_acks_leave_the_seqs_of_other_jobs_alone(queue: Queue) -> None:
    queue.push(*range(10))
    queue.ack(queue.claim("w", 5))
    queue.push("x")
    assert seqs(queue.api.read(queue.name)) == [6, 7, 8, 9, 10, 11]
