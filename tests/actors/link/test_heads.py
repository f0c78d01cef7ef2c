"""The shared cells that show whether a page that was read ahead is still valid."""

from __future__ import annotations

from typing import Any

from topics.actors.link.board import Board
from topics.actors.link.heads import SLOTS, HeadSlotReader, HeadSlotWriter, depends_only_on_version
from topics.engine.changes.append import Append
from topics.engine.changes.delete_records import DeleteRecords
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.put_topic import PutTopic
from topics.engine.changes.reservation import Reservation
from topics.engine.now import Now
from topics.engine.page import Page, Tombstone
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig


def topic(number: int, head_seq: int = 10, *, ttl_ms: int = 0, cap_records: int = 0) -> Topic:
    config = TopicConfig(ttl_ms=ttl_ms, cap_records=cap_records)
    made = Topic(number, f"t{number}", 1, config)
    made.head_seq = head_seq
    return made


def head_cells() -> memoryview:
    return Board(1).heads(0)


def commit(change: Any) -> None:
    for notify in change.topic.followers:
        notify(change)


def append(to: Topic, count: int = 1) -> Append:
    to.head_seq += count
    return Append(to, to.head_seq, count, 0, 0, None)


def test_an_append_moves_the_head_and_keeps_the_page_valid() -> None:
    shared, a = head_cells(), topic(1)
    writer, reader = HeadSlotWriter(shared), HeadSlotReader(shared)
    mark = writer.mark(a)
    assert reader.head(mark) == 10
    commit(append(a, 3))
    commit(Reservation(a, 5000))
    assert reader.head(mark) == 13
    assert writer.mark(a) == mark


def test_any_other_change_invalidates_the_page_permanently() -> None:
    shared, a = head_cells(), topic(1)
    writer, reader = HeadSlotWriter(shared), HeadSlotReader(shared)
    for change in (
        PutTopic(a, [], a.config, Now(0, 0)),
        DeleteRecords(a, 5, None, None),
        DeleteTopic(a, [], sync=True),
    ):
        mark = writer.mark(a)
        commit(change)
        assert reader.head(mark) is None
        commit(append(a))
        assert reader.head(mark) is None
        assert writer.mark(a) != mark


def test_changes_of_other_topics_do_not_affect_a_page() -> None:
    shared, a, b = head_cells(), topic(1), topic(2, 77)
    writer, reader = HeadSlotWriter(shared), HeadSlotReader(shared)
    mark = writer.mark(a)
    for change in (append(b), DeleteRecords(b, 5, None, None), DeleteTopic(b, [], sync=True)):
        writer.mark(b)
        commit(change)
    commit(append(topic(3)))
    assert reader.head(mark) == 10


def test_the_least_recently_assigned_slot_is_reused_for_another_topic() -> None:
    shared = head_cells()
    writer, reader = HeadSlotWriter(shared), HeadSlotReader(shared)
    marks = [writer.mark(topic(number, number)) for number in range(1, SLOTS + 2)]
    assert [reader.head(mark) for mark in marks] == [None, *range(2, SLOTS + 2)]
    assert marks[0].slot == marks[-1].slot


def test_the_slot_of_a_deleted_topic_is_reused_first() -> None:
    shared = head_cells()
    writer, reader = HeadSlotWriter(shared), HeadSlotReader(shared)
    topics = [topic(number, number) for number in range(1, SLOTS + 1)]
    marks = [writer.mark(each) for each in topics]
    commit(DeleteTopic(topics[5], [], sync=True))
    last = writer.mark(topic(SLOTS + 1, 99))
    assert [reader.head(mark) for mark in marks] == [
        None if number == 6 else number for number in range(1, SLOTS + 1)
    ]
    assert (last.slot, reader.head(last)) == (marks[5].slot, 99)


def test_a_new_shard_process_invalidates_every_page() -> None:
    shared, a = head_cells(), topic(1)
    before = HeadSlotWriter(shared).mark(a)
    after = HeadSlotWriter(shared)
    assert HeadSlotReader(shared).head(before) is None
    assert after.mark(a) != before


def test_only_a_full_page_below_the_head_depends_only_on_the_version() -> None:
    page = Page(0, 5, 10, 1, None, count=5)
    assert depends_only_on_version(topic(1), page)
    assert not depends_only_on_version(topic(1), Page(0, 10, 10, 1, None, count=10)), (
        "at the head, an append adds records to the page"
    )
    assert not depends_only_on_version(topic(1), Page(0, 5, 10, 1, None)), (
        "a long poll continues to wait after an empty page"
    )
    assert not depends_only_on_version(
        topic(1), Page(0, 5, 10, 1, Tombstone(1, 2, "cap", 3, 10), count=3)
    )
    assert not depends_only_on_version(topic(1, ttl_ms=1000), page), "its records may expire"
    assert not depends_only_on_version(topic(1, cap_records=20), page), (
        "an append may evict its records"
    )
