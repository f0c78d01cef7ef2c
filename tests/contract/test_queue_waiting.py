"""Waiting claims and coalescing windows (§10.2): the end of a wait, the order of claims, and how
jobs are shared.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tests.support.api import SLACK_S, Api, Wire, ok, refused, request
from tests.support.queues import (
    HOUR_MS,
    SHORT_MS,
    Queue,
    Work,
    asking,
    claim_body,
    claiming,
    counters,
    data,
    jobs_of,
    numbers,
    parked,
    until,
)
from tests.support.server import Server

pytestmark = pytest.mark.slow

LONG_MS = 20_000


# --- the duration of a wait


@pytest.mark.parametrize("fields", [{}, {"wait_ms": 0}], ids=json.dumps)
def test_a_claim_does_not_wait_by_default(queue: Queue, fields: dict[str, Any]) -> None:
    started = time.monotonic()
    assert queue.claim("w", **fields) == []
    assert time.monotonic() - started < SLACK_S


@pytest.mark.parametrize("wait_ms", [1, 300], ids=lambda value: f"wait_ms {value}")
def test_a_wait_without_jobs_ends_on_time(queue: Queue, wait_ms: int) -> None:
    started = time.monotonic()
    body = queue.claimed("w", 5, wait_ms=wait_ms)
    took_s = time.monotonic() - started
    assert (body["claimed"], body["count"], body["ready"]) == ([], 0, 0)
    assert wait_ms / 1000 - 0.005 <= took_s < wait_ms / 1000 + SLACK_S


def test_existing_jobs_are_returned_immediately(queue: Queue) -> None:
    queue.push("a", "b")
    started = time.monotonic()
    assert data(queue.claim("w", 5, wait_ms=LONG_MS)) == ["a", "b"]
    assert time.monotonic() - started < SLACK_S


# --- the end of a wait


def append(queue: Queue) -> None:
    queue.push("x")


def release(queue: Queue) -> None:
    queue.nack([1], "holder")


def release_later_on(queue: Queue) -> None:
    queue.nack([1], "holder", delay_ms=200)


def wait_for_expiry(queue: Queue) -> None:
    queue.extend([1], "holder", lease_ms=SHORT_MS)


def append_delayed(queue: Queue) -> None:
    ok(queue.api.append(queue.name, records=[{"data": "x", "delay_ms": 200}]))


WAKES: list[Callable[[Queue], None]] = [
    append,
    release,
    release_later_on,
    wait_for_expiry,
    append_delayed,
]


@pytest.mark.parametrize("wake", WAKES, ids=lambda wake: wake.__name__)
def test_the_first_claimable_job_ends_a_wait(queue: Queue, wake: Callable[[Queue], None]) -> None:
    queue.push("x")
    queue.claim("holder", lease_ms=HOUR_MS)
    with claiming(queue) as claims:
        future = claims.start_parked("w", 5, wait_ms=LONG_MS)
        assert not future.done()
        started = time.monotonic()
        wake(queue)
        assert data(jobs_of(future)) == ["x"]
        assert time.monotonic() - started < 1 + SLACK_S


def test_a_job_released_by_a_disconnected_work_stream_ends_a_wait(queue: Queue) -> None:
    queue.push("x")
    stream = Work(queue, "holder", lease_ms=HOUR_MS)
    stream.jobs(1)
    with claiming(queue) as claims:
        future = claims.start_parked("w", wait_ms=LONG_MS)
        assert not future.done()
        stream.close()
        assert [job["deliveries"] for job in jobs_of(future)] == [2]


def test_a_redriven_job_ends_a_wait(pair: tuple[Queue, str]) -> None:
    queue, dead = pair
    queue.push("x")
    queue.spend(1, 2)
    queue.bury(1)
    with claiming(queue) as claims:
        future = claims.start_parked("w", wait_ms=LONG_MS)
        Queue(queue.api, dead).redrive()
        assert [(job["data"], job["deliveries"]) for job in jobs_of(future)] == [("x", 1)]


def test_a_wait_returns_up_to_max_jobs_without_waiting_for_more(queue: Queue) -> None:
    with claiming(queue) as claims:
        future = claims.start_parked("w", 3, wait_ms=LONG_MS)
        queue.push(*range(5))
        assert data(jobs_of(future)) == [0, 1, 2]
        assert data(queue.claim("w", 5)) == [3, 4]
        future = claims.start_parked("w", 3, wait_ms=LONG_MS)
        queue.push("only")
        assert data(jobs_of(future)) == ["only"]


@pytest.mark.parametrize("again", ["deleted", "queue", "log"])
def test_deleting_the_queue_ends_waits_with_404(queue: Queue, again: str) -> None:
    with Wire(queue.api.address) as wire:
        wire.send(asking(queue, wait_ms=LONG_MS))
        parked(queue)
        started = time.monotonic()
        ok(queue.api.delete(queue.name))
        if again != "deleted":
            ok(queue.api.append(queue.name, "new", config={"type": again}), 201)
        refused(wire.answer(), 404, "topic_not_found")
        assert time.monotonic() - started < SLACK_S


# --- the order of claims


def test_waiters_are_served_in_order_of_arrival(queue: Queue) -> None:
    with claiming(queue) as claims:
        futures = [claims.start_parked(f"w{number}", 5, wait_ms=LONG_MS) for number in range(4)]
        for number, future in enumerate(futures):
            assert not any(later.done() for later in futures[number:])
            queue.push(number)
            assert data(jobs_of(future)) == [number]


@pytest.mark.slow
def test_a_later_claim_never_overtakes_a_waiter(queue: Queue) -> None:
    with claiming(queue) as claims:
        for number in range(20):
            future = claims.start("first", wait_ms=LONG_MS)
            parked(queue)
            queue.push(number)
            assert queue.claim("later") == []
            assert data(jobs_of(future)) == [number]


@pytest.mark.slow
def test_waiters_of_a_jittered_queue_join_the_next_cohort(api: Api, topic: str) -> None:
    queue = Queue.create(api, topic, claim_jitter_ms=500)
    with claiming(queue) as claims:
        futures = [claims.start(f"w{number}", 10, wait_ms=LONG_MS) for number in range(3)]
        time.sleep(1.5)
        parked(queue)
        assert not any(future.done() for future in futures)
        queue.push(*range(6))
        assert [len(jobs_of(future)) for future in futures] == [2, 2, 2]


# --- clients that disconnect


@pytest.mark.slow
@pytest.mark.parametrize("end", [Wire.close, Wire.reset], ids=["FIN", "RST"])
def test_a_client_that_disconnects_takes_no_job(queue: Queue, end: Callable[[Wire], None]) -> None:
    for number in range(10):
        wire = Wire(queue.api.address)
        wire.send(asking(queue, wait_ms=LONG_MS))
        parked(queue)
        end(wire)
        queue.push(number)
        queue.becomes(ready=1)
        queue.ack(queue.claim())


@pytest.mark.parametrize("end", [Wire.close, Wire.reset], ids=["FIN", "RST"])
def test_a_job_goes_to_the_next_waiter_if_the_first_has_disconnected(
    queue: Queue, end: Callable[[Wire], None]
) -> None:
    with claiming(queue) as claims:
        wire = Wire(queue.api.address)
        wire.send(asking(queue, wait_ms=LONG_MS))
        parked(queue)
        future = claims.start_parked("second", wait_ms=LONG_MS)
        end(wire)
        queue.push("a")
        assert data(jobs_of(future)) == ["a"]
    assert queue.counters() == counters(in_flight=1)


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose processes the tests may stop."""
    with Server(tmp_path_factory.mktemp("waiting") / "data", shards=1) as server:
        yield server


