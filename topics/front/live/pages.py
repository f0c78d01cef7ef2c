"""Feed pages: what shards send, and the newest of them, kept in memory for readers a little below
the head (decision 0010).

A reader that catches up takes a kept page instead of asking its shard. All feeds of a front share
one bound in bytes; a new page evicts the oldest page of the feed that has received none for
longest.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from topics.formats.wire.calls import FeedPageParams, FeedReadResult

KEPT_MAX_BYTES = 32 << 20  # of records, for all feeds together; renderings come on top
KEPT_MAX_PAGES = 64  # for each feed
PAGE_OVERHEAD_BYTES = 512  # what a page counts besides its records


class FeedPage:
    """Records of a topic in a view, from ``from_seq`` (exclusive) to ``to_seq``; ``body`` are the
    records joined by commas.

    The page continues ``follows_seq``, which is below ``from_seq`` when a tombstone comes first.
    ``renderings`` holds what streams make of the page, so that it is made once for all of them.
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

    def __init__(self, topic: str, told: FeedPageParams | FeedReadResult, body: bytes) -> None:
        self.topic, self.body = topic, body
        self.size = PAGE_OVERHEAD_BYTES + len(body)
        self.follows_seq: int = told.from_seq
        self.from_seq: int = told.from_seq
        self.to_seq: int = told.to_seq
        self.head_seq: int = told.head_seq
        self.count: int = told.record_count
        self.tombstone: dict[str, Any] | None = told.tombstone
        # The records begin behind the gap; a recreated topic begins with what it has.
        if self.tombstone is not None and self.tombstone["reason"] != "recreated":
            self.from_seq = self.tombstone["gap_to"]
        self.renderings: dict[Any, bytes] = {}


class FeedPages:
    """The kept pages of one feed: contiguous, the last one ends where the feed stands."""

    __slots__ = ("pages",)

    def __init__(self) -> None:
        self.pages: deque[FeedPage] = deque()

    def page_from(self, seq: int) -> FeedPage | None:
        """The kept page that continues ``seq``."""
        pages = self.pages
        if not pages or not pages[0].follows_seq <= seq < pages[-1].to_seq:
            return None
        return next((page for page in pages if page.follows_seq == seq), None)

    def next_edge(self, seq: int, feed_seq: int) -> int:
        """Where a page read from ``seq`` must end at the latest, to be continued by a kept page.

        That is where the first kept page that ends above ``seq`` begins or, when ``seq`` lies
        within it, ends; ``feed_seq``, where the feed stands, when there is no such page.
        """
        for page in self.pages:
            if page.follows_seq > seq:
                return page.follows_seq
            if page.to_seq > seq:
                return page.to_seq
        return feed_seq


class KeptPages:
    """The bound over the kept pages of all feeds."""

    def __init__(self) -> None:
        self.size = 0
        self._feeds: dict[FeedPages, None] = {}  # those with pages, by their newest page

    def keep(self, feed: FeedPages, page: FeedPage) -> None:
        """Keep a page that has arrived, within the bounds."""
        feed.pages.append(page)
        self.size += page.size
        self._feeds.pop(feed, None)
        self._feeds[feed] = None
        if len(feed.pages) > KEPT_MAX_PAGES:
            self.size -= feed.pages.popleft().size
        while self.size > KEPT_MAX_BYTES:
            self._evict_oldest(next(iter(self._feeds)))

    def forget(self, feed: FeedPages) -> None:
        """Release all pages of a feed that has ended."""
        while feed.pages:
            self._evict_oldest(feed)

    def _evict_oldest(self, feed: FeedPages) -> None:
        self.size -= feed.pages.popleft().size
        if not feed.pages:
            del self._feeds[feed]
