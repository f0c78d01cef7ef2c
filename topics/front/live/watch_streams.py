"""Watch streams (§7.2): streams that send the records of topics as server-sent events.

    id: CURSORS            all events except for errors
    event: NAME            record, tombstone, caught-up, topic-deleted, error
    data: JSON

    WatchStream      GET /v0/watch/:wid    the session stores the cursors, and rewinds to the data
                                           that its last stream's socket did not accept completely
    OneRequestStream GET /v0/watch?topic=  the ids contain the cursors with their epochs, and the
                                           server stores nothing

A record event without its id line is rendered once and shared by all streams of the page. A record
event with its id line is shared by the streams of the same class that have one topic, because their
ids are equal.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from topics.engine.access import Principal
from topics.errors import TopicsError
from topics.formats.api.watch import Cursor, CursorsId, Start, View
from topics.formats.json_text import json_bytes
from topics.front.error_answers import status_of
from topics.front.http.connection import Connection
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.sse import (
    HEARTBEAT,
    NEVER_AGAIN,
    continued,
    error_event,
    paced_event,
)
from topics.front.live.streams import StreamKind
from topics.front.live.subscriptions import Reader
from topics.front.live.topic_streams import TopicStream
from topics.front.live.watch_sessions import WatchSession

TAKEN_OVER = 409  # the code of the error event


class EventStream(TopicStream):
    """Sends records of topics as server-sent events.

    ``shares_ids`` is true if the stream has one topic. Then its ids equal the ids of other such
    streams of its class.
    """

    kind = StreamKind.WATCH
    shares_ids: bool

    @abstractmethod
    def id(self) -> bytes:
        """Return the event id that contains all current cursors."""

    def page_event(self, reader: Reader, page: FeedPage) -> tuple[bytes, ...]:  # noqa: ARG002 - the id has the cursors
        """Return ``event: record``."""
        if not self.shares_ids:
            return b"id: %b\n" % self.id(), _record_event(page)
        event = page.renderings.get(type(self))
        if event is None:
            event = _record_event(page, b"id: %b\n" % self.id())
            page.renderings[type(self)] = event
        return (event,)

    def tombstone_event(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """Return ``event: tombstone``."""
        return self._event(b"tombstone", {"topic": reader.topic, **tombstone})

    def caught_up_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return ``event: caught-up``."""
        return self._event(b"caught-up", {"topic": reader.topic, "head_seq": head_seq})

    def deleted_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return ``event: topic-deleted``."""
        return self.removed_topic_event(reader.topic, head_seq)

    def removed_topic_event(self, topic: str, head_seq: int) -> bytes:
        """Return ``event: topic-deleted`` for a topic that may have no reader."""
        members = {"topic": topic, "head_seq": head_seq, "reason": "deleted"}
        return self._event(b"topic-deleted", members)

    def topic_error_event(self, reader: Reader, failure: TopicsError) -> bytes:
        """Return ``event: error`` for one topic."""
        return error_event(status_of(failure), failure.message, topics=[reader.topic])

    def failure_event(self, code: int, error: str) -> bytes:
        """Return ``event: error``.

        The client of a stream that was taken over must not reconnect.
        """
        event = error_event(code, error)
        return NEVER_AGAIN + event if code == TAKEN_OVER else event

    def heartbeat(self) -> bytes:
        """Return a comment."""
        return HEARTBEAT

    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """Return ``event: error`` 429. The stream continues."""
        return paced_event(retry_after_ms, topics)

    def _event(self, name: bytes, data: dict[str, Any]) -> bytes:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self.id(), name, json_bytes(data))


class WatchStream(EventStream):
    """The stream of one GET of a session. Only the session's current stream moves its cursors."""

    def __init__(self, live: Live, session: WatchSession, connection: Connection) -> None:
        super().__init__(
            live,
            connection.sock,
            session.principal,
            session.heartbeat_s,
            is_chunked=connection.is_chunked,
        )
        self.session = session
        self.shares_ids = len(session.cursors) == 1
        # By topic, the cursors before each move whose data the socket has not fully accepted.
        self._before: dict[str, list[Cursor]] = {}

    def id(self) -> bytes:
        """Return the event id for all cursors of the session."""
        return self.session.id()

    def repeat_deleted(self) -> None:
        """Report deleted topics again, because an id does not confirm these events."""
        if self.session.deleted:
            events = [
                self.removed_topic_event(*deleted) for deleted in self.session.deleted.items()
            ]
            self.outbox.write(b"".join(events))

    def notify_deleted(self, reader: Reader, head_seq: int) -> None:
        """Store the deletion in the session and report it to the client."""
        if self.is_following(reader):
            self.session.deleted[reader.topic] = head_seq
        super().notify_deleted(reader, head_seq)

    def moved(self, reader: Reader) -> None:
        """Move the session's cursor, unless another stream has taken the session over."""
        if self.session.stream is self:
            self._before.setdefault(reader.topic, []).append(self.session.cursors[reader.topic])
            self.session.move(reader.topic, reader.seq, reader.epoch or 0)

    def on_sent(self) -> None:
        """Drop the earlier cursors, because the socket has accepted all written data."""
        if self._before:
            self._before.clear()

    def end(self) -> None:
        """Close the stream, and store the unsent moves, so that the session's next stream sends
        their data again.
        """
        if not self.ended and self.session.stream is self:
            self.session.unsent = self._before
        super().end()


class OneRequestStream(EventStream):
    """The stream of a GET whose query lists its topics.

    ``gone`` contains the topics in the client's id that no longer exist. ``id`` is the id of the
    client's cursors.
    """

    def __init__(
        self,
        live: Live,
        connection: Connection,
        principal: Principal,
        heartbeat_s: float,
        view: View,
        cursors: dict[str, Cursor],
        gone: set[str],
        id: CursorsId,
    ) -> None:
        super().__init__(
            live, connection.sock, principal, heartbeat_s, is_chunked=connection.is_chunked
        )
        self.shares_ids = len(cursors) == 1
        self._connection, self._view, self._cursors, self._gone = connection, view, cursors, gone
        self._id = id

    def id(self) -> bytes:
        """Return the id of the current cursors."""
        return self._id.text()

    def moved(self, reader: Reader) -> None:
        """Update the cursor in the id."""
        self._id.move(reader.topic, reader.seq, reader.epoch or 0)

    async def run(self) -> None:
        """Send the topics until either side closes the stream."""
        try:
            self.begin()
            if self._gone:
                gone = [
                    self.removed_topic_event(topic, self._cursors[topic][0]) for topic in self._gone
                ]
                self.outbox.write(b"".join(gone))
            for topic, (seq, epoch) in self._cursors.items():
                if topic not in self._gone:
                    self.add(topic, self._view, Start(seq, epoch=epoch or None))
            self.catch_up()
            await self.until_ended()
        finally:
            self.end()
            self._connection.sent_bytes += self.outbox.sent_bytes


def _record_event(page: FeedPage, line: bytes = b"") -> bytes:
    """Return a record event with its id line, or without it.

    The event without a line is cached in the page.
    """
    event, body = None if line else page.renderings.get("record"), page.body
    if event is None:
        event = b"".join(
            (
                line,
                b'event: record\ndata: {"topic":"%b","records":[' % page.topic.encode(),
                continued(body) if b"\n" in body or b"\r" in body else body,
                b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n'
                % (page.from_seq, page.to_seq, page.head_seq),
            )
        )
        if not line:
            page.renderings["record"] = event
    return event
