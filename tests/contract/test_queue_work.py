"""GET /v0/topics/:q/work (§10.8): jobs are pushed, up to ``max`` at a time, and come back when the
connection ends.
"""

from __future__ import annotations

import time

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    DAY_MS,
    HOUR_MS,
    JOB,
    SHORT_MS,
    Queue,
    Work,
    counters,
    data,
    now_ms,
    tokens,
    until,
    work_path,
)
from tests.support.sse import Stream

HEARTBEAT = "hb"
QUIET_S = 0.3

# --- open


def test_a_work_stream_has_the_headers_of_a_watch(queue: Queue) -> None:
    with Work(queue) as stream:
        assert stream.raw_head.startswith(b"HTTP/1.1 200")
        headers = {name.lower(): value for name, value in stream.headers}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-store" in headers["cache-control"]
        assert headers["x-accel-buffering"] == "no"
        assert "content-length" not in headers
        assert "content-encoding" not in headers


def test_retry_and_a_heartbeat_are_sent_at_open(queue: Queue) -> None:
    with Work(queue) as stream:
        block = stream.block()
        assert block.retry == "2000"
        comments = list(block.comments)
        while not comments:
            comments += stream.block().comments
        assert comments[0] == HEARTBEAT
        queue.push("a")
        stream.jobs(1)
        assert all(block.retry is None for block in stream.blocks[1:])


def test_a_job_is_pushed_with_all_that_a_claim_tells(queue: Queue) -> None:
    record = {"data": {"type": "resize"}, "tag": "job-8800", "meta": {"trace": "z9"}}
    with Work(queue, "worker-eu-1", lease_ms=5000) as stream:
        before = now_ms()
        ok(queue.api.append(queue.name, records=[record]))
        event = stream.event(JOB)
        after = now_ms()
        assert event.id == "1"
        assert event.json()["topic"] == queue.name
        job = stream.job_of(event)
    (stored,) = queue.api.read(queue.name, include_tags=True)
    assert before + 5000 <= job.pop("deadline") <= after + 5000
    assert job.pop("lease_id")
    assert job.pop("deliveries") == 1
    assert job == stored


def test_jobs_that_wait_are_pushed_at_open(queue: Queue) -> None:
    queue.push(*range(3))
    with Work(queue, "w", 5) as stream:
        assert data(stream.jobs(3)) == [0, 1, 2]


def test_max_is_1_by_default(queue: Queue) -> None:
    queue.push("a", "b")
    path = work_path(queue.name, node="w")
    with Stream(queue.api.address, path) as stream:
        assert stream.event(JOB).json()["data"] == "a"
        stream.quiet(QUIET_S)


@pytest.mark.slow
def test_max_is_clamped_to_1000(queue: Queue) -> None:
    queue.push(*range(1010))
    with Work(queue, "w", 5000) as stream:
        assert data(stream.jobs(1000)) == list(range(1000))
        stream.quiet(QUIET_S)
        assert queue.counters() == counters(ready=10, in_flight=1000)


