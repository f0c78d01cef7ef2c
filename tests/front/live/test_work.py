"""Work streams: the events of a worker, and the confirmations that request the next jobs.

The shard is notified exactly once that a worker has disconnected, in any order of events.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.live_harness import (
    SEND_BYTES,
    Listener,
    LiveHarness,
    Socket,
    make_heartbeat_due,
    press,
    socket_pair,
)
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.config import Settings
from topics.engine.access import ANYONE, Principal
from topics.errors import NotAQueue, NotReady, Throttled, TopicNotFound, TopicsError
from topics.front.held_memory import STALL_MAX_S
from topics.front.limits import make_slots
from topics.front.live.work_stream import WorkStream
from topics.front.live.work_subscriptions import WorkSubscription, WorkSubscriptions

OPENING = b"retry: 2000\n\n: hb\n\n"


def job(seq: int, data: bytes = b"1") -> bytes:
    """Return a leased job in the form that a shard sends."""
    return b'{"lease_id":"lease_%x","deadline":9,"deliveries":1,"$seq":%d,"$ts":7,"data":%b}' % (
        seq,
        seq,
        data,
    )


def event(seq: int, data: bytes = b"1") -> bytes:
    """Return the event of such a job. ``data`` has no line ends."""
    member = b'{"topic":"jobs",' + job(seq, data)[1:]
    return b"id: %d\nevent: job\ndata: %b\n\n" % (seq, member)


async def jobs(front: LiveHarness, *seqs: int, work: int = 1, data: bytes = b"1") -> None:
    """Deliver jobs from the shard, and wait until they are handled."""
    made = [job(seq, data) for seq in seqs]
    params = {"work": work, "seqs": seqs, "lengths": [len(one) for one in made]}
    front.event(0, "work.jobs", params, b"".join(made))
    await wait_all_tasks_blocked()


def request_work(
    front: LiveHarness, principal: Principal = ANYONE, scope: trio.CancelScope | None = None
) -> list[WorkSubscription | TopicsError]:
    """Request work in a task. The returned list receives the outcome."""
    outcomes: list[WorkSubscription | TopicsError] = []

    async def run() -> None:
        with scope or trio.CancelScope():
            try:
                outcomes.append(
                    await front.live.work.open(
                        0, "jobs", principal, node="n", max_jobs=2, lease_ms=None
                    )
                )
            except TopicsError as failure:
                outcomes.append(failure)

    front.live.nursery.start_soon(run)
    return outcomes


async def opened(front: LiveHarness, principal: Principal = ANYONE) -> WorkSubscription:
    """Return a subscription that the shard has opened."""
    outcomes = request_work(front, principal)
    await wait_all_tasks_blocked()
    await front.answer("work.open")
    (subscription,) = outcomes
    assert isinstance(subscription, WorkSubscription)
    return subscription


class JobReceiver(Listener):
    """A running stream of a subscription, and the other end of its socket."""

    def __init__(self, front: LiveHarness, subscription: WorkSubscription) -> None:
        ours, self.sock = socket_pair()
        for end in (ours, self.sock):
            front.exits.enter_context(end)
        connection: Any = Socket(ours)
        self.stream = WorkStream(front.live, subscription, connection)
        front.live.nursery.start_soon(self.stream.run)

    def disconnect(self, *, half: bool = False) -> None:
        """Close the client's end, or only shut down its sending side."""
        if half:
            self.sock.shutdown(socket.SHUT_WR)
        else:
            self.sock.close()


async def worker(front: LiveHarness) -> JobReceiver:
    """Return a worker that has received the start of its stream."""
    made = JobReceiver(front, await opened(front))
    await wait_all_tasks_blocked()
    assert made.receive() == OPENING
    return made


TAKEN, CLOSED = ("work.taken", {"work": 1}), ("work.close", {"work": 1, "pages": 0})
LONG = b'"%b"' % (b"x" * 40 * SEND_BYTES)


