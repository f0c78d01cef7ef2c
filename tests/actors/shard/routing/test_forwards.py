"""Tests of forwards: copies and cursor are appended together, once, or not at all."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import pytest
import trio

from tests.support.routing import FILLERS, RoutedShards
from topics.actors.shard.routing.batches import frame_bytes_max
from topics.engine.changes import forward
from topics.errors import TopicsError
from topics.formats.disk.copies import OWN_STAMP, Run, decode_runs, encode_runs, payload_of
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.wire.calls import (
    FORWARD,
    ForwardParams,
    ForwardResult,
    ForwardStatus,
    ForwardTarget,
)
from topics.storage.wal.log_file import NoSpace

BUSY, BEHIND, DONE, FULL = (
    ForwardStatus.BUSY,
    ForwardStatus.BEHIND,
    ForwardStatus.DONE,
    ForwardStatus.FULL,
)
ROUTER = 77  # an id that is in no graph


class ForwardHarness:
    """Sends forwards of the records of "a" directly, without a router. The dests are on the third
    shard, which receives the calls from another shard, or on the first shard, which calls itself.
    """

    def __init__(self, shards: RoutedShards) -> None:
        self.shards = shards
        self.loop = shards.loops[2]
        self.batches = 0

    async def make(self, dest: str, **config: Any) -> None:
        await self.shards.make(dest, **config)

    def run(self, first: int, start: int = 0, stop: int | None = None) -> tuple[int, Run]:
        """Return a run of records of the append whose first seq is ``first``."""
        index = self.shards.topic("a").index
        _, count, locator, _ = index.entry(index.find(first))
        return first + start, Run(locator, 0, start, count if stop is None else stop)

    def target(self, dest: str = "b", router: int = ROUTER, **fields: Any) -> ForwardTarget:
        topic = self.loop.context.engine.topics.get(dest)
        known = ForwardTarget(router, dest, topic.id if topic else 5, 0, f"r{router}")
        return known._replace(**fields)

    def params(
        self,
        runs: Iterable[tuple[int, Run]] = (),
        *targets: ForwardTarget,
        is_stamped: bool = False,
        **fields: Any,
    ) -> ForwardParams:
        """Return the params of a forward. Each run has the seq of its first record."""
        source = self.shards.topic("a")
        stamped = [
            run._replace(stamp=OWN_STAMP, stamp_seq=seq) if is_stamped else run for seq, run in runs
        ]
        return ForwardParams(
            source="a",
            source_id=source.id,
            epoch=source.epoch,
            from_seq=0,
            to_seq=fields.pop("to_seq", source.head_seq),
            trimmed=0,
            hop=1,
            need=0,
            batch=0,
            runs=encode_runs(stamped),
            seqs=[seq for seq, _ in runs],
            targets=targets or [self.target()],
        )._replace(**fields)

    def with_records(self, params: ForwardParams) -> tuple[ForwardParams, bytes]:
        """Return the forward with the records in its body, as another shard sends it."""
        store, runs = self.shards.loops[0].context.store, decode_runs(params.runs)
        slices = [(store.records(run.lsn), run.start, run.stop) for run in runs]
        flags, count, ext, parts, _ = payload_of(slices, 1, 1)
        body = b"".join((struct.pack("<III", flags, count, len(ext)), *parts))
        self.batches += 1
        own, at = [], 0
        for run in runs:
            length = run.stop - run.start
            own.append(run._replace(lsn=0, start=at, stop=at + length))
            at += length
        return params._replace(runs=encode_runs(own), batch=self.batches), body

    async def send(self, params: ForwardParams) -> list[tuple[int, int, int]]:
        body = b""
        if params.runs:
            params, body = self.with_records(params)
        found = await self.send_as_it_is(params, body)
        return [(status, cursor, total) for status, cursor, total, _ in found]

    async def send_as_it_is(self, params: ForwardParams, body: bytes) -> list[tuple[int, ...]]:
        self.loop.services.registry.has_owner_list = False  # otherwise it refuses unknown routers
        found = await self.shards.call(FORWARD, params, body, shard=2)
        assert isinstance(found, ForwardResult), found
        return [(*each,) for each in found.outcomes]

    def forwards(self) -> list[Frame]:
        """Return the FORWARD frames in the log."""
        return self.shards.frames(FrameKind.FORWARD)


@pytest.fixture
async def harness(routed: RoutedShards) -> ForwardHarness:
    """Seqs 1 to 3 are from one append, 4 and 5 from another."""
    found = ForwardHarness(routed)
    await found.make("b")
    await routed.append("a", 1, 2, 3)
    await routed.append("a", 4, 5)
    found.loop.services.registry.has_owner_list = False  # otherwise it refuses unknown routers
    return found


async def test_copies_and_cursor_are_one_frame(harness: ForwardHarness) -> None:
    params = harness.params([harness.run(1), harness.run(4)])
    assert await harness.send(params) == [(DONE, 5, 5)]
    assert harness.shards.datas("b") == [1, 2, 3, 4, 5]
    assert harness.shards.topic("b").derivations == {ROUTER: (5, 5)}
    assert len(harness.forwards()) == 1
    await harness.shards.kill(2)
    harness.shards.start(2)
    assert harness.shards.datas("b") == [1, 2, 3, 4, 5]


async def test_a_forward_that_does_not_start_at_the_cursor_is_refused(
    harness: ForwardHarness,
) -> None:
    first = harness.params([harness.run(1)], to_seq=3)
    assert await harness.send(first) == [(DONE, 3, 3)]
    assert await harness.send(first) == [(BEHIND, 3, 3)], "the forward is a duplicate"
    ahead = harness.params([harness.run(4, 1)], from_seq=4)
    assert await harness.send(ahead) == [(BEHIND, 3, 3)]
    assert harness.shards.datas("b") == [1, 2, 3]
    new = harness.target(router=78, start_seq=4)
    assert await harness.send(harness.params([harness.run(1)], new)) == [(BEHIND, 4, 0)]


async def test_a_router_has_one_forward_in_flight(
    harness: ForwardHarness, nursery: trio.Nursery
) -> None:
    params = harness.params([harness.run(1)], to_seq=3)
    found: list[list[tuple[int, int, int]]] = []

    async def send() -> None:
        found.append(await harness.send(params))

    submit = harness.loop.commits.flush
    harness.loop.commits.flush = lambda **_: None  # type: ignore[method-assign]
    nursery.start_soon(send)
    await harness.shards.until(lambda: len(harness.loop.commits))
    assert await harness.send(params) == [(BUSY, 0, 0)]
    harness.loop.commits.flush = submit  # type: ignore[method-assign]
    harness.loop.run_iteration()
    await harness.shards.until(lambda: found)
    assert found == [[(DONE, 3, 3)]]
    assert harness.shards.datas("b") == [1, 2, 3]


async def test_a_held_dest_accepts_no_forwards(harness: ForwardHarness) -> None:
    params = harness.params([harness.run(1)], to_seq=3)
    harness.loop.context.held.hold("b")
    assert await harness.send(params) == [(BUSY, 0, 0)]
    harness.loop.context.release_topic("b")
    assert harness.shards.datas("b") == []
    assert await harness.send(params) == [(DONE, 3, 3)]


@pytest.mark.slow
async def test_a_forward_to_a_missing_or_replaced_dest_is_refused(harness: ForwardHarness) -> None:
    other, none = harness.target(dest_id=12345, start_seq=0), harness.target("k")
    params = harness.params([harness.run(1)], other, none)
    assert await harness.send(params) == [(ForwardStatus.NO_DEST, 0, 0)] * 2
    assert harness.shards.datas("b") == []


async def test_a_repeated_batch_is_written_once(harness: ForwardHarness) -> None:
    """The other dests of a large fan-out refer to the same payload, unless the log has started a
    new file.
    """
    await harness.make("f")
    await harness.make("k", durability="ephemeral")
    params, body = harness.with_records(harness.params([harness.run(1)], to_seq=3))
    for dest in "bfk":
        aimed = params._replace(targets=[harness.target(dest)])
        assert await harness.send_as_it_is(aimed, body) == [(DONE, 3, 3, 0)]
        assert harness.shards.datas(dest) == [1, 2, 3]
    assert [len(frame.parts) for frame in harness.forwards()] == [2, 1, 1]
    await harness.make("q" * 3)
    await harness.shards.end_file(2)
    later = [harness.target("qqq")] if harness.shards.shard_of("qqq") == 2 else [harness.target()]
    await harness.send_as_it_is(params._replace(targets=later), body)
    await harness.shards.kill(2)
    harness.shards.start(2)
    assert [harness.shards.datas(dest) for dest in "bf"] == [[1, 2, 3]] * 2


async def test_runs_in_an_older_log_file_must_be_sent_again(harness: ForwardHarness) -> None:
    """The log has started a new file since the batch was prepared."""
    await harness.make("d")
    target = ForwardTarget(ROUTER, "d", harness.shards.topic("d").id, 0, "r")
    params = harness.params([harness.run(1)], target, to_seq=3)
    harness.shards.loops[0].services.registry.has_owner_list = False
    await harness.shards.end_file(0)
    found = await harness.shards.call(FORWARD, params, shard=0)
    assert isinstance(found, ForwardResult)
    assert [(*each,) for each in found.outcomes] == [(BEHIND, 0, 0, 0)]
    assert harness.shards.datas("d") == []


async def test_a_capacity_probe_is_answered_without_records(harness: ForwardHarness) -> None:
    await harness.make("f", cap_records=1, discard="reject")
    target = harness.target("f")
    outcome = await harness.send_as_it_is(
        *harness.with_records(harness.params([harness.run(1)], target))
    )
    assert outcome[0][:3] == (FULL, 1, 1)
    probe = harness.params([], target, from_seq=1, to_seq=1, need=40)
    assert await harness.send_as_it_is(probe, b"") == [(FULL, 1, 1, 40)]
    await harness.make("f", cap_records=2, discard="reject")
    assert await harness.send_as_it_is(probe, b"") == [(DONE, 1, 1, 0)]
    await harness.make("f", cap_records=9, cap_bytes=80, discard="reject")
    assert await harness.send_as_it_is(probe._replace(need=30), b"") == [(DONE, 1, 1, 0)]
    assert await harness.send_as_it_is(probe._replace(need=60), b"") == [(FULL, 1, 1, 60)]


@pytest.mark.parametrize(
    ("cap", "cursor", "taken"), [(2, 2, [1, 2]), (3, 3, [1, 2, 3]), (4, 5, [1, 2, 3, 5])]
)
@pytest.mark.parametrize("is_stamped", [False, True])
async def test_a_dest_accepts_records_up_to_its_cap(
    harness: ForwardHarness, cap: int, cursor: int, taken: list[int], is_stamped: bool
) -> None:
    """The batch skips seq 4."""
    await harness.make("f", cap_records=cap, discard="reject")
    rows = [harness.run(1), harness.run(4, 1)]
    target = harness.target("f")
    status = DONE if cap == 4 else FULL
    assert await harness.send(harness.params(rows, target, is_stamped=is_stamped)) == [
        (status, cursor, cap)
    ]
    assert harness.shards.datas("f") == taken
    if cap < 4:
        second = harness.params(rows[1:], target, from_seq=cursor, is_stamped=is_stamped)
        assert await harness.send(second) == [(FULL, cursor, cap)]
        assert harness.shards.datas("f") == taken


async def test_a_probe_returns_the_cursor_of_the_router(harness: ForwardHarness) -> None:
    await harness.send(harness.params([harness.run(1)], to_seq=3))
    assert await harness.send(harness.params(from_seq=3, to_seq=3)) == [(DONE, 3, 3)]
    assert await harness.send(harness.params(from_seq=0, to_seq=0)) == [(BEHIND, 3, 3)]
    assert len(harness.forwards()) == 1


@pytest.mark.parametrize("is_trim", [False, True])
async def test_a_failed_log_write_changes_neither_cursor_nor_seqs(
    harness: ForwardHarness, nursery: trio.Nursery, is_trim: bool
) -> None:
    rows = [] if is_trim else [harness.run(1)]
    params = harness.params(rows, to_seq=3, trimmed=3 * is_trim)
    commits, topic, found = harness.loop.commits, harness.shards.topic("b"), list[object]()
    await commits.wait_drained()
    flush, lsn = commits.flush, harness.loop.context.wal.next_lsn
    commits.flush = lambda **_: None  # type: ignore[method-assign]

    async def send() -> None:
        found.append(await harness.send(params))

    nursery.start_soon(send)
    await harness.shards.until(lambda: len(commits))
    assert topic.next_seq == 4
    commits._roll_back(NoSpace())
    harness.loop.context.wal.resume(lsn)
    commits.flush = flush  # type: ignore[method-assign]
    harness.loop.run_iteration()
    await harness.shards.until(lambda: found)
    assert found == [[(BUSY, 0, 0)]]
    assert (topic.next_seq, topic.head_seq, topic.derivations) == (1, 0, None)
    assert await harness.send(params) == [(DONE, 3, 3 - 3 * is_trim)]
    assert topic.head_seq == 3


async def test_outcomes_are_in_the_order_of_the_routers(harness: ForwardHarness) -> None:
    await harness.make("f", cap_records=2, discard="reject")
    await harness.make("k", durability="ephemeral")
    targets = (
        harness.target("f"),
        harness.target("b", router=1, start_seq=2),
        harness.target("k", router=4),
        harness.target("q"),
        harness.target("b", router=2),
        harness.target("b", router=3),
    )
    params = harness.params([harness.run(1), harness.run(4)], *targets, is_stamped=True)
    assert await harness.send(params) == [
        (FULL, 2, 2),
        (BEHIND, 2, 0),
        (DONE, 5, 5),
        (ForwardStatus.NO_DEST, 0, 0),
        (DONE, 5, 5),
        (DONE, 5, 5),
    ]
    records, _ = harness.shards.pages("b")
    assert [record["data"] for record in records] == [1, 2, 3, 4, 5] * 2
    stamps = [record["meta"]["_topics_router"] for record in records]
    assert [stamp["source_seq"] for stamp in stamps] == [1, 2, 3, 4, 5] * 2
    assert [stamp["router"] for stamp in stamps] == ["r2"] * 5 + ["r3"] * 5


async def test_an_unexpected_error_is_answered_once(
    harness: ForwardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The changes of one dest are in flight when those of the other fail."""
    await harness.make("f", cap_records=1, discard="reject")
    decide = forward.forward

    def fail(table: Any, takers: Any, *arguments: Any) -> Any:
        if takers[0].topic.name == "f":
            raise RuntimeError("a bug")
        return decide(table, takers, *arguments)

    targets = harness.target("b"), harness.target("f", router=1)
    params = harness.params([harness.run(1)], *targets, to_seq=3)
    with monkeypatch.context() as patch:
        patch.setattr(forward, "forward", fail)
        harness.loop.services.registry.has_owner_list = False
        found = await harness.shards.call(FORWARD, *harness.with_records(params), shard=2)
        assert isinstance(found, TopicsError)
    await harness.shards.until(lambda: harness.shards.datas("b") == [1, 2, 3])
    assert await harness.send(params) == [(BEHIND, 3, 3), (FULL, 1, 1)]


