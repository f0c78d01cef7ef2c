"""Usage: which topics are counted again, when, and how many per step."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.shard_support import Desk
from topics.engine import usage
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.queue.claims import ClaimRequest, jobs_of
from topics.engine.topic import Topic
from topics.engine.usage import Usage, UsageSums


def topic_of(desk: Desk, name: str, *datas: Any, **config: Any) -> Topic:
    """Return a new topic with these records."""
    desk.put(name, **config)
    if datas:
        desk.append(name, *datas)
    desk.commit()
    return desk.engine.topic(name)


def sums(counted: Usage, desk: Desk) -> UsageSums:
    """Return the sums after one tick."""
    counted.begin(desk.now.ms)
    while counted.step(desk.now.ms):
        pass
    return counted.sums


def test_the_initial_sums_count_all_topics() -> None:
    desk = Desk()
    log, queue = topic_of(desk, "a", 1, 2), topic_of(desk, "q", 1, type="queue")
    counted = Usage([log, queue], desk.now.ms)
    assert counted.sums == UsageSums((0, 2, 0, 0), 1, 3, log.bytes + queue.bytes, 0, 0, 0)


def test_a_topic_touched_after_the_tick_began_is_counted_by_the_next_tick() -> None:
    desk = Desk()
    topic = topic_of(desk, "a", 1)
    counted = Usage([], desk.now.ms)
    counted.begin(desk.now.ms)
    counted.touch(topic)
    assert not counted.step(desk.now.ms)
    assert counted.sums.records == 0
    assert sums(counted, desk).records == 1


def test_a_step_counts_a_bounded_number_of_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STEP_TOPICS", 2)
    desk, counted = Desk(), Usage([], 0)
    for name in "abcde":
        counted.touch(topic_of(desk, name, 1))
    counted.begin(0)
    seen = []
    while counted.step(0):
        seen.append(counted.sums.records)
    assert (seen, counted.sums.records) == ([2, 4], 5)


def claim(desk: Desk, topic: Topic, lease_ms: int) -> None:
    ask = ClaimRequest(jobs_of(topic).leases.poller("w"), 1, lease_ms)
    desk.pending += lease_jobs.claim(desk.engine.table, topic, [ask], desk.now, evenly=False)
    desk.commit()


def test_a_busy_queue_is_scheduled_only_once() -> None:
    desk = Desk()
    topic = topic_of(desk, "q", *range(50), type="queue", durability="ephemeral")
    counted = Usage([topic], desk.now.ms)
    for seq in range(1, 51):
        claim(desk, topic, 30_000)
        leases, _ = finish_jobs.begin_ack(topic, "w", [seq], None, desk.now)
        desk.pending.append(finish_jobs.ack(topic, leases, desk.now))
        desk.commit()
        counted.touch(topic)
        desk.later(10)
        assert sums(counted, desk).leases == 0
    assert len(counted._times) == 1
    desk.later(60_000)
    sums(counted, desk)
    assert not counted._times


def test_stale_scheduled_times_are_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STALE_MIN", 5)
    desk = Desk()
    topic = topic_of(desk, "q", 1, type="queue", durability="ephemeral")
    desk.append("q", records=[{"data": 2, "delay_ms": 10**9}])
    desk.commit()
    counted = Usage([topic], desk.now.ms)
    for _ in range(30):  # A lease ends, and the delay is the next scheduled time
        claim(desk, topic, 1_000)
        counted.touch(topic)
        assert sums(counted, desk).leases == 1
        desk.later(1_300)
        assert sums(counted, desk) == Usage([topic], desk.now.ms).sums
        assert len(counted._times) <= 2 + usage.STALE_MIN
    for number in range(30):  # Queues are created and deleted
        gone = topic_of(desk, f"gone{number}", type="queue")
        desk.append(gone.name, records=[{"data": 1, "delay_ms": 10**9}])
        desk.commit()
        counted.touch(gone)
        sums(counted, desk)
        desk.delete(gone.name)
        desk.commit()
        counted.touch(gone)
        assert len(counted._times) <= 2 * 2 + usage.STALE_MIN
        sums(counted, desk)
    desk.later(10**9)
    assert sums(counted, desk).delayed == 0


@pytest.mark.parametrize("seed", range(8))
def test_incremental_sums_always_equal_a_complete_count(seed: int) -> None:
    """Topics are created and deleted, and change keys and durability class. Leases and delays end
    by time.
    """
    rng, desk = Random(seed), Desk()
    counted = Usage([], desk.now.ms)
    for step in range(60):
        name, act = rng.choice("aq"), rng.randrange(6)
        queue, topic = name == "q", desk.engine.topics.get(name)
        if topic is None or act == 0:
            kind = {"type": "queue"} if queue else {}
            desk.put(name, durability=rng.choice([*usage.CLASSES]), **kind)
        elif act == 1:
            desk.delete(name)
        elif act == 2 and queue:
            claim(desk, topic, rng.choice([1_000, 60_000]))
        elif act == 3:
            desk.later(rng.choice([100, 2_000, 20_000]))
        else:
            delay = {"delay_ms": 9_000} if queue and act == 4 else {}
            desk.append(name, records=[{"data": 1, **delay}] * 2, key=f"k{step}")
        desk.commit()
        for each in (topic, desk.engine.topics.get(name)):
            if each is not None:
                counted.touch(each)
        anew = Usage(desk.engine.topics.values(), desk.now.ms)
        assert sums(counted, desk) == anew.sums
        if rng.random() < 0.1:
            counted.reset(desk.engine.topics.values())
