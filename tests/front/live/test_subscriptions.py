"""Readers: where each of them stands between catching up, being live and waiting."""

from __future__ import annotations

from trio.testing import wait_all_tasks_blocked

from tests.front.live.streams_support import live, long_page
from tests.support.live_desk import Client, Desk, page, records
from topics.errors import NotReady


def states(client: Client) -> tuple[bool, bool, bool]:
    """Live, waiting for its shard, and in need of what it has not been shown."""
    reader = client.stream.readers["t"]
    return reader.is_live, reader.is_waiting, reader.needs_catch_up


LIVE, WAITING, CATCHING_UP = (True, False, False), (False, True, False), (False, False, True)


async def test_a_reader_is_live_when_it_reaches_the_seq_of_its_feed(front: Desk) -> None:
    client = await front.client()
    assert states(client) == CATCHING_UP
    await front.answer("feed.open", head_seq=2, earliest_seq=1, epoch=1)
    assert states(client) == CATCHING_UP
    await front.answer("feed.read", records(0, 2), **page(0, 2), epoch=1)
    assert states(client) == LIVE
    assert [*front.live.feeds.by_number[1].live] == [client.stream.readers["t"]]


async def test_a_reader_whose_socket_takes_no_more_catches_up_afterwards(front: Desk) -> None:
    client = await live(front)
    await long_page(front)
    await front.page(1, 2)
    assert states(client) == CATCHING_UP
    assert front.live.feeds.by_number[1].live == {}
    await client.hear_all()
    assert states(client) == LIVE, "from the page that was kept"


async def test_a_reader_waits_for_a_shard_that_is_not_ready(front: Desk) -> None:
    client = await front.client()
    front.shards.refuse("feed.open", NotReady("the shard is recovering"))
    await wait_all_tasks_blocked()
    assert states(client) == WAITING
    front.live.feeds.opened(0)
    assert states(client) == CATCHING_UP


async def test_a_reader_whose_feed_ends_has_none_and_catches_up(front: Desk) -> None:
    client = await live(front)
    front.event(0, "feed.ended", {"feed": 1, "head_seq": 0, "error": "internal"}, b"")
    assert states(client) == CATCHING_UP
    assert client.stream.readers["t"].feed is None
