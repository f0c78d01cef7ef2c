"""Feeds: when a front subscribes to a topic, and which readers are shown a page."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.live.streams_support import two
from tests.support.live_desk import Client, Desk, desk, page, records
from topics.errors import NotReady


def reader_is_live(client: Client) -> bool:
    return client.stream.readers["t"].is_live


async def test_a_feed_opens_with_its_first_reader_and_closes_with_its_last(front: Desk) -> None:
    first, second = await two(front)
    assert front.shards.asked == [], "the second reader has the feed of the first"
    first.stream.end()
    assert front.shards.told == []
    second.stream.end()
    assert front.shards.told == [("feed.close", {"feed": 1})]
    assert front.live.feeds.by_number == {}


async def test_every_live_reader_is_shown_a_page_and_the_shard_hears_of_it_once(
    front: Desk,
) -> None:
    clients = await two(front)
    await front.page(0, 2)
    assert front.shards.told == [("feed.taken", {"feed": 1})]
    for client in clients:
        assert client.hear().count(b'{"$seq":1},{"$seq":2}') == 1


async def test_a_reader_that_does_not_stand_where_a_page_begins_reads_what_is_between(
    front: Desk,
) -> None:
    client, _ = await two(front)
    front.event(0, "feed.page", {"feed": 1, **page(3, 4)}, records(3, 4))
    assert not reader_is_live(client)
    assert client.hear() == b""
    await wait_all_tasks_blocked()
    asked = await front.answer("feed.read", records(0, 4), **page(0, 4), epoch=1)
    assert asked["from_seq"] == 0
    assert b'{"$seq":1},{"$seq":2},{"$seq":3},{"$seq":4}' in client.hear()
    assert reader_is_live(client)


async def test_readers_of_a_shard_that_goes_subscribe_again(front: Desk) -> None:
    first, second = await two(front)
    front.live.feeds.closed(1)
    assert reader_is_live(first), "the feed is of shard 0"
    front.live.feeds.closed(0)
    assert not reader_is_live(first)
    await wait_all_tasks_blocked()
    asked = await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
    assert (asked["topic"], asked["feed"]) == ("t", 2), "the number of a feed is not used again"
    assert reader_is_live(first)
    assert reader_is_live(second)
    await front.page(0, 1, feed=1)
    assert first.hear() == b"", "a page of a dropped feed is nobody's"


@pytest.mark.parametrize("is_back", [True, False], ids=["the shard is back", "a moment later"])
async def test_a_reader_of_a_shard_that_is_not_ready_waits_for_it(
    is_back: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.front.live.live.time.monotonic", trio.current_time)
    async with desk() as front:
        client = await front.client()
        front.shards.refuse("feed.open", NotReady("the shard is recovering"))
        await wait_all_tasks_blocked()
        assert front.shards.asked == []
        if is_back:
            front.live.feeds.opened(1)
            await wait_all_tasks_blocked()
            assert front.shards.asked == [], "another shard"
            front.live.feeds.opened(0)
            await wait_all_tasks_blocked()
        else:
            await trio.sleep(0.6)
        await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)
        assert reader_is_live(client)
