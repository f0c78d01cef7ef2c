"""Payloads: records that no log held are written once, for all who need them."""

from __future__ import annotations

import pytest

from tests.support.routing import RoutedShards
from topics.actors.shard.room import Room
from topics.actors.shard.routing.batches import Missing, batch_of
from topics.actors.shard.routing.payloads import KEPT_MAX, BatchKey, Payloads
from topics.engine.routing.hops import Hops
from topics.engine.routing.picking import pick
from topics.formats.disk.frames import FrameKind


class Bench:
    """A source in memory with five records."""

    def __init__(self, routed: RoutedShards) -> None:
        self.context = routed.loops[routed.shard_of("m")].context
        self.topic = self.context.engine.topic("m")
        self.payloads = Payloads(self.context)
        self.key: BatchKey = (self.topic.id, 0, None)
        self.told: list[bool] = []

    def missing(self) -> Missing:
        picked = pick(
            self.topic,
            self.context.store,
            0,
            None,
            Hops(),
            max_records=100,
            max_bytes=10_000,
            max_runs=100,
            scan_records=100,
        )
        found = batch_of(picked, self.context.store, self.context.wal, by_payload=False)
        assert isinstance(found, Missing)
        return found

    def log(self, key: BatchKey | None = None) -> None:
        self.context.begin_turn()
        self.payloads.log(self.topic, self.missing(), key or self.key, self.told.append)
        self.context.end_turn()


@pytest.fixture
async def bench(routed: RoutedShards) -> Bench:
    await routed.make("m", durability="ephemeral")
    for number in range(5):
        await routed.append("m", number)
    return Bench(routed)


async def test_the_frame_is_found_by_all_who_stand_within_its_records(
    bench: Bench, routed: RoutedShards
) -> None:
    assert bench.payloads.find(bench.key) is None
    bench.log()
    await routed.until(lambda: bench.told == [True])
    whole = bench.payloads.find(bench.key)
    assert whole is not None
    assert (whole.to_seq, sum(row.stop - row.start for row in whole.rows)) == (5, 5)
    assert bench.context.wal.frame_at(whole.last_lsn)[0].kind == FrameKind.PAYLOAD
    rest = bench.payloads.find((bench.topic.id, 3, None))
    assert rest is not None
    assert [(row.start, row.stop) for row in rest.rows] == [(3, 4), (4, 5)]
    assert rest.seqs == [4, 5]
    assert bench.payloads.find((bench.topic.id, 5, None)) is None
    assert bench.payloads.find((bench.topic.id + 1, 0, None)) is None


async def test_who_asks_meanwhile_waits_for_the_same_frame(
    bench: Bench, routed: RoutedShards
) -> None:
    frames = bench.context.wal.counters.frames
    bench.context.begin_turn()
    for _ in range(3):
        bench.payloads.log(bench.topic, bench.missing(), bench.key, bench.told.append)
    bench.context.end_turn()
    await routed.until(lambda: bench.told == [True, True, True])
    assert bench.context.wal.counters.frames == frames + 1


async def test_what_may_hold_records_that_have_gone_is_forgotten(
    bench: Bench, routed: RoutedShards
) -> None:
    bench.log()
    await routed.until(lambda: bench.told == [True])
    bench.payloads.forget(bench.topic.id)
    assert bench.payloads.find(bench.key) is None
    bench.context.begin_turn()
    bench.payloads.log(bench.topic, bench.missing(), bench.key, bench.told.append)
    bench.payloads.forget(bench.topic.id)  # while it is being written
    bench.context.end_turn()
    await routed.until(lambda: len(bench.told) == 2)
    assert bench.payloads.find(bench.key) is None, "they look again"


async def test_without_room_nothing_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Room, "refusal", lambda _self, *, grows: OSError("full") if grows else None)
    frames = bench.context.wal.counters.frames
    bench.log()
    assert bench.told == [False]
    assert bench.context.wal.counters.frames == frames


async def test_the_newest_are_kept(bench: Bench, routed: RoutedShards) -> None:
    for number in range(KEPT_MAX + 1):
        bench.log((number + 100, 0, None))
    await routed.until(lambda: len(bench.told) == KEPT_MAX + 1)
    assert bench.payloads.find((100, 0, None)) is None
    assert bench.payloads.find((101, 0, None)) is not None
