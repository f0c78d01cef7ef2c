"""Forwards: copies and cursor are appended together, once, or not at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import trio

from tests.support.routing import RoutedShards
from topics.actors.shard.routing.batches import Missing
from topics.engine.changes.append import Append
from topics.engine.locators import lsn_of
from topics.errors import TopicsError
from topics.formats.disk.copies import CopyRow, encode_rows, payload_of
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.wire.calls import (
    FORWARD,
    ForwardParams,
    ForwardResult,
    ForwardStatus,
    ForwardTarget,
)
from topics.storage.linked_logs import LinkedLogs
from topics.storage.wal.file import NoRoom

BUSY, BEHIND, DONE, FULL = (
    ForwardStatus.BUSY,
    ForwardStatus.BEHIND,
    ForwardStatus.DONE,
    ForwardStatus.FULL,
)
ROUTER = 77  # an id that no graph knows


class Bench:
    """Records of "a" are forwarded by hand, into topics of the third shard."""

    def __init__(self, shards: RoutedShards) -> None:
        self.shards = shards
        self.loop = shards.loops[2]

    async def make(self, dest: str, **config: Any) -> None:
        await self.shards.make(dest, **config)

    def row(self, first: int, start: int = 0, stop: int | None = None) -> CopyRow:
        """Records of the append whose first seq is ``first``."""
        index = self.shards.topic("a").index
        _, count, locator, _ = index.entry(index.find(first))
        return CopyRow(lsn_of(locator), 0, 0, 0, 0, start, count if stop is None else stop)

    def target(self, dest: str = "b", router: int = ROUTER, **fields: Any) -> ForwardTarget:
        topic = self.loop.context.engine.topics.get(dest)
        known = ForwardTarget(router, dest, topic.id if topic else 5, 0, None)
        return known._replace(**fields)

    def params(
        self,
        rows: Iterable[tuple[int, CopyRow]] = (),
        *targets: ForwardTarget,
        **fields: Any,
    ) -> ForwardParams:
        """``rows``: each with the seq of its first record."""
        seqs = [seq for seq, _ in rows]
        source = self.shards.topic("a")
        return ForwardParams(
            source="a",
            source_id=source.id,
            epoch=source.epoch,
            from_seq=0,
            to_seq=fields.pop("to_seq", source.head_seq),
            trimmed=0,
            hop=1,
            rows=encode_rows(row for _, row in rows),
            seqs=seqs,
            stamps=[],
            targets=targets or [self.target()],
        )._replace(**fields)

    async def send(self, params: ForwardParams, body: bytes = b"") -> list[tuple[int, int, int]]:
        self.loop.services.registry.is_told = False  # it would know none of the routers
        found = await self.shards.call(FORWARD, params, body, shard=2)
        assert isinstance(found, ForwardResult), found
        return [(each[0], each[1], each[2]) for each in found.outcomes]

    def routers(self) -> list[Frame]:
        """ROUTER frames that were logged."""
        return self.shards.frames(FrameKind.ROUTER)


@pytest.fixture
async def bench(routed: RoutedShards) -> Bench:
    """Seqs 1 to 3 are of one append, 4 and 5 of another."""
    found = Bench(routed)
    await found.make("b")
    await routed.append("a", 1, 2, 3)
    await routed.append("a", 4, 5)
    found.loop.services.registry.is_told = False  # it would know none of the routers
    return found


async def test_copies_and_cursor_are_one_frame(bench: Bench) -> None:
    params = bench.params([(1, bench.row(1)), (4, bench.row(4))])
    assert await bench.send(params) == [(DONE, 5, 5)]
    assert bench.shards.datas("b") == [1, 2, 3, 4, 5]
    assert bench.shards.topic("b").derivations == {ROUTER: (5, 5)}
    assert len(bench.routers()) == 1
    await bench.shards.kill(2)
    bench.shards.start(2)
    assert bench.shards.datas("b") == [1, 2, 3, 4, 5]


async def test_a_forward_that_begins_elsewhere_is_refused(bench: Bench) -> None:
    first = bench.params([(1, bench.row(1))], to_seq=3)
    assert await bench.send(first) == [(DONE, 3, 3)]
    assert await bench.send(first) == [(BEHIND, 3, 3)], "it came twice"
    ahead = bench.params([(5, bench.row(4, 1))], from_seq=4)
    assert await bench.send(ahead) == [(BEHIND, 3, 3)]
    assert bench.shards.datas("b") == [1, 2, 3]
    new = bench.target(router=78, start_seq=4)
    assert await bench.send(bench.params([(1, bench.row(1))], new)) == [(BEHIND, 4, 0)]


async def test_a_router_has_one_forward_under_way(bench: Bench, nursery: trio.Nursery) -> None:
    params = bench.params([(1, bench.row(1))], to_seq=3)
    bench.loop.context.wal.linked.link([(0, bench.row(1).lsn)])
    found: list[list[tuple[int, int, int]]] = []

    async def send() -> None:
        found.append(await bench.send(params))

    submit = bench.loop.commits.flush
    bench.loop.commits.flush = lambda **_: False  # type: ignore[method-assign]
    nursery.start_soon(send)
    await bench.shards.until(lambda: len(bench.loop.commits))
    assert await bench.send(params) == [(BUSY, 0, 0)]
    bench.loop.commits.flush = submit  # type: ignore[method-assign]
    bench.loop.turn()
    await bench.shards.until(lambda: found)
    assert found == [[(DONE, 3, 3)]]
    assert bench.shards.datas("b") == [1, 2, 3]


async def test_a_held_dest_takes_nothing(bench: Bench) -> None:
    params = bench.params([(1, bench.row(1))], to_seq=3)
    bench.loop.context.held.take("b")
    assert await bench.send(params) == [(BUSY, 0, 0)]
    bench.loop.context.give_back("b")
    assert bench.shards.datas("b") == []
    assert await bench.send(params) == [(DONE, 3, 3)]


async def test_a_dest_that_is_gone_or_another_one(bench: Bench) -> None:
    other, none = bench.target(dest_id=12345, start_seq=0), bench.target("k")
    params = bench.params([(1, bench.row(1))], other, none)
    assert await bench.send(params) == [(ForwardStatus.NO_DEST, 0, 0)] * 2
    assert bench.shards.datas("b") == []


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
async def test_a_payload_that_is_gone(bench: Bench, durability: str) -> None:
    await bench.make("f", durability=durability)
    target = bench.target("f")
    assert (await bench.send(bench.params([(1, bench.row(1))], target, to_seq=3)))[0][0] == DONE
    gone = bench.row(4)._replace(lsn=1 << 40)
    params = bench.params([(4, gone)], target, from_seq=3)
    assert await bench.send(params) == [(ForwardStatus.NO_PAYLOAD, 3, 3)]
    assert bench.shards.datas("f") == [1, 2, 3]


async def test_records_in_the_message_are_for_dests_without_a_log(bench: Bench) -> None:
    await bench.make("f", durability="ephemeral")
    context, row = bench.shards.loops[0].context, bench.row(1)
    view = context.wal.linked.payload(0, row.lsn)
    missing = Missing(payload_of([(view, 0, 3)], 1, 5), 1, 5, [(1, 3)], 3, 0).in_message()
    targets = bench.target("b"), bench.target("f")
    params = bench.params([(1, missing.rows[0])], *targets, to_seq=3)
    outcomes = [(ForwardStatus.NOT_LOGGED, 0, 0), (DONE, 3, 3)]
    assert await bench.send(params, missing.body) == outcomes
    assert (bench.shards.datas("b"), bench.shards.datas("f")) == ([], [1, 2, 3])


@pytest.mark.parametrize(
    ("cap", "cursor", "taken"), [(2, 2, [1, 2]), (3, 3, [1, 2, 3]), (4, 5, [1, 2, 3, 5])]
)
@pytest.mark.parametrize("stamp", [None, "r"])
async def test_a_full_dest_takes_what_it_has_room_for(
    bench: Bench, cap: int, cursor: int, taken: list[int], stamp: str | None
) -> None:
    """Seq 4 is not wanted."""
    await bench.make("f", cap_records=cap, discard="reject")
    rows = [(1, bench.row(1)), (5, bench.row(4, 1))]
    target = bench.target("f", stamp=stamp)
    status = DONE if cap == 4 else FULL
    assert await bench.send(bench.params(rows, target)) == [(status, cursor, cap)]
    assert bench.shards.datas("f") == taken
    if cap < 4:
        again = bench.params(rows[1:], target, from_seq=cursor)
        assert await bench.send(again) == [(FULL, cursor, cap)]
        assert bench.shards.datas("f") == taken


async def test_a_probe_tells_where_the_router_stands(bench: Bench) -> None:
    await bench.send(bench.params([(1, bench.row(1))], to_seq=3))
    assert await bench.send(bench.params(from_seq=3, to_seq=3)) == [(DONE, 3, 3)]
    assert await bench.send(bench.params(from_seq=0, to_seq=0)) == [(BEHIND, 3, 3)]
    assert len(bench.routers()) == 1


async def test_a_cursor_moves_on_over_records_that_nobody_wants(bench: Bench) -> None:
    assert await bench.send(bench.params(to_seq=4)) == [(DONE, 4, 0)]
    assert bench.shards.topic("b").head_seq == 0
    await bench.shards.kill(2)
    bench.shards.start(2)
    assert bench.shards.topic("b").derivations in ({ROUTER: (4, 0)}, None)


async def test_what_the_source_lost_burns_seqs(bench: Bench) -> None:
    assert await bench.send(bench.params(to_seq=3, trimmed=2)) == [(DONE, 3, 0)]
    params = bench.params([(4, bench.row(4))], from_seq=3)
    assert await bench.send(params) == [(DONE, 5, 2)]
    records, (tombstone,) = bench.shards.pages("b")
    assert [record["$seq"] for record in records] == [3, 4]
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (1, 2, "source_trim")


async def test_payloads_are_linked_before_the_frame_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[object] = []
    link = LinkedLogs.link

    def linked(self: LinkedLogs, wanted: Any) -> None:
        steps.append(len(bench.routers()))
        link(self, wanted)
        steps.append([path.name[:3] for path in self.paths()])

    monkeypatch.setattr(LinkedLogs, "link", linked)
    await bench.send(bench.params([(1, bench.row(1))], to_seq=3))
    assert steps == [0, ["00-"]]
    assert len(bench.routers()) == 1
    await bench.send(bench.params([(4, bench.row(4))], from_seq=3))
    assert len(steps) == 2, "the file is linked"


async def test_a_dest_without_a_log_makes_no_links(bench: Bench) -> None:
    await bench.make("f", durability="ephemeral")
    await bench.send(bench.params([(1, bench.row(1))], bench.target("f"), to_seq=3))
    assert bench.shards.datas("f") == [1, 2, 3]
    assert bench.loop.context.wal.linked.paths() == []


@pytest.mark.parametrize("is_trim", [False, True])
async def test_a_log_that_fails_leaves_cursor_and_seqs_as_they_were(
    bench: Bench, nursery: trio.Nursery, is_trim: bool
) -> None:
    bench.loop.context.wal.linked.link([(0, bench.row(1).lsn)])
    rows = [] if is_trim else [(1, bench.row(1))]
    params = bench.params(rows, to_seq=3, trimmed=3 * is_trim)
    commits, topic, found = bench.loop.commits, bench.shards.topic("b"), list[object]()
    await commits.wait_drained()
    flush, lsn = commits.flush, bench.loop.context.wal.next_lsn
    commits.flush = lambda **_: False  # type: ignore[method-assign]

    async def send() -> None:
        found.append(await bench.send(params))

    nursery.start_soon(send)
    await bench.shards.until(lambda: len(commits))
    assert topic.next_seq == 4
    commits._lose(NoRoom())
    bench.loop.context.wal.resume(lsn)
    commits.flush = flush  # type: ignore[method-assign]
    bench.loop.turn()
    await bench.shards.until(lambda: found)
    assert found == [[(BUSY, 0, 0)]]
    assert (topic.next_seq, topic.head_seq, topic.derivations) == (1, 0, None)
    assert await bench.send(params) == [(DONE, 3, 3 - 3 * is_trim)]
    assert topic.head_seq == 3


async def test_a_shard_that_has_no_room_refuses_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = bench.loop.context.room
    with monkeypatch.context() as patch:
        patch.setattr(room, "refusal", lambda **_: NoRoom())
        answer = await bench.shards.call(FORWARD, bench.params(to_seq=3), shard=2)
        assert isinstance(answer, TopicsError)
    assert await bench.send(bench.params(to_seq=3)) == [(DONE, 3, 0)]


async def test_outcomes_are_in_the_order_of_the_routers(bench: Bench) -> None:
    await bench.make("f", cap_records=2, discard="reject")
    await bench.make("k", durability="ephemeral")
    targets = (
        bench.target("f"),
        bench.target("b", router=1, start_seq=2),
        bench.target("k", router=4),
        bench.target("q"),
        bench.target("b", router=2),
        bench.target("b", router=3, stamp="s"),
    )
    params = bench.params([(1, bench.row(1)), (4, bench.row(4))], *targets)
    assert await bench.send(params) == [
        (FULL, 2, 2),
        (BEHIND, 2, 0),
        (DONE, 5, 5),
        (ForwardStatus.NO_DEST, 0, 0),
        (DONE, 5, 5),
        (DONE, 5, 5),
    ]
    records, _ = bench.shards.pages("b")
    assert [record["data"] for record in records] == [1, 2, 3, 4, 5] * 2
    stamps = [record["meta"]["_topics_router"] for record in records[5:]]
    assert [stamp["source_seq"] for stamp in stamps] == [1, 2, 3, 4, 5]


async def test_an_unexpected_error_is_answered_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.make("f")
    engine = bench.loop.context.engine
    forward = engine.forward

    def fail(topic: Any, *arguments: Any) -> Append:
        if topic.name == "f":
            raise RuntimeError("a bug")
        return forward(topic, *arguments)

    rows = [(1, bench.row(1))]
    with monkeypatch.context() as patch:
        patch.setattr(engine, "forward", fail)
        targets = bench.target("b"), bench.target("f", router=1)
        params = bench.params(rows, *targets, to_seq=3)
        answer = await bench.shards.call(FORWARD, params, shard=2)
        assert isinstance(answer, TopicsError)
    await bench.shards.until(lambda: bench.shards.datas("b") == [1, 2, 3])
    assert await bench.send(params) == [(BEHIND, 3, 3), (DONE, 3, 3)]


async def test_stamps_are_carried_on_and_replaced(routed: RoutedShards) -> None:
    await routed.route("a>b", "c>f", "c>d", guarantee="exactly_once")
    await routed.route("b>c")
    await routed.write("a", [{"data": 0}, {"data": 1, "meta": {"own": [1.50]}}])
    await routed.settle()
    await routed.until(lambda: routed.datas("d") == routed.datas("f") == [0, 1])
    by_topic = {name: [each["meta"] for each in routed.pages(name)[0]] for name in "bcdf"}
    source = routed.topic("a")
    first, second = by_topic["b"]
    assert [*second] == ["own", "_topics_router"]
    assert second["own"] == [1.5]
    stamp = second["_topics_router"]
    assert stamp.pop("key")
    assert stamp == {
        "router": "a>b",
        "source": "a",
        "source_topic_id": source.id,
        "source_epoch": source.epoch,
        "source_seq": 2,
    }
    assert [each["_topics_router"]["source_seq"] for each in by_topic["c"]] == [1, 2]
    assert {each["_topics_router"]["router"] for each in by_topic["c"]} == {"a>b"}
    for name in "df":
        stamps = [each["_topics_router"] for each in by_topic[name]]
        assert [(each["router"], each["source"]) for each in stamps] == [(f"c>{name}", "c")] * 2
    assert first["_topics_router"]["source_seq"] == 1
