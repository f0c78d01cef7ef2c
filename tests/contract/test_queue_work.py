"""GET /v0/topics/:q/work (§10.8): up to ``max`` jobs at a time are pushed, and they are released
when the connection ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    DAY_MS,
    ERROR,
    HOUR_MS,
    JOB,
    SHORT_MS,
    Queue,
    Work,
    counters,
    data,
    now_ms,
    numbers,
    tokens,
    until,
)

HEARTBEAT = "hb"
QUIET_S = 0.3

# --- the start of a stream


def test_a_work_stream_starts_like_a_watch_with_a_heartbeat(queue: Queue) -> None:
    with Work(queue) as stream:
        headers = {name.lower(): value for name, value in stream.headers}
        assert headers["content-type"] == "text/event-stream; charset=utf-8"
        assert "no-store" in headers["cache-control"]
        assert headers["x-accel-buffering"] == "no"
        block = stream.block()
        assert block.retry == "2000"
        comments = list(block.comments)
        while not comments:
            comments += stream.block().comments
        assert comments[0] == HEARTBEAT
        queue.push("a")
        stream.jobs(1)
        assert all(block.retry is None for block in stream.blocks[1:])


def test_a_job_is_pushed_with_the_same_fields_as_in_a_claim(queue: Queue) -> None:
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


@pytest.mark.slow
def test_max_is_clamped_to_1000(queue: Queue) -> None:
    queue.push(*range(1010))
    with Work(queue, "w", 5000) as stream:
        assert data(stream.jobs(1000)) == list(range(1000))
        stream.quiet(QUIET_S)
        assert queue.counters() == counters(ready=10, in_flight=1000)


def test_a_stream_may_override_the_lease_ms_of_the_topic(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, "a", "b", lease_ms=HOUR_MS)
    with Work(queue, "w") as stream:
        (job,) = stream.jobs(1)
        assert HOUR_MS - 60_000 < job["deadline"] - now_ms() <= HOUR_MS
    with Work(queue, "w", lease_ms=2 * DAY_MS) as stream:
        (job,) = stream.jobs(1)
        assert DAY_MS - 60_000 < job["deadline"] - now_ms() <= DAY_MS, "lease_ms is not clamped"


# --- refill and back-pressure


def test_an_ack_of_n_jobs_pushes_n_new_jobs(queue: Queue) -> None:
    queue.push(*range(8))
    with Work(queue, "w", 3) as stream:
        jobs = stream.jobs(3)
        queue.ack(jobs[:1], lease_ids=tokens(jobs[:1]))
        assert data(stream.jobs(1)) == [3]
        queue.ack(jobs[1:])
        assert data(stream.jobs(2)) == [4, 5]
        stream.quiet(QUIET_S)
        assert queue.counters() == counters(ready=2, in_flight=3)


def test_an_expired_job_frees_its_slot_and_is_pushed_again(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w", lease_ms=SHORT_MS) as stream:
        found = stream.jobs(3)
        assert data(found) == ["a"] * 3
        assert [job["deliveries"] for job in found] == [1, 2, 3]


def test_streams_and_claims_share_no_job(queue: Queue) -> None:
    with Work(queue, "left", 5) as left, Work(queue, "right", 5) as right:
        queue.push(*range(12))
        found = left.jobs(5) + right.jobs(5) + queue.claim("polled", 5)
        assert sorted(data(found)) == list(range(12))


@pytest.mark.slow
def test_a_stalled_reader_holds_at_most_max_jobs(queue: Queue) -> None:
    queue.push(*(["x" * 300_000] * 40))
    with Work(queue, "slow", 30, receive_bytes=4096):
        until(queue.counters, lambda found: found["in_flight"] > 0)
        time.sleep(1)
        assert queue.counters()["in_flight"] <= 30
        assert len(queue.claim("quick", 10, lease_ms=HOUR_MS)) == 10
    queue.becomes(ready=30, in_flight=10)


# --- the end of a stream


@pytest.mark.parametrize("end", [Work.close, Work.reset], ids=["10.8 FIN", "10.8 RST"])
def test_a_disconnect_releases_only_jobs_of_its_connection(
    queue: Queue, end: Callable[[Work], None]
) -> None:
    queue.push(*range(4))
    polled = queue.claim("w", lease_ms=HOUR_MS)
    stream = Work(queue, "w", 2, lease_ms=HOUR_MS)
    jobs = stream.jobs(2)
    queue.ack(jobs[:1])
    stream.jobs(1)
    end(stream)
    queue.becomes(ready=2, in_flight=1)
    again = queue.claim("other", 5)
    assert [(job["data"], job["deliveries"]) for job in again] == [(2, 2), (3, 2)]
    assert queue.ack([*polled, jobs[1]])["skipped"] == numbers(jobs[1:])


def test_a_stream_ends_with_409_if_its_topic_is_recreated_as_a_log(queue: Queue) -> None:
    with Work(queue, "w", 5) as stream:
        ok(queue.api.delete(queue.name))
        ok(queue.api.put(queue.name), 201)
        event = stream.event(ERROR)
        assert event.json()["code"] == 409
        assert isinstance(event.json()["error"], str)
        with pytest.raises(EOFError):
            stream.event()
