"""Disk watch: a disk that does not answer makes the shard refuse writes, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.shard import Desk
from topics.actors.link.pulse import DISK_STALLED_S
from topics.actors.shard import room

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


# The loop itself hangs


async def test_a_loop_that_hangs_in_the_disk_is_shown_by_the_thread_that_watches_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(room, "time", clock)
    shown = []
    while now < 30.0:
        desk.log.on_hang(1)
        shown.append((now, desk.words.disk_silent_ms, desk.words.heartbeat_ms))
        now += 0.5
    assert [silent_ms for _, silent_ms, _ in shown] == [int(at * 1000) for at, _, _ in shown]
    beats = {at: beat_ms for at, _, beat_ms in shown}
    assert all(beats[at] == at * 1000 for at in beats if at < DISK_STALLED_S)
    assert beats[29.5] == (DISK_STALLED_S - 0.5) * 1000, "then the fronts end reads, too"
    assert desk.loop.context.disk.is_stalled
    desk.loop.context.disk.look(1)
    assert desk.words.disk_silent_ms == 0
    assert not desk.loop.context.disk.is_stalled


async def test_each_call_of_the_loop_has_its_own_silence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, monotonic_ns=lambda: int(now * 1e9))
    monkeypatch.setattr(room, "time", clock)
    for call in (1, 1, 3, 3):
        desk.log.on_hang(call)
        now += 1.0
    assert desk.words.disk_silent_ms == 1000
