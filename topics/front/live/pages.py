"""Feed pages: pages of records from shards, and a cache of the newest pages (decision 0010).

The cache is for readers slightly below the head. A reader that catches up takes a kept page instead
of requesting it from its shard. All feeds of a front share one bound in bytes. Above the bound, a
new page evicts the oldest page of the feed that has received no page for the longest time.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from topics.formats.wire.calls import FeedPageParams, FeedReadResult

CACHE_MAX_BYTES = 32 << 20  # records in the pages of all feeds; renderings are not counted
CACHE_MAX_PAGES = 64  # per feed
PAGE_OVERHEAD_BYTES = 512  # counted for each page in addition to its records


class FeedPage:
    """The records of a topic in a view from ``from_seq`` (exclusive) to ``to_seq``.

    ``body`` contains the records, joined by commas. The page continues a reader at ``follows_seq``,
    which is below ``from_seq`` if a tombstone precedes the records. ``renderings`` caches the
    events that streams render from the page, so that each form is rendered once for all streams.
    """

    __slots__ = (
        "body",
        "count",
        "follows_seq",
        "from_seq",
        "head_seq",
        "renderings",
        "size",
        "to_seq",
        "tombstone",
        "topic",
    )

    def __init__(self, topic: str, fields: FeedPageParams | FeedReadResult, body: bytes) -> None:
        self.topic, self.body = topic, body
        self.size = PAGE_OVERHEAD_BYTES + len(body)
        self.follows_seq: int = fields.from_seq
        self.from_seq: int = fields.from_seq
        self.to_seq: int = fields.to_seq
        self.head_seq: int = fields.head_seq
        self.count: int = fields.record_count
        self.tombstone: dict[str, Any] | None = fields.tombstone
        # The records begin after the gap. A recreated topic begins with its own records.
        if self.tombstone is not None and self.tombstone["reason"] != "recreated":
            self.from_seq = self.tombstone["gap_to"]
        self.renderings: dict[Any, bytes] = {}


class FeedPages:
    """The kept pages of one feed.

    They are contiguous, and the last one ends at the feed's ``seq``.
    """

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: deque[FeedPage] = deque()

    def page_from(self, seq: int) -> FeedPage | None:
        """Return the kept page that continues a reader at ``seq``, or None."""
        pages = self.pages
        if not pages or not pages[0].follows_seq <= seq < pages[-1].to_seq:
            return None
        return next((page for page in pages if page.follows_seq == seq), None)

    def next_edge(self, seq: int, feed_seq: int) -> int:
        """Return the seq at which a page read from ``seq`` must end, so that a kept page can
        continue it.

        This is the beginning of the first kept page that ends above ``seq``. If ``seq`` is within
        this page, it is the end of the page. If there is no such page, it is ``feed_seq``, the seq
        of the feed.
        """
        for page in self.pages:
            if page.follows_seq > seq:
                return page.follows_seq
            if page.to_seq > seq:
                return page.to_seq
        return feed_seq


class PageCache:
    """The kept pages of all feeds, with their common bound."""

    def __init__(self) -> None:
        self.size = 0
        self._feeds: dict[FeedPages, None] = {}  # feeds with pages, ordered by their newest page

    def add(self, feed: FeedPages, page: FeedPage) -> None:
        """Keep a page that has arrived. Evict the oldest pages if the limits are exceeded."""
        feed.pages.append(page)
        self.size += page.size
        self._feeds.pop(feed, None)
        self._feeds[feed] = None
        if len(feed.pages) > CACHE_MAX_PAGES:
            self.size -= feed.pages.popleft().size
        while self.size > CACHE_MAX_BYTES:
            self._evict_oldest(next(iter(self._feeds)))

    def remove(self, feed: FeedPages) -> None:
        """Release all pages of a feed that has ended."""
        while feed.pages:
            self._evict_oldest(feed)

    def _evict_oldest(self, feed: FeedPages) -> None:
        self.size -= feed.pages.popleft().size
        if not feed.pages:
            del self._feeds[feed]
