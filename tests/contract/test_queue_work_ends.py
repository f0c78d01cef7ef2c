"""How a work stream ends (§10.8), and that its jobs are claimable at once."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.api import Api, ok
from tests.support.queues import (
    ERROR,
    HOUR_MS,
    JOB,
    SHORT_MS,
    Queue,
    Work,
    data,
    numbers,
    until,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

QUIET_S = 0.3

# --- the end of the connection


def close(stream: Work) -> None:
    stream.close()


def reset(stream: Work) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.close()


ENDS = pytest.mark.parametrize("end", [close, reset], ids=["10.8 FIN", "10.8 RST"])


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


@ENDS
def test_another_stream_takes_over_at_once(queue: Queue, end: Callable[[Work], None]) -> None:
    queue.push("a")
    first = Work(queue, "w", lease_ms=HOUR_MS)
    assert data(first.jobs(1)) == ["a"]
    with Work(queue, "w", lease_ms=HOUR_MS) as second:
        second.quiet(QUIET_S)
        end(first)
        assert data(second.jobs(1)) == ["a"]


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


def test_a_job_that_was_nacked_and_claimed_elsewhere_is_not_released(queue: Queue) -> None:
    queue.push("a")
    stream = Work(queue, "w")
    queue.nack(stream.jobs(1), delay_ms=SHORT_MS)
    stream.close()
    (job,) = until(lambda: queue.claim("w", lease_ms=HOUR_MS))
    time.sleep(QUIET_S)
    assert [lease["lease_id"] for lease in queue.leases()] == [job["lease_id"]]


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


def test_a_stream_ends_when_its_queue_is_deleted(queue: Queue) -> None:
    queue.push("a")
    with Work(queue, "w", 5) as stream:
        stream.jobs(1)
        ok(queue.api.delete(queue.name))
        assert ended_by(stream) in (404, 409)


def test_a_stream_ends_with_409_when_its_topic_has_ceased_to_be_a_queue(queue: Queue) -> None:
    with Work(queue, "w", 5) as stream:
        ok(queue.api.delete(queue.name))
        ok(queue.api.put(queue.name), 201)
        assert ended_by(stream) == 409


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
