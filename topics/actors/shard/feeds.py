"""Feeds: push the new records of topics to the front, page by page (decision 0010).

A feed is a cursor in a topic. Each loop iteration makes pages from the records between the cursor
and the head. Two pages may be in flight to the front. Records that are committed in the meantime
are sent later, in one longer page.

    feed.open --> FOLLOWING --feed.page--> ... --feed.taken--> ...
                     |--feed.close, feed.open of the same number, end of the session--> removed
                     '--topic deleted, or its records unreadable ("error")--> feed.ended

Consecutive pages of a feed cover the topic without a hole. A page may contain no records, because
all records in its range were filtered, deleted or lost, or because the scan reached its limit and
continues after other feeds have been served. A gap is never split: its tombstone ends at or before
the page's ``to_seq``. The tombstone of a recreated topic is an exception.

In a *strong* feed, pages and ``head_seq`` end at the last record whose frame is synced. In any
other feed they end at the last committed record. The two differ only in the durability class
`disk`.
"""

from __future__ import annotations

from typing import Any

import structlog

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, LinkSession
from topics.actors.shard.context import ShardContext
from topics.actors.shard.feed_reads import diff_of, joined, page_fields, topic_to_read, visible_head
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.changes.forward import Advance
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.errors import Internal
from topics.formats.api.diff_body import Diff
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_ENDED,
    FEED_OPEN,
    FEED_PAGE,
    FEED_TAKEN,
    FeedEndedParams,
    FeedOpenParams,
    FeedOpenResult,
    FeedPageParams,
    FeedParams,
)
from topics.formats.wire.contract import Event, P
from topics.formats.wire.message import PeerClosed
from topics.storage.disk import Damaged

PAGES_IN_FLIGHT_MAX = 2
# Upper bound for the cost of all feeds in one iteration, in bytes copied. A page costs about as
# much as PAGE_COST bytes, and a scanned record as much as RECORD_COST bytes.
ITERATION_COST_MAX = 4 << 20
PAGE_COST = 16 << 10
RECORD_COST = 256

log = structlog.get_logger()


# A feed has a credit of two pages in flight:
#
#     in_flight 0 --page--> 1 --page, is_awaited--> 2: no further page until `feed.taken`
#               ^           | ^                     |
#               '-taken-----' '-------taken---------'
class Feed:
    """A cursor that follows the head of a topic. ``seq`` is the end of its last page.

    ``strong``: only synced records are sent. ``in_flight``: the number of pages that the front has
    not taken yet.
    """

    __slots__ = ("in_flight", "number", "seq", "session", "strong", "topic", "view")

    def __init__(
        self, session: LinkSession, number: int, topic: Topic, view: Diff, strong: bool, seq: int
    ) -> None:
        # ``seq`` only increases. The next page begins after it, so consecutive pages have no
        # hole.
        self.session, self.number, self.topic = session, number, topic
        self.view, self.strong, self.seq = view, strong, seq
        self.in_flight = 0


class FeedTable:
    """The open feeds. A session identifies each of its feeds by a number."""

    def __init__(self) -> None:
        # Each feed is in both dicts. Empty inner dicts are removed, so that `has_feeds` is exact.
        self._by_session: dict[LinkSession, dict[int, Feed]] = {}
        self._by_topic: dict[int, dict[Feed, None]] = {}
        # Returns whether a feed follows the topic with the given id.
        self.has_feeds = self._by_topic.__contains__

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def add(self, feed: Feed) -> None:
        """Add a feed whose number is free."""
        self._by_session.setdefault(feed.session, {})[feed.number] = feed
        self._by_topic.setdefault(feed.topic.id, {})[feed] = None

    def remove(self, feed: Feed) -> bool:
        """Remove a feed. Return False if it has already been removed."""
        if self.find(feed.session, feed.number) is not feed:
            return False
        of_session, of_topic = self._by_session[feed.session], self._by_topic[feed.topic.id]
        del of_session[feed.number], of_topic[feed]
        if not of_session:
            del self._by_session[feed.session]
        if not of_topic:
            del self._by_topic[feed.topic.id]
        return True

    def find(self, session: LinkSession, number: int) -> Feed | None:
        """Return the open feed with the number, or None."""
        return self._by_session.get(session, {}).get(number)

    def of_topic(self, topic_id: int) -> tuple[Feed, ...]:
        """Return all feeds of a topic, oldest first."""
        return tuple(self._by_topic.get(topic_id, ()))

    def of_session(self, session: LinkSession) -> tuple[Feed, ...]:
        """Return all feeds of a session."""
        return tuple(self._by_session.get(session, {}).values())

    def of_deleted_topics(self) -> list[Feed]:
        """Return all feeds whose topic is deleted."""
        return [
            feed
            for feeds in self._by_topic.values()
            if next(iter(feeds)).topic.deleted
            for feed in feeds
        ]


