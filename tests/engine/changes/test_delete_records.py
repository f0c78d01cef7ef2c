"""Deletes of records: what goes, what readers see of it and what the log is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import Desk, fill, seqs_of, told
from topics.errors import TopicNotFound
from topics.formats.disk.frames import FrameKind


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