@pytest.mark.parametrize("durable", [False, True], ids=["leases in memory", "durable"])
@pytest.mark.parametrize("role", ["front 0", "shard 0"])
@pytest.mark.parametrize("end", [Wire.close, Wire.reset], ids=["FIN", "RST"])
@pytest.mark.parametrize("wait_ms", [0, LONG_MS])
def test_ready_jobs_stay_in_the_queue_if_the_client_disconnects(
    own_server: Server, wait_ms: int, end: Callable[[Wire], None], role: str, durable: bool
) -> None:
    with Api(own_server.address) as api:
        name = f"{wait_ms}-{end.__name__}-{role[:5]}-{durable}"
        queue = Queue.create(api, name, *range(10), leases_durable=durable)
        wires = [Wire(own_server.address) for _ in range(10)]
        with own_server.stopped(role):
            for wire in wires:
                wire.send(asking(queue, wait_ms=wait_ms))
                end(wire)
        parked(queue)
        queue.becomes(ready=10)
        assert [job["deliveries"] for job in queue.claim("w", 10)] == [1] * 10


def test_a_claim_refused_because_of_a_stalled_shard_takes_no_job(
    own_server: Server,
) -> None:
    with Api(own_server.address) as api:
        queue = Queue.create(api, "stalled", "there")
        with own_server.stopped("shard 0"):
            refused(api.call("POST", "/v0/topics/stalled/claim", {"node": "w"}), 503, "not_ready")
        own_server.wait_ready()
        queue.becomes(ready=1)
        assert queue.claim()[0]["deliveries"] == 1


