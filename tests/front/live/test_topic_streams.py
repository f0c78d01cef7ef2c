"""Streams that follow topics: each reader's answers are its own, and an end leaves all feeds."""

from __future__ import annotations

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.front.live.streams_support import live
from tests.support.live_desk import Desk, desk, gap
from topics.errors import Internal


async def test_a_failed_read_of_a_former_reader_does_not_end_the_new_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with desk() as front:
        client = await front.client()
        await front.answer("feed.open", head_seq=1, earliest_seq=1, epoch=1)
        await client.follow("t")
        front.shards.refuse("feed.read", Internal("of the first one"))
        await wait_all_tasks_blocked()
        assert b"event: error" not in client.hear()
        assert client.stream.readers.keys() == {"t"}
    assert not caplog.records


async def test_a_stream_that_ends_leaves_its_feeds(front: Desk) -> None:
    client = await live(front)
    client.stream.end()
    assert front.live.feeds.by_number == {}
    assert front.shards.told == [("feed.close", {"feed": 1})]


async def test_a_gap_at_the_beginning_is_told_as_a_start_that_is_too_old(front: Desk) -> None:
    client = await front.client()
    await front.answer("feed.open", head_seq=4, earliest_seq=4, epoch=1)
    lost = gap(1, 3, "cap") | {"earliest_seq": 4}
    seen = {"to_seq": 4, "head_seq": 4, "earliest_seq": 4, "record_count": 1}
    await front.answer("feed.read", b'{"$seq":4}', from_seq=3, tombstone=lost, epoch=1, **seen)
    heard = client.hear()
    assert heard.index(b"from_seq_too_old") < heard.index(b"event: record")
