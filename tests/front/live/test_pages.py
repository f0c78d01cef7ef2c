"""The pages that a front keeps for readers slightly below the head."""

from __future__ import annotations

import pytest

from tests.support.live_harness import page
from topics.formats.wire.calls import FeedReadResult
from topics.front.live import pages
from topics.front.live.pages import FeedPage, FeedPages, PageCache

CACHE_MAX_BYTES = 1000


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> PageCache:
    monkeypatch.setattr(pages, "CACHE_MAX_BYTES", CACHE_MAX_BYTES)
    monkeypatch.setattr(pages, "PAGE_OVERHEAD_BYTES", 0)
    return PageCache()


def keep(kept: PageCache, feed: FeedPages, from_seq: int, size: int = 300) -> None:
    """Keep a page of one record."""
    result = FeedReadResult(**page(from_seq, from_seq + 1), epoch=1)
    kept.add(feed, FeedPage("t", result, b"x" * size))


def kept_seqs(kept: PageCache, *feeds: FeedPages) -> list[list[int]]:
    """Return the start of each kept page, by feed."""
    sizes = [page.size for feed in feeds for page in feed.pages]
    assert sum(sizes) == kept.size <= CACHE_MAX_BYTES
    return [[page.follows_seq for page in feed.pages] for feed in feeds]


def test_all_feeds_share_one_bound_of_kept_bytes(kept: PageCache) -> None:
    feeds = [FeedPages() for _ in range(20)]
    for feed in feeds:
        keep(kept, feed, 0)
        kept_seqs(kept, *feeds)
    assert kept_seqs(kept, *feeds) == [*[[]] * 17, *[[0]] * 3]


def test_pages_of_a_busy_feed_evict_those_of_idle_feeds_first(kept: PageCache) -> None:
    idle, busy = FeedPages(), FeedPages()
    keep(kept, idle, 0)
    for seq in range(3):
        keep(kept, busy, seq)
    assert kept_seqs(kept, idle, busy) == [[], [0, 1, 2]]
    keep(kept, busy, 3)
    keep(kept, busy, 4)
    assert kept_seqs(kept, idle, busy) == [[], [2, 3, 4]]


def test_a_page_above_the_bound_is_not_kept(kept: PageCache) -> None:
    first, second = FeedPages(), FeedPages()
    keep(kept, first, 0)
    keep(kept, second, 0, CACHE_MAX_BYTES + 1)
    assert kept_seqs(kept, first, second) == [[], []]
    keep(kept, first, 1)
    assert kept_seqs(kept, first, second) == [[1], []]


def test_an_ended_feed_keeps_no_pages(kept: PageCache) -> None:
    first, second = FeedPages(), FeedPages()
    keep(kept, first, 0)
    keep(kept, second, 0)
    kept.remove(first)
    assert kept_seqs(kept, first, second) == [[], [0]]


def test_the_pages_of_one_feed_are_bounded_by_number(kept: PageCache) -> None:
    feed = FeedPages()
    for seq in range(2 * pages.CACHE_MAX_PAGES):
        keep(kept, feed, seq, 2)
    assert kept_seqs(kept, feed) == [[*range(pages.CACHE_MAX_PAGES, 2 * pages.CACHE_MAX_PAGES)]]
