"""Tests of the heartbeat: the values on the board, and the delay of new requests."""

from __future__ import annotations

import time

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from tests.support.shard import ShardHarness
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.actors.shard.group_commit import SYNC_INITIAL_S
from topics.actors.shard.heartbeat import CHECK_INTERVAL_MS
from topics.actors.shard.inbox import FIFO_MAX, FIRST_COST_S
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.wire.message import Message
from topics.process import logs

YEAR_MS = 365 * 86_400_000


async def test_a_heartbeat_publishes_the_time_the_topic_count_and_the_disk_state(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.make("b")
    before = time.monotonic_ns() // 1_000_000
    harness.loop.services.heartbeat.publish()
    assert before <= harness.cells.heartbeat_ms <= time.monotonic_ns() // 1_000_000
    assert harness.cells.topics == 2
    assert harness.cells.disk_silent_ms == 0


async def test_the_shard_ticks_twice_a_second_from_its_start(
    harness: ShardHarness, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks: list[float] = []
    monkeypatch.setattr(logs, "report_dropped", lambda: ticks.append(trio.current_time()))
    await trio.sleep_until(10.2 * TICK_INTERVAL_S)
    await harness.loop.services.heartbeat.run()
    await trio.sleep(2 * TICK_INTERVAL_S)
    assert ticks == pytest.approx(
        [10.2 * TICK_INTERVAL_S, 11 * TICK_INTERVAL_S, 12 * TICK_INTERVAL_S]
    )


async def test_a_heartbeat_sweeps_expired_idempotency_keys(harness: ShardHarness) -> None:
    harness.make("a", idempotency_window_ms=1000)
    topic, now = harness.engine.topic("a"), harness.loop.context.now
    ages = enumerate((5000, 4000, 500), 1)
    topic.dedupe.extend(((n, n, 1, now.ms - age_ms) for n, age_ms in ages), 1000)
    changed: list[Topic] = []
    harness.loop.context.note_changed = changed.append
    harness.loop.services.heartbeat.publish()
    assert (len(topic.dedupe), changed) == (1, [topic, topic])


async def test_records_of_a_clock_that_was_ahead_are_reported_once(harness: ShardHarness) -> None:
    """They do not expire until the topic is created again."""
    context, publish = harness.loop.context, harness.loop.services.heartbeat.publish
    right = context.clock()
    now = right

    def set_clock(ahead_ms: int) -> None:
        nonlocal now
        now = Now(right.ts + ahead_ms, right.ms + ahead_ms % YEAR_MS)
        context.clock = lambda: now
        context.begin_iteration()

    def append(name: str) -> int:
        harness.append(name, 1)
        harness.synced()
        harness.answers()
        return harness.engine.topic(name).last_ts

    set_clock(0)
    harness.make("a", ttl_ms=1000)
    harness.make("b", ttl_ms=1000)
    assert append("b") == right.ts
    set_clock(YEAR_MS)
    future_ts = append("a")
    with capture_logs() as logged:
        publish()
        assert logged == [], "no record is ahead of a clock that is ahead itself"
        set_clock(5000)
        for _ in range(3):
            publish()
    (line,) = logged
    assert (line["log_level"], line["names"], line["count"]) == ("warning", ["a"], 1)
    assert line["ahead_ms"] == YEAR_MS - 5000
    assert append("a") == future_ts, "later records have the same time"
    set_clock(3_600_000)
    for name in ("a", "b"):
        context.remove_expired(harness.engine.topic(name))
    assert [harness.engine.topic(name).count for name in ("a", "b")] == [2, 0]
    assert len(harness.engine.future_timestamps.found) == 1
    # The solution is to create the topic again.
    harness.delete("a")
    harness.synced()
    harness.make("a", ttl_ms=1000)
    assert append("a") == now.ts
    publish()
    assert harness.engine.future_timestamps.found == set()
    set_clock(3_600_000 + 1001)
    context.remove_expired(harness.engine.topic("a"))
    assert harness.engine.topic("a").count == 0


async def test_a_hanging_disk_is_reported_by_the_heartbeat(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    harness.log.is_syncing = True
    await harness.loop.services.heartbeat.run()
    await trio.sleep(3)
    assert harness.cells.disk_silent_ms >= 2000


# The delay


@pytest.fixture
def slow(harness: ShardHarness) -> ShardHarness:
    """Return a shard whose clock and iterations the test controls."""
    harness.make("strong", durability="fsync")
    context = harness.loop.context
    start = context.clock()
    context.clock = lambda: Now(start.ts, start.ms + elapsed[0])
    elapsed = harness.elapsed = [0]  # type: ignore[attr-defined]
    return harness


def run_iteration(harness: ShardHarness, after_ms: int) -> int:
    """Run an iteration. Return the delay that the fronts then see."""
    harness.elapsed[0] += after_ms  # type: ignore[attr-defined]
    harness.loop.run_iteration()
    return int(harness.cells.delay_ms)


def flood(harness: ShardHarness, count: int) -> None:
    message = Message(1, 0, "event/nothing", b"", b"")
    harness.loop.inbox.put(harness.session, [message] * count)


async def test_an_idle_shard_has_no_delay(slow: ShardHarness) -> None:
    assert [run_iteration(slow, CHECK_INTERVAL_MS) for _ in range(3)] == [0, 0, 0]


@pytest.mark.slow
async def test_messages_that_wait_in_the_inbox_count_as_delay(
    slow: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = slow.loop.inbox
    run_iteration(slow, CHECK_INTERVAL_MS)
    flood(slow, FIFO_MAX)
    slow.loop.services.heartbeat.publish_delay()
    assert slow.cells.delay_ms == 0, "the next iteration takes all of it"
    flood(slow, 4000)
    slow.loop.services.heartbeat.publish_delay()
    assert slow.cells.delay_ms == int(1000 * (FIFO_MAX + 4000) * FIRST_COST_S)
    while inbox.count:
        slow.loop.run_iteration()
    assert run_iteration(slow, CHECK_INTERVAL_MS) == 0


async def test_a_log_that_is_slower_than_usual_counts_as_delay(slow: ShardHarness) -> None:
    slow.append("strong", 1)
    slow.flush()
    usual_ms = 2 * round(1000 * slow.commits.average_s)
    assert run_iteration(slow, CHECK_INTERVAL_MS) == 0
    assert run_iteration(slow, usual_ms) == 0
    assert run_iteration(slow, CHECK_INTERVAL_MS + 5) == CHECK_INTERVAL_MS + 5
    assert run_iteration(slow, 400) == CHECK_INTERVAL_MS + 405
    slow.synced()
    assert run_iteration(slow, CHECK_INTERVAL_MS) == 0


async def test_the_delay_of_the_log_is_measured_separately_for_each_group(
    slow: ShardHarness,
) -> None:
    for _ in range(10):
        slow.append("strong", 1)
        slow.synced()
        slow.append("strong", 1)
        slow.flush()
        assert run_iteration(slow, CHECK_INTERVAL_MS) == 0


async def test_the_average_sync_time_follows_the_measured_syncs(slow: ShardHarness) -> None:
    assert slow.commits.average_s == pytest.approx(SYNC_INITIAL_S, abs=0.001)
    for _ in range(300):
        slow.append("strong", 1)
        slow.synced()  # 1.5 ms for the write, 2.5 ms for the sync
    assert slow.commits.average_s == pytest.approx(0.004, rel=0.01)
    slow.make("weak")
    for _ in range(300):
        slow.append("weak", 1)
        slow.written()
    assert slow.commits.average_s == pytest.approx(0.004, rel=0.01), (
        "writes without a sync do not count"
    )


async def test_the_delay_is_not_published_in_every_iteration(
    slow: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    heartbeat = slow.loop.services.heartbeat
    real = heartbeat.publish_delay

    def publish_delay() -> None:
        calls.append(1)
        real()

    monkeypatch.setattr(heartbeat, "publish_delay", publish_delay)
    for _ in range(100):
        run_iteration(slow, 1)
    assert len(calls) == 100 // CHECK_INTERVAL_MS


async def test_a_delay_is_cleared_even_without_further_iterations(
    harness: ShardHarness, autojump_clock: MockClock
) -> None:
    context = harness.loop.context
    start_ms = context.clock().ms
    context.clock = lambda: Now(0, start_ms + int(1000 * trio.current_time()))
    harness.make("strong", durability="fsync")
    harness.append("strong", 1)
    harness.flush()
    for _ in range(3):
        await trio.sleep(0.1)
        harness.loop.run_iteration()
    assert harness.cells.delay_ms >= 100
    harness.log.sync()
    harness.commits.advance()  # and no iteration
    await trio.sleep(3 * CHECK_INTERVAL_MS / 1000)
    assert harness.cells.delay_ms == 0
