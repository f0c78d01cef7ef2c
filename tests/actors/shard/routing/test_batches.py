"""Tests of batches: the next records of a router, named by their frames or sent as bodies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.support.routing import RoutedShards
from topics.actors.shard.routing.batches import (
    ForwardBatch,
    body_batch,
    frame_bytes_max,
    named_batch,
    records_in,
)
from topics.engine.changes.forward import Forwarded
from topics.engine.locators import lsn_of
from topics.engine.routing.hops import Hops
from topics.engine.routing.picking import Picked, pick
from topics.formats.disk.copies import OWN_STAMP, Drops, Run, decode_runs, is_row

# Seqs 11 to 13, 15 and 20 to 23.
BATCH = ForwardBatch(
    to_seq=30,
    hop=1,
    runs=[Run(0x100, 0, 4, 7), Run(0x100, 0, 8, 9), Run(0x202, 0, 0, 4)],
    seqs=[11, 15, 20],
)


def picked_from(shards: RoutedShards, name: str, cursor: int = 0) -> Picked:
    store = shards.loops[shards.shard_of(name)].context.store
    bounds: dict[str, Any] = dict.fromkeys(("max_records", "max_runs", "scan_records"), 1000)
    return pick(shards.topic(name), store, cursor, None, Hops(), max_bytes=1 << 20, **bounds)


def named(shards: RoutedShards, name: str, cursor: int = 0) -> ForwardBatch | None:
    wal = shards.loops[shards.shard_of(name)].context.wal
    return named_batch(picked_from(shards, name, cursor), wal, ["r"])


def body(shards: RoutedShards, name: str, cursor: int = 0) -> ForwardBatch:
    store = shards.loops[shards.shard_of(name)].context.store
    return body_batch(picked_from(shards, name, cursor), store, 7)


def lsns(shards: RoutedShards, name: str) -> list[int]:
    return [lsn_of(entry.locator) for entry in shards.topic(name).index.from_seq(0)]


def test_runs_are_packed_as_a_router_copies_them() -> None:
    assert decode_runs(BATCH.packed(0, is_stamped=False)) == BATCH.runs
    found = decode_runs(BATCH.packed(Drops.NODE, is_stamped=True))
    assert found == [
        run._replace(drops=Drops.NODE, stamp=OWN_STAMP, stamp_seq=seq)
        for run, seq in zip(BATCH.runs, BATCH.seqs, strict=True)
    ]


async def test_records_in_the_current_log_file_are_named_by_their_frames(
    routed: RoutedShards,
) -> None:
    await routed.append("a", 1, 2)
    await routed.append("a", 3)
    first, second = lsns(routed, "a")
    runs = [Run(first, 0, 0, 2), Run(second, 0, 0, 1)]
    assert named(routed, "a") == ForwardBatch(3, 0, runs, [1, 3])
    found = named(routed, "a", 1)
    assert found is not None
    assert (found.runs, found.seqs) == ([runs[0]._replace(start=1), runs[1]], [2, 3])


async def test_copies_in_the_current_log_file_are_named_by_their_rows(routed: RoutedShards) -> None:
    await routed.route("a>d")
    await routed.append("a", 1)
    await routed.settle()
    found = named(routed, "d")
    assert found is not None
    assert [is_row(run.lsn) for run in found.runs] == [True]


@pytest.mark.slow
async def test_records_in_another_file_a_segment_or_memory_are_not_named(
    routed: RoutedShards,
) -> None:
    await routed.append("a", 1)
    await routed.end_file(0)
    assert named(routed, "a") is None
    await routed.seal("a")
    await routed.append("a", 2)
    assert named(routed, "a") is None, "the first record is sealed"
    assert named(routed, "a", 1) is not None
    await routed.make("d", durability="ephemeral")
    await routed.append("d", 1)
    assert named(routed, "d") is None


@pytest.mark.slow
async def test_a_batch_with_bodies_contains_exactly_the_picked_records(
    routed: RoutedShards,
) -> None:
    await routed.write("a", [{"data": 1, "tag": "t"}, {"data": "x" * 100, "meta": {"m": 1}}])
    await routed.write("a", [{"data": 3, "tag": "deleted"}])
    await routed.write("a", [{"data": 4, "node": "n"}])
    await routed.delete_records("a", match=["tag", "Eq", "deleted"])
    await routed.seal("a")
    await routed.append("a", 5)
    found = body(routed, "a", 1)
    assert (found.to_seq, found.number) == (5, 7)
    assert (found.runs, found.seqs) == ([Run(0, 0, 0, 1), Run(0, 0, 1, 3)], [2, 4])
    view = records_in(b"" + found.body)
    records = msgspec.json.decode(b"[" + bytes(view.slice(0, 3)) + b"]")
    assert [record["data"] for record in records] == ["x" * 100, 4, 5]
    assert (records[0]["meta"], records[1]["$node"]) == ({"m": 1}, "n")


async def test_the_frames_of_a_forward_do_not_exceed_their_bound(routed: RoutedShards) -> None:
    loop = routed.loops[0]
    submit, lengths = loop.commits.submit_forward, list[tuple[int, int]]()

    def measured(forwarded: Forwarded, settle: Any) -> int:
        others = [each for change in forwarded.changes for each in change.frames]
        length = sum(frame.length for frame in (forwarded.frame, *others))
        lengths.append((length, frame_bytes_max(1, ["a>" + "d" * 200] * len(forwarded.changes))))
        return submit(forwarded, settle)

    loop.commits.submit_forward = measured  # type: ignore[method-assign]
    dests = [name for at in range(99) if routed.shard_of(name := "d" * 198 + f"{at:02}") == 0]
    for dest in dests[:9]:
        await routed.make(dest, durability="ephemeral")
        await routed.route(f"a>{dest}", guarantee="exactly_once")
    await routed.append("a", 1)
    await routed.settle()
    assert lengths
    for length, bound in lengths:
        assert length <= bound
