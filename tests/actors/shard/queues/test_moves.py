"""Moves beside claims: what a pass finds dead is moved, and what stays is given to who waits."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from tests.support.moves import redrive, run_log, with_fake_peers
from tests.support.queue_desk import QueueDesk
from topics.errors import NotReady, TopicFull


@pytest.fixture
def desk(tmp_path: Path, nursery: trio.Nursery) -> QueueDesk:
    return QueueDesk(tmp_path, nursery)


async def spend(desk: QueueDesk) -> None:
    """A queue whose only job was delivered as often as it may be."""
    desk.queue(max_deliveries=1, dead_letter="dead")
    desk.jobs(1)
    desk.claim()
    await run_log(desk)
    desk.nack(1)
    await run_log(desk)
    desk.told()


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
