"""Work subscriptions: whatever happens before, between and after, the shard is told once that a
client is gone, and a slot is given back once.
"""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.live.work_support import OPENING, Worker, ask, event, jobs, opened, worker
from tests.support.live_desk import Desk, press
from topics.config import Settings
from topics.engine.access import Principal
from topics.errors import NotAQueue, NotReady, Throttled, TopicNotFound, TopicsError
from topics.front.limits import make_slots
from topics.front.live.work_subscriptions import WorkSubscriptions
from topics.front.pressure.governor import COALESCE_S

CLOSED = ("work.close", {"work": 1, "pages": 0})


def slots_used(front: Desk) -> int:
    return front.live.slots.streams.used


@pytest.mark.parametrize("failure", [TopicNotFound("jobs"), NotAQueue("jobs"), NotReady("down")])
async def test_a_refusal_is_the_shards_and_leaves_nothing(
    front: Desk, failure: TopicsError
) -> None:
    """A shard that has stalled refuses nothing: it may open the stream when it goes on."""
    outcomes = ask(front)
    await wait_all_tasks_blocked()
    front.shards.refuse("work.open", failure)
    await wait_all_tasks_blocked()
    assert outcomes == [failure]
    assert (slots_used(front), front.live.work.by_number) == (0, {})
    assert front.shards.told == [CLOSED]


async def test_a_client_that_vanishes_while_the_shard_is_asked_is_told_to_the_shard(
    front: Desk,
) -> None:
    scope = trio.CancelScope()
    ask(front, scope=scope)
    await wait_all_tasks_blocked()
    scope.cancel()
    await wait_all_tasks_blocked()
    assert front.shards.told == [CLOSED]
    assert slots_used(front) == 0
    await jobs(front, 1)
    assert front.shards.told == [CLOSED]


async def test_a_subscription_is_closed_once(front: Desk) -> None:
    subscription = await opened(front)
    for _ in range(2):
        front.live.work.close(subscription)
    front.live.work.taken(subscription)
    assert (front.shards.told, slots_used(front)) == ([CLOSED], 0)


async def test_jobs_that_come_before_the_client_is_ready_are_kept(front: Desk) -> None:
    subscription = await opened(front)
    await jobs(front, 1, 2)
    assert front.shards.told == []
    worker = Worker(front, subscription)
    await wait_all_tasks_blocked()
    assert worker.hear() == OPENING + event(1) + event(2)
    assert front.shards.told == [("work.taken", {"work": 1})]


async def test_an_end_that_comes_before_the_client_is_ready_is_told_behind_the_jobs(
    front: Desk,
) -> None:
    subscription = await opened(front)
    await jobs(front, 1)
    front.live.closed(0)
    worker = Worker(front, subscription)
    await wait_all_tasks_blocked()
    heard = worker.hear()
    assert heard.startswith(OPENING + event(1))
    assert heard.endswith(b'{"code":503,"error":"the shard of this topic went down"}\n\n')
    assert (front.shards.told, slots_used(front)) == ([], 0)


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        (Settings(max_sse_connections=2), "max_sse_connections"),
        (Settings(max_sse_connections_per_key=2), "max_sse_connections_per_key"),
    ],
)
async def test_a_slot_is_taken_before_the_shard_leases_anything(
    front: Desk, settings: Settings, limit: str
) -> None:
    front.live.slots = make_slots(settings, 100)
    front.live.work = WorkSubscriptions(
        front.shards,  # type: ignore[arg-type]
        front.live.slots.streams,
        front.pressure,
        front.live.call_in,
    )
    principal = Principal(b"key")
    outcomes = [ask(front, principal) for _ in range(4)]
    await wait_all_tasks_blocked()
    assert len(front.shards.asked) == 2
    for failure in (failure for outcome in outcomes for failure in outcome):
        assert isinstance(failure, Throttled)
        assert (failure.detail["limit"], failure.detail["max"]) == (limit, 2)
    front.shards.refuse("work.open", TopicNotFound("jobs"))
    await wait_all_tasks_blocked()
    ask(front, principal)
    await wait_all_tasks_blocked()
    assert len(front.shards.asked) == 2


async def test_under_pressure_the_next_jobs_come_late_and_the_client_is_told(
    front: Desk, autojump_clock: MockClock
) -> None:
    client = await worker(front)
    press(front.pressure, pace=1.0)
    front.pressure.bands.learn("jobs", 0)
    await jobs(front, 1)
    told = b'{"code":429,"error":"watch throttled under CPU pressure"'
    heard = client.hear()
    assert heard.startswith(event(1))
    assert heard.endswith(told + b',"retry_after_ms":1000,"topics":["jobs"]}\n\n')
    await trio.sleep(0.99)
    assert front.shards.told == []
    await trio.sleep(0.02)
    assert front.shards.told == [("work.taken", {"work": 1})]
    await jobs(front, 2)
    assert client.hear() == event(2), "it was told"


async def test_coalesced_jobs_are_taken_a_little_later_and_nobody_is_told(
    front: Desk, autojump_clock: MockClock
) -> None:
    client = await worker(front)
    press(front.pressure)
    await jobs(front, 1)
    assert (client.hear(), front.shards.told) == (event(1), [])
    await trio.sleep(COALESCE_S + 0.001)
    assert front.shards.told == [("work.taken", {"work": 1})]


async def test_a_client_that_has_gone_takes_nothing_late(
    front: Desk, autojump_clock: MockClock
) -> None:
    client = await worker(front)
    press(front.pressure, pace=1.0)
    await jobs(front, 1)
    client.stream.end()
    await trio.sleep(2.0)
    assert front.shards.told == [("work.close", {"work": 1, "pages": 1})]
