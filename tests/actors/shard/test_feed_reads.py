"""Tests of feed reads: streams that catch up, and readers of synced records only."""

from __future__ import annotations

import itertools

import pytest

from tests.support.feeds import Front, gap_of, seqs
from tests.support.shard import ShardHarness
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import (
    DIFF_AHEAD,
    TOPIC_HEADS,
    DiffAheadParams,
    DiffAheadResult,
    TopicHeadsParams,
)
from topics.formats.wire.envelope import Success, decode


async def test_a_cursor_of_a_deleted_incarnation_is_reported_to_the_reader(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2)
    front.written()
    front.wire.take()
    epoch = front.engine.topic("a").epoch
    front.feed_read("a", 1, epoch=epoch - 1)
    answer = front.answer()
    assert (answer["from_seq"], answer["to_seq"], seqs(answer)) == (0, 2, [1, 2])
    assert (gap_of(answer), answer["epoch"]) == (("recreated", 1, 2), epoch)
    front.feed_read("a", 3)
    assert front.answer()["tombstone"]["reason"] == "recreated"
    front.feed_read("a", 1, epoch=epoch)
    answer = front.answer()
    assert (answer["tombstone"], seqs(answer)) == (None, [2])


# Readers that lag a feed


async def test_a_feed_read_returns_no_record_above_its_until_seq(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2, 3)
    front.append("a", 4, 5, 6)
    front.written()
    front.wire.take()
    for from_seq, until_seq in itertools.product(range(8), repeat=2):
        front.feed_read("a", from_seq, until_seq, epoch=front.engine.topic("a").epoch)
        answer = front.answer()
        assert seqs(answer) == [*range(from_seq + 1, min(until_seq, 6) + 1)]
        assert answer["to_seq"] == max(min(until_seq, 6), min(from_seq, 6))
        assert answer["head_seq"] == 6
    front.feed_read("a", 1, limit=2)
    answer = front.answer()
    assert (seqs(answer), answer["from_seq"], answer["to_seq"]) == ([2, 3], 1, 3)


async def test_a_gap_that_crosses_until_seq_is_reported_completely(
    front: Front,
) -> None:
    front.make("a", cap_records=2)
    front.append("a", *range(10))
    front.written()
    front.wire.take()
    front.feed_read("a", 1, until_seq=5)
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"], gap_of(answer)) == ([9, 10], 10, ("cap", 2, 8))


async def test_heads_of_existing_topics_are_returned(front: Front) -> None:
    front.make("a", cap_records=1)
    front.make("b")
    front.append("a", 1, 2)
    front.written()
    front.wire.take()
    front.request(TOPIC_HEADS, TopicHeadsParams(["b", "none", "a"]))
    a, b = front.engine.topic("a"), front.engine.topic("b")
    assert front.answer()["heads"] == {"b": [0, 1, b.epoch], "a": [2, 2, a.epoch]}
    assert a.last_read_ts is None


async def test_a_missing_topic_is_not_found_and_a_read_of_an_existing_topic_touches_it(
    front: Front,
) -> None:
    for call in (front.open, front.feed_read):
        call("a")
        assert front.answer()["code"] == "topic_not_found"
    assert len(front.loop.services.feeds) == 0
    for call in (front.open, front.feed_read):
        front.make("a")
        call("a")
        assert front.engine.topic("a").last_read_ts is not None
        front.delete("a")
        front.synced()


# Synced records only


