"""Batches: rows for what a router forwards next."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.support.routing import RoutedShards
from topics.actors.shard.routing.batches import (
    Batch,
    Missing,
    batch_of,
    is_kept_in_memory,
    records_in,
)
from topics.engine.locators import lsn_of
from topics.engine.routing.hops import Hops
from topics.engine.routing.picking import Picked, pick
from topics.formats.disk.copies import CopyRow, Drops, Stamp, decode_rows
from topics.formats.wire.calls import IN_MESSAGE

# Seqs 11 to 13, 15 and 20 to 23.
BATCH = Batch(
    to_seq=30,
    hop=1,
    rows=[
        CopyRow(0x100, 0, 2, 0, 0, 4, 7),
        CopyRow(0x100, 0, 2, 0, 0, 8, 9),
        CopyRow(0x200, 50, 3, 1, Drops.TAG, 0, 4),
    ],
    seqs=[11, 15, 20],
    stamps=[Stamp("r", "s", 1, 1)],
    last_lsn=0x300,
)


def picked_from(shards: RoutedShards, name: str, cursor: int = 0) -> Picked:
    store = shards.loops[shards.shard_of(name)].context.store
    bounds: dict[str, Any] = dict.fromkeys(("max_records", "max_runs", "scan_records"), 1000)
    return pick(shards.topic(name), store, cursor, None, Hops(), max_bytes=1 << 20, **bounds)


def batch_from(
    shards: RoutedShards, name: str, cursor: int = 0, *, by_payload: bool = False
) -> Batch | Missing:
    context = shards.loops[shards.shard_of(name)].context
    picked = picked_from(shards, name, cursor)
    return batch_of(picked, context.store, context.wal, by_payload=by_payload)


def lsns(shards: RoutedShards, name: str) -> list[int]:
    return [lsn_of(entry.locator) for entry in shards.topic(name).index.from_seq(0)]


def test_what_follows_a_seq() -> None:
    one = BATCH.behind(11)
    assert (one.seqs, one.to_seq, one.last_lsn) == ([12, 15, 20], 30, 0x300)
    assert one.rows[0] == BATCH.rows[0]._replace(start=5)
    for seq in (13, 14):
        found = BATCH.behind(seq)
        assert (found.seqs, found.rows) == ([15, 20], BATCH.rows[1:])
    last = BATCH.behind(21)
    assert (last.seqs, last.rows) == ([22], [BATCH.rows[2]._replace(start=2, stamp_seq=52)])
    assert (BATCH.behind(25).seqs, BATCH.behind(25).rows) == ([], [])
    assert BATCH.behind(5) == BATCH


def test_rows_are_packed_with_what_copies_lose() -> None:
    assert decode_rows(BATCH.packed(0)) == BATCH.rows
    drops = [row.drops for row in decode_rows(BATCH.packed(Drops.NODE))]
    assert drops == [Drops.NODE, Drops.NODE, Drops.NODE | Drops.TAG]


async def test_records_of_the_log_are_named(routed: RoutedShards) -> None:
    await routed.append("a", 1, 2)
    await routed.append("a", 3)
    first, second = lsns(routed, "a")
    rows = [CopyRow(first, 0, 0, 0, 0, 0, 2), CopyRow(second, 0, 0, 0, 0, 0, 1)]
    assert batch_from(routed, "a") == Batch(3, 0, rows, [1, 3], [], b"", second)
    found = batch_from(routed, "a", 1)
    assert isinstance(found, Batch)
    assert (found.rows, found.seqs) == ([rows[0]._replace(start=1), rows[1]], [2, 3])


async def test_rows_of_copies_name_what_the_copies_name(routed: RoutedShards) -> None:
    await routed.route("a>b", preserve_node=False, guarantee="exactly_once")
    await routed.append("a", 1, 2)
    await routed.append("a", 3)
    await routed.settle()
    first, second = lsns(routed, "a")
    found = batch_from(routed, "b", 1)
    assert isinstance(found, Batch)
    assert [(row.shard, row.lsn, row.start, row.stop) for row in found.rows] == [
        (0, first, 1, 2),
        (0, second, 0, 1),
    ]
    assert [(row.stamp, row.stamp_seq, row.drops) for row in found.rows] == [
        (1, 2, Drops.NODE),
        (1, 3, Drops.NODE),
    ]
    assert [stamp.router for stamp in found.stamps] == ["a>b"]
    assert (found.seqs, found.last_lsn) == ([2, 3], lsns(routed, "b")[-1])


async def test_sealed_records_are_missing_in_the_log(routed: RoutedShards) -> None:
    await routed.append("a", 1, 2)
    await routed.append("a", 3)
    await routed.seal("a")
    await routed.append("a", 4)
    found = batch_from(routed, "a", 1)
    assert isinstance(found, Missing)
    assert (found.seqs, found.to_seq, found.first_seq) == ([(2, 2)], 3, 2)
    batch = found.logged(0, 0x500)
    assert batch == Batch(3, 0, [CopyRow(0x500, 0, 0, 0, 0, 0, 2)], [2], (), b"", 0x500)
    named = batch_from(routed, "a", 3)
    assert isinstance(named, Batch)
    assert named.seqs == [4]


async def test_a_payload_that_is_not_to_be_named_is_missing(routed: RoutedShards) -> None:
    await routed.append("a", 1, 2)
    await routed.append("a", 3)
    found = batch_from(routed, "a", by_payload=True)
    assert isinstance(found, Missing)
    assert (found.seqs, found.to_seq) == ([(1, 2), (3, 1)], 3)
    assert [row[5:] for row in found.logged(0, 1).rows] == [(0, 2), (2, 3)]


async def test_records_in_memory_travel_as_they_are(routed: RoutedShards) -> None:
    await routed.make("a", durability="ephemeral")
    await routed.write("a", [{"data": 1, "tag": "t"}, {"data": "x" * 100, "meta": {"m": 1}}])
    assert is_kept_in_memory(picked_from(routed, "a"))
    found = batch_from(routed, "a", 1)
    assert isinstance(found, Missing)
    batch = found.in_message()
    assert (batch.rows, batch.last_lsn) == ([CopyRow(0, 0, IN_MESSAGE, 0, 0, 0, 1)], 0)
    view = records_in(batch.body)
    found_record = msgspec.json.decode(bytes(view.slice(0, 1)))
    assert (found_record["$seq"], found_record["data"]) == (2, "x" * 100)
    assert (found_record["meta"], view.count) == ({"m": 1}, 1)


async def test_records_of_a_log_are_not_in_memory(routed: RoutedShards) -> None:
    await routed.append("a", 1)
    assert not is_kept_in_memory(picked_from(routed, "a"))
