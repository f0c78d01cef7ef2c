"""Tests of gauges: with each tick a shard reports the same values as a count over all topics."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.feeds import BROKEN
from tests.support.queue_harness import QueueHarness, trio_clock
from tests.support.wal import sync_by
from topics.actors.link.counters import TABLE
from topics.actors.link.process_id import ProcessKind
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.actors.shard import gauges
from topics.actors.shard.gauges import DISK_S, FIRST_MEASURE_MAX_S
from topics.engine import usage
from topics.errors import NotReady
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal.log_progress import SYNC_BOUNDS_US

FILE_BYTES = 64 << 10
CLASSES = ("fsync", "disk", "memory", "ephemeral")
USAGE = (
    *("topics_topics", "topics_topics_by_class", "topics_queue_topics", "topics_records_live"),
    *("topics_bytes_live", "topics_idempotency_keys", "topics_queue_leases_in_flight"),
    "topics_queue_delayed",
)


class GaugeHarness(QueueHarness):
    """A shard on a real disk; ``last`` has the values that its gauges reported last. Time is that
    of a clock which the test moves.
    """

    def __init__(self, path: Path, nursery: trio.Nursery, clock: MockClock) -> None:
        self.path, self.nursery, self.mock = path, nursery, clock
        self.shard = recover(
            path, 0, 1, trio_clock(), wal_file_bytes=FILE_BYTES, wal_sync_ms=20, boot="first"
        )
        super().__init__(path, nursery, shard=self.shard)
        self.last: dict[str, Any] = {}
        self.services.gauges.publish = self.last.update
        self._scope = trio.CancelScope()
        nursery.start_soon(self._follow)

    async def _follow(self) -> None:
        with self._scope:
            await self.loop.follow_log()

    async def settled(self) -> None:
        """Complete and commit all due work."""
        await wait_all_tasks_blocked()
        self.run_iteration()
        while len(self.commits):
            await trio.lowlevel.checkpoint()
        self.wire.take()

    async def tick(self) -> dict[str, Any]:
        """Return the values that a tick reports now."""
        self.last.clear()
        self.loop.context.begin_iteration()
        self.services.gauges.update()
        self.loop.end_iteration()
        await wait_all_tasks_blocked()
        return self.last

    async def end(self) -> None:
        await self.settled()
        self._scope.cancel()
        self.time.cancel()  # a deadline that passes later must not write to the closed log
        await wait_all_tasks_blocked()
        self.log.stop()
        self.services.sealing.write_last()

    async def restart(self) -> GaugeHarness:
        """Restart the shard."""
        await self.end()
        return GaugeHarness(self.path, self.nursery, self.mock)

    def counted(self) -> dict[str, Any]:
        """Return the expected values by counting."""
        found: Counter[str] = Counter()
        by_class: Counter[str] = Counter()
        for topic in self.engine.topics.values():
            by_class[topic.committed.durability] += 1
            found["topics_topics"] += 1
            found["topics_records_live"] += topic.count
            found["topics_bytes_live"] += topic.bytes
            found["topics_idempotency_keys"] += len(topic.dedupe)
            if topic.jobs is not None:
                topic.jobs.advance(trio_clock().ms)
                counters = topic.jobs.counters(topic.count)
                found["topics_queue_topics"] += 1
                found["topics_queue_leases_in_flight"] += counters.in_flight
                found["topics_queue_delayed"] += counters.delayed
        classes = tuple(by_class[name] for name in CLASSES)
        return {name: found[name] for name in USAGE} | {"topics_topics_by_class": classes}


@pytest.fixture
async def harness(  # the clock is mocked only if the test requests it, too
    tmp_path: Path, nursery: trio.Nursery, mock_clock: MockClock
) -> AsyncIterator[GaugeHarness]:
    found = GaugeHarness(tmp_path, nursery, mock_clock)
    yield found
    if found.log.writer._thread.is_alive():
        await found.end()


# Contents of topics


class RandomClients:
    """Random actions of clients. The gauges always agree with the count."""

    NAMES = ("a", "b", "c", "q", "r", "s")

    def __init__(self, harness: GaugeHarness, seed: int) -> None:
        self.harness, self.random = harness, random.Random(seed)
        self.agreed: Counter[str] = Counter()  # The number of ticks with a value other than 0
        self._actions: list[Callable[[], object]] = [
            *([self.append] * 6 + [self.claim] * 4 + [self.ack] * 3),
            *(self.put, self.put, self.put, self.nack, self.extend, self.delete_records),
            *(self.delete_records, self.delete, self.read, self.later, self.later),
        ]

    async def run(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(self.random.randint(1, 4)):
                self.random.choice(self._actions)()
                if self.random.random() < 0.7:
                    await self.harness.settled()
            await self.harness.settled()
            counted = self.harness.counted() if self.random.random() < 0.5 else None
            values = await self.harness.tick()
            expected = counted or self.harness.counted()
            assert {name: values[name] for name in USAGE} == expected
            self.agreed.update(name for name in USAGE if values[name])

    def _name(self) -> str:
        return self.random.choice(self.NAMES)

    def _queue(self) -> str:
        return self.random.choice(self.NAMES[3:])

    def put(self) -> None:
        name, pick = self._name(), self.random
        self.harness.put(
            name,
            type="queue" if name in self.NAMES[3:] else "log",
            durability=pick.choice(CLASSES),
            cap_records=pick.choice((0, 0, 5)),
            cap_bytes=pick.choice((0, 0, 200)),
            ttl_ms=pick.choice((0, 0, 3_000)),
            idempotency_window_ms=pick.choice((2_000, 60_000)),
        )

    def append(self) -> None:
        name, pick = self._name(), self.random
        records: list[dict[str, Any]] = [
            {"data": "x" * pick.randint(0, 40)} for _ in range(pick.randint(1, 4))
        ]
        if name in self.NAMES[3:] and pick.random() < 0.5:
            records[0]["delay_ms"] = pick.randint(1, 6_000)
        key = str(pick.randint(0, 99)) if pick.random() < 0.4 else None
        self.harness.append(name, key=key, records=records)

    def claim(self) -> None:
        lease_ms = self.random.choice((1_000, 4_000, 60_000))
        self.harness.claim(self._queue(), max=self.random.randint(1, 4), lease_ms=lease_ms)

    def _held(self) -> tuple[str, list[int]]:
        name = self._queue()
        topic = self.harness.engine.topics.get(name)
        held = [*topic.jobs.leases] if topic is not None and topic.jobs is not None else []
        return name, self.random.sample(held, min(len(held), 2)) or [1]

    def ack(self) -> None:
        name, seqs = self._held()
        self.harness.ack(*seqs, topic=name)

    def nack(self) -> None:
        name, seqs = self._held()
        self.harness.nack(*seqs, topic=name, delay_ms=self.random.choice((0, 3_000)))

    def extend(self) -> None:
        name, seqs = self._held()
        self.harness.extend(*seqs, topic=name, lease_ms=2_000)

    def delete_records(self) -> None:
        self.harness.delete_records(self._name(), before_seq=self.random.randint(1, 60))

    def delete(self) -> None:
        self.harness.delete(self._name())

    def read(self) -> None:
        self.harness.diff(self._name(), from_seq=0)

    def later(self) -> None:
        self.harness.mock.jump(self.random.choice((0.3, 1.7, 5.0)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_the_gauges_equal_counted_values(
    harness: GaugeHarness, mock_clock: MockClock, seed: int
) -> None:
    clients = RandomClients(harness, seed)
    await clients.run(60)
    clients.harness = await harness.restart()
    await clients.run(20)
    assert set(clients.agreed) == set(USAGE)
    await clients.harness.end()


async def test_leases_in_memory_count_although_they_are_not_logged(
    harness: GaugeHarness, mock_clock: MockClock
) -> None:
    async def leases() -> int:
        await harness.settled()
        values: int = (await harness.tick())["topics_queue_leases_in_flight"]
        return values

    harness.put("q", type="queue", durability="ephemeral")
    await harness.settled()
    harness.append("q", 1, 2, 3)
    harness.claim(max=2, lease_ms=60_000)
    assert await leases() == 2
    harness.nack(1)
    assert await leases() == 1
    harness.extend(2, lease_ms=1_000)
    assert await leases() == 1
    mock_clock.jump(2.0)
    assert await leases() == 0
    harness.open(3)
    assert await leases() == 3
    harness.close()
    assert await leases() == 0


async def test_changes_that_the_log_has_lost_do_not_count(
    harness: GaugeHarness, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put("a")
    await harness.settled()
    sync_by(monkeypatch, loop=False)
    held = harness.log.writer.state.report
    monkeypatch.setattr(
        harness.log.writer.state, "report", lambda _: None
    )  # the loop receives no report
    harness.delete("a")
    harness.put("b", type="queue")
    for topic in harness.commits.deleting_topics():
        harness.services.gauges._usage.touch(topic)
    harness.services.gauges._usage.touch(harness.engine.topic("b"))
    values = await harness.tick()
    assert (values["topics_topics"], values["topics_queue_topics"]) == (1, 1)
    monkeypatch.setattr(harness.log.writer.state, "report", held)
    harness.log.writer.state.fail(BROKEN)
    while not harness.log.failed:
        await trio.lowlevel.checkpoint()
    values = await harness.tick()
    assert (values["topics_topics"], values["topics_queue_topics"]) == (1, 0)
    assert [*harness.engine.topics] == ["a"]


async def test_many_topics_are_counted_in_separate_iterations(
    harness: GaugeHarness, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "STEP_TOPICS", 4)
    for number in range(10):
        harness.put(str(number))
    await harness.settled()
    before = harness.loop.context.iteration_count
    values = await harness.tick()
    assert values["topics_topics"] == 10
    assert harness.loop.context.iteration_count - before >= 3
    before = harness.loop.context.iteration_count
    await harness.tick()
    assert harness.loop.context.iteration_count - before == 1, "nothing has changed"


# The log


async def test_the_gauges_of_the_log_show_its_work_and_the_duration_of_its_syncs(
    harness: GaugeHarness, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = dict(await harness.tick())
    sync_by(monkeypatch, loop=False)  # the loop syncs without waiting for the log
    harness.put("a", durability="fsync")
    await harness.settled()
    for number in range(5):
        harness.append("a", number)
        await harness.settled()
    values = await harness.tick()
    grown = {
        name: values[name] - before[name]
        for name in values
        if name.startswith("topics_wal") and isinstance(values[name], int)
    }
    assert grown["topics_wal_frames_total"] >= 6
    assert grown["topics_wal_fsyncs_total"] >= 6
    assert grown["topics_wal_bytes_written_total"] > 0
    *buckets, total_us, count = values["topics_wal_fsync_latency_us"]
    assert len(buckets) == len(SYNC_BOUNDS_US) + 1
    assert sum(buckets) == count == values["topics_wal_fsyncs_total"]
    assert total_us > 0
    assert values["topics_wal_read_only"] == values["topics_wal_queue_depth"] == 0
    assert values["topics_wal_queue_depth_peak"] >= 1


async def test_the_queue_depth_of_the_log_and_its_peak_are_published(
    harness: GaugeHarness, mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness.put("a", durability="fsync")
    await harness.settled()
    sync_by(monkeypatch, loop=False)
    held = harness.log.writer.state.report
    monkeypatch.setattr(harness.log.writer.state, "report", lambda _: None)
    for number in range(3):
        harness.append("a", number)
    harness.run_iteration()
    values = await harness.tick()
    depth = values["topics_wal_queue_depth"]
    assert depth >= 3
    assert values["topics_wal_queue_depth_peak"] >= depth
    monkeypatch.setattr(harness.log.writer.state, "report", held)
    harness.append("a", 4)
    await harness.settled()
    values = await harness.tick()
    assert values["topics_wal_queue_depth"] == 0
    assert values["topics_wal_queue_depth_peak"] >= depth


async def test_a_broken_log_and_each_write_that_it_rejects_are_published(
    harness: GaugeHarness,
    mock_clock: MockClock,
) -> None:
    harness.put("a")
    await harness.settled()
    harness.log.writer.state.fail(BROKEN)
    while harness.loop.context.disk_space.broken is None:
        await trio.lowlevel.checkpoint()
    harness.append("a", 1)
    harness.append("a", 2)
    harness.diff("a")
    with pytest.raises(NotReady):
        harness.loop.context.check_writable()
    values = await harness.tick()
    assert (values["topics_wal_read_only"], values["topics_wal_submit_full_total"]) == (1, 3)


# Files


async def test_the_files_are_checked_periodically(
    harness: GaugeHarness, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    harness.put("a")
    await harness.settled()
    harness.services.sealing.write_last()
    nursery.start_soon(harness.services.gauges.run)
    while not harness.services.gauges._disk.free:
        await trio.lowlevel.checkpoint()
    mock_clock.jump(5.0)
    values = await harness.tick()
    assert values["topics_log_bytes"] >= FILE_BYTES
    assert values["topics_checkpoint_bytes"] > 0
    assert values["topics_disk_free_bytes"] > 0
    assert values["topics_blob_bytes"] == 0
    assert values["topics_segment_files"] == values["topics_segment_bytes"] == 0
    (harness.log.blobs.folder / "more").write_bytes(bytes(1 << 20))
    seen = harness.services.gauges._disk
    mock_clock.jump(DISK_S)
    while harness.services.gauges._disk is seen:
        await trio.lowlevel.checkpoint()
    assert (await harness.tick())["topics_blob_bytes"] >= 1 << 20


async def test_a_hanging_disk_does_not_prevent_the_other_gauges_from_being_published(
    harness: GaugeHarness,
    mock_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resume = threading.Event()
    monkeypatch.setattr(gauges, "disk_usage", lambda _: resume.wait())
    nursery.start_soon(harness.services.gauges.run)
    await wait_all_tasks_blocked()
    assert harness.last == {}
    mock_clock.jump(FIRST_MEASURE_MAX_S)
    while not harness.last:
        await trio.lowlevel.checkpoint()
    assert (harness.last["topics_topics"], harness.last["topics_disk_free_bytes"]) == (0, 0)
    resume.set()


async def test_a_failed_check_of_the_files_is_logged_and_retried(
    harness: GaugeHarness, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    away = harness.log.folder.with_name("away")
    harness.log.folder.rename(away)
    with capture_logs() as logged:
        nursery.start_soon(harness.services.gauges.run)
        while not harness.last:
            await trio.lowlevel.checkpoint()
    assert [line["event"] for line in logged] == ["disk usage unknown"]
    away.rename(harness.log.folder)
    mock_clock.jump(DISK_S)
    while not harness.services.gauges._disk.free:
        await trio.lowlevel.checkpoint()


async def test_full_log_files_wait_for_their_segments(
    harness: GaugeHarness, mock_clock: MockClock
) -> None:
    harness.put("a")
    await harness.settled()
    while harness.services.sealing.backlog_files < 2:
        harness.append("a", "x" * 20_000)
        await harness.settled()
    values = await harness.tick()
    assert (values["topics_seal_backlog_files"], values["topics_segment_files"]) == (2, 0)
    assert values["topics_wal_rotations_total"] >= 2


# Schedule and declared fields


async def test_a_shard_publishes_its_gauges_at_each_tick_from_its_start(
    harness: GaugeHarness,
    mock_clock: MockClock,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at: list[float] = []
    harness.services.gauges.publish = lambda _: at.append(trio.current_time())
    start = trio.current_time()
    nursery.start_soon(harness.services.gauges.run)
    while not at:
        await trio.lowlevel.checkpoint()
    for _ in range(4):
        mock_clock.jump(TICK_INTERVAL_S / 2)
        for _ in range(20):
            await trio.lowlevel.checkpoint()
    assert [round(time - start, 3) for time in at] == [0, TICK_INTERVAL_S, 2 * TICK_INTERVAL_S]


async def test_each_published_gauge_is_declared_with_its_number_of_cells(
    harness: GaugeHarness, mock_clock: MockClock
) -> None:
    metrics = {metric.name: metric for metric in TABLE[ProcessKind.SHARD]}
    for name, value in (await harness.tick()).items():
        assert metrics[name].cells == (1 if isinstance(value, int) else len(value)), name
    assert metrics["topics_topics_by_class"].rows == [(name,) for name in CLASSES]
