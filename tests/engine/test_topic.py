"""State of one topic."""

from __future__ import annotations

import gc
import tracemalloc

from tests.engine.shard_support import Desk
from topics.engine.now import Now
from topics.engine.priority import NEW_BAND, TOP_BAND
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig


def test_a_read_does_not_count_where_a_priority_is_set_or_none_is_wanted(desk: Desk) -> None:
    desk.put("a", auto_priority=False)
    topic = desk.engine.topic("a")
    topic.touch(*desk.now)
    assert (topic.effective_priority(desk.now.ms), topic.band(desk.now.ms)) == (0, NEW_BAND)
    desk.put("a", priority=-7)
    assert (topic.effective_priority(desk.now.ms), topic.band(desk.now.ms)) == (-7, 0)
    desk.put("a", priority=5000)  # stored clamped
    assert (topic.effective_priority(desk.now.ms), topic.band(desk.now.ms)) == (1000, TOP_BAND)


def test_a_key_under_way_belongs_to_its_topic_alone() -> None:
    first, second = (Topic(topic_id, "t", 1, TopicConfig()) for topic_id in (1, 2))
    first.note_pending_key("k", "a")
    assert (first.pending_keys, second.pending_keys) == ({"k": "a"}, {})
    second.note_pending_key("k", "b")
    assert first.pending_keys == {"k": "a"}
    assert Topic(3, "t", 1, TopicConfig()).pending_keys == {}


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
    assert taken / len(topics) < 750  # 560; 1,440 with a deque of its own


# Topic table: ids, epochs and names


def test_epochs_rise_though_the_clock_goes_back(desk: Desk) -> None:
    epochs = []
    for ts in (100, 50, 50, 7):
        desk.now = Now(ts, desk.now.ms + 1)
        desk.put("a")
        epochs.append(desk.engine.topic("a").epoch)
        desk.delete("a")
    assert epochs == sorted(set(epochs))
    assert epochs[0] == 100


def test_names_are_sorted_and_stay_inside_prefix_cursor_and_allowlist(desk: Desk) -> None:
    for name in ("b", "a", "a.2", "a.1", "c"):
        desk.put(name)
    names = desk.engine.names
    assert list(names("", None, None)) == ["a", "a.1", "a.2", "b", "c"]
    assert list(names("a", None, None)) == ["a", "a.1", "a.2"]
    assert list(names("a", "a.1", None)) == ["a.2"]
    assert list(names("", None, ["b", "a."])) == ["a.1", "a.2", "b"]
    assert list(names("", None, [])) == []