class Feeds(Service):
    """All feeds of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits = context, context.commits
        self._table = FeedTable()
        # `_topic_changed` only notes the topic. Its feeds are looked up once in each iteration,
        # regardless of the number of commits.
        self._changed: dict[int, None] = {}  # ids of topics that have feeds and new records
        self._due: dict[Feed, None] = {}  # in the order in which the next iteration serves them
        # Strong feeds that are waiting for a sync, because their topic has records that are
        # committed but not synced.
        self._unsynced: dict[Feed, None] = {}
        self._synced = 0  # LSN up to which the log was synced at the last check

    def __len__(self) -> int:
        return len(self._table)

    # Hooks

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(FEED_OPEN, self._open)
        router.subscribe(FEED_TAKEN, self._taken)
        router.subscribe(FEED_CLOSE, self._close)

    def _topic_changed(self, change: Change) -> None:
        """Mark the topic's feeds as due if it has new records, or end them if it was deleted."""
        if isinstance(change, Append | Advance):
            self._changed[change.topic.id] = None
            self.is_due = True
        elif isinstance(change, DeleteTopic):
            for feed in self._table.of_topic(change.topic.id):
                self._end(feed)

    def on_due(self) -> None:
        """Send due pages up to the cost limit.

        The next iteration begins with the remaining feeds.
        """
        # First find all feeds with work: strong feeds after a sync, and feeds of topics with new
        # records.
        self._note_sync()
        for topic_id in self._changed:
            self._due.update(dict.fromkeys(self._table.of_topic(topic_id)))
        self._changed.clear()
        cost, unfinished = 0, []
        # The pages of the last feed may exceed the limit, so that a large page does not wait
        # forever.
        while self._due and cost < ITERATION_COST_MAX:
            feed = next(iter(self._due))
            del self._due[feed]
            spent, finished = self._send_pages(feed)
            cost += spent
            if not finished:
                unfinished.append(feed)
        # Move unfinished feeds to the end, so that one long scan does not delay the other feeds.
        self._due.update(dict.fromkeys(unfinished))
        self.is_due = bool(self._due)

    def _make_due(self, feed: Feed) -> None:
        self._due[feed] = None
        self.is_due = True

    def _progressed(self) -> None:
        """Check strong feeds in the next iteration, because the log has made progress.

        If no strong feed waits for a sync, stop observing the log.
        """
        if self._unsynced:
            self.is_due = True
        else:
            self._commits.on_progress = None

    def on_session_closed(self, session: LinkSession) -> None:
        """Remove the feeds of the session."""
        for feed in self._table.of_session(session):
            self._remove(feed)

    def on_rollback(self) -> None:
        """End the feeds of topics whose creation was undone, because no commit reports this."""
        for feed in self._table.of_deleted_topics():
            self._end(feed)

    def _note_sync(self) -> None:
        """Mark waiting strong feeds as due if the log has been synced further."""
        synced = self._context.wal.synced_lsn
        # The new LSN may not cover the records of each waiting feed. If it does not, `_next_page`
        # puts the feed back.
        if self._unsynced and self._synced != synced:
            self._due.update(self._unsynced)
            self._unsynced.clear()
        self._synced = synced

    # Pages

    def _send_pages(self, feed: Feed) -> tuple[int, bool]:
        """Send pages while the limit allows.

        Return their cost, and whether the feed has no more pages to send in this iteration.
        """
        cost = 0
        # Stop at two pages, because the front buffers them. So a slow front delays only its own
        # feeds.
        while feed.in_flight < PAGES_IN_FLIGHT_MAX:
            try:
                page = self._next_page(feed)
                if page is None:
                    break
                records = joined(page.chunks)
            except (Damaged, OSError) as error:
                # End only this feed. Other readers are not affected.
                self._fail(feed, error)
                break
            cost += PAGE_COST + RECORD_COST * page.scanned + len(records)
            feed.seq = page.next_from_seq
            feed.in_flight += 1
            now = self._context.now
            feed.topic.touch(*now)  # a page counts as a read of the topic
            # If this page is the last one permitted in flight, the feed waits for `feed.taken`.
            is_awaited = feed.in_flight == PAGES_IN_FLIGHT_MAX
            params = FeedPageParams(
                *page_fields(page), feed.number, feed.topic.band(now.ms), is_awaited
            )
            if not self._send(feed, FEED_PAGE, params, records):
                break
            # If the scan has reached its limit without filling the page, continue after the other
            # feeds.
            if page.unfinished:
                return cost, False
        return cost, True

    def _next_page(self, feed: Feed) -> Page | None:
        """Return the page that follows the last one, or None if the feed is at the head."""
        topic = feed.topic
        # Records that have expired must not be sent, as in every other read.
        if not topic.deleted:
            self._context.remove_expired(topic)
        # A strong feed sees only synced records, because records that a reader has received must
        # survive a crash.
        head_seq = visible_head(topic, self._synced, strong=feed.strong)
        # If committed records are not synced, a strong feed waits for the next sync.
        if head_seq < topic.head_seq:
            self._unsynced[feed] = None
            self._commits.on_progress = self._progressed
        if head_seq <= feed.seq:
            return None
        return read(topic, feed.view, self._context.store, feed.seq, head_seq)

    def _send(self, feed: Feed, event: Event[P], params: P, attachment: Buffer = b"") -> bool:
        try:
            feed.session.notify(event, params, attachment)
        # The session has ended, so its feeds have ended, too. The front opens new feeds in the next
        # session.
        except PeerClosed:
            self._remove(feed)
            return False
        return True

    # Ends of feeds

    def _fail(self, feed: Feed, error: Damaged | OSError) -> None:
        if isinstance(error, Damaged):
            self._context.store.report(error)
        else:
            log.error("feed failed", topic=feed.topic.name, exc_info=error)
        self._end(feed, Internal.code)

    def _end(self, feed: Feed, error: str | None = None) -> None:
        # Remove first: if the message cannot be sent, `_send` removes the feed again, which has
        # no effect.
        self._remove(feed)
        self._send(feed, FEED_ENDED, FeedEndedParams(feed.number, feed.topic.head_seq, error))

    def _remove(self, feed: Feed) -> None:
        if self._table.remove(feed):
            if not self._table.has_feeds(feed.topic.id):
                feed.topic.unfollow(self._topic_changed)
            self._due.pop(feed, None)
            self._unsynced.pop(feed, None)

    # Messages from the front

    def _open(self, request: InboundMessage[FeedOpenParams, FeedOpenResult]) -> None:
        params, session = request.params, request.session
        topic = topic_to_read(self._context, params.topic)
        view, strong = diff_of(params.view, self._context.limits)
        # A new feed replaces an open feed with the same number.
        earlier = self._table.find(session, params.feed)
        if earlier is not None:
            # The front no longer knows the earlier feed, for example because its close was not
            # sent.
            self._remove(earlier)
        head_seq = visible_head(topic, self._context.wal.synced_lsn, strong=strong)
        # The feed begins at the head. The front reads earlier records with `feed.read`, from the
        # cursors of its readers, so that one feed serves readers at different positions.
        feed = Feed(session, params.feed, topic, view, strong, head_seq)
        self._table.add(feed)
        topic.follow(self._topic_changed)
        # A strong feed that starts below the head of the topic waits for the next sync.
        if head_seq < topic.head_seq:
            self._make_due(feed)
        # In a strong feed, the first record may be after the reported head.
        earliest_seq = min(topic.start_seq, head_seq + 1)
        request.reply(FeedOpenResult(head_seq, earliest_seq, topic.epoch))

    def _taken(self, message: InboundMessage[FeedParams, Any]) -> None:
        feed = self._table.find(message.session, message.params.feed)
        if feed is not None and feed.in_flight:
            feed.in_flight -= 1
            self._make_due(feed)

    def _close(self, message: InboundMessage[FeedParams, Any]) -> None:
        # The feed may have ended while the event was in transit.
        feed = self._table.find(message.session, message.params.feed)
        if feed is not None:
            self._remove(feed)
