"""Appends: what they wait for, what a key stands for, and what is undone."""

from __future__ import annotations

import pytest

from tests.engine.shard_support import Desk
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now


@pytest.mark.parametrize(
    ("durability", "sync"),
    [("ephemeral", False), ("memory", False), ("disk", False), ("fsync", True)],
)
def test_only_the_class_fsync_waits_for_the_disk(desk: Desk, durability: str, sync: bool) -> None:
    desk.put("a", durability=durability)
    desk.commit()
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync is sync
    assert bool(change.frames) is (durability != "ephemeral")


def test_a_write_behind_one_that_waits_for_the_disk_waits_too(desk: Desk) -> None:
    desk.put("a")
    change = desk.append("a", 1)
    assert isinstance(change, Append)
    assert change.sync, "the topic itself is not on the disk yet"


def test_undo_takes_back_everything_that_is_pending(desk: Desk) -> None:
    desk.put("a", ttl_ms=1)
    desk.append("a", 1, key="kept")
    desk.commit()
    topic = desk.engine.topic("a")
    desk.append("a", 2, key="lost")
    desk.put("a", ttl_ms=2)
    desk.put("a", ttl_ms=3)
    desk.delete("a")
    desk.append("a", "another a")
    desk.append("new", 1)
    desk.undo()
    assert desk.engine.topics == {"a": topic}
    assert desk.engine.by_id == {topic.id: topic}
    assert (topic.config.ttl_ms, topic.head_seq, topic.next_seq, topic.deleted) == (1, 1, 2, False)
    again = desk.append("a", 2, key="lost")
    assert isinstance(again, Append)
    assert again.first_seq == 2
    assert isinstance(desk.append("a", 2, key="kept"), DedupeEntry)


def test_a_retry_of_a_write_on_its_way_follows_it(desk: Desk) -> None:
    first = desk.append("a", 1, key="k")
    assert desk.append("a", 2, key="k") == InFlightDuplicate(first)  # type: ignore[arg-type]
    desk.commit()
    assert desk.append("a", 2, key="k") == DedupeEntry(1, 1)


def test_a_window_of_zero_keeps_nothing(desk: Desk) -> None:
    desk.put("a", idempotency_window_ms=0)
    for expected in (1, 2, 3):
        change = desk.append("a", 1, key="k")
        assert isinstance(change, Append)
        assert (change.first_seq, change.key) == (expected, None)
        if expected == 2:
            desk.commit()


def test_keys_stand_for_themselves_in_each_topic(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    assert isinstance(desk.append("b", 1, key="k"), Append)


def test_a_topic_made_again_knows_no_key(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    desk.delete("a")
    change = desk.append("a", 1, key="k")
    assert isinstance(change, Append)
    assert change.created


def test_a_key_whose_time_is_over_does_not_come_back_with_a_longer_window(desk: Desk) -> None:
    desk.put("a", idempotency_window_ms=100)
    desk.append("a", 1, key="old")
    desk.commit()
    desk.later(60)
    desk.append("a", 2, key="young")
    desk.commit()
    desk.later(40)
    desk.put("a", idempotency_window_ms=1000)
    desk.commit()
    assert desk.append("a", 3, key="young") == DedupeEntry(2, 1)
    assert isinstance(desk.append("a", 3, key="old"), Append)


def test_a_shorter_window_holds_for_the_keys_that_are_there(desk: Desk) -> None:
    desk.append("a", 1, key="k")
    desk.commit()
    desk.later(100)
    desk.put("a", idempotency_window_ms=100)
    assert isinstance(desk.append("a", 2, key="k"), Append)


def test_ts_never_goes_back_in_a_topic(desk: Desk) -> None:
    stamps = []
    for ts in (100, 50, 120, 119):
        desk.now = Now(ts, desk.now.ms)
        change = desk.append("a", 1)
        assert isinstance(change, Append)
        stamps.append(change.ts)
    assert stamps == [100, 100, 120, 120]
