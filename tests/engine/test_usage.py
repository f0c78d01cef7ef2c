"""Usage: which topics are counted again, when, and how many at once."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import Desk
from topics.engine import usage
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.queue.claims import Ask, jobs_of
from topics.engine.topic import Topic
from topics.engine.usage import Sums, Usage


def topic_of(desk: Desk, name: str, *datas: Any, **config: Any) -> Topic:
    """A topic with records."""
    desk.put(name, **config)
    if datas:
        desk.append(name, *datas)
    desk.commit()
    return desk.engine.topic(name)


def sums(counted: Usage, desk: Desk) -> Sums:
    """After a beat."""
    counted.begin(desk.now.ms)
    while counted.step(desk.now.ms):
        pass
    return counted.sums


def test_the_sums_begin_with_all_topics_counted() -> None:
    desk = Desk()
    log, queue = topic_of(desk, "a", 1, 2), topic_of(desk, "q", 1, type="queue")
    counted = Usage([log, queue], desk.now.ms)
    assert counted.sums == Sums((0, 2, 0, 0), 1, 3, log.bytes + queue.bytes, 0, 0, 0)


def test_only_what_was_touched_is_counted_again() -> None:
    desk = Desk()
    topics = [topic_of(desk, "a", 1), topic_of(desk, "b", 1)]
    counted = Usage(topics, desk.now.ms)
    for topic in topics:
        desk.append(topic.name, 1, 2, 3, key="k")
        desk.commit()
    counted.touch(topics[1])
    found = sums(counted, desk)
    assert (found.records, found.keys) == (5, 1)
    counted.touch(topics[0])
    assert sums(counted, desk).records == 8


def test_what_was_touched_since_a_beat_began_belongs_to_the_next() -> None:
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


def test_a_topic_that_is_gone_does_not_count_however_often_it_is_touched() -> None:
    desk = Desk()
    counted = Usage([topic_of(desk, "q", 1, type="queue")], desk.now.ms)
    for _ in range(2):
        topic = desk.engine.topics.get("q")
        if topic is not None:
            counted.touch(topic)
            desk.delete("q")
            desk.commit()
        assert sums(counted, desk) == Sums((0, 0, 0, 0), 0, 0, 0, 0, 0, 0)


def test_another_class_counts_from_when_it_is_committed() -> None:
    desk = Desk()
    topic = topic_of(desk, "a", 1)
    counted = Usage([topic], desk.now.ms)
    desk.put("a", durability="fsync")
    counted.touch(topic)
    assert sums(counted, desk).by_class == (0, 1, 0, 0)
    desk.commit()
    counted.touch(topic)
    assert sums(counted, desk).by_class == (1, 0, 0, 0)


def claim(desk: Desk, topic: Topic, lease_ms: int) -> None:
    ask = Ask(jobs_of(topic).leases.poller("w"), 1, lease_ms)
    desk.pending += lease_jobs.claim(desk.engine.table, topic, [ask], desk.now, evenly=False)
    desk.commit()


def test_the_end_of_a_lease_is_seen_though_nothing_touches_the_queue() -> None:
    desk = Desk()
    topic = topic_of(desk, "q", 1, 2, 3, type="queue", durability="ephemeral")
    counted = Usage([topic], desk.now.ms)
    for lease_ms in (60_000, 5_000):  # the one that ends first comes last
        claim(desk, topic, lease_ms)
        counted.touch(topic)
    assert sums(counted, desk).leases == 2
    for later, left in ((5_000, 2), (300, 1), (54_000, 1), (1_000, 0)):
        desk.later(later)
        assert sums(counted, desk).leases == left


def test_a_delay_that_is_over_is_seen() -> None:
    desk = Desk()
    topic = topic_of(desk, "q", type="queue")
    counted = Usage([topic], desk.now.ms)
    desk.append("q", records=[{"data": 1, "delay_ms": 9_000}])
    desk.commit()
    counted.touch(topic)
    assert sums(counted, desk).delayed == 1
    desk.later(10_000)
    assert sums(counted, desk).delayed == 0


def test_a_busy_queue_is_planned_once() -> None:
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


def test_times_that_do_not_count_any_more_are_swept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "STALE_MIN", 5)
    desk = Desk()
    topic = topic_of(desk, "q", 1, type="queue", durability="ephemeral")
    desk.append("q", records=[{"data": 2, "delay_ms": 10**9}])
    desk.commit()
    counted = Usage([topic], desk.now.ms)
    for _ in range(30):  # a lease ends, and the delay is what comes next
        claim(desk, topic, 1_000)
        counted.touch(topic)
        assert sums(counted, desk).leases == 1
        desk.later(1_300)
        assert sums(counted, desk) == Usage([topic], desk.now.ms).sums
        assert len(counted._times) <= 2 + usage.STALE_MIN
    for number in range(30):  # queues come and go
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


def test_counting_anew_comes_to_what_counting_from_the_first_does() -> None:
    desk = Desk()
    topics = [topic_of(desk, "a", 1, 2), topic_of(desk, "q", 3, type="queue")]
    counted = Usage(topics, desk.now.ms)
    desk.engine.table.remove(topics[0])  # a creation that was counted, and is undone
    counted.touch(topics[1])
    counted.begin_anew(desk.engine.topics.values())
    assert sums(counted, desk) == Usage([topics[1]], desk.now.ms).sums