async def test_a_strong_feed_sends_only_synced_records_and_its_head_is_synced(front: Front) -> None:
    front.make("a")
    front.append("a", 1, 2)
    front.synced()
    front.append("a", 3)
    front.written()
    front.wire.take()
    front.open("a", 1, strong=True)
    assert front.answer()["head_seq"] == 2
    front.open("a", 2)
    assert front.answer()["head_seq"] == 3
    front.end_iteration()
    front.append("a", 4, 5)
    front.written()
    assert [(event["feed"], seqs(event)) for event in front.events()] == [(2, [4, 5])]
    front.feed_read("a", strong=True)
    answer = front.answer()
    assert (seqs(answer), answer["to_seq"], answer["head_seq"]) == ([1, 2], 2, 2)
    front.synced()
    (page,) = front.events()
    assert (page["feed"], seqs(page), page["from_seq"], page["head_seq"]) == (1, [3, 4, 5], 2, 5)
    front.append("a", 6)
    front.written()
    front.taken()
    front.append("a", 7)  # passed to the writer after the sync began
    front.flush()
    front.log.synced_lsn = front.log.written
    front.end_iteration()
    assert [(event["feed"], seqs(event)) for event in front.events()] == [(2, [6]), (1, [6])]


@pytest.mark.parametrize("durability", ["memory", "ephemeral"])
async def test_reads_do_not_wait_for_a_sync_in_classes_without_one(
    front: Front, durability: str
) -> None:
    front.make("a", durability=durability)
    front.open("a", strong=True)
    front.append("a", 1)
    front.written()
    assert front.pages() == [[1]]
    front.feed_read("a", strong=True)
    assert seqs(front.answer()) == [1]


async def test_a_strong_feed_continues_when_its_topic_no_longer_requires_syncs(
    front: Front,
) -> None:
    front.make("a")
    front.open("a", strong=True)
    front.append("a", 1)
    front.written()
    assert front.pages() == []
    front.put("a", durability="memory")
    front.synced()
    front.append("a", 2)
    front.written()
    assert front.pages() == [[1], [2]]


# Diffs


def ahead(
    harness: ShardHarness, topic: str, page_count: int, **query: int
) -> tuple[DiffAheadResult, bytes]:
    harness.request(DIFF_AHEAD, DiffAheadParams(topic, page_count), json_bytes(query))
    (frame,) = harness.wire.take()
    answer = decode(frame.payload)
    assert isinstance(answer, Success)
    return DIFF_AHEAD.result._make(answer.result), bytes(frame.attachment)


async def test_a_diff_gets_its_reply_immediately_if_there_are_records_or_it_does_not_wait(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    nothing = harness.diff("a")
    assert harness.answers() == [(nothing, 200)]
    harness.append("a", 1)
    harness.synced()
    harness.answers()
    something = harness.diff("a", wait_ms=30_000)
    assert harness.answers() == [(something, 200)]
    harness.diff("a", from_seq=1, wait_ms=30_000)
    assert harness.answers() == []


async def test_pages_read_ahead_equal_the_later_replies_without_their_trailers(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", *range(5))
    harness.synced()
    harness.answers()
    result, content = ahead(harness, "a", 8, limit=2)
    assert [(next_from, scanned) for _, next_from, scanned in result.pages] == [(2, 2), (4, 2)]
    assert (result.earliest_seq, result.epoch) == (1, harness.engine.topic("a").epoch)
    for (length, next_from, _), from_seq in zip(result.pages, (0, 2), strict=True):
        body, content = content[:length], content[length:]
        harness.diff("a", from_seq=from_seq, limit=2)
        (frame,) = harness.wire.take()
        assert bytes(frame.attachment).startswith(body)
        assert b"next_from_seq" not in body
        assert b'"next_from_seq":%d' % next_from in bytes(frame.attachment)
    assert content == b""


async def test_at_most_the_requested_number_of_pages_is_read_ahead(harness: ShardHarness) -> None:
    harness.make("a")
    harness.append("a", *range(9))
    harness.synced()
    harness.answers()
    assert len(ahead(harness, "a", 2, limit=1)[0].pages) == 2


async def test_a_page_that_an_append_would_change_is_not_read_ahead(harness: ShardHarness) -> None:
    harness.make("a")
    harness.append("a", 1, 2)
    harness.synced()
    harness.answers()
    result, content = ahead(harness, "a", 8, limit=2)
    assert (len(result.pages), content) == (0, b"")
