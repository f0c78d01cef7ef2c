"""Expiry: expired records are removed, with or without requests."""

from __future__ import annotations

import math
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.shard import ShardHarness
from tests.support.shards import Shards
from tests.support.streamed import FULL
from topics.actors.link.board import ShardState
from topics.actors.link.ledger import Limit
from topics.actors.rpc.replies import failures_of
from topics.actors.shard import expiry
from topics.actors.shard.expiry import SWEEP_MS, Expiry
from topics.actors.shard.routing import forwards
from topics.engine import retention
from topics.engine.now import Now
from topics.errors import NotReady, Throttled
from topics.formats.disk.copies import Copier
from topics.formats.disk.frames import FrameKind

TTL_MS = 1000
START_TS = 10 * SWEEP_MS


class Time:
    """The clock of a shard, and its due deadlines."""

    def __init__(self, harness: ShardHarness) -> None:
        self.harness, self.ts = harness, START_TS
        self.context = harness.loop.context
        self.context.clock = self.commit_clock = lambda: Now(self.ts, self.ts)
        harness.commits.now = self.context.clock
        self.context.begin_iteration()

    @property
    def service(self) -> Expiry:
        return self.harness.loop.services.expiry

    def sweep(self) -> None:
        """Run the next sweep, as a deadline does."""
        self.context.begin_iteration()
        self.service.sweep()
        self.harness.written()

    def to(self, ts: int) -> None:
        self.ts = ts
        self.sweep()


@pytest.fixture
def time(harness: ShardHarness) -> Time:
    return Time(harness)


def filled(harness: ShardHarness, *names: str, ttl_ms: int = TTL_MS) -> None:
    for name in names:
        harness.make(name, ttl_ms=ttl_ms, durability="disk")
        harness.append(name, 1, 2)
        harness.written()
    harness.answers()


def count(harness: ShardHarness, name: str = "a") -> int:
    return harness.engine.topic(name).count


async def test_expired_records_are_removed_without_a_request_and_the_removal_is_logged(
    harness: ShardHarness, time: Time
) -> None:
    filled(harness, "a")
    time.to(START_TS + TTL_MS)
    assert count(harness) == 2
    time.to(START_TS + SWEEP_MS)
    assert count(harness) == 0
    assert [*harness.log.frames.values()][-1].kind is FrameKind.FLOOR
    assert harness.engine.topic("a").evict_floor == 3


async def test_a_shard_without_expiring_records_schedules_no_deadline(
    harness: ShardHarness, time: Time
) -> None:
    waiting = len(harness.loop.deadlines)
    filled(harness, "kept", ttl_ms=0)
    harness.make("empty", ttl_ms=TTL_MS)
    assert len(harness.loop.deadlines) == waiting
    filled(harness, "a")
    for _ in range(3):
        time.to(time.ts)
        assert len(harness.loop.deadlines) == waiting + 1
    time.to(START_TS + SWEEP_MS)
    assert len(harness.loop.deadlines) == waiting
    assert time.service._planned == time.service._buckets == {}


async def test_remaining_records_are_scheduled_again_and_a_shorter_ttl_immediately(
    harness: ShardHarness, time: Time
) -> None:
    filled(harness, "a", ttl_ms=10 * SWEEP_MS)
    time.to(START_TS + 3 * SWEEP_MS)
    harness.append("a", 3)
    harness.written()
    harness.put("a", ttl_ms=SWEEP_MS)  # The first two expire by it immediately
    harness.synced()
    time.to(START_TS + 4 * SWEEP_MS)
    assert count(harness) == 1
    time.to(START_TS + 5 * SWEEP_MS)
    assert count(harness) == 0


