"""Expiry: records that are too old go, whoever asks for them or not."""

from __future__ import annotations

import math
import random

import pytest

from tests.support.shard import Desk
from tests.support.streamed import FULL
from topics.actors.shard import expiry
from topics.actors.shard.expiry import SWEEP_MS, Expiry
from topics.engine import retention
from topics.engine.now import Now
from topics.formats.disk.frames import FrameKind

TTL_MS = 1000
START_TS = 10 * SWEEP_MS


class Time:
    """The clock of a shard, and the deadlines that have come."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.ts = desk, START_TS
        self.context = desk.loop.context
        self.context.clock = self.commit_clock = lambda: Now(self.ts, self.ts)
        desk.commits.now = self.context.clock
        self.context.begin_turn()

    @property
    def service(self) -> Expiry:
        return self.desk.loop.services.expiry

    def turn(self) -> None:
        """The next sweep, as a deadline begins it."""
        self.context.begin_turn()
        self.service.sweep()
        self.desk.written()

    def to(self, ts: int) -> None:
        self.ts = ts
        self.turn()


@pytest.fixture
def time(desk: Desk) -> Time:
    return Time(desk)


def filled(desk: Desk, *names: str, ttl_ms: int = TTL_MS) -> None:
    for name in names:
        desk.make(name, ttl_ms=ttl_ms, durability="disk")
        desk.append(name, 1, 2)
        desk.written()
    desk.answers()


def count(desk: Desk, name: str = "a") -> int:
    return desk.engine.topic(name).count


async def test_what_is_too_old_goes_without_a_request_and_the_log_is_told(
    desk: Desk, time: Time
) -> None:
    filled(desk, "a")
    time.to(START_TS + TTL_MS)
    assert count(desk) == 2
    time.to(START_TS + SWEEP_MS)
    assert count(desk) == 0
    assert [*desk.log.frames.values()][-1].kind is FrameKind.FLOOR
    assert desk.engine.topic("a").evict_floor == 3


async def test_a_shard_in_which_nothing_ages_has_nothing_to_wake_for(
    desk: Desk, time: Time
) -> None:
    waiting = len(desk.loop.deadlines)
    filled(desk, "kept", ttl_ms=0)
    desk.make("empty", ttl_ms=TTL_MS)
    assert len(desk.loop.deadlines) == waiting
    filled(desk, "a")
    for _ in range(3):
        time.to(time.ts)
        assert len(desk.loop.deadlines) == waiting + 1
    time.to(START_TS + SWEEP_MS)
    assert len(desk.loop.deadlines) == waiting
    assert time.service._planned == time.service._buckets == {}


async def test_what_is_left_is_planned_again_and_a_shorter_age_at_once(
    desk: Desk, time: Time
) -> None:
    filled(desk, "a", ttl_ms=10 * SWEEP_MS)
    time.to(START_TS + 3 * SWEEP_MS)
    desk.append("a", 3)
    desk.written()
    desk.put("a", ttl_ms=SWEEP_MS)  # the first two are too old by it at once
    desk.synced()
    time.to(START_TS + 4 * SWEEP_MS)
    assert count(desk) == 1
    time.to(START_TS + 5 * SWEEP_MS)
    assert count(desk) == 0


async def test_a_turn_sweeps_a_bounded_number_of_topics(
    desk: Desk, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SWEEP_TOPICS", 2)
    names = [f"t{number}" for number in range(5)]
    filled(desk, *names)
    time.ts += SWEEP_MS
    for left in (6, 2, 0):
        time.turn()
        assert sum(count(desk, name) for name in names) == max(left, 0)


async def test_without_room_what_is_too_old_goes_before_its_bucket_ends(
    desk: Desk, time: Time
) -> None:
    filled(desk, "a")
    filled(desk, "b", ttl_ms=2 * TTL_MS)
    time.to(START_TS + TTL_MS + 1)
    assert count(desk) == 2
    desk.loop.context.room.on_short()
    desk.loop.context.begin_turn()
    desk.loop.deadlines.run_due(-math.inf)
    assert (count(desk), count(desk, "b")) == (0, 2)
    time.to(START_TS + SWEEP_MS)
    assert count(desk, "b") == 0


async def test_a_topic_whose_delete_is_undone_is_swept_as_before(desk: Desk, time: Time) -> None:
    filled(desk, "a")
    desk.make("b")
    desk.delete("a")
    desk.flush()
    time.service.hurry()
    time.service.sweep()
    for _ in range(2):
        desk.failed(FULL)
    assert count(desk) == 2
    time.to(START_TS + SWEEP_MS)
    assert count(desk) == 0


async def test_topics_of_a_start_are_planned_some_at_a_time(
    desk: Desk, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BEGIN_TOPICS", 2)
    names = [f"t{number}" for number in range(5)]
    filled(desk, *names)
    again = Expiry(desk.loop.context)
    await again.run()
    for planned in (2, 4, 5, 5):
        desk.loop.deadlines.run_due(-math.inf)
        assert len(again._planned) == planned


async def test_each_topic_with_records_that_age_is_planned_in_time_whatever_comes(
    desk: Desk, time: Time
) -> None:
    dice, names = random.Random(7), ["a", "b", "c"]
    filled(desk, *names)
    for _ in range(400):
        name = dice.choice(names)
        match dice.randrange(8):
            case 0:
                desk.put(name, ttl_ms=dice.choice([0, 700, 3000, 30_000]))
            case 1:
                desk.delete_records(name, before_seq=desk.engine.topic(name).start_seq + 2)
            case 2 | 3 | 4:
                desk.append(name, *range(dice.randrange(1, 4)))
        desk.synced()
        time.to(time.ts + dice.choice([1, 100, 900, SWEEP_MS]))
        for topic in desk.engine.topics.values():
            due = retention.next_expiry(topic, desk.engine.store)
            if due is not None:
                now, planned = time.ts // SWEEP_MS, time.service._planned[topic.id]
                assert now <= planned <= max(due // SWEEP_MS, now)
