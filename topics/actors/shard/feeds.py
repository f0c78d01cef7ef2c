"""Feeds: what follows the heads of topics, for the fronts (decision 0010).

A feed is a cursor in a topic. `Feeds.pump` turns what lies between it and the head into pages; two
of them may be under way to the front, and what is committed meanwhile waits in the topic and makes
the next page longer.

    rpc/feed.open -> FOLLOWING --event/feed.page--> ... --event/feed.taken--> ...
                        |  event/feed.close, another feed.open of the same number, the session is
                        over: it is forgotten '  the topic is deleted, its records cannot be read:
                        event/feed.ended, with "error" in the latter case

Between two pages of a feed there is no hole. A page may have no records: all between its ends was
filtered, deleted or lost; or there was so much to pass over that others come first, and the next
page goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog

from topics.actors.rpc.inbound import InboundMessage, PeerSession
from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.typed_calls import InboundCall, notify, serve, subscribe
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.delete_topic import DeleteTopic
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.errors import Internal
from topics.formats.api.requests import (
    BATCH_BYTES_MAX,
    DEFAULT_BATCH_BYTES,
    DEFAULT_LIMIT,
    Diff,
)
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_ENDED,
    FEED_OPEN,
    FEED_PAGE,
    FEED_READ,
    FEED_TAKEN,
    TOPIC_HEADS,
    FeedCloseParams,
    FeedEndedParams,
    FeedOpenParams,
    FeedOpenResult,
    FeedPageParams,
    FeedReadParams,
    FeedReadResult,
    FeedTakenParams,
    FeedView,
    TopicHeadsParams,
    TopicHeadsResult,
)
from topics.formats.wire.contract import Event, P
from topics.formats.wire.message import PeerGone
from topics.storage.disk import Damaged

PAGES_UNDER_WAY = 2
# A pump gives way to others after this much, counted in bytes that are copied. A page costs about
# as much as PAGE_COST of them, a record that is looked at as much as RECORD_COST.
PUMP_COST_MAX = 4 << 20
PAGE_COST = 16 << 10
RECORD_COST = 256

log = structlog.get_logger()


class Feed:
    """``seq``: where the last page ended."""

    __slots__ = ("number", "seq", "session", "strong", "topic", "under_way", "view")

    def __init__(
        self, session: PeerSession, number: int, topic: Topic, view: Diff, strong: bool, seq: int
    ) -> None:
        self.session, self.number, self.topic, self.view, self.strong, self.seq = (
            session,
            number,
            topic,
            view,
            strong,
            seq,
        )
        self.under_way = 0


class Feeds(Service):
    """All feeds of a shard."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits, self._limits = context, context.commits, context.limits
        self._by_session: dict[PeerSession, dict[int, Feed]] = {}
        self._by_topic: dict[int, dict[Feed, None]] = {}
        self._changed: dict[
            int, dict[Feed, None]
        ] = {}  # those of `_by_topic` whose topics have more records
        self._due: dict[Feed, None] = {}  # to be looked at by the next pump, in this order
        self._behind: dict[Feed, None] = {}  # strong ones that have come to what is not synced
        self._synced = 0  # how far the log was synced when they were last looked at
        self._losses = 0

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, TOPIC_HEADS, self._heads)
        serve(router, FEED_OPEN, self._open)
        serve(router, FEED_READ, self._read)
        subscribe(router, FEED_TAKEN, self._taken)
        subscribe(router, FEED_CLOSE, self._close)

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    # What happens in the shard

    def on_commit(self, change: Change) -> None:
        """Note that a topic has new records; end the feeds of one that is gone."""
        feeds = self._by_topic.get(change.topic.id)
        if feeds is None or not isinstance(change, Append | DeleteTopic):
            return
        if isinstance(change, DeleteTopic):
            self._end_all(feeds)
        else:
            self._changed[change.topic.id] = feeds

    def on_turn(self) -> bool:
        """Send what there is to send; whether some of it must wait for another call, because others
        come first.
        """
        if self._losses != self._commits.losses:
            self._losses = self._commits.losses
            self._end_undone()
        if self._behind and self._synced != self._commits.wal.synced_lsn:
            self._due.update(self._behind)
            self._behind.clear()
        for feeds in self._changed.values():
            self._due.update(feeds)
        self._changed.clear()
        self._synced = self._commits.wal.synced_lsn
        cost, unfinished = 0, []
        while self._due and cost < PUMP_COST_MAX:
            feed = next(iter(self._due))
            del self._due[feed]
            spent, finished = self._advance(feed)
            cost += spent
            if not finished:
                unfinished.append(feed)
        self._due.update(dict.fromkeys(unfinished))
        return bool(self._due)

    def _end_all(self, feeds: dict[Feed, None]) -> None:
        for feed in tuple(feeds):
            self._end(feed)

    def _end_undone(self) -> None:
        """The log has failed. A topic that is gone now was never made: no commit will tell of its
        end.
        """
        for feeds in tuple(self._by_topic.values()):
            if next(iter(feeds)).topic.deleted:
                self._end_all(feeds)

    # Pages

    def _advance(self, feed: Feed) -> tuple[int, bool]:
        """Send the pages that may go; what they cost, and whether no more is there for now."""
        cost = 0
        while feed.under_way < PAGES_UNDER_WAY:
            try:
                if not feed.topic.deleted:
                    self._context.freshen(feed.topic)
                head_seq = self._head(feed.topic, feed.strong)
                if head_seq < feed.topic.head_seq:
                    self._behind[feed] = None
                if head_seq <= feed.seq:
                    break
                page = read(feed.topic, feed.view, self._context.store, feed.seq, head_seq)
                attachment = _joined(page.pieces)
            except (
                Damaged,
                OSError,
            ) as error:  # costs the readers of this feed their live pages, and nobody else
                self._fail(feed, error)
                break
            cost += PAGE_COST + RECORD_COST * page.scanned + len(attachment)
            feed.seq = page.next_from_seq
            feed.under_way += 1
            if not self._send(
                feed, FEED_PAGE, FeedPageParams(*_fields(page), feed.number), attachment
            ):
                break
            if page.unfinished:
                return cost, False
        return cost, True

    def _head(self, topic: Topic, strong: bool) -> int:
        """The head for a reader: the last seq that is committed, or with ``strong`` the last one
        that is synced as well.
        """
        # Of the other classes nothing waits, or what is committed is synced; and a change of the
        # class is synced itself.
        if not strong or topic.committed.durability != "disk":
            return topic.head_seq
        index = topic.index.find_locator(self._commits.wal.synced_lsn)
        return topic.index.entry(index)[0] - 1 if index < len(topic.index) else topic.head_seq

    def _send(self, feed: Feed, event: Event[P], params: P, attachment: Buffer = b"") -> bool:
        try:
            notify(feed.session, event, params, attachment)
        except PeerGone:
            self._forget(feed)
            return False
        return True

    def _fail(self, feed: Feed, error: Damaged | OSError) -> None:
        if isinstance(error, Damaged):
            self._context.store.report(error)
        else:
            log.error("feed_failed", topic=feed.topic.name, exc_info=error)
        self._end(feed, Internal.code)

    def _end(self, feed: Feed, error: str | None = None) -> None:
        self._forget(feed)
        self._send(feed, FEED_ENDED, FeedEndedParams(feed.number, feed.topic.head_seq, error))

    def _forget(self, feed: Feed) -> None:
        """Nothing of it is left; later calls do nothing."""
        of_session = self._by_session.get(feed.session, {})
        if of_session.get(feed.number) is not feed:
            return
        del of_session[feed.number]
        of_topic = self._by_topic[feed.topic.id]
        del of_topic[feed]
        if not of_topic:
            del self._by_topic[feed.topic.id]
            self._changed.pop(feed.topic.id, None)
        self._due.pop(feed, None)
        self._behind.pop(feed, None)

    # What fronts say

    def _open(self, request: InboundCall[FeedOpenParams, FeedOpenResult]) -> None:
        params, session = request.params, request.session
        topic = self._topic_to_read(params.topic)
        view, strong = self._view(params.view)
        self._forget_number(session, params.feed)
        head_seq = self._head(topic, strong)
        feed = Feed(session, params.feed, topic, view, strong, head_seq)
        if session not in self._by_session:
            self._by_session[session] = {}
        self._by_session[session][feed.number] = feed
        self._by_topic.setdefault(topic.id, {})[feed] = None
        if head_seq < topic.head_seq:
            self._due[feed] = None
        earliest_seq = min(topic.start_seq, head_seq + 1)
        request.reply(FeedOpenResult(head_seq, earliest_seq, topic.epoch))

    def _read(self, request: InboundCall[FeedReadParams, FeedReadResult]) -> None:
        params = request.params
        topic = self._topic_to_read(params.topic)
        view, strong = self._view(
            params.view, from_seq=params.from_seq, until_seq=params.until_seq, epoch=params.epoch
        )
        page = read(topic, view, self._context.store, head_seq=self._head(topic, strong))
        request.reply(FeedReadResult(*_fields(page), topic.epoch), _joined(page.pieces))
        self._context.store.prefetch(topic, page.next_from_seq + 1)  # whoever is behind reads on

    def _heads(self, request: InboundCall[TopicHeadsParams, TopicHeadsResult]) -> None:
        known = self._commits.engine.topics
        topics = [
            self._context.fresh_topic(name) for name in request.params.topics if name in known
        ]
        heads = {topic.name: (topic.head_seq, topic.start_seq, topic.epoch) for topic in topics}
        request.reply(TopicHeadsResult(heads))

    def _taken(self, message: InboundMessage, params: FeedTakenParams) -> None:
        feed = self._feed(message.session, params.feed)
        if feed is not None and feed.under_way:
            feed.under_way -= 1
            self._due[feed] = None

    def _close(self, message: InboundMessage, params: FeedCloseParams) -> None:
        feed = self._feed(message.session, params.feed)
        if feed is not None:
            self._forget(feed)

    def _feed(self, session: PeerSession, number: int) -> Feed | None:
        """The feed of that number. It may have ended while an event about it was on its way."""
        return self._by_session.get(session, {}).get(number)

    def _forget_number(self, session: PeerSession, number: int) -> None:
        feed = self._feed(session, number)
        if feed is not None:
            self._forget(feed)

    def on_session_closed(self, session: PeerSession) -> None:
        """Forget its feeds."""
        for feed in tuple(self._by_session.get(session, {}).values()):
            self._forget(feed)
        self._by_session.pop(session, None)

    def _topic_to_read(self, name: str) -> Topic:
        topic = self._context.fresh_topic(name)
        topic.touch(*self._commits.now())
        return topic

    def _view(self, fields: Sequence[Any], **cursor: Any) -> tuple[Diff, bool]:
        """What a view asks for, and whether only of what is synced. Clamps as a diff does."""
        view = FeedView._make(fields)
        asked = Diff(
            limit=min(view.limit or DEFAULT_LIMIT, self._limits.limit),
            nodes=frozenset(view.nodes),
            include_tags=view.tags,
            include_meta=view.meta,
            include_data=view.data,
            max_batch_bytes=min(view.bytes or DEFAULT_BATCH_BYTES, BATCH_BYTES_MAX),
            **cursor,
        )
        return asked, view.strong


def _joined(pieces: list[Buffer]) -> Buffer:
    return pieces[0] if len(pieces) == 1 else b",".join(pieces)


def _fields(page: Page) -> tuple[int, int, int, int, int, dict[str, Any] | None]:
    """The fields that `FeedPageParams` and `FeedReadResult` begin with."""
    return (
        page.from_seq,
        page.next_from_seq,
        page.head_seq,
        page.earliest_seq,
        page.count,
        page.tombstone.as_json() if page.tombstone else None,
    )
