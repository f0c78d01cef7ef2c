"""Tests of the registry: the routers and ends of a shard, and its calls from the owner of the
graph.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import trio

from tests.actors.shard.test_metrics import as_structs
from tests.support.quota import Caps
from tests.support.routing import RoutedShards
from tests.support.shard import ShardHarness
from topics.actors.shard.routing import registry as registry_module
from topics.actors.shard.routing.registry import RouterRegistry
from topics.actors.shard.routing.router_worker import RouterWorker, WorkerState
from topics.engine.routing.derivations import Derivation, set_derivation
from topics.formats.disk.frames import FrameKind
from topics.formats.wire.calls import (
    FORWARD,
    METRICS_READ,
    ROUTER_ENDPOINT,
    ROUTER_STATS,
    ROUTER_SYNC,
    EndpointParams,
    EndpointResult,
    MetricsParams,
    RouterMetrics,
    RouterRow,
    RouterStats,
    RouterStatsParams,
    RouterSyncParams,
    RouterSyncResult,
)
from topics.formats.wire.envelope import Failure, Success, decode


class RegistryHarness:
    """The registry of the second shard, which owns "c", "g" and "l". The messages of the real owner
    have been received before.
    """

    def __init__(self, shards: RoutedShards) -> None:
        self.shards = shards
        services = shards.loops[1].services
        self.registry: RouterRegistry = services.registry
        self.workers = services.workers

    def row(self, router: int, source: str, dest: str, **fields: Any) -> RouterRow:
        ids = [
            topics[name].id if name in topics else 99
            for name in (source, dest)
            for topics in [self.shards.loops[self.shards.shard_of(name)].context.engine.topics]
        ]
        row = RouterRow(
            id=router,
            name=f"{source}>{dest}",
            source=source,
            source_id=ids[0],
            epoch=1,
            dest=dest,
            dest_id=ids[1],
            start_seq=0,
            preserve_node=True,
            preserve_tag=True,
            filter=None,
            exactly_once=False,
            is_cyclic=False,
        )
        return row._replace(**fields)

    async def sync(
        self, *rows: RouterRow, removed: tuple[int, ...] = (), is_all: bool = False
    ) -> tuple[list[int], dict[int, int]]:
        """Send rows to the registry, and new routers also to the shards of their dests. Return
        orphans and totals.
        """
        for row in rows:
            shard = self.shards.shard_of(row.dest)
            if shard != 1:
                sync = RouterSyncParams((row,), (), False)
                await self.shards.call(ROUTER_SYNC, sync, shard=shard)
        params = RouterSyncParams(rows, removed, is_all)
        found = await self.shards.call(ROUTER_SYNC, params, shard=1)
        assert isinstance(found, RouterSyncResult), found
        return sorted(found.orphans), {each[0]: each[1] for each in found.totals}

    async def stats(self, *routers: int) -> list[tuple[int, ...]]:
        found = await self.shards.call(ROUTER_STATS, RouterStatsParams(routers), shard=1)
        assert isinstance(found, RouterStats), found
        return [tuple(each) for each in found.stats]

    def is_in_flight(self, router: int) -> bool:
        return self.worker(router).state is WorkerState.IN_FLIGHT

    def is_known(self, router: int) -> bool:
        return self.worker(router).is_known

    def worker(self, router: int) -> RouterWorker:
        found = self.workers.worker(router)
        assert found is not None
        return found[1]


@pytest.fixture
async def registry_harness(routed: RoutedShards) -> RegistryHarness:
    found = RegistryHarness(routed)
    for name in "acgl":
        await routed.make(name)
    await routed.until(lambda: found.registry.has_owner_list)
    return found


async def test_routers_are_registered_by_their_local_ends(
    registry_harness: RegistryHarness,
) -> None:
    assert await registry_harness.sync(
        registry_harness.row(1, "c", "g"), registry_harness.row(2, "a", "g")
    ) == ([], {})
    assert {dest: sorted(rows) for dest, rows in registry_harness.registry.by_dest.items()} == {
        "g": [1, 2]
    }
    assert [*registry_harness.workers.known()] == [1], (
        "the source of the other router is on another shard"
    )
    assert [registry_harness.registry.has_routers(name) for name in "cgl"] == [True, True, False]
    assert registry_harness.shards.loops[1].context.routers_of("c")


async def test_removed_routers_stop_and_their_totals_are_returned(
    registry_harness: RegistryHarness,
) -> None:
    await registry_harness.sync(
        registry_harness.row(1, "c", "g"),
        registry_harness.row(2, "c", "l"),
        registry_harness.row(3, "a", "g"),
    )
    await registry_harness.shards.write("c", [{"data": 1}, {"data": 2}])
    await registry_harness.shards.until(
        lambda: registry_harness.shards.datas("g") == registry_harness.shards.datas("l") == [1, 2]
    )
    assert await registry_harness.sync(removed=(1, 3, 50)) == ([], {1: 2})
    assert await registry_harness.sync(removed=(1,)) == ([], {})
    assert {dest: [*rows] for dest, rows in registry_harness.registry.by_dest.items()} == {"l": [2]}
    await registry_harness.shards.write("c", [{"data": 3}])
    await registry_harness.shards.until(lambda: registry_harness.shards.datas("l") == [1, 2, 3])
    assert registry_harness.shards.datas("g") == [1, 2]


async def test_a_total_is_returned_after_forwards_in_flight_complete(
    registry_harness: RegistryHarness, nursery: trio.Nursery
) -> None:
    shards = registry_harness.shards
    await registry_harness.sync(
        registry_harness.row(1, "c", "a"), registry_harness.row(2, "c", "g")
    )
    await shards.write("c", [{"data": 1}])
    await shards.until(lambda: shards.datas("a") == shards.datas("g") == [1])
    shards.hold_forwards(1, 0)
    await shards.write("c", [{"data": 2}])
    await shards.until(lambda: registry_harness.is_in_flight(1) and shards.datas("g") == [1, 2])
    results: list[Any] = []

    async def remove() -> None:
        results.append(await registry_harness.sync(removed=(1, 2)))

    nursery.start_soon(remove)
    await trio.sleep(0.05)
    assert (results, [*registry_harness.workers.known()]) == ([], [])
    shards.deliver_all()
    await shards.until(lambda: results)
    assert results == [([], {1: 2, 2: 2})]


async def test_a_complete_list_removes_all_other_routers_and_their_state(
    registry_harness: RegistryHarness,
) -> None:
    await registry_harness.sync(
        registry_harness.row(1, "c", "g"), registry_harness.row(2, "c", "l")
    )
    await registry_harness.shards.write("c", [{"data": 1}])
    await registry_harness.shards.until(
        lambda: registry_harness.shards.datas("g") == registry_harness.shards.datas("l") == [1]
    )
    set_derivation(registry_harness.shards.topic("l"), 9, Derivation(4, 4))
    assert await registry_harness.sync(registry_harness.row(2, "c", "l"), is_all=True) == (
        [],
        {1: 1},
    )
    assert [*registry_harness.workers.known()] == [2]
    assert [*registry_harness.registry.by_dest] == ["l"]
    assert registry_harness.shards.topic("g").derivations is None
    assert registry_harness.shards.topic("l").derivations == {2: (1, 1)}


async def test_a_restored_router_continues_at_its_previous_cursor(
    registry_harness: RegistryHarness,
) -> None:
    """A PUT with other ends removes the router from the shard. If the change cannot be logged, the
    router is restored with its old ends.
    """
    await registry_harness.sync(registry_harness.row(1, "c", "g"))
    await registry_harness.shards.write("c", [{"data": 1}])
    await registry_harness.shards.until(lambda: registry_harness.shards.datas("g") == [1])
    assert await registry_harness.sync(removed=(1,)) == ([], {1: 1})
    await registry_harness.sync(registry_harness.row(1, "c", "g"), is_all=True)
    await registry_harness.shards.write("c", [{"data": 2}])
    await registry_harness.shards.until(lambda: len(registry_harness.shards.datas("g")) > 1)
    await trio.sleep(0.02)
    assert registry_harness.shards.datas("g") == [1, 2]


async def test_routers_whose_local_end_is_missing_are_orphans(
    registry_harness: RegistryHarness,
) -> None:
    rows = [
        registry_harness.row(1, "c", "g"),
        registry_harness.row(2, "r", "a"),  # no such source
        registry_harness.row(3, "a", "z"),  # no such dest
        registry_harness.row(4, "c", "l", source_id=99),  # another topic with that name
        registry_harness.row(5, "c", "l", dest_id=99),
        registry_harness.row(6, "c", "nowhere"),  # the owning shard checks whether it exists
        registry_harness.row(7, "c", "b"),
    ]
    elsewhere = [
        row.id
        for row in rows
        if row.id in (6, 7) and registry_harness.shards.shard_of(row.dest) != 1
    ]
    found, _ = await registry_harness.sync(*rows)
    assert found == sorted({2, 3, 4, 5, 6} - set(elsewhere))
    assert sorted(registry_harness.workers.known()) == sorted([1, *elsewhere])
    assert "l" not in registry_harness.registry.by_dest


async def test_before_the_first_list_every_topic_may_have_routers(routed: RoutedShards) -> None:
    await routed.make("c")
    registry = routed.loops[1].services.registry
    await routed.until(lambda: registry.has_owner_list)
    assert not registry.has_routers("c")
    await routed.kill(1)
    routed.on_message = lambda *found: found[2] != ROUTER_SYNC.subject
    routed.start(1)
    registry = routed.loops[1].services.registry
    assert registry.has_routers("c"), "the list is not known yet"
    routed.disconnect(0, 1)
    assert not registry.has_routers("c"), "the owner is unreachable"
    routed.on_message = lambda *_: True
    routed.connect(0, 1)
    await routed.until(lambda: registry.has_owner_list)
    assert not registry.has_routers("c")


async def test_stats_wait_for_forwards_in_flight(
    registry_harness: RegistryHarness, nursery: trio.Nursery
) -> None:
    shards = registry_harness.shards
    await registry_harness.sync(
        registry_harness.row(1, "c", "a"), registry_harness.row(2, "c", "g")
    )
    await shards.until(lambda: registry_harness.is_known(1) and registry_harness.is_known(2))
    shards.hold_forwards(1, 0)
    await shards.write("c", [{"data": 1}])
    await shards.until(lambda: registry_harness.is_in_flight(1) and shards.datas("g") == [1])
    results: list[Any] = []

    async def request() -> None:
        results.append(await registry_harness.stats(1, 2))

    nursery.start_soon(request)
    await trio.sleep(0.05)
    assert results == []
    shards.deliver_all()
    await shards.until(lambda: results)
    assert [each[:3] for each in results[0]] == [(1, 1, 0), (2, 1, 0)]


async def test_stats_do_not_wait_longer_than_half_a_second(
    registry_harness: RegistryHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert registry_module.SETTLE_S == 0.5
    monkeypatch.setattr(registry_module, "SETTLE_S", 0.1)
    shards = registry_harness.shards
    await registry_harness.sync(registry_harness.row(1, "c", "a"))
    await shards.write("c", [{"data": 1}])
    await shards.until(lambda: shards.datas("a") == [1])
    shards.on_message = lambda *found: found != (0, 1, FORWARD.subject)
    await shards.write("c", [{"data": 2}])
    await shards.until(lambda: shards.datas("a") == [1, 2])
    began = trio.current_time()
    ((router, total, lag_records, _),) = await registry_harness.stats(1)
    assert (router, total, lag_records) == (1, 1, 1)
    assert trio.current_time() - began > 0.09
    shards.deliver_all()
    await shards.until(lambda: registry_harness.workers.stats(1) == (1, 2, 0, 0))


# Ends of routers: topics that exist or are created


def request(
    harness: ShardHarness, topic: str, *, create: bool = False, place_until_ms: int = 0
) -> None:
    harness.request(ROUTER_ENDPOINT, EndpointParams(topic, create, place_until_ms))


def results(harness: ShardHarness) -> list[EndpointResult | str]:
    found: list[EndpointResult | str] = []
    for frame in harness.wire.take():
        answer = decode(frame.payload)
        if isinstance(answer, Failure):
            found.append(answer.data["code"])
        else:
            assert isinstance(answer, Success)
            found.append(ROUTER_ENDPOINT.result._make(answer.result))
    return found


def expected(harness: ShardHarness, name: str, head_seq: int) -> EndpointResult:
    topic = harness.engine.topic(name)
    return EndpointResult(topic.id, topic.epoch, head_seq)


async def test_an_existing_topic_is_returned_immediately_with_its_committed_head(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1, 2)
    harness.written()
    harness.answers()
    harness.append("a", 3)
    request(harness, "a", create=True)
    request(harness, "a")
    assert results(harness) == [expected(harness, "a", 2)] * 2


async def test_a_held_topic_is_returned_immediately(harness: ShardHarness) -> None:
    harness.make("a")
    harness.loop.context.held.hold("a")
    request(harness, "a", create=True)
    assert results(harness) == [expected(harness, "a", 0)]


async def test_a_created_topic_is_returned_after_its_sync(harness: ShardHarness) -> None:
    request(harness, "a", create=True)
    request(harness, "a")
    assert [frame.kind for frame in harness.log.frames.values()] == [FrameKind.TOPIC]
    harness.written()
    assert results(harness) == []
    harness.synced()
    assert results(harness) == [expected(harness, "a", 0)] * 2


async def test_a_topic_that_could_not_be_created_does_not_exist(harness: ShardHarness) -> None:
    request(harness, "a", create=True)
    request(harness, "a")
    harness.failed(OSError(errno.EIO, os.strerror(errno.EIO)))
    assert results(harness) == ["not_ready"] * 2
    request(harness, "a", create=True)
    request(harness, "a")
    assert results(harness) == ["not_ready", EndpointResult(0, 0, 0)]


async def test_a_reserved_slot_can_be_used_until_it_expires(harness: ShardHarness) -> None:
    caps = Caps(harness.engine, max_topics=1)
    caps.topics.others = 1  # the slot that is reserved for this end
    now_ms = harness.loop.context.now.ms
    request(harness, "late", create=True, place_until_ms=now_ms - 1)
    request(harness, "a", create=True, place_until_ms=now_ms + 60_000)
    harness.synced()
    assert results(harness) == ["throttled", expected(harness, "a", 0)]
    assert caps.topics.own == 1


# Metrics of routers


async def routers(
    routed: RoutedShards, prefixes: list[str] | None = None, routers_max: int = 100
) -> tuple[list[RouterMetrics], bool]:
    """Return the routers whose source is on the first shard."""
    params = MetricsParams(prefixes, 0, routers_max)
    found = as_structs(await routed.call(METRICS_READ, params))
    assert found.topics == []
    return [*found.routers], found.routers_truncated


async def test_a_router_is_omitted_until_its_dest_has_reported_its_cursor(
    routed: RoutedShards,
) -> None:
    routed.on_message = lambda *found: found[2] != FORWARD.subject
    await routed.route("a>b")
    assert await routers(routed) == ([], True)
    routed.deliver_all()
    await routed.settle()
    assert await routers(routed) == ([RouterMetrics("a>b", 0, 0, 0)], False)
