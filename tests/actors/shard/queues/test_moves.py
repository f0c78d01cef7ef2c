"""Moves beside claims: what a pass finds dead is moved, and what stays is given to who waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.moves import datas, redrive, run_log, with_fake_peers
from tests.support.queue_desk import QueueDesk
from tests.support.shard import Desk
from topics.actors.shard.deadlines import Deadlines
from topics.actors.shard.queues import dead_letters
from topics.actors.shard.queues.copies import Copy, Sent, send
from topics.actors.shard.queues.dead_letters import MoveLimit
from topics.errors import NotReady, TopicFull, TopicNotFound
from topics.formats.json_text import json_bytes


@pytest.fixture
def desk(tmp_path: Path, nursery: trio.Nursery) -> QueueDesk:
    return QueueDesk(tmp_path, nursery)


async def spend(desk: QueueDesk) -> None:
    """A queue whose only job was delivered as often as it may be."""
    desk.queue(max_deliveries=1, dead_letter="dead")
    desk.jobs(1)
    desk.claim()
    assert await claimed(desk) == [1]
    desk.nack(1)
    await run_log(desk)
    assert [told["nacked"] for told in desk.told()] == [1]


async def claimed(desk: QueueDesk) -> list[int]:
    """Seqs of the jobs that the claims have got since the last call."""
    await run_log(desk)
    return [job["$seq"] for told in desk.told() for job in told.get("claimed", ())]


async def test_a_pass_that_finds_an_exhausted_job_moves_it(desk: QueueDesk) -> None:
    await spend(desk)
    desk.claim()
    assert await claimed(desk) == []
    assert desk.engine.topic("dead").head_seq == 1
    assert desk.engine.topic("q").count == 0


async def test_a_claim_that_waits_gets_the_jobs_of_a_config_that_has_changed(
    desk: QueueDesk, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(desk)
    await spend(desk)
    desk.claim(wait_ms=20_000)
    assert await claimed(desk) == []
    (asked,) = peers.take()
    asked.answer(TopicFull("full"))
    desk.put("q", dead_letter=None)
    assert await claimed(desk) == [1]


async def test_a_claim_that_waits_gets_the_jobs_that_could_not_be_redriven(
    desk: QueueDesk, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(desk)
    desk.queue()
    desk.jobs(2)
    redrive(desk, "q", to="a")
    await run_log(desk)
    desk.claim(max=5, wait_ms=20_000)
    assert await claimed(desk) == []
    (asked,) = peers.take()
    asked.fail(NotReady("away"))
    assert await claimed(desk) == [1, 2]


# The messages that carry copies


def copy(seq: int, *, create: bool | None = None) -> Copy:
    body = {"records": [{"data": seq}], "idempotency_key": f"key {seq}", "create": create}
    return Copy(seq, json_bytes(body))


async def test_the_copies_of_a_message_are_appends_of_their_own(desk: Desk) -> None:
    desk.make("a", cap_records=2, discard="reject")
    sent: list[Sent] = []
    peers = desk.loop.context.peers
    send(peers, "a", [copy(3), copy(5), copy(9)], sent.append)
    assert not sent
    await run_log(desk)
    ((appended, refused),) = sent
    assert appended == [3, 5]
    assert [(seq, type(failure)) for seq, failure in refused.items()] == [(9, TopicFull)]
    assert datas(desk, "a") == [3, 5]


async def test_a_copy_that_is_there_counts_as_appended(desk: Desk) -> None:
    sent: list[Sent] = []
    for _ in range(2):
        send(desk.loop.context.peers, "a", [copy(3)], sent.append)
        await run_log(desk)
    assert sent == [Sent([3], {}), Sent([3], {})]
    assert datas(desk, "a") == [3]


async def test_a_topic_is_made_only_where_the_request_allows_it(desk: Desk) -> None:
    sent: list[Sent] = []
    send(desk.loop.context.peers, "a", [copy(3, create=False)], sent.append)
    await run_log(desk)
    ((appended, refused),) = sent
    assert (appended, type(refused[3])) == ([], TopicNotFound)


@pytest.mark.parametrize("count", [1, 3])
async def test_a_message_that_fails_as_a_whole_refuses_all_of_its_copies(
    desk: Desk, count: int
) -> None:
    peers, sent = with_fake_peers(desk), list[Sent]()
    failure = NotReady("away")
    send(desk.loop.context.peers, "a4", [copy(seq) for seq in range(count)], sent.append)
    (asked,) = peers.take()
    assert (asked.shard, asked.params.with_seqs, len(asked.requests)) == (4, False, count)
    asked.fail(failure)
    await wait_all_tasks_blocked()
    assert sent == [Sent([], dict.fromkeys(range(count), failure))]


# How many moves are under way


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 2)


class Bench:
    """A limit, and which moves were started."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.limit = MoveLimit(self.deadlines)
        self.started: list[str] = []

    def starting(self, name: str) -> Callable[[], None]:
        return lambda: self.started.append(name)

    def next_turn(self) -> list[str]:
        self.deadlines.run_due(0.0)
        started, self.started = self.started, []
        return started


def test_each_shard_has_a_lane_of_its_own() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.limit.enter(1, bench.starting(name))
    bench.limit.enter(2, bench.starting("d"))
    assert bench.next_turn() == ["a", "b", "d"]


def test_who_waits_is_started_in_order_as_others_leave_in_a_turn_of_its_own() -> None:
    bench = Bench()
    for name in ("a", "b", "c", "d"):
        bench.limit.enter(1, bench.starting(name))
    assert bench.next_turn() == ["a", "b"]
    bench.limit.leave(1)
    assert bench.started == []
    assert bench.next_turn() == ["c"]
    bench.limit.leave(1)
    bench.limit.leave(1)
    assert bench.next_turn() == ["d"]
    assert bench.deadlines.next_at == math.inf


def test_a_lane_has_room_again_when_all_have_left() -> None:
    bench = Bench()
    for _ in range(3):
        bench.limit.enter(1, bench.starting("a"))
        bench.limit.leave(1)
    assert bench.next_turn() == ["a", "a", "a"]