def test_jobs_of_a_partly_sent_response_return_to_the_queue(own_server: Server) -> None:
    with Api(own_server.address) as api:
        queue = Queue.create(api, "part", *["x" * 900_000] * 30)
        wire = Wire(own_server.address)
        wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        wire.send(asking(queue, max=30))
        assert wire.socket.recv(1) == b"H"
        wire.reset()
        queue.becomes(ready=30)
        assert queue.claim()[0]["deliveries"] == 1


def test_a_client_that_closes_only_its_sending_side_gets_its_jobs(own_server: Server) -> None:
    with Api(own_server.address) as api:
        queue = Queue.create(api, "half", "there")
        for wait_ms in (0, LONG_MS):
            with Wire(own_server.address) as wire:
                wire.send(asking(queue, wait_ms=wait_ms))
                wire.socket.shutdown(socket.SHUT_WR)
                if wait_ms:
                    parked(queue)
                    queue.push("later")
                assert data(claim_body(wire.answer(), queue.name, 1)["claimed"])
        assert queue.counters() == counters(in_flight=2)


@pytest.mark.parametrize("path", ["claim", "diff"])
def test_a_disconnect_immediately_frees_the_slot_of_the_key(tmp_path: Path, path: str) -> None:
    server = Server(tmp_path / "data", api_keys="key", max_inflight_per_key=2)
    with server, Api(server.address, token="key") as api:
        queue = Queue.create(api, "q")
        key = b"Authorization: Bearer key\r\nHost:"
        raw_claim = asking(queue, wait_ms=LONG_MS).replace(b"Host:", key)
        raw_claim = raw_claim.replace(b"/claim ", b"/%b " % path.encode())
        started = time.monotonic()
        for end in (Wire.close, Wire.reset) * 10:
            wire = Wire(server.address)
            wire.send(raw_claim)
            until(lambda: api.get("q").status, lambda status: status == 200)
            end(wire)
        assert time.monotonic() - started < SLACK_S


def test_requests_pipelined_after_a_waiting_claim_are_answered_in_order(
    wire: Wire, queue: Queue
) -> None:
    wire.send(asking(queue, wait_ms=300) + request("GET", f"/v0/topics/{queue.name}"))
    wire.send(asking(queue, wait_ms=300))
    assert claim_body(wire.answer(), queue.name, 1)["claimed"] == []
    assert ok(wire.answer())["count"] == 0
    assert claim_body(wire.answer(), queue.name, 1)["claimed"] == []


# --- limits and the end of the server