def test_a_lease_lasts_as_the_topic_says_unless_the_stream_does(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", lease_ms=HOUR_MS)
    with Work(queue, "w") as stream:
        (job,) = stream.jobs(1)
        assert HOUR_MS - 60_000 < job["deadline"] - now_ms() <= HOUR_MS
    with Work(queue, "w", lease_ms=2 * DAY_MS) as stream:
        (job,) = stream.jobs(1)
        assert DAY_MS - 60_000 < job["deadline"] - now_ms() <= DAY_MS, "clamped"


def test_the_last_event_id_is_only_a_hint(queue: Queue) -> None:
    queue.push("a", "b")
    path = work_path(queue.name, node="w", max=5)
    with Stream(queue.api.address, path, last_event_id="1") as stream:
        assert [stream.event(JOB).json()["data"] for _ in range(2)] == ["a", "b"]


# --- refill and back-pressure


def test_at_most_max_jobs_are_leased_to_a_stream(queue: Queue) -> None:
    queue.push(*range(10))
    with Work(queue, "w", 3) as stream:
        assert data(stream.jobs(3)) == [0, 1, 2]
        stream.quiet(QUIET_S)
        assert queue.counters() == counters(ready=7, in_flight=3)


def test_each_ack_brings_as_many_new_jobs(queue: Queue) -> None:
    queue.push(*range(8))
    with Work(queue, "w", 3) as stream:
        jobs = stream.jobs(3)
        queue.ack(jobs[:1], lease_ids=tokens(jobs[:1]))
        assert data(stream.jobs(1)) == [3]
        queue.ack(jobs[1:])
        assert data(stream.jobs(2)) == [4, 5]
        stream.quiet(QUIET_S)
        assert queue.counters() == counters(ready=2, in_flight=3)


def test_a_stream_works_a_queue_off(queue: Queue) -> None:
    queue.push(*range(100))
    with Work(queue, "w", 10) as stream:
        found: list[int] = []
        while len(found) < 100:
            jobs = stream.jobs(1)
            found += data(jobs)
            assert queue.ack(jobs)["acked"] == 1
        assert found == list(range(100))
        queue.push("live")
        assert data(stream.jobs(1)) == ["live"]
    queue.becomes(ready=1)


def test_a_nacked_job_comes_again(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w") as stream:
        jobs = stream.jobs(1)
        queue.nack(jobs)
        (again,) = stream.jobs(1)
        assert (again["data"], again["deliveries"]) == ("a", 2)
        assert again["lease_id"] != jobs[0]["lease_id"]


def test_a_nack_with_a_delay_makes_room_for_another_job(queue: Queue) -> None:
    queue.push("a", "b")
    with Work(queue, "w") as stream:
        queue.nack(stream.jobs(1), delay_ms=HOUR_MS)
        assert data(stream.jobs(1)) == ["b"]


def test_an_extended_job_stays_with_its_stream(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w") as stream:
        jobs = stream.jobs(1)
        assert queue.extend(jobs, lease_ms=HOUR_MS)["extended"] == 1
        assert [lease["node"] for lease in queue.leases()] == ["w"]
        assert queue.ack(jobs)["acked"] == 1


def test_an_expired_job_makes_room_and_comes_again(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w", lease_ms=SHORT_MS) as stream:
        found = stream.jobs(3)
        assert data(found) == ["a"] * 3
        assert [job["deliveries"] for job in found] == [1, 2, 3]


def test_a_deleted_job_makes_room(queue: Queue) -> None:
    queue.push("a", "b")
    with Work(queue, "w") as stream:
        assert data(stream.jobs(1)) == ["a"]
        queue.erase(before_seq=2)
        assert data(stream.jobs(1)) == ["b"]


def test_a_delayed_job_is_pushed_when_it_is_due(queue: Queue) -> None:
    with Work(queue, "w", lease_ms=HOUR_MS) as stream:
        ok(queue.api.append(queue.name, records=[{"data": "later", "delay_ms": 300}]))
        (job,) = stream.jobs(1)
    assert job["deadline"] - HOUR_MS >= job["$ts"] + 300


def test_streams_and_claims_share_no_job(queue: Queue) -> None:
    with Work(queue, "left", 5) as left, Work(queue, "right", 5) as right:
        queue.push(*range(12))
        found = left.jobs(5) + right.jobs(5) + queue.claim("polled", 5)
        assert sorted(data(found)) == list(range(12))


@pytest.mark.slow
def test_a_reader_that_stalls_holds_no_more_than_max(queue: Queue) -> None:
    queue.push(*(["x" * 300_000] * 40))
    with Work(queue, "slow", 30, receive_bytes=4096):
        until(queue.counters, lambda found: found["in_flight"] > 0)
        time.sleep(1)
        assert queue.counters()["in_flight"] <= 30
        assert len(queue.claim("quick", 10, lease_ms=HOUR_MS)) == 10
    queue.becomes(ready=30, in_flight=10)
