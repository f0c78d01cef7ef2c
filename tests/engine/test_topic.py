"""One topic: its state, priority, caps and age; the table of topics."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from tests.engine.shard_support import EngineHarness, advance, expire, fill
from topics.engine.changes import put_topic
from topics.engine.changes.append import Append
from topics.engine.now import Now
from topics.engine.priority import BANDS, NEW_BAND, TOP_BAND, WEIGHTS, WeightedQueues
from topics.engine.topic import Topic
from topics.engine.topic_table import SORTED_RATIO
from topics.formats.api.decoding import decode_config
from topics.formats.api.topic_config import TopicConfig
from topics.formats.json_text import json_bytes


def test_a_read_does_not_raise_a_topic_with_a_fixed_or_disabled_priority(
    harness: EngineHarness,
) -> None:
    harness.put("a", auto_priority=False)
    topic = harness.engine.topic("a")
    topic.touch(*harness.now)
    assert (topic.effective_priority(harness.now.ms), topic.band(harness.now.ms)) == (0, NEW_BAND)
    harness.put("a", priority=-7)
    assert (topic.effective_priority(harness.now.ms), topic.band(harness.now.ms)) == (-7, 0)
    harness.put("a", priority=5000)  # stored clamped
    assert (topic.effective_priority(harness.now.ms), topic.band(harness.now.ms)) == (
        1000,
        TOP_BAND,
    )


def test_pending_keys_of_topics_are_independent() -> None:
    first, second = (Topic(topic_id, "t", 1, TopicConfig()) for topic_id in (1, 2))
    first.note_pending_key("k", "a")
    assert (first.pending_keys, second.pending_keys) == ({"k": "a"}, {})
    second.note_pending_key("k", "b")
    assert first.pending_keys == {"k": "a"}
    assert Topic(3, "t", 1, TopicConfig()).pending_keys == {}


def test_a_dry_run_without_new_limits_does_not_count_expired_records(
    harness: EngineHarness,
) -> None:
    harness.put("a", ttl_ms=10)
    harness.append("a", 1, 2, 3)
    harness.commit()
    harness.later(1000)
    planned = [
        put_topic.plan(
            harness.engine.table, "a", decode_config(json_bytes(patch)), harness.now
        ).dropped
        for patch in ({}, {"ttl_ms": 10}, {"ttl_ms": 9})
    ]
    assert planned == [0, 0, 3]


@pytest.mark.slow
def test_an_idle_topic_takes_less_than_a_kilobyte() -> None:
    count = 1000
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        topics = [Topic(number, "t", 1, TopicConfig(ttl_ms=5)) for number in range(count)]
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken / len(topics) < 750  # 560 bytes; it would be 1,440 with a deque per topic


# Topic table: ids, epochs and names


def test_epochs_increase_even_if_the_clock_is_set_back(harness: EngineHarness) -> None:
    epochs = []
    for ts in (100, 50, 50, 7):
        harness.now = Now(ts, harness.now.ms + 1)
        harness.put("a")
        epochs.append(harness.engine.topic("a").epoch)
        harness.delete("a")
    assert epochs == sorted(set(epochs))
    assert epochs[0] == 100


def test_names_are_sorted_and_limited_to_prefix_cursor_and_allowlist(
    harness: EngineHarness,
) -> None:
    for name in ("b", "a", "a.2", "a.1", "c"):
        harness.put(name)
    names = harness.engine.names
    assert names("", None, None, 9) == ["a", "a.1", "a.2", "b", "c"]
    assert names("", None, None, 3) == ["a", "a.1", "a.2"]
    assert names("a", None, None, 9) == ["a", "a.1", "a.2"]
    assert names("a", "a.1", None, 9) == ["a.2"]
    assert names("", None, ["b", "a."], 9) == ["a.1", "a.2", "b"]
    assert names("", None, [], 9) == []
    many = [f"m.{number}" for number in range(3 * SORTED_RATIO)]
    for name in many:
        harness.put(name)
    assert names("m", None, None, 2) == sorted(many)[:2], "without sorting all of them"


# Queues by band: weighted round robin


def test_bands_are_served_by_weight_and_each_band_in_order() -> None:
    queues = WeightedQueues[int]()
    for band in range(BANDS):
        queues.queues[band].extend(range(100))
    taken: dict[int, list[int]] = {band: [] for band in range(BANDS)}
    for _ in range(sum(WEIGHTS)):
        number = queues.next()
        assert number is not None
        queues.charge(number)
        taken[number].append(queues.queues[number].popleft())
    assert taken == {band: [*range(weight)] for band, weight in enumerate(WEIGHTS)}


def test_a_lone_band_is_always_served_and_repays_its_share_when_others_arrive() -> None:
    queues = WeightedQueues[int]()
    assert queues.next() is None
    queues.queues[0].extend(range(50))
    for _ in range(10):
        assert queues.next() == 0
        queues.charge(0, 3)
    queues.queues[3].extend(range(50))
    order = []
    for _ in range(30):
        number = queues.next()
        assert number is not None
        queues.charge(number)
        order.append(number)
    assert order[0] == 3
    assert 0 in order
    assert order.count(3) > 20


# Caps and age, one rule per test; long random runs are in test_topic_machine.py


def test_cap_bytes_is_exact_to_the_byte(harness: EngineHarness) -> None:
    fill(harness, 1, 1, 1)
    size = harness.engine.topic("a").bytes // 3
    for cap, left in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (size - 1, 0)):
        harness.put("a", cap_bytes=cap)
        harness.commit()
        assert (harness.engine.topic("a").count, harness.engine.topic("a").bytes) == (
            left,
            left * size,
        )


def test_skipped_seqs_take_no_capacity(harness: EngineHarness) -> None:
    harness.put("a", cap_records=2, discard="reject")
    harness.commit()
    harness.pending.append(advance(harness.engine.topic("a"), 5, harness.now))
    assert isinstance(harness.append("a", 1, 2), Append)


def test_a_cut_writes_a_floor_frame_only_if_the_log_holds_removed_records(
    harness: EngineHarness,
) -> None:
    fill(harness, 1, 1, cap_records=2)
    harness.put("a", durability="ephemeral")
    harness.commit()
    # The third cut removes only records that the log does not contain
    for is_logged in (True, True, False):
        harness.append("a", 1)
        harness.commit()
        assert (expire(harness) is not None) is is_logged
