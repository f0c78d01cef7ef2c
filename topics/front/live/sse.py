"""Server-sent events (§7.2): a watch session's events as bytes, and the stream that sends them.

    id: CURSORS            all but error events
    event: NAME            record, tombstone, caught-up, topic-deleted, error
    data: JSON

A record event without its id line is made once and shared by all streams of the page. So is one
with its id, among sessions of one topic: their ids are equal. A cursor of the session moves with
the session's own stream only, and what the socket has not taken whole when the stream ends was not
shown.
"""

from __future__ import annotations

from typing import Any

from topics.errors import TopicsError
from topics.formats.json_text import json_bytes
from topics.front.errors import status_of
from topics.front.http.connection import Connection
from topics.front.live.event_stream import (
    HEARTBEAT,
    NEVER_AGAIN,
    continued,
    error_event,
    paced_event,
)
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.streams import StreamKind
from topics.front.live.subscriptions import Reader
from topics.front.live.topic_streams import TopicStream
from topics.front.live.watch_sessions import Cursor, WatchSession

TAKEN_OVER = 409  # the code of the error event


class WatchStream(TopicStream):
    """One GET of a session."""

    kind = StreamKind.WATCH

    def __init__(self, live: Live, session: WatchSession, connection: Connection) -> None:
        super().__init__(live, connection.sock, session.principal, session.heartbeat_s)
        self.session = session
        self._shares_ids = len(session.cursors) == 1
        # Cursors before the moves that the socket has not taken whole.
        self._before: dict[str, list[Cursor]] = {}

    def page_event(self, reader: Reader, page: FeedPage) -> tuple[bytes, ...]:  # noqa: ARG002 - the session stands where the reader does
        """``event: record``."""
        if not self._shares_ids:
            return b"id: %b\n" % self.session.id(), _record_event(page)
        event = page.renderings.get(WatchStream)
        if event is None:
            event = _record_event(page, b"id: %b\n" % self.session.id())
            page.renderings[WatchStream] = event
        return (event,)

    def tombstone_event(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """``event: tombstone``."""
        return self._event(b"tombstone", {"topic": reader.topic, **tombstone})

    def caught_up_event(self, reader: Reader, head_seq: int) -> bytes:
        """``event: caught-up``."""
        return self._event(b"caught-up", {"topic": reader.topic, "head_seq": head_seq})

    def deleted_event(self, reader: Reader, head_seq: int) -> bytes:
        """``event: topic-deleted``."""
        return self._deleted_event(reader.topic, head_seq)

    def _deleted_event(self, topic: str, head_seq: int) -> bytes:
        members = {"topic": topic, "head_seq": head_seq, "reason": "deleted"}
        return self._event(b"topic-deleted", members)

    def topic_error_event(self, reader: Reader, failure: TopicsError) -> bytes:
        """``event: error`` about one topic."""
        return error_event(status_of(failure), failure.message, topics=[reader.topic])

    def failure_event(self, code: int, error: str) -> bytes:
        """``event: error``. A stream that another one has replaced must not come back."""
        event = error_event(code, error)
        return NEVER_AGAIN + event if code == TAKEN_OVER else event

    def heartbeat(self) -> bytes:
        """A comment."""
        return HEARTBEAT

    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """``event: error`` 429; the stream goes on."""
        return paced_event(retry_after_ms, topics)

    def _event(self, name: bytes, data: dict[str, Any]) -> bytes:
        return b"id: %b\nevent: %b\ndata: %b\n\n" % (self.session.id(), name, json_bytes(data))

    def repeat_deleted(self) -> None:
        """Tell again which topics were deleted: an id does not say whether the client knows."""
        if self.session.deleted:
            events = [self._deleted_event(*deleted) for deleted in self.session.deleted.items()]
            self.outbox.write(b"".join(events))

    def tell_deleted(self, reader: Reader, head_seq: int) -> None:
        """Note it in the session, too."""
        if self.is_following(reader):
            self.session.deleted[reader.topic] = head_seq
        super().tell_deleted(reader, head_seq)

    def moved(self, reader: Reader) -> None:
        """Move the session's cursor, unless another stream has taken the session over."""
        if self.session.stream is self:
            self._before.setdefault(reader.topic, []).append(self.session.cursors[reader.topic])
            self.session.move(reader.topic, reader.seq, reader.epoch or 0)

    def sent_whole(self) -> None:
        """What was written was shown."""
        if self._before:
            self._before.clear()

    def end(self) -> None:
        """The session's next stream shows again what was not sent whole."""
        if not self.ended and self.session.stream is self:
            self.session.unsent = self._before
        super().end()


def _record_event(page: FeedPage, line: bytes = b"") -> bytes:
    """A record event behind its id line, or without it: then it is made once."""
    event = None if line else page.renderings.get("record")
    if event is None:
        event = b"".join(
            (
                line,
                b'event: record\ndata: {"topic":"%b","records":[' % page.topic.encode(),
                continued(page.body),
                b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n'
                % (page.from_seq, page.to_seq, page.head_seq),
            )
        )
        if not line:
            page.renderings["record"] = event
    return event
