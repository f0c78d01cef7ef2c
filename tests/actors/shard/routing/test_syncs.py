"""Syncs: one sync serves all who wait for the log."""

from __future__ import annotations

from functools import partial

import trio
import trio.lowlevel

from tests.support.routing import RoutedShards
from topics.actors.shard.routing.syncs import Syncs


async def test_those_who_wait_are_told_when_their_frame_is_synced(routed: RoutedShards) -> None:
    await routed.make("a")
    loop = routed.loops[routed.shard_of("a")]
    wal, syncs = loop.context.wal, Syncs(loop.context)
    told: list[tuple[str, bool, int]] = []

    def note(name: str, is_synced: bool) -> None:
        told.append((name, is_synced, wal.synced_lsn))

    begin = wal.next_lsn
    await routed.append("a", 1)
    assert syncs.is_behind(begin)
    syncs.wait(begin, partial(note, "first"))
    syncs.wait(begin, partial(note, "second"))
    assert told == [], "nobody is told at once"
    await routed.until(lambda: len(told) == 2)
    assert [each[:2] for each in told] == [("first", True), ("second", True)]
    assert all(synced > begin for _, _, synced in told)
    assert not syncs.is_behind(begin)


async def test_who_comes_during_a_sync_is_served_by_the_next(routed: RoutedShards) -> None:
    await routed.make("a")
    loop = routed.loops[routed.shard_of("a")]
    wal, syncs = loop.context.wal, Syncs(loop.context)
    told: list[int] = []
    first = wal.next_lsn
    await routed.append("a", 1)
    syncs.wait(first, lambda _: told.append(1))
    await trio.lowlevel.checkpoint()
    second = wal.next_lsn
    await routed.append("a", 2)
    syncs.wait(second, lambda _: told.append(2))
    await routed.until(lambda: told == [1, 2])
    assert not syncs.is_behind(second)
