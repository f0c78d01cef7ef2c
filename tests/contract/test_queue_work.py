"""GET /v0/topics/:q/work (§10.8): jobs are pushed, up to ``max`` at a time, and come back when the
connection ends.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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
    work_path,
)
from tests.support.server import Server
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


# --- the end of the connection


def close(stream: Work) -> None:
    stream.close()


def reset(stream: Work) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


ENDS = pytest.mark.parametrize("end", [close, reset], ids=["10.8 FIN", "10.8 RST"])


@pytest.mark.slow
@ENDS
def test_jobs_are_claimable_at_once_when_the_connection_drops(
    queue: Queue, end: Callable[[Work], None]
) -> None:
    queue.push(*range(4))
    stream = Work(queue, "w", 3, lease_ms=HOUR_MS)
    jobs = stream.jobs(3)
    queue.ack(jobs[:1])
    stream.jobs(1)
    end(stream)
    queue.becomes(ready=3)
    again = queue.claim("other", 5)
    assert [(job["data"], job["deliveries"]) for job in again] == [(1, 2), (2, 2), (3, 2)]
    assert queue.ack(jobs[1:])["skipped"] == numbers(jobs[1:])


@pytest.mark.slow
@ENDS
def test_another_stream_takes_over_at_once(queue: Queue, end: Callable[[Work], None]) -> None:
    queue.push("a")
    first = Work(queue, "w", lease_ms=HOUR_MS)
    assert data(first.jobs(1)) == ["a"]
    with Work(queue, "w", lease_ms=HOUR_MS) as second:
        second.quiet(QUIET_S)
        end(first)
        assert data(second.jobs(1)) == ["a"]


@pytest.mark.slow
@ENDS
def test_a_drop_releases_only_what_was_delivered_on_the_connection(
    queue: Queue, end: Callable[[Work], None]
) -> None:
    queue.push(*range(4))
    polled = queue.claim("w", lease_ms=HOUR_MS)
    other = Work(queue, "w", lease_ms=HOUR_MS)
    kept = other.jobs(1)
    stream = Work(queue, "w", 2, lease_ms=HOUR_MS)
    stream.jobs(2)
    end(stream)
    queue.becomes(ready=2, in_flight=2)
    assert [lease["$seq"] for lease in queue.leases()] == [1, 2]
    assert queue.ack([*polled, *kept])["acked"] == 2
    other.close()


@pytest.mark.slow
def test_a_job_that_was_nacked_and_claimed_elsewhere_is_not_released(queue: Queue) -> None:
    queue.push("a")
    stream = Work(queue, "w")
    queue.nack(stream.jobs(1), delay_ms=SHORT_MS)
    stream.close()
    (job,) = until(lambda: queue.claim("w", lease_ms=HOUR_MS))
    time.sleep(QUIET_S)
    assert [lease["lease_id"] for lease in queue.leases()] == [job["lease_id"]]


@pytest.mark.slow
def test_many_streams_that_come_and_go_lose_no_job(queue: Queue) -> None:
    queue.push(*range(50))

    def serve(number: int) -> None:
        for turn in range(4):
            stream = Work(queue, f"w{number}", 5, lease_ms=HOUR_MS)
            (reset if (number + turn) % 2 else close)(stream)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(serve, range(4)))
    queue.becomes(ready=50)
    assert data(queue.claim("w", 50)) == list(range(50))


# --- errors in the stream


def ended_by(stream: Work) -> int:
    """The code of the error event that ends the stream."""
    event = stream.event()
    while event.event == JOB:
        event = stream.event()
    assert event.event == ERROR, event
    body = event.json()
    assert type(body["code"]) is int, body
    assert isinstance(body["error"], str), body
    with pytest.raises(EOFError):
        stream.event()
    return int(body["code"])


@pytest.mark.slow
def test_a_stream_ends_when_its_queue_is_deleted(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w", 5) as stream:
        stream.jobs(1)
        ok(queue.api.delete(queue.name))
        assert ended_by(stream) in (404, 409)


@pytest.mark.slow
def test_a_stream_ends_with_409_when_its_topic_has_ceased_to_be_a_queue(queue: Queue) -> None:
    with Work(queue, "w", 5) as stream:
        ok(queue.api.delete(queue.name))
        ok(queue.api.put(queue.name), 201)
        assert ended_by(stream) == 409


@pytest.mark.slow
def test_jobs_of_a_queue_made_anew_are_not_of_the_old_stream(queue: Queue) -> None:
    with Work(queue, "w", 5) as stream:
        ok(queue.api.delete(queue.name))
        again = Queue.create(queue.api, queue.name, "new")
        ended_by(stream)
    assert data(again.claim("w", 5)) == ["new"]


@pytest.mark.slow
def test_a_server_that_stops_tells_its_workers_and_releases_their_jobs(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    server = Server(tmp_path_factory.mktemp("work") / "data")
    with server:
        with Api(server.address) as api:
            queue = Queue.create(api, "q", "a", leases_durable=True)
            stream = Work(queue, "w", lease_ms=HOUR_MS)
            stream.jobs(1)
        server.stop()
        assert ended_by(stream) == 503
        stream.close()
        server.start()
        with Api(server.address) as api:
            (job,) = Queue(api, "q").claim("other")
            assert (job["data"], job["deliveries"]) == ("a", 2)
