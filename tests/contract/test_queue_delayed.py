"""Delayed jobs: ``delay_ms`` and ``deliver_at`` of a record."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.api import Api, ok, refused
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    Queue,
    counters,
    data,
    now_ms,
)
from tests.support.sse import watch
from tests.support.ws import Socket

pytestmark = pytest.mark.slow

CLOCKS_MS = 1  # the wall clock returns the time, and a monotonic clock measures delays
LATE_MS = 5000  # allowed lateness on a loaded machine
Record = dict[str, Any]


def push(queue: Queue, *records: Record) -> list[int]:
    found: list[int] = ok(queue.api.append(queue.name, records=list(records)))["seqs"]
    return found


def due(record: Record, delay_ms: int = 0) -> int:
    return int(record["$ts"]) + delay_ms


@pytest.mark.parametrize("field", ["delay_ms", "deliver_at"])
def test_a_delayed_job_is_neither_claimable_nor_ready(queue: Queue, field: str) -> None:
    later = HOUR_MS if field == "delay_ms" else now_ms() + HOUR_MS
    assert push(queue, {"data": "later", field: later}, {"data": "now"}) == [1, 2]
    assert queue.counters() == counters(ready=1, delayed=1)
    body = queue.claimed("w", 5)
    assert (data(body["claimed"]), body["ready"]) == (["now"], 0)
    assert queue.counters() == counters(in_flight=1, delayed=1)


def test_a_delayed_job_is_visible_to_readers_immediately(queue: Queue) -> None:
    with watch(queue.api, [queue.name]) as stream:
        stream.read_until_caught_up([queue.name])
        before = now_ms()
        push(queue, {"data": "later", "tag": "t", "delay_ms": HOUR_MS})
        (record,) = stream.records(1)
    assert set(record) == {"$seq", "$ts", "data"}
    assert before <= record["$ts"] <= now_ms(), "$ts is not the time of the append"
    assert queue.api.read(queue.name) == [record]
    state = queue.api.state(queue.name)
    assert (state["count"], state["head_seq"], state["earliest_seq"]) == (1, 1, 1)


@pytest.mark.parametrize("field", ["delay_ms", "deliver_at"])
def test_a_delayed_job_becomes_claimable_when_it_is_due(queue: Queue, field: str) -> None:
    at = now_ms() + 400
    push(queue, {"data": "later", field: 400 if field == "delay_ms" else at})
    queue.becomes(ready=1)
    (job,) = queue.claim(lease_ms=HOUR_MS)
    moment = due(job, 400) if field == "delay_ms" else at
    assert job["deadline"] - HOUR_MS >= moment - CLOCKS_MS
    assert job["deliveries"] == 1


@pytest.mark.slow
def test_a_waiting_worker_gets_each_job_when_it_is_due_and_not_before(queue: Queue) -> None:
    chance = random.Random(7)
    delays = [chance.randrange(200, 1500) for _ in range(100)]
    push(queue, *({"data": delay, "delay_ms": delay} for delay in delays))
    found: list[int] = []
    while len(found) < len(delays):
        jobs = queue.claim("w", 100, lease_ms=HOUR_MS, wait_ms=10_000)
        for job in jobs:
            late_ms = job["deadline"] - HOUR_MS - due(job, job["data"])
            assert -CLOCKS_MS <= late_ms < LATE_MS
        found += sorted(data(jobs))
    assert found == sorted(delays), "the jobs are not in the order of their times"
    assert queue.counters() == counters(in_flight=100)


NOW: list[Record] = [{"delay_ms": 0}, {"deliver_at": 0}, {"deliver_at": 1_600_000_000_000}]


@pytest.mark.parametrize("fields", NOW, ids=json.dumps)
def test_a_job_with_a_delivery_time_in_the_past_is_ready_immediately(
    queue: Queue, fields: Record
) -> None:
    push(queue, {"data": "a", **fields})
    assert queue.counters() == counters(ready=1)
    assert data(queue.claim()) == ["a"]


# --- the order of jobs


@pytest.mark.slow
def test_fresh_jobs_are_ordered_by_the_time_from_which_they_may_be_claimed(queue: Queue) -> None:
    push(queue, {"data": 900, "delay_ms": 900}, {"data": 300, "delay_ms": 300}, {"data": 0})
    time.sleep(0.6)
    push(queue, {"data": 0}, {"data": 200, "delay_ms": 200}, {"data": 0})
    records = queue.api.read(queue.name)
    queue.becomes(ready=6)
    expected = sorted((due(record, record["data"]), record["$seq"]) for record in records)
    assert [queue.claim()[0]["$seq"] for _ in range(6)] == [seq for _, seq in expected]


def test_jobs_that_are_due_at_the_same_time_are_ordered_by_seq(queue: Queue) -> None:
    at = now_ms() + 300
    push(queue, *({"data": number, "deliver_at": at} for number in range(5)))
    queue.becomes(ready=5)
    assert [data(queue.claim()) for _ in range(5)] == [[0], [1], [2], [3], [4]]


def test_reclaimed_jobs_come_before_due_ones(queue: Queue) -> None:
    push(queue, {"data": "due", "delay_ms": 200}, {"data": "nacked"})
    jobs = queue.claim()
    queue.becomes(ready=1, in_flight=1)
    queue.nack(jobs)
    assert data(queue.claim()) == ["nacked"]
    assert data(queue.claim()) == ["due"]


# --- other events of a delayed job


def test_a_job_that_expires_before_it_is_due_is_never_delivered(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, ttl_ms=300)
    push(queue, {"data": "a", "delay_ms": 600})
    queue.becomes()
    time.sleep(0.5)
    assert queue.claim("w", 5) == []
    assert queue.counters() == counters()


def test_a_repeated_write_does_not_restart_the_delay(queue: Queue) -> None:
    record = {"data": "a", "delay_ms": 300}
    first = ok(queue.api.append(queue.name, records=[record], idempotency_key="k"))
    queue.becomes(ready=1)
    again = ok(queue.api.append(queue.name, records=[record], idempotency_key="k"))
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])
    assert queue.counters() == counters(ready=1)


def test_a_dead_lettered_copy_has_no_delay(pair: tuple[Queue, str]) -> None:
    queue, name = pair
    dead = Queue.create(queue.api, name)
    push(queue, {"data": "a", "delay_ms": 200})
    queue.becomes(ready=1)
    queue.spend(1, 2)
    queue.bury(1)
    assert dead.counters() == counters(ready=1)
    assert data(dead.claim()) == ["a"]


def test_a_delayed_job_counts_against_the_cap_of_a_queue_that_rejects(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, cap_records=1, discard="reject")
    push(queue, {"data": "a", "delay_ms": HOUR_MS})
    refused(api.append(topic, "b"), 422, "topic_full")


# --- ways to write a delayed job


def test_a_write_that_creates_the_queue_may_have_delays(api: Api, topic: str) -> None:
    records = [{"data": "a", "delay_ms": HOUR_MS}]
    ok(api.append(topic, records=records, config={"type": "queue"}), 201)
    assert Queue(api, topic).counters() == counters(delayed=1)


def test_a_publish_may_have_delays(queue: Queue, socket: Socket) -> None:
    records = [{"data": "a", "delay_ms": HOUR_MS}, {"data": "b"}]
    answer = socket.request("publish", "p", topic=queue.name, records=records)
    assert answer["op"] == "ack"
    assert queue.counters() == counters(ready=1, delayed=1)


MONTH_MS = 30 * DAY_MS
AHEAD: list[tuple[str, Callable[[], int], bool]] = [
    ("delay_ms", lambda: MONTH_MS, True),
    ("delay_ms", lambda: MONTH_MS + 1, False),
    ("delay_ms", lambda: 2**53, False),
    ("delay_ms", lambda: 2**64 - 1, False),
    ("deliver_at", lambda: now_ms() + MONTH_MS - 60_000, True),
    ("deliver_at", lambda: now_ms() + MONTH_MS + 60_000, False),
    ("deliver_at", lambda: 2**64 - 1, False),
]


@pytest.mark.parametrize(("field", "value", "fits"), AHEAD)
def test_a_delivery_time_is_at_most_30_days_ahead(
    queue: Queue, field: str, value: Callable[[], int], fits: bool
) -> None:
    answer = queue.api.append(queue.name, records=[{"data": 0}, {"data": 1, field: value()}])
    if fits:
        ok(answer)
        assert queue.counters() == counters(ready=1, delayed=1)
    else:
        refused(answer, 400, "invalid_request")
        assert queue.counters() == counters(), "the refused write stored records"


def test_a_delay_in_data_or_in_the_batch_is_ignored(queue: Queue) -> None:
    body = {"records": [{"data": {"delay_ms": HOUR_MS}}], "delay_ms": HOUR_MS}
    ok(queue.api.call("POST", f"/v0/topics/{queue.name}", body))
    assert queue.counters() == counters(ready=1)