async def test_stamps_are_copied_by_plain_routers_and_replaced_by_exactly_once_routers(
    routed: RoutedShards,
) -> None:
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


async def test_frames_of_one_forward_never_refer_to_another_log_file(
    harness: ForwardHarness,
) -> None:
    """Dests with different changes get separate frames. Only the frames of the first dests fit into
    the current file. A start would refuse a log in which a frame refers to another file.
    """
    shards, loop = harness.shards, harness.shards.loops[0]
    dests = [name for name in map("d{:02}".format, range(40)) if not shards.shard_of(name)][:9]
    for cap_records, name in enumerate(dests, 20):
        await harness.make(name, cap_records=cap_records, discard="reject")
    await shards.end_file(0)
    await shards.append("a", *range(60))
    runs = [harness.run(6, index, index + 1) for index in range(0, 60, 2)]
    targets = [
        ForwardTarget(ROUTER + number, name, shards.topic(name).id, 0, f"r{number}")
        for number, name in enumerate(dests)
    ]
    wal, length = loop.context.wal, frame_bytes_max(len(runs), [target[-1] for target in targets])
    tail = wal._tail
    assert tail is not None
    left = tail.size - tail.offset(wal.next_lsn)
    await shards.write(FILLERS[0], [{"data": "x" * (left - length - 400)}])
    assert wal._tail is tail
    loop.services.registry.has_owner_list = False
    params = harness.params(runs, *targets, from_seq=0, to_seq=65)
    found = await shards.call(FORWARD, params, shard=0)
    statuses = [status for status, *_ in found.outcomes]
    assert statuses[0] == FULL
    assert statuses[-1] == BEHIND
    copied = {name: shards.datas(name) for name in dests}
    assert copied[dests[0]] == [*range(0, 40, 2)]
    await shards.kill(0)
    shards.start(0)
    assert {name: shards.datas(name) for name in dests} == copied