async def test_an_iteration_sweeps_a_bounded_number_of_topics(
    harness: ShardHarness, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SWEEP_TOPICS", 2)
    names = [f"t{number}" for number in range(5)]
    filled(harness, *names)
    time.ts += SWEEP_MS
    for left in (6, 2, 0):
        time.sweep()
        assert sum(count(harness, name) for name in names) == max(left, 0)


async def test_on_a_full_disk_expired_records_are_removed_before_their_bucket_ends(
    harness: ShardHarness, time: Time
) -> None:
    filled(harness, "a")
    filled(harness, "b", ttl_ms=2 * TTL_MS)
    time.to(START_TS + TTL_MS + 1)
    assert count(harness) == 2
    harness.loop.context.disk_space.on_disk_full()
    harness.loop.context.begin_iteration()
    harness.loop.deadlines.run_due(-math.inf)
    assert (count(harness), count(harness, "b")) == (0, 2)
    time.to(START_TS + SWEEP_MS)
    assert count(harness, "b") == 0


async def test_a_topic_whose_delete_is_undone_is_swept_as_before(
    harness: ShardHarness, time: Time
) -> None:
    filled(harness, "a")
    harness.make("b")
    harness.delete("a")
    harness.flush()
    time.service.expire_soon()
    time.service.sweep()
    for _ in range(2):
        harness.failed(FULL)
    assert count(harness) == 2
    time.to(START_TS + SWEEP_MS)
    assert count(harness) == 0


async def test_topics_of_a_start_are_scheduled_a_bounded_number_at_a_time(
    harness: ShardHarness, time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "BEGIN_TOPICS", 2)
    names = [f"t{number}" for number in range(5)]
    filled(harness, *names)
    restarted = Expiry(harness.loop.context)
    await restarted.run()
    for planned in (2, 4, 5, 5):
        harness.loop.deadlines.run_due(-math.inf)
        assert len(restarted._planned) == planned


async def test_each_topic_with_expiring_records_is_always_scheduled_in_time(
    harness: ShardHarness, time: Time
) -> None:
    rng, names = random.Random(7), ["a", "b", "c"]
    filled(harness, *names)
    for _ in range(400):
        name = rng.choice(names)
        match rng.randrange(8):
            case 0:
                harness.put(name, ttl_ms=rng.choice([0, 700, 3000, 30_000]))
            case 1:
                harness.delete_records(name, before_seq=harness.engine.topic(name).start_seq + 2)
            case 2 | 3 | 4:
                harness.append(name, *range(rng.randrange(1, 4)))
        harness.synced()
        time.to(time.ts + rng.choice([1, 100, 900, SWEEP_MS]))
        for topic in harness.engine.topics.values():
            due = retention.next_expiry(topic, harness.engine.store)
            if due is not None:
                now, planned = time.ts // SWEEP_MS, time.service._planned[topic.id]
                assert now <= planned <= max(due // SWEEP_MS, now)


# Quotas


MAX_TOPICS, MAX_BYTES = 4, 1200
LONG = "x" * 300


@asynccontextmanager
async def opened(
    path: Path, *, max_topics: int = MAX_TOPICS, late: int = 0, forwards: bool = False
) -> AsyncIterator[Shards]:
    """Three shards with caps. At the end, their usage must equal the counted usage."""
    async with trio.open_nursery() as nursery:
        shards = Shards(
            path,
            nursery,
            max_topics=max_topics,
            max_total_bytes=MAX_BYTES,
            late=late,
            forwards=forwards,
        )
        yield shards
        assert held(shards) == counted(shards)
        await shards.close()


def held(shards: Shards) -> tuple[int, int]:
    rows = [shards.board.shard(index).limits for index in range(shards.count)]
    return sum(row[Limit.TOPICS] for row in rows), sum(row[Limit.TOTAL_BYTES] for row in rows)


def counted(shards: Shards) -> tuple[int, int]:
    topics = [
        topic for loop in shards.loops.values() for topic in loop.context.engine.topics.values()
    ]
    return len(topics), sum(topic.bytes for topic in topics)


async def append(shards: Shards, topic: str, *datas: Any) -> Any:
    """Return the reply, or the failure of the only request of the message."""
    answer = await shards.append(topic, *datas)
    return answer if isinstance(answer, dict) else failures_of(answer)[0]


def name_in(shards: Shards, shard: int, start: str = "t") -> str:
    """Return a name whose topic is in this shard."""
    return next(name for n in range(100) if shards.shard_of(name := f"{start}{n}") == shard)


async def test_all_shards_share_the_caps(tmp_path: Path) -> None:
    async with opened(tmp_path) as shards:
        names = [name_in(shards, shard, start) for shard in (0, 1) for start in "ab"]
        for name in names:
            assert (await shards.put_topic(name))["created"]
        refused = await shards.put_topic(name_in(shards, 2))
        assert isinstance(refused, Throttled)
        assert refused.detail == {"limit": "max_topics", "max": MAX_TOPICS}
        assert (await append(shards, name_in(shards, 2), 1)).detail == refused.detail
        assert not (await shards.put_topic(names[0], cap_records=5))["created"]
        for name in names[:3]:
            assert (await append(shards, name, LONG))["count"] == 1
        refused = await append(shards, names[3], LONG, 1)
        assert refused.detail == {"limit": "max_total_bytes", "max": MAX_BYTES}
        await shards.delete_topic(names[0])
        assert (await append(shards, names[3], LONG, 1))["count"] == 2
        assert (await append(shards, name_in(shards, 2), 1))["created"]


async def test_the_usage_of_a_dead_shard_counts_until_its_successor_has_recovered(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path, max_topics=3) as shards:
        of_killed, of_other = (name_in(shards, shard) for shard in (1, 2))
        await shards.put_topic(of_killed)
        await shards.put_topic(name_in(shards, 1, "ephemeral"), durability="ephemeral")
        await append(shards, of_killed, LONG)
        await append(shards, name_in(shards, 1, "ephemeral"), LONG)
        before = held(shards)
        await shards.kill(1)
        assert held(shards) == before == (2, before[1])
        assert isinstance(await append(shards, of_other, LONG, LONG), Throttled)
        assert (await shards.put_topic(of_other))["created"]
        assert isinstance(await shards.put_topic(f"{of_other}-2"), Throttled)
        shards.start(1)
        assert held(shards)[1] < before[1]
        assert held(shards) == counted(shards)
        assert (await append(shards, of_other, LONG, LONG))["count"] == 2


async def test_no_topic_is_created_before_all_shards_have_reported_their_usage(
    tmp_path: Path,
) -> None:
    old, later = "a", "b"
    async with opened(tmp_path) as shards:
        old, later = name_in(shards, 0), name_in(shards, 2)
        await append(shards, old, LONG)
        await append(shards, later, LONG)
    async with opened(tmp_path, late=1) as shards:
        for refused in (
            await shards.put_topic(name_in(shards, 1)),
            await append(shards, old, 1),
            await shards.put("r", old, name_in(shards, 1)),
        ):
            assert isinstance(refused, NotReady)
            assert refused.detail["reason"] == "recovering"
        assert not (await shards.put_topic(old, cap_records=1))["created"]
        shards.start(2)
        assert (await append(shards, old, 1))["count"] == 1
        assert counted(shards)[0] == 2
    async with opened(tmp_path, late=1) as shards:
        shards.board.shard(2).state = ShardState.DAMAGED
        assert (await append(shards, old, 1))["count"] == 1
        assert held(shards) == counted(shards)


async def test_either_both_ends_of_a_router_are_created_or_none(tmp_path: Path) -> None:
    async with opened(tmp_path) as shards:
        taken = [name_in(shards, 0, start) for start in "abc"]
        for name in taken:
            await shards.put_topic(name)
        before = held(shards)
        ends = name_in(shards, 1), name_in(shards, 2)
        refused = await shards.put("r", *ends)
        assert isinstance(refused, Throttled)
        assert refused.detail == {"limit": "max_topics", "max": MAX_TOPICS}
        assert held(shards) == before
        assert counted(shards)[0] == 3
        assert (await shards.put("r", taken[0], ends[0]))["created"]
        assert counted(shards)[0] == 4
        assert (await shards.put("s", taken[1], taken[2]))["created"], "no new topic is needed"


async def test_a_slot_reserved_for_an_end_is_not_available_to_others(tmp_path: Path) -> None:
    async with opened(tmp_path, max_topics=2) as shards:
        source, dest = name_in(shards, 1), name_in(shards, 2)
        seen: list[Any] = []

        def on_message(own: int, other: int, subject: str) -> bool:
            if subject == "rpc/router.endpoint" and held(shards)[0] == 2:
                seen.append(shards.loops[2].context.engine.table.topic_cap.available)  # type: ignore[union-attr]
            return True

        shards.on_message = on_message
        shards.caller = 1
        assert (await shards.put("r", source, dest))["created"]
        assert seen
        assert set(seen) == {0}
        assert held(shards) == (2, 0)


async def test_a_created_end_reserves_no_slot_besides_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path, max_topics=9) as shards:
        counts: list[int] = []

        def on_message(own: int, other: int, subject: str) -> bool:
            if subject == "rpc/router.endpoint":
                counts.append(held(shards)[0])
            return True

        shards.on_message = on_message
        shards.caller = 1
        assert (await shards.put("r", name_in(shards, 1), name_in(shards, 2)))["created"]
        assert max(counts) == 3, "two topics, and the end whose reply is in flight"


async def test_expired_records_are_removed_when_bytes_are_scarce(tmp_path: Path) -> None:
    async with opened(tmp_path) as shards:
        names = [name_in(shards, 1, start) for start in "abc"]
        for name in names:
            await shards.put_topic(name, ttl_ms=60_000)
            await append(shards, name, LONG)
        loop = shards.loops[1]
        quotas, clock = loop.services.quotas, loop.context.clock
        loop.context.clock = lambda: Now(*(at + 60_001 for at in clock()))

        def sweep() -> None:
            loop.context.begin_iteration()
            quotas.sweep()
            loop.deadlines.run_due(-math.inf)
            loop.context.end_iteration()

        sweep()
        assert 900 < held(shards)[1] < 1050, "there is enough capacity"
        assert (await append(shards, name_in(shards, 2), "x" * 60))["created"]
        assert held(shards)[1] > 1050
        sweep()
        assert held(shards)[1] < 300


async def test_a_router_waits_if_another_shard_took_the_capacity_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copies fitted when the capacity was checked, but not when they were appended."""
    tries, tried_again = 0, trio.Event()

    def fits(_table: object, _topic: object, copier: Copier, _ts: int) -> int:
        nonlocal tries
        tries += 1
        if tries > 1:  # The first attempt was rejected
            tried_again.set()
        return copier.count

    monkeypatch.setattr(forwards, "count_fitting", fits)
    async with opened(tmp_path, forwards=True) as shards:
        source, dest, other = name_in(shards, 1), name_in(shards, 2), name_in(shards, 0)
        await shards.put("r", source, dest)

        def copied() -> int:
            return shards.loops[2].context.engine.topic(dest).head_seq

        await append(shards, other, LONG, LONG)
        await append(shards, source, LONG)
        with trio.fail_after(10):
            await tried_again.wait()
        assert not copied()
        assert isinstance(await append(shards, source, LONG), Throttled)
        await shards.delete_topic(other)
        with trio.fail_after(10):
            while True:
                if copied():
                    break
                await trio.sleep(0.01)