async def test_jobs_are_confirmed_after_the_socket_has_accepted_all_of_them(
    front: LiveHarness,
) -> None:
    client = await worker(front)
    await jobs(front, 1, data=LONG)
    assert front.shards.events == []
    assert await client.receive_all() == event(1, LONG)
    assert front.shards.events == [TAKEN]


async def test_jobs_after_a_stalled_heartbeat_are_confirmed_once_they_are_sent(
    front: LiveHarness,
) -> None:
    client = await worker(front)
    client.stream.outbox.write(LONG)
    await jobs(front, 1, data=LONG)
    assert client.stream.outbox.backlog
    while client.stream.outbox.backlog:
        client.receive()
        await wait_all_tasks_blocked()
    assert front.shards.events == []
    assert (await client.receive_all()).endswith(event(1, LONG)[-100:])
    assert front.shards.events == [TAKEN]


async def test_a_heartbeat_is_sent_only_without_other_data(
    front: LiveHarness, autojump_clock: trio.testing.MockClock
) -> None:
    client = await worker(front)
    await trio.sleep(TICK_INTERVAL_S * 1.5)
    assert client.receive() == b""
    make_heartbeat_due(client.stream)
    await trio.sleep(TICK_INTERVAL_S * 1.5)
    assert client.receive() == b": hb\n\n"
    make_heartbeat_due(client.stream)
    await jobs(front, 1)
    await trio.sleep(TICK_INTERVAL_S * 1.5)
    assert client.receive() == event(1)
    assert front.shards.events == [TAKEN]


@pytest.mark.parametrize("way", ["closes", "closes its side", "resets"])
async def test_the_leases_of_a_disconnected_client_are_released(
    front: LiveHarness, way: str
) -> None:
    client = await worker(front)
    if way == "resets":
        client.stream.sock.shutdown(2)  # the next write fails
        await jobs(front, 1)
    else:
        client.disconnect(half=way == "closes its side")
    await wait_all_tasks_blocked(0.01)
    assert front.shards.events == [CLOSED]
    assert (client.stream.ended, front.live.streams, slots_used(front)) == (True, set(), 0)


async def test_a_stalled_client_is_disconnected_and_loses_its_leases(
    front: LiveHarness, autojump_clock: trio.testing.MockClock
) -> None:
    client = await worker(front)
    await jobs(front, 1, data=LONG)
    await trio.sleep(STALL_MAX_S + TICK_INTERVAL_S * 1.5)
    assert client.stream.ended
    assert front.shards.events[-1] == ("work.close", {"work": 1, "pages": 1})


@pytest.mark.parametrize(
    ("error", "code"), [("not_a_queue", 409), ("topic_not_found", 404), ("internal", 500)]
)
async def test_a_stream_that_its_shard_ends_gets_the_reason(
    front: LiveHarness, error: str, code: int
) -> None:
    client = await worker(front)
    front.event(0, "work.ended", {"work": 1, "error": error, "message": "it was"}, b"")
    await wait_all_tasks_blocked()
    assert client.receive() == b'event: error\ndata: {"code":%d,"error":"it was"}\n\n' % code
    assert (client.stream.ended, front.live.slots.streams.used) == (True, 0)
    assert front.shards.events == [], "the shard releases the leases itself"


async def test_the_drain_ends_a_stream_and_releases_its_leases(front: LiveHarness) -> None:
    client = await worker(front)
    front.live.drain()
    await wait_all_tasks_blocked()
    assert b'"code":503,"error":"the server is shutting down"' in client.receive()
    assert front.shards.events == [CLOSED]


# Subscriptions


def slots_used(front: LiveHarness) -> int:
    return front.live.slots.streams.used


@pytest.mark.parametrize("failure", [TopicNotFound("jobs"), NotAQueue("jobs"), NotReady("down")])
async def test_a_refusal_of_the_shard_is_returned_and_leaves_no_state(
    front: LiveHarness, failure: TopicsError
) -> None:
    """A close is sent, because a stalled shard may still open the stream when it resumes."""
    outcomes = request_work(front)
    await wait_all_tasks_blocked()
    front.shards.refuse("work.open", failure)
    await wait_all_tasks_blocked()
    assert outcomes == [failure]
    assert (slots_used(front), front.live.work.by_number) == (0, {})
    assert front.shards.events == [CLOSED]


