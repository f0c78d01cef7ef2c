"""Reads: a page now, later, or ahead of the question."""

from __future__ import annotations

from tests.support.shard import Desk
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import DIFF_AHEAD, DiffAheadParams, DiffAheadResult
from topics.formats.wire.envelope import Success, decode


def ahead(desk: Desk, topic: str, page_count: int, **asked: int) -> tuple[DiffAheadResult, bytes]:
    desk.ask(DIFF_AHEAD, DiffAheadParams(topic, page_count), json_bytes(asked))
    (frame,) = desk.wire.take()
    answer = decode(frame.payload)
    assert isinstance(answer, Success)
    return DIFF_AHEAD.result._make(answer.result), bytes(frame.attachment)


async def test_a_diff_is_answered_at_once_when_there_is_something_or_nobody_waits(
    desk: Desk,
) -> None:
    desk.make("a")
    nothing = desk.diff("a")
    assert desk.answers() == [(nothing, 200)]
    desk.append("a", 1)
    desk.synced()
    desk.answers()
    something = desk.diff("a", wait_ms=30_000)
    assert desk.answers() == [(something, 200)]
    desk.diff("a", from_seq=1, wait_ms=30_000)
    assert desk.answers() == []


async def test_pages_ahead_are_what_the_reader_will_be_answered_without_their_trailers(
    desk: Desk,
) -> None:
    desk.make("a")
    desk.append("a", *range(5))
    desk.synced()
    desk.answers()
    result, content = ahead(desk, "a", 8, limit=2)
    assert [(next_from, scanned) for _, next_from, scanned in result.pages] == [(2, 2), (4, 2)]
    assert (result.earliest_seq, result.epoch) == (1, desk.engine.topic("a").epoch)
    for (length, next_from, _), from_seq in zip(result.pages, (0, 2), strict=True):
        body, content = content[:length], content[length:]
        desk.diff("a", from_seq=from_seq, limit=2)
        (frame,) = desk.wire.take()
        assert bytes(frame.attachment).startswith(body)
        assert b"next_from_seq" not in body
        assert b'"next_from_seq":%d' % next_from in bytes(frame.attachment)
    assert content == b""


async def test_no_more_pages_are_read_ahead_than_are_asked_for(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", *range(9))
    desk.synced()
    desk.answers()
    assert len(ahead(desk, "a", 2, limit=1)[0].pages) == 2


async def test_a_page_that_an_append_would_change_is_not_read_ahead(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.synced()
    desk.answers()
    result, content = ahead(desk, "a", 8, limit=2)
    assert (len(result.pages), content) == (0, b"")
