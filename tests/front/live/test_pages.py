"""Which pages a front keeps for readers a little below the head."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.live_desk import Desk, desk, page
from topics.front.live import pages

KEPT_MAX_BYTES = 1000


@pytest.fixture
async def front(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    monkeypatch.setattr(pages, "KEPT_MAX_BYTES", KEPT_MAX_BYTES)
    monkeypatch.setattr(pages, "PAGE_OVERHEAD_BYTES", 0)
    async with desk() as made:
        yield made


async def follow(front: Desk, topics: int) -> None:
    """A reader of each topic: so many feeds, numbered from 1."""
    for number in range(topics):
        await front.client(topic=f"t{number}")
        await front.answer("feed.open", head_seq=0, earliest_seq=1, epoch=1)


async def come(front: Desk, feed: int, from_seq: int, size: int) -> None:
    """A page of so many bytes."""
    front.event(
        0,
        "feed.page",
        {"feed": feed, **page(from_seq, from_seq + 1)},
        b'"%b"' % (b"x" * (size - 2)),
    )
    await wait_all_tasks_blocked()


def kept(front: Desk) -> dict[int, list[int]]:
    """Where the pages of each feed begin."""
    feeds = front.live.feeds.by_number.values()
    assert (
        sum(len(page.body) for feed in feeds for page in feed.kept.pages)
        == front.live.feeds.kept.size
        <= KEPT_MAX_BYTES
    )
    return {
        feed.number: [page.follows_seq for page in feed.kept.pages]
        for feed in feeds
        if feed.kept.pages
    }


async def test_all_feeds_share_one_bound_of_kept_bytes(front: Desk) -> None:
    await follow(front, 20)
    for feed in range(1, 21):
        await come(front, feed, 0, 300)
        kept(front)
    assert kept(front) == {18: [0], 19: [0], 20: [0]}


async def test_pages_of_a_busy_feed_evict_those_of_idle_feeds_first(
    front: Desk,
) -> None:
    await follow(front, 2)
    await come(front, 1, 0, 300)
    for seq in range(3):
        await come(front, 2, seq, 300)
    assert kept(front) == {2: [0, 1, 2]}
    await come(front, 2, 3, 300)
    await come(front, 2, 4, 300)
    assert kept(front) == {2: [2, 3, 4]}


async def test_a_page_above_the_bound_is_not_kept(front: Desk) -> None:
    await follow(front, 2)
    await come(front, 1, 0, 300)
    await come(front, 2, 0, KEPT_MAX_BYTES + 1)
    assert kept(front) == {}
    await come(front, 1, 1, 300)
    assert kept(front) == {1: [1]}


async def test_a_closed_feed_keeps_nothing(front: Desk) -> None:
    await follow(front, 3)
    await come(front, 1, 0, 500)
    front.clients[0].stream.end()
    await come(front, 2, 0, 500)
    await come(front, 3, 0, 500)
    assert kept(front) == {2: [0], 3: [0]}


async def test_the_pages_of_one_feed_are_bounded_by_number(front: Desk) -> None:
    await follow(front, 1)
    for seq in range(2 * pages.KEPT_MAX_PAGES):
        await come(front, 1, seq, 2)
    assert kept(front) == {1: [*range(pages.KEPT_MAX_PAGES, 2 * pages.KEPT_MAX_PAGES)]}
