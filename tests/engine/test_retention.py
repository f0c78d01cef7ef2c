"""Caps, age, floors and deletes, one sentence each; the long runs are in test_topic_machine.py and
topic_walk.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import Desk
from tests.engine.test_reading import seqs_of
from topics.engine.changes.append import Append
from topics.engine.dedupe import DedupeEntry
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.record_index import IndexEntry, RecordIndex
from topics.engine.tags import PORTION_TAGS, TagIndex
from topics.errors import TopicFull, TopicNotEmpty, TopicNotFound
from topics.formats.api.delete_body import TagMatch
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_string


@pytest.fixture
def desk() -> Desk:
    return Desk()


def fill(desk: Desk, *writes: int, **config: Any) -> None:
    """Topic ``a`` with so many records in each write."""
    desk.put("a", **config)
    for count in writes:
        desk.append("a", *range(count))
    desk.commit()


def told(page: Page) -> tuple[int, int, str] | None:
    return page.tombstone and (
        page.tombstone.gap_from,
        page.tombstone.gap_to,
        page.tombstone.reason,
    )


def expire(desk: Desk) -> object:
    return desk.engine.expire(desk.engine.topic("a"), desk.now)


# Caps


def test_no_more_records_than_the_cap_are_visible(desk: Desk) -> None:
    fill(desk, 3, 4, 2, cap_records=4)
    topic = desk.engine.topic("a")
    assert (topic.count, topic.earliest_seq, topic.evict_floor) == (4, 6, 6)
    page = desk.read("a")
    assert seqs_of(page) == [6, 7, 8, 9]
    assert told(page) == (1, 5, "cap")


def test_a_cursor_at_the_floor_reads_on_in_silence(desk: Desk) -> None:
    fill(desk, 3, 4, cap_records=4)
    assert told(desk.read("a", 2)) == (3, 3, "cap")
    assert told(desk.read("a", 3)) is None


def test_bytes_are_capped_to_the_byte(desk: Desk) -> None:
    fill(desk, 1, 1, 1)
    size = desk.engine.topic("a").bytes // 3
    for cap, left in ((3 * size, 3), (3 * size - 1, 2), (size, 1), (size - 1, 0)):
        desk.put("a", cap_bytes=cap)
        desk.commit()
        assert (desk.engine.topic("a").count, desk.engine.topic("a").bytes) == (left, left * size)


def test_a_write_larger_than_the_cap_keeps_its_newest_records(desk: Desk) -> None:
    fill(desk, 10, cap_records=3)
    assert seqs_of(desk.read("a")) == [8, 9, 10]


def test_a_relaxed_cap_brings_nothing_back(desk: Desk) -> None:
    fill(desk, 5, cap_records=2)
    desk.put("a", cap_records=0)
    desk.commit()
    assert (desk.engine.topic("a").earliest_seq, desk.engine.topic("a").count) == (4, 2)


def test_a_tightened_cap_counts_when_it_is_committed(desk: Desk) -> None:
    fill(desk, 5)
    desk.put("a", cap_records=2)
    assert desk.engine.topic("a").count == 5
    desk.undo()
    assert desk.engine.topic("a").count == 5
    desk.put("a", cap_records=2)
    desk.commit()
    assert desk.engine.topic("a").count == 2


def test_deleted_records_take_no_room_under_a_cap(desk: Desk) -> None:
    desk.put("a", cap_records=3)
    desk.append(
        "a",
        records=[
            {"data": number, "tag": "even" if number % 2 == 0 else "odd"} for number in range(3)
        ],
    )
    desk.commit()
    desk.delete_records("a", match="odd")
    desk.append("a", 3)
    desk.commit()
    assert seqs_of(desk.read("a")) == [1, 3, 4]
    assert desk.engine.topic("a").evict_floor == 1


# Reject


@pytest.mark.parametrize(
    ("before", "count", "fits"),
    [(0, 3, True), (0, 4, False), (2, 1, True), (2, 2, False), (3, 1, False)],
)
def test_a_topic_that_rejects_takes_a_write_whole_or_not_at_all(
    desk: Desk, before: int, count: int, fits: bool
) -> None:
    desk.put("a", cap_records=3, discard="reject")
    if before:
        desk.append("a", *range(before))  # on its way counts too
    if fits:
        assert isinstance(desk.append("a", *range(count)), Append)
    else:
        with pytest.raises(TopicFull) as refused:
            desk.append("a", *range(count))
        assert refused.value.detail["topic"] == "a"
        assert desk.engine.topic("a").next_seq == before + 1
    desk.commit()
    assert desk.engine.topic("a").earliest_seq == 1


def test_a_write_that_does_not_fit_makes_no_topic(desk: Desk) -> None:
    with pytest.raises(TopicFull):
        desk.append("a", 1, 2, config={"discard": "reject", "cap_records": 1})
    assert desk.engine.topics == {}


def test_a_retry_is_answered_also_when_the_topic_is_full(desk: Desk) -> None:
    desk.put("a", cap_records=1, discard="reject")
    desk.append("a", 1, key="k")
    desk.commit()
    assert desk.append("a", 2, key="k") == DedupeEntry(1, 1, desk.now.ms)


def test_room_that_a_failed_write_held_is_given_back(desk: Desk) -> None:
    fill(desk, cap_records=1, discard="reject")
    desk.append("a", 1)
    desk.undo()
    assert isinstance(desk.append("a", 1), Append)


# Age


def test_a_record_is_gone_when_it_is_older_than_its_ttl(desk: Desk) -> None:
    fill(desk, 2, ttl_ms=10)
    desk.later(5)
    desk.append("a", "young")
    desk.commit()
    desk.later(5)
    assert expire(desk) is None
    desk.later(1)
    moved = expire(desk)
    assert moved is not None
    page = desk.read("a")
    assert seqs_of(page) == [3]
    assert told(page) == (1, 2, "ttl")


def test_a_floor_that_was_shown_stays_when_the_clock_steps_back(desk: Desk) -> None:
    fill(desk, 2, ttl_ms=10)
    desk.later(11)
    expire(desk)
    desk.now = Now(desk.now.ts - 1000, desk.now.ms)
    assert expire(desk) is None
    assert (desk.engine.topic("a").earliest_seq, desk.engine.topic("a").count) == (3, 0)
    desk.put("a", ttl_ms=0)
    desk.commit()
    assert desk.engine.topic("a").earliest_seq == 3


def test_the_log_is_told_again_of_a_floor_whose_frame_was_lost(desk: Desk) -> None:
    fill(desk, 1, ttl_ms=10)
    desk.later(11)
    moved = desk.engine.expire(desk.engine.topic("a"), desk.now)
    assert moved is not None
    assert [frame.kind for frame in moved.frames] == [FrameKind.FLOOR]
    assert not moved.sync
    assert expire(desk) is None
    desk.engine.undo(moved)
    assert expire(desk) is not None


def test_cap_and_age_together_are_mixed(desk: Desk) -> None:
    fill(desk, 1, 1, 1, 1, cap_records=3, ttl_ms=10)
    desk.later(11)
    expire(desk)
    assert told(desk.read("a", 0)) == (1, 4, "mixed")
    assert told(desk.read("a", 1)) == (2, 4, "ttl")


# Deletes


def test_a_delete_by_seq_is_silent_and_moves_the_start_alone(desk: Desk) -> None:
    fill(desk, 2, 3)
    change = desk.delete_records("a", before_seq=4)
    assert [frame.kind for frame in change.frames] == [FrameKind.DELETE]
    desk.commit()
    topic = desk.engine.topic("a")
    assert (change.deleted, topic.earliest_seq, topic.evict_floor, topic.count) == (3, 4, 1, 2)
    page = desk.read("a")
    assert (seqs_of(page), page.tombstone) == ([4, 5], None)


def test_an_eviction_gap_runs_across_what_was_deleted(desk: Desk) -> None:
    fill(desk, 3, 1, cap_records=3)
    desk.delete_records("a", before_seq=4)
    desk.commit()
    assert told(desk.read("a", 0)) == (1, 3, "cap")
    assert told(desk.read("a", 1)) is None


def test_a_delete_takes_what_is_there_and_nothing_that_comes_later(desk: Desk) -> None:
    desk.append("a", records=[{"data": 1, "tag": "t"}])
    desk.commit()
    desk.append("a", records=[{"data": 2, "tag": "t"}])  # on its way
    change = desk.delete_records("a", match="t")
    desk.delete_records("a", before_seq=100)
    desk.commit()
    assert change.deleted == 1
    assert seqs_of(desk.read("a")) == [2]


def test_a_record_is_deleted_once(desk: Desk) -> None:
    desk.append("a", records=[{"data": number, "tag": "t"} for number in range(3)])
    desk.commit()
    first, second = desk.delete_records("a", match="t"), desk.delete_records("a", before_seq=3)
    desk.commit()
    assert (first.deleted, second.deleted) == (3, 0)


@pytest.mark.parametrize(
    ("match", "left"),
    [
        ("x", [2, 3, 4, 5, 6]),
        (["tag", "Eq", "x"], [2, 3, 4, 5, 6]),
        (["tag", "Glob", "x*"], [4, 5, 6]),
        (["tag", "Glob", "*"], [6]),
        ("x*", [1, 3, 4, 5, 6]),
        ("", [1, 2, 3, 4, 6]),
        ("nobody", [1, 2, 3, 4, 5, 6]),
        (["tag", "Glob", 'é"*'], [1, 2, 3, 5, 6]),
    ],
)
def test_eq_is_the_tag_and_glob_its_beginning(desk: Desk, match: Any, left: list[int]) -> None:
    tags = ["x", "x*", "xyz", 'é"\\', "", None]
    desk.append(
        "a", records=[{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    )
    desk.commit()
    desk.delete_records("a", match=match)
    desk.commit()
    assert seqs_of(desk.read("a")) == left


def test_the_head_of_a_topic_without_records_is_reached_at_once(desk: Desk) -> None:
    desk.append("a", records=[{"data": 1, "tag": "t"}] * 5 + [{"data": 2}])
    desk.append("a", records=[{"data": 1, "tag": "t"}] * 5)
    desk.commit()
    desk.delete_records("a", match="t")
    desk.commit()
    page = desk.read("a", limit=1)
    assert (seqs_of(page), page.next_from_seq, page.scanned, page.caught_up) == ([6], 11, 1, True)


def test_only_a_class_that_is_synced_syncs_its_deletes_and_only_logged_records_are_told_of(
    desk: Desk,
) -> None:
    for durability, frames, sync in (
        ("fsync", 1, True),
        ("disk", 1, False),
        ("memory", 1, False),
        ("ephemeral", 0, False),
    ):
        desk.put(durability, durability=durability)
        desk.append(durability, 1)
        desk.commit()
        change = desk.delete_records(durability, before_seq=2)
        assert (len(change.frames), change.sync) == (frames, sync)
        desk.commit()
        assert change.deleted == 1


def test_a_delete_of_nothing_tells_the_log_nothing(desk: Desk) -> None:
    fill(desk, 1)
    assert not desk.delete_records("a", before_seq=1).frames
    assert not desk.delete_records("a", before_seq=0).frames
    assert not desk.delete_records("a", match="t").frames
    with pytest.raises(TopicNotFound):
        desk.delete_records("b", before_seq=1)


def test_if_empty_means_no_live_record(desk: Desk) -> None:
    fill(desk, 2)
    with pytest.raises(TopicNotEmpty):
        desk.delete("a", if_empty=True)
    desk.delete_records("a", before_seq=3)
    desk.commit()
    assert desk.delete("a", if_empty=True) is not None


# Index


def test_the_front_of_an_index_goes_cheaply_and_entries_are_found_by_what_is_left() -> None:
    index = RecordIndex()
    for number in range(1000):
        index.add(1 + 2 * number, 2, number, 50, number)
    for dropped in range(1, 1000):
        index.drop(1)
        assert (len(index), index.find(2 * dropped + 1), index.find(1), index.entry(0)[0]) == (
            1000 - dropped,
            0,
            0,
            2 * dropped + 1,
        )
        assert index.find_ts(dropped + 1) == min(1, 1000 - dropped)
    index.drop(1)
    assert (len(index), index.bytes_used()) == (0, 0)


def test_an_entry_takes_less_than_forty_bytes_and_none_takes_nothing() -> None:
    index = RecordIndex()
    assert index.bytes_used() == 0
    for number in range(100_000):
        index.add(number, 1, number, 50, number)
    assert index.bytes_used() < 40 * 100_000
    while len(index) > 50_000:
        index.drop(1)
    assert index.bytes_used() < 40 * 60_000


def test_only_writes_of_the_log_lie_between_two_positions() -> None:
    index = RecordIndex()
    locators = [1 << 62, 10, 1 << 63, 20, 1 << 63 | 1, 30, 40]
    for seq, locator in enumerate(locators):
        index.add(seq, 1, locator, 50, 0)
    assert [entry.locator for entry in index.entries_between(20, 40)] == [20, 30]
    found = index.entries_between(10, 99)
    assert next(found) == IndexEntry(1, 1, 10, 50, 0)
    index.drop(4)  # meanwhile
    assert [entry.locator for entry in found] == [30, 40]


# Tags


def test_tags_are_found_in_every_portion_until_they_are_forgotten() -> None:
    tags = TagIndex()
    texts = [f"tag-{number * 7919 % 20_011:05d}" for number in range(3 * PORTION_TAGS)]
    tags.add([(index, json_string(text)) for index, text in enumerate(texts)], 100)
    for prefix in ("tag-00", "tag-1", "", "tag-20010", "tag-x", "u"):
        expected = {100 + index for index, text in enumerate(texts) if text.startswith(prefix)}
        assert set(tags.find(TagMatch("Glob", prefix))) == expected
    assert list(tags.find(TagMatch("Eq", texts[17]))) == [117]
    tags.add([(0, json_string(texts[17]))], 99_000)
    tags.forget(TagMatch("Eq", texts[17]), 200)
    assert list(tags.find(TagMatch("Glob", texts[17]))) == [99_000]
    tags.forget(TagMatch("Eq", texts[17]), 100_000)
    assert list(tags.find(TagMatch("Eq", texts[17]))) == []