@pytest.mark.slow
@pytest.mark.parametrize("wait_ms", [500, LONG_MS], ids=lambda value: f"8.2 {value}")
def test_a_server_stop_answers_waiting_claims(tmp_path: Path, wait_ms: int) -> None:
    server = Server(tmp_path / "data")
    with server:
        with Api(server.address) as api, Wire(server.address) as wire:
            queue = Queue.create(api, "q")
            wire.send(asking(queue, wait_ms=wait_ms))
            parked(queue)
            started = time.monotonic()
            server.stop()
            assert time.monotonic() - started < 10 + SLACK_S
            answer = wire.answer()
        if answer.status == 200:
            assert claim_body(answer, "q", 1)["claimed"] == []
        else:
            refused(answer, 503, "shutting_down")


WINDOW_MS = 1500


@pytest.fixture
def jittered(api: Api, topic: str) -> Queue:
    return Queue.create(api, topic, claim_jitter_ms=WINDOW_MS, lease_ms=HOUR_MS)


def counts(futures: list[Future[Any]]) -> list[int]:
    return [len(jobs_of(future)) for future in futures]


def no_job_twice(futures: list[Future[Any]]) -> list[int]:
    """Return the seqs of the claimed jobs in ascending order, and check that none occurs twice."""
    found = [seq for future in futures for seq in numbers(jobs_of(future))]
    assert len(found) == len({*found})
    return sorted(found)


@pytest.mark.parametrize(
    ("jobs", "each"), [(8, [2, 2, 2, 2]), (7, [1, 2, 2, 2]), (2, [0, 0, 1, 1])]
)
def test_the_claims_of_a_cohort_share_the_jobs_evenly(
    jittered: Queue, jobs: int, each: list[int]
) -> None:
    jittered.push(*range(jobs))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 10) for number in range(4)]
        assert sorted(counts(futures)) == each
        assert no_job_twice(futures) == list(range(1, jobs + 1))
    assert jittered.counters() == counters(in_flight=jobs)


def test_a_claim_of_a_cohort_gets_at_most_its_max(jittered: Queue) -> None:
    jittered.push(*range(9))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", most) for number, most in enumerate((1, 2, 10))]
        assert counts(futures) == [1, 2, 6]
        assert no_job_twice(futures) == list(range(1, 10))


def test_expired_jobs_go_to_a_cohort_before_fresh_ones(jittered: Queue) -> None:
    jittered.push(*range(6))
    jittered.nack(jittered.claim("w", 3))
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}") for number in range(3)]
        assert no_job_twice(futures) == [1, 2, 3]


def test_a_claim_of_a_jittered_queue_waits_at_most_the_window(jittered: Queue) -> None:
    jittered.push("a")
    started = time.monotonic()
    assert data(jittered.claim()) == ["a"]
    assert jittered.claim() == []
    assert time.monotonic() - started < 2 * WINDOW_MS / 1000 + SLACK_S


def test_jobs_that_arrive_within_the_window_are_shared(jittered: Queue) -> None:
    with claiming(jittered) as claims:
        futures = [claims.start(f"w{number}", 5) for number in range(2)]
        parked(jittered)
        jittered.push("a", "b")
        assert counts(futures) == [1, 1]


def test_without_jitter_the_first_claim_takes_all_jobs(queue: Queue) -> None:
    queue.push(*range(10))
    assert len(queue.claim("first", 10)) == 10
    assert queue.claim("second", 10) == []


def test_the_window_of_a_queue_can_be_changed(queue: Queue) -> None:
    queue.configure(claim_jitter_ms=WINDOW_MS)
    queue.push(*range(4))
    with claiming(queue) as claims:
        assert counts([claims.start(f"w{number}", 9) for number in range(2)]) == [2, 2]
    queue.configure(claim_jitter_ms=0)
    queue.push(*range(4))
    assert len(queue.claim("w", 9)) == 4


def test_work_streams_and_claims_share_the_jobs(jittered: Queue) -> None:
    with Work(jittered, "pushed", 4), claiming(jittered) as claims:
        future = claims.start_parked("polled", 4, wait_ms=20_000)
        jittered.push(*range(4))
        assert len(jobs_of(future)) == 2
        assert jittered.counters() == counters(in_flight=4)