async def test_the_shard_is_notified_if_the_client_disconnects_during_the_call(
    front: LiveHarness,
) -> None:
    scope = trio.CancelScope()
    request_work(front, scope=scope)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert front.shards.events == [CLOSED]
    assert slots_used(front) == 0
    await jobs(front, 1)
    assert front.shards.events == [CLOSED]


async def test_jobs_that_arrive_before_the_client_is_ready_are_kept(front: LiveHarness) -> None:
    subscription = await opened(front)
    await jobs(front, 1, 2)
    assert front.shards.events == []
    worker = JobReceiver(front, subscription)
    await wait_all_tasks_blocked()
    assert worker.receive() == OPENING + event(1) + event(2)
    assert front.shards.events == [("work.taken", {"work": 1})]


async def test_an_end_before_the_client_is_ready_is_sent_after_the_jobs(
    front: LiveHarness,
) -> None:
    subscription = await opened(front)
    await jobs(front, 1)
    front.live.closed(0)
    worker = JobReceiver(front, subscription)
    await wait_all_tasks_blocked()
    received = worker.receive()
    assert received.startswith(OPENING + event(1))
    assert received.endswith(b'{"code":503,"error":"the shard of this topic has stopped"}\n\n')
    assert (front.shards.events, slots_used(front)) == ([], 0)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        (Settings(max_sse_connections=2), "max_sse_connections"),
        (Settings(max_sse_connections_per_key=2), "max_sse_connections_per_key"),
    ],
)
async def test_a_slot_is_acquired_before_the_shard_leases_jobs(
    front: LiveHarness, settings: Settings, limit: str
) -> None:
    front.live.slots = make_slots(settings, 100)
    front.live.work = WorkSubscriptions(
        front.shards,  # type: ignore[arg-type]
        front.live.slots.streams,
        front.pressure,
        front.live.call_in,
    )
    principal = Principal(b"key")
    outcomes = [request_work(front, principal) for _ in range(4)]
    await wait_all_tasks_blocked()
    assert len(front.shards.pending) == 2
    for failure in (failure for outcome in outcomes for failure in outcome):
        assert isinstance(failure, Throttled)
        assert (failure.detail["limit"], failure.detail["max"]) == (limit, 2)
    front.shards.refuse("work.open", TopicNotFound("jobs"))
    await wait_all_tasks_blocked()
    request_work(front, principal)
    await wait_all_tasks_blocked()
    assert len(front.shards.pending) == 2


async def test_under_pressure_jobs_are_confirmed_late_and_the_client_gets_a_notice(
    front: LiveHarness, autojump_clock: MockClock
) -> None:
    client = await worker(front)
    press(front.pressure, pace=1.0)
    front.pressure.bands.store("jobs", 0)
    await jobs(front, 1)
    error = b'{"code":429,"error":"watch throttled under CPU pressure"'
    received = client.receive()
    assert received.startswith(event(1))
    assert received.endswith(error + b',"retry_after_ms":1000,"topics":["jobs"]}\n\n')
    await trio.sleep(0.99)
    assert front.shards.events == []
    await trio.sleep(0.02)
    assert front.shards.events == [("work.taken", {"work": 1})]
    await jobs(front, 2)
    assert client.receive() == event(2), "the notice was repeated"


async def test_jobs_of_a_disconnected_client_are_not_confirmed_late(
    front: LiveHarness, autojump_clock: MockClock
) -> None:
    client = await worker(front)
    press(front.pressure, pace=1.0)
    await jobs(front, 1)
    client.stream.end()
    await trio.sleep(2.0)
    assert front.shards.events == [("work.close", {"work": 1, "pages": 1})]
