"""Feed table: feeds are found by session and number, and by topic."""

from __future__ import annotations

from typing import Any

import pytest

from topics.actors.shard.feed_table import Feed, FeedTable
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff
from topics.formats.api.topic_config import TopicConfig

ONE: Any = "one session"
OTHER: Any = "another session"
A, B = (Topic(number, name, 1, TopicConfig()) for number, name in enumerate("ab", 1))


def feed(session: Any, number: int, topic: Topic) -> Feed:
    return Feed(session, number, topic, Diff(), False, 0)


@pytest.fixture
def feeds() -> list[Feed]:
    return [feed(ONE, 1, A), feed(ONE, 2, B), feed(OTHER, 1, A)]


@pytest.fixture
def table(feeds: list[Feed]) -> FeedTable:
    table = FeedTable()
    for each in feeds:
        table.add(each)
    return table


def test_a_number_names_a_feed_of_its_session_alone(table: FeedTable, feeds: list[Feed]) -> None:
    assert [table.find(ONE, 1), table.find(ONE, 2), table.find(OTHER, 1)] == feeds
    assert table.find(OTHER, 2) is None
    assert len(table) == 3


def test_feeds_are_found_by_topic_and_by_session(table: FeedTable, feeds: list[Feed]) -> None:
    assert table.of_topic(A.id) == (feeds[0], feeds[2])
    assert table.of_session(ONE) == (feeds[0], feeds[1])
    assert table.of_topic(99) == table.of_session(object()) == ()  # type: ignore[arg-type]


def test_a_feed_is_removed_once_and_leaves_nothing(table: FeedTable, feeds: list[Feed]) -> None:
    assert table.remove(feeds[0])
    assert not table.remove(feeds[0])
    assert table.has_feeds(A.id)
    assert table.remove(feeds[2])
    assert not table.has_feeds(A.id)
    assert table.of_session(OTHER) == ()
    assert len(table) == 1


def test_a_closed_feed_does_not_remove_the_next_one_of_its_number(
    table: FeedTable, feeds: list[Feed]
) -> None:
    table.remove(feeds[1])
    again = feed(ONE, 2, B)
    table.add(again)
    assert not table.remove(feeds[1])
    assert table.find(ONE, 2) is again


def test_feeds_of_deleted_topics_are_found(table: FeedTable, feeds: list[Feed]) -> None:
    assert table.of_deleted_topics() == []
    gone = Topic(3, "gone", 1, TopicConfig())
    last = feed(OTHER, 7, gone)
    table.add(last)
    gone.deleted = True
    assert table.of_deleted_topics() == [last]
