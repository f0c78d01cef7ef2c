"""What shards send to a front: the pages of feeds, the newest of which are kept for streams that
are a little behind (decision 0010).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from topics.formats.api.watch import View
from topics.formats.wire.calls import FeedPageParams, FeedReadResult

if TYPE_CHECKING:
    from topics.front.live.streams import Reader

KEPT_BYTES = 32 << 20  # of pages, for all feeds together; what streams make of them comes on top
KEPT_PAGES = 64  # for each feed
PAGE_BYTES = 512  # what a page counts besides its records


class FeedPage:
    """Records of a topic in a view, from ``from_seq`` (exclusive) to ``to_seq``; ``body`` are the
    records joined by commas.

    It continues ``follows_seq``, which lies below ``from_seq`` when a tombstone comes first.

    ``shown`` keeps what streams have made of it, so that it is made once for all of them.
    """

    __slots__ = (
        "body",
        "count",
        "follows_seq",
        "from_seq",
        "head_seq",
        "shown",
        "size",
        "to_seq",
        "tombstone",
        "topic",
    )

    def __init__(self, topic: str, told: FeedPageParams | FeedReadResult, body: bytes) -> None:
        self.topic, self.body = topic, body
        self.size = PAGE_BYTES + len(body)
        self.follows_seq: int = told.from_seq
        self.from_seq: int = told.from_seq
        self.to_seq: int = told.to_seq
        self.head_seq: int = told.head_seq
        self.count: int = told.record_count
        self.tombstone: dict[str, Any] | None = told.tombstone
        if self.tombstone is not None and self.tombstone["reason"] != "recreated":
            self.from_seq = self.tombstone[
                "gap_to"
            ]  # what is lost is behind it; a topic made anew begins with what it has
        self.shown: dict[Any, bytes] = {}


class FeedSubscription:
    """A topic in a view, as a shard sends it to this front. It stands at ``seq``."""

    def __init__(self, number: int, shard: int, topic: str, view: View) -> None:
        self.number, self.shard, self.topic, self.view = number, shard, topic, view
        self.is_open = False
        self.seq = 0
        self.epoch = 0
        self.head_seq = 0
        self.readers: set[Reader] = set()
        self.live: dict[
            Reader, None
        ] = {}  # those that stand where the feed stands, in the order in which they came
        self.pages: deque[FeedPage] = deque()

    def page_from(self, seq: int) -> FeedPage | None:
        """The kept page that begins at ``seq``."""
        pages = self.pages
        if not pages or not pages[0].follows_seq <= seq < self.seq:
            return None
        return next((page for page in pages if page.follows_seq == seq), None)

    def next_edge(self, seq: int) -> int:
        """Where the first kept page that ends above ``seq`` begins or, when ``seq`` lies within it,
        ends; where the feed stands if none.
        """
        for page in self.pages:
            if page.follows_seq > seq:
                return page.follows_seq
            if page.to_seq > seq:
                return page.to_seq
        return self.seq


class KeptPages:
    """The newest pages of all feeds. A page that comes takes the room of feeds that have got none
    for longest.
    """

    def __init__(self) -> None:
        self.size = 0
        self._feeds: dict[FeedSubscription, None] = {}  # those with pages, by their newest page

    def keep(self, feed: FeedSubscription, page: FeedPage) -> None:
        """A page has come; it stays if there is room."""
        feed.pages.append(page)
        self.size += page.size
        self._feeds.pop(feed, None)
        self._feeds[feed] = None
        if len(feed.pages) > KEPT_PAGES:
            self._let_go(feed)
        while self.size > KEPT_BYTES:
            self._let_go(next(iter(self._feeds)))

    def forget(self, feed: FeedSubscription) -> None:
        """The feed has gone, or its shard."""
        while feed.pages:
            self._let_go(feed)

    def _let_go(self, feed: FeedSubscription) -> None:
        self.size -= feed.pages.popleft().size
        if not feed.pages:
            del self._feeds[feed]
