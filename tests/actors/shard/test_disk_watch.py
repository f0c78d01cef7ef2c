"""Disk watch: a disk that does not answer makes the shard refuse writes, and nothing else."""

from __future__ import annotations

from tests.support.shard import Desk

# A disk that hangs


async def test_writes_are_refused_while_the_disk_does_not_answer_and_reads_are_not(
    desk: Desk,
) -> None:
    desk.make("a", durability="fsync")
    waiting = desk.append("a", 1)
    desk.flush()
    for now in range(12):
        desk.loop.context.disk.look(now)
    assert desk.words.disk_silent_ms == 11_000
    refused, read = desk.append("a", 2), desk.diff("a")
    assert sorted(desk.answers()) == [(refused, "not_ready"), (read, 200)]
    desk.synced()
    desk.loop.context.disk.look(12)
    again = desk.append("a", 3)
    desk.synced()
    assert desk.words.disk_silent_ms == 0
    assert desk.answers() == [(waiting, 200), (again, 200)]


async def test_a_disk_that_is_busy_but_moves_is_not_stalled(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    for now in range(30):
        desk.append("a", now)
        desk.flush()
        desk.loop.context.disk.look(now)
        if now % 5 == 4:
            desk.synced()
    assert desk.words.disk_silent_ms < 10_000
    assert {code for _, code in desk.answers()} == {200}


async def test_a_sync_that_nobody_waits_for_may_hang_as_well(desk: Desk) -> None:
    desk.log.is_syncing = True
    for now in range(12):
        desk.loop.context.disk.look(now)
    assert desk.words.disk_silent_ms == 11_000
    desk.log.is_syncing = False
    desk.loop.context.disk.look(12)
    assert desk.words.disk_silent_ms == 0
