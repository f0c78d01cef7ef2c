"""Heartbeat: what the board is told, and how often."""

from __future__ import annotations

import time

import pytest
import trio
import trio.testing

from tests.support.shard import Desk
from topics.actors.shard.heartbeat import HEARTBEAT_S
from topics.engine.topic import Topic
from topics.process import logs


async def test_a_beat_tells_the_time_the_topics_and_how_the_disk_is(desk: Desk) -> None:
    desk.make("a")
    desk.make("b")
    before = time.monotonic_ns() // 1_000_000
    desk.loop.services.heartbeat.beat()
    assert before <= desk.words.heartbeat_ms <= time.monotonic_ns() // 1_000_000
    assert desk.words.topics == 2
    assert desk.words.disk_silent_ms == 0


async def test_the_shard_beats_from_its_start_on_twice_a_second(
    desk: Desk, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[float] = []
    monkeypatch.setattr(logs, "tell_dropped", lambda: beats.append(trio.current_time()))
    start = trio.current_time()
    await desk.loop.services.heartbeat.run()
    await trio.sleep(2.1 * HEARTBEAT_S)
    assert [at - start for at in beats] == pytest.approx([0, HEARTBEAT_S, 2 * HEARTBEAT_S])


async def test_a_beat_sweeps_keys_that_are_over(desk: Desk) -> None:
    desk.make("a", idempotency_window_ms=1000)
    topic, now = desk.engine.topic("a"), desk.loop.context.now
    for number, age_ms in enumerate((5000, 4000, 500), 1):
        topic.dedupe.add(number, number, 1, now.ms - age_ms, 1000)
    changed: list[Topic] = []
    desk.loop.context.note_changed = changed.append
    desk.loop.services.heartbeat.beat()
    assert (len(topic.dedupe), changed) == (1, [topic, topic])


async def test_a_disk_that_hangs_is_seen_by_the_beat(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.log.is_syncing = True
    await desk.loop.services.heartbeat.run()
    await trio.sleep(3)
    assert desk.words.disk_silent_ms >= 2000
