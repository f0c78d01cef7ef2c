"""Tests of pushes: the routers that are sent to each shard, and the order of the messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from tests.engine.routing.test_graph import router
from tests.support.shard import ShardHarness
from topics.actors.shard.peers import PEER_UNAVAILABLE
from topics.actors.shard.routing import pushes
from topics.actors.shard.routing.pushes import Pushes, row_of
from topics.engine.routing.graph import RouterGraph
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.api.diff_body import TagMatch
from topics.formats.wire.calls import RouterRow, RouterSyncParams, RouterSyncResult

AWAY = NotReady("away", reason=PEER_UNAVAILABLE)


class FakePeers:
    """Peers whose replies the test chooses. "a" and "b" are on shard 0, other topics on shard 1."""

    def __init__(self) -> None:
        self.there = {0, 1}
        self.requests: list[tuple[int, RouterSyncParams, Callable[[Any], None]]] = []

    def shard_of(self, topic: str) -> int:
        return 0 if topic in "ab" else 1

    def is_connected(self, shard: int) -> bool:
        return shard in self.there

    def call(
        self, shard: int, _call: object, params: RouterSyncParams, _body: bytes, then: Any
    ) -> None:
        self.requests.append((shard, params, then))

    def answer(self, answer: TopicsError | None = None, *, orphans: tuple[int, ...] = ()) -> None:
        """Reply to the oldest message."""
        _, _, then = self.requests.pop(0)
        then(answer or FakeReply(RouterSyncResult(orphans, [])))

    def received(self) -> list[tuple[int, list[int], list[int], bool]]:
        """Return shard, ids, removed ids and `is_all` of each message without a reply."""
        return [
            (shard, [row[0] for row in params.routers], [*params.removed], params.is_all)
            for shard, params, _ in self.requests
        ]


class FakeReply:
    def __init__(self, result: RouterSyncResult) -> None:
        self.result = result

    def release(self) -> None:
        """Do nothing, because the reply uses no shared memory."""


class PushesHarness:
    def __init__(self, harness: ShardHarness) -> None:
        self.peers, self.orphans = FakePeers(), list[int]()
        harness.loop.context.peers = cast("Any", self.peers)
        self.graph: RouterGraph = harness.engine.routers
        self.pushes = Pushes(harness.loop.context, self.orphans.extend)
        self.graph.put(router(1, "ab"))
        self.graph.put(router(2, "bc"))
        self.graph.put(router(3, "cd"))


@pytest.fixture
def pushes_harness(harness: ShardHarness) -> PushesHarness:
    return PushesHarness(harness)


async def test_a_shard_receives_all_routers_with_an_end_on_it(
    pushes_harness: PushesHarness,
) -> None:
    pushes_harness.pushes.push_all(0)
    pushes_harness.pushes.push_all(1)
    assert pushes_harness.peers.received() == [(0, [1, 2], [], True), (1, [2, 3], [], True)]


async def test_a_change_is_sent_to_both_ends_in_one_message_each(
    pushes_harness: PushesHarness, nursery: trio.Nursery
) -> None:
    by_id = pushes_harness.graph.by_id
    results: list[Any] = []

    async def push() -> None:
        results.append(await pushes_harness.pushes.push_each([by_id[2]], [by_id[1]]))

    nursery.start_soon(push)
    await trio.testing.wait_all_tasks_blocked()
    assert pushes_harness.peers.received() == [(0, [2], [1], False), (1, [2], [], False)]
    pushes_harness.peers.answer()
    pushes_harness.peers.answer(AWAY)
    await trio.testing.wait_all_tasks_blocked()
    assert results[0][0].result == RouterSyncResult((), [])
    with pytest.raises(NotReady):
        _ = results[0][1].result


async def test_a_shard_is_up_to_date_after_it_accepts_the_list_and_all_later_changes(
    pushes_harness: PushesHarness,
) -> None:
    knows = []
    pushes_harness.pushes.push_all(0)
    knows.append(pushes_harness.pushes.is_up_to_date(0))
    pushes_harness.peers.answer()
    knows.append(pushes_harness.pushes.is_up_to_date(0))
    pushes_harness.pushes.push(0, [], [pushes_harness.graph.by_id[1]])
    knows.append(pushes_harness.pushes.is_up_to_date(0))
    pushes_harness.peers.answer()
    knows.append(pushes_harness.pushes.is_up_to_date(0))
    pushes_harness.peers.there = {1}
    knows.append(pushes_harness.pushes.is_up_to_date(0))
    assert knows == [False, True, False, True, False]


async def test_a_shard_that_refused_a_change_is_sent_the_complete_list(
    pushes_harness: PushesHarness, autojump_clock: MockClock
) -> None:
    pushes_harness.pushes.push_all(0)
    pushes_harness.peers.answer()
    for _ in range(2):
        pushes_harness.pushes.push(0, [pushes_harness.graph.by_id[1]], [])
    for _ in range(2):
        pushes_harness.peers.answer(Internal("a bug"))
    assert not pushes_harness.pushes.is_up_to_date(0)
    pushes_harness.graph.remove(2)
    await trio.sleep(pushes.RETRY_S + 0.1)
    assert pushes_harness.peers.received() == [(0, [1], [], True)], (
        "one message with the current graph"
    )
    pushes_harness.peers.answer()
    assert pushes_harness.pushes.is_up_to_date(0)


async def test_an_unreachable_shard_is_sent_nothing(
    pushes_harness: PushesHarness, autojump_clock: MockClock
) -> None:
    pushes_harness.pushes.push_all(0)
    pushes_harness.peers.answer(AWAY)
    pushes_harness.pushes.push_all(1)
    pushes_harness.peers.answer(Internal("a bug"))
    pushes_harness.peers.there = set()
    await trio.sleep(10)
    assert pushes_harness.peers.received() == []


async def test_a_push_times_out_if_the_shard_does_not_reply(
    pushes_harness: PushesHarness, autojump_clock: MockClock
) -> None:
    began = trio.current_time()
    found = await pushes_harness.pushes.push_each([pushes_harness.graph.by_id[1]], [])
    assert trio.current_time() - began == pushes.REPLY_MAX_S
    with pytest.raises(NotReady, match="does not respond"):
        _ = found[0].result


def test_a_row_contains_all_fields_that_the_shards_need() -> None:
    one = router(3, "ab", filter=TagMatch("Glob", "x"), guarantee="exactly_once")
    one = replace(one, base_total=5)
    assert row_of(one, is_cyclic=False) == RouterRow(
        id=3,
        name="a->b",
        source="a",
        source_id=97,
        epoch=7,
        dest="b",
        dest_id=98,
        start_seq=0,
        preserve_node=True,
        preserve_tag=True,
        filter=("Glob", "x"),
        exactly_once=True,
        is_cyclic=False,
        base_total=5,
    )


async def test_reported_orphans_are_passed_on(pushes_harness: PushesHarness) -> None:
    pushes_harness.pushes.push_all(0)
    pushes_harness.peers.answer(orphans=(2, 1))
    assert pushes_harness.orphans == [2, 1]
