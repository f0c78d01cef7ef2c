"""Transfer: what a redrive chooses, and what it tells of the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.moves import claim, make_queue
from tests.support.shard import Desk
from topics.actors.shard.queues import transfer as redrives
from topics.actors.shard.queues.transfer import NO_SOURCE, Transfer
from topics.engine.now import Now
from topics.engine.queue.claims import jobs_of
from topics.engine.removal import cut_to
from topics.errors import TopicFull, TopicNotFound
from topics.formats.api.queue_bodies import Redrive

FROM = "$dead_letter_from"


def transfer(
    desk: Desk, topic: str, to: str | None = None, limit: int = 100, prefixes: Any = None
) -> Transfer:
    request: Any = SimpleNamespace(
        session=SimpleNamespace(closed=False), params=SimpleNamespace(prefixes=prefixes)
    )
    asked = Redrive(to, None, None, limit)
    return Transfer(request, desk.engine.topic(topic), asked, desk.engine)


def choose(one: Transfer, now: Now) -> dict[str, list[int]]:
    """The next window: seqs by target."""
    one.search()
    return seqs(one.choose(now))


def remaining(one: Transfer, now: Now) -> int:
    """All that remains, when it is counted."""
    while one.count_slice(now):
        pass
    return one.remaining


def seqs(copies: dict[str, Any]) -> dict[str, list[int]]:
    return {target: [copy.seq for copy in those] for target, those in copies.items()}


def letters(desk: Desk, *sources: Any) -> None:
    desk.make("dead")
    desk.append("dead", records=[{"data": 1, "meta": {FROM: source}} for source in sources])
    desk.synced()
    desk.answers()


async def test_what_is_chosen_is_grouped_by_target_and_counts_as_remaining(desk: Desk) -> None:
    letters(desk, "a", "b", "a")
    one = transfer(desk, "dead")
    now = desk.loop.context.now
    assert choose(one, now) == {"a": [1, 3], "b": [2]}
    assert (one.in_flight, remaining(one, now), one.is_over) == ({1, 2, 3}, 3, True)
    one.finish([1, 3])
    cut_to(one.topic, 2, desk.engine.store)
    assert (one.moved, one.in_flight, one.remaining) == (2, {2}, 1)
    one.finish([2])
    assert choose(one, now) == {}


@pytest.mark.parametrize("skipped_first", [False, True])
async def test_it_is_settled_when_nothing_is_in_flight(
    desk: Desk, nursery: trio.Nursery, skipped_first: bool
) -> None:
    """This holds regardless of the records that were skipped while the window was chosen."""
    letters(desk, *([None] * 40 if skipped_first else []), "a", "b")
    one, now = transfer(desk, "dead"), desk.loop.context.now
    (a, *_), (b, *_) = choose(one, now).values()
    waits = trio.Event()

    async def wait() -> None:
        await one.wait_settled()
        waits.set()

    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    one.finish([a])
    await wait_all_tasks_blocked()
    assert (one.in_flight, waits.is_set()) == ({b}, False)
    one.refuse("b", {b: TopicFull("full")}, now)
    await wait_all_tasks_blocked()
    assert waits.is_set()


async def test_a_limit_that_is_reached_ends_it(desk: Desk) -> None:
    letters(desk, "a", "a", "a")
    one = transfer(desk, "dead", limit=2)
    assert choose(one, desk.loop.context.now) == {"a": [1, 2]}
    one.finish([1, 2])
    assert (one.is_over, one.is_stopped) == (True, False)


async def test_skipped_records_are_counted_apart_and_the_first_gives_the_reason(
    desk: Desk,
) -> None:
    letters(desk, "a", 5, "other", "a", "dead")
    one, now = transfer(desk, "dead", prefixes=["a"]), desk.loop.context.now
    assert choose(one, now) == {"a": [1, 4]}
    assert (one.skipped, one.reason, one.remaining) == (3, (2, NO_SOURCE), 2)
    one.refuse("a", {1: TopicFull("full"), 4: TopicNotFound("a")}, now)
    assert (one.skipped, one.reason, one.remaining) == (5, (1, "topic_full"), 0)


async def test_leased_jobs_are_passed_over_and_remain(desk: Desk) -> None:
    queue = make_queue(desk, "q", "x", "y", "z")
    assert claim(desk, queue, 1) == [1]
    one, now = transfer(desk, "q", to="a"), desk.loop.context.now
    assert choose(one, now) == {"a": [2, 3]}
    assert (remaining(one, now), one.skipped) == (3, 0)
    assert list(jobs_of(queue).aside) == [2, 3]
    one.put_back_all(now)
    assert (list(jobs_of(queue).aside), one.in_flight, one.has_put_back) == ([], set(), True)


async def test_it_ends_when_it_has_come_by_too_many_that_cannot_be_moved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More for each that it may move."""
    monkeypatch.setattr(redrives, "WINDOW_RECORDS", 2)
    monkeypatch.setattr(redrives, "READ_RECORDS", 2)
    monkeypatch.setattr(redrives, "SKIPPED_MIN", 3)
    monkeypatch.setattr(redrives, "SKIPPED_PER_RECORD", 1)
    letters(desk, *[None] * 9)
    for limit, skipped in ((1, 4), (5, 6)):
        one, now = transfer(desk, "dead", limit=limit), desk.loop.context.now
        while not one.is_over:
            assert choose(one, now) == {}
        found = (one.skipped, remaining(one, now), one.is_stopped)
        assert found == (skipped, 9 - skipped, False)


@pytest.mark.parametrize("why", ["answered", "deleted", "front has gone"])
async def test_it_is_over_when_nobody_wants_more(desk: Desk, why: str) -> None:
    letters(desk, "a")
    one = transfer(desk, "dead")
    assert not one.is_over
    if why == "answered":
        one.is_answered = True
    elif why == "deleted":
        desk.delete("dead")
        assert one.remaining == 0
    else:
        one.request.session.closed = True
    assert one.is_over
