"""Usage: which topics are counted again, when, and how many per step."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.shard_support import EngineHarness
from topics.engine import usage
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.topic import Topic
from topics.engine.usage import Usage, UsageSums


def topic_of(harness: EngineHarness, name: str, *datas: Any, **config: Any) -> Topic:
    """Return a new topic with these records."""
    harness.put(name, **config)
    if datas:
        harness.append(name, *datas)
    harness.commit()
    return harness.engine.topic(name)


def sums(counted: Usage, harness: EngineHarness) -> UsageSums:
    """Return the sums after one tick."""
    counted.begin(harness.now.ms)
    while counted.step(harness.now.ms):
        pass
    return counted.sums


def test_the_initial_sums_count_all_topics() -> None:
    harness = EngineHarness()
    log, queue = topic_of(harness, "a", 1, 2), topic_of(harness, "q", 1, type="queue")
    counted = Usage([log, queue], harness.now.ms)
    assert counted.sums == UsageSums((0, 2, 0, 0), 1, 3, log.bytes + queue.bytes, 0, 0, 0)


def test_a_topic_touched_after_the_tick_began_is_counted_by_the_next_tick() -> None:
    harness = EngineHarness()
    topic = topic_of(harness, "a", 1)
    counted = Usage([], harness.now.ms)
    counted.begin(harness.now.ms)
    counted.touch(topic)
    assert not counted.step(harness.now.ms)
    assert counted.sums.records == 0
    assert sums(counted, harness).records == 1


def test_a_step_counts_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STEP_TOPICS", 2)
    harness, counted = EngineHarness(), Usage([], 0)
    for name in "abcde":
        counted.touch(topic_of(harness, name, 1))
    counted.begin(0)
    seen = []
    while counted.step(0):
        seen.append(counted.sums.records)
    assert (seen, counted.sums.records) == ([2, 4], 5)


def claim(harness: EngineHarness, topic: Topic, lease_ms: int) -> None:
    request = ClaimRequest(jobs_of(topic).leases.poller("w"), 1, lease_ms)
    harness.pending += lease_jobs.claim(
        harness.engine.table, topic, [request], harness.now, evenly=False
    )
    harness.commit()


def test_a_busy_queue_is_scheduled_only_once() -> None:
    harness = EngineHarness()
    topic = topic_of(harness, "q", *range(50), type="queue", durability="ephemeral")
    counted = Usage([topic], harness.now.ms)
    for seq in range(1, 51):
        claim(harness, topic, 30_000)
        leases, _ = finish_jobs.begin_ack(topic, "w", [seq], None, harness.now)
        harness.pending.append(finish_jobs.ack(topic, leases, harness.now))
        harness.commit()
        counted.touch(topic)
        harness.later(10)
        assert sums(counted, harness).leases == 0
    assert len(counted._times) == 1
    harness.later(60_000)
    sums(counted, harness)
    assert not counted._times


def test_stale_scheduled_times_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STALE_MIN", 5)
    harness = EngineHarness()
    topic = topic_of(harness, "q", 1, type="queue", durability="ephemeral")
    harness.append("q", records=[{"data": 2, "delay_ms": 10**9}])
    harness.commit()
    counted = Usage([topic], harness.now.ms)
    for _ in range(30):  # A lease ends, and the delay is the next scheduled time
        claim(harness, topic, 1_000)
        counted.touch(topic)
        assert sums(counted, harness).leases == 1
        harness.later(1_300)
        assert sums(counted, harness) == Usage([topic], harness.now.ms).sums
        assert len(counted._times) <= 2 + usage.STALE_MIN
    for number in range(30):  # Queues are created and deleted
        deleted = topic_of(harness, f"gone{number}", type="queue")
        harness.append(deleted.name, records=[{"data": 1, "delay_ms": 10**9}])
        harness.commit()
        counted.touch(deleted)
        sums(counted, harness)
        harness.delete(deleted.name)
        harness.commit()
        counted.touch(deleted)
        assert len(counted._times) <= 2 * 2 + usage.STALE_MIN
        sums(counted, harness)
    harness.later(10**9)
    assert sums(counted, harness).delayed == 0


@pytest.mark.parametrize("seed", range(8))
def test_incremental_sums_always_equal_a_complete_count(seed: int) -> None:
    """Topics are created and deleted, and change keys and durability class. Leases and delays end
    by time.
    """
    rng, harness = Random(seed), EngineHarness()
    counted = Usage([], harness.now.ms)
    for step in range(60):
        name, act = rng.choice("aq"), rng.randrange(6)
        queue, topic = name == "q", harness.engine.topics.get(name)
        if topic is None or act == 0:
            kind = {"type": "queue"} if queue else {}
            harness.put(name, durability=rng.choice([*usage.CLASSES]), **kind)
        elif act == 1:
            harness.delete(name)
        elif act == 2 and queue:
            claim(harness, topic, rng.choice([1_000, 60_000]))
        elif act == 3:
            harness.later(rng.choice([100, 2_000, 20_000]))
        else:
            delay = {"delay_ms": 9_000} if queue and act == 4 else {}
            harness.append(name, records=[{"data": 1, **delay}] * 2, key=f"k{step}")
        harness.commit()
        for each in (topic, harness.engine.topics.get(name)):
            if each is not None:
                counted.touch(each)
        anew = Usage(harness.engine.topics.values(), harness.now.ms)
        assert sums(counted, harness) == anew.sums
        if rng.random() < 0.1:
            counted.reset(harness.engine.topics.values())
