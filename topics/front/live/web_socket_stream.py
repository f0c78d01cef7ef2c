"""WebSocket stream (§7.3): the subscriptions of one socket, and all messages from the server.

    op             when
    record         records of a topic; the frame is rendered once for all sockets
    tombstone      records were lost
    caught_up      the client has received all records of the topic
    topic_deleted  the topic was deleted; the socket stays open
    error          without a request_id: a topic cannot be read, the socket is closed, or, with
                   `throttled`, topics are paced; with a request_id: a command was refused
    pong, subscribed, unsubscribed, ack    a command was executed

Only the client keeps cursors. The server keeps no state for a closed socket.
"""

from __future__ import annotations

from typing import Any

import structlog
from websockets.frames import CloseCode, Opcode

from topics.errors import (
    Internal,
    InvalidRequest,
    ShuttingDown,
    Throttled,
    TopicNotFound,
    TopicsError,
    Unauthorized,
)
from topics.formats.api.watch import Start, WatchRequest
from topics.formats.api.websocket_frames import close_frame, control_frame, text_frame
from topics.formats.json_text import json_bytes
from topics.front.live.pages import FeedPage
from topics.front.live.sse import PACED
from topics.front.live.streams import StreamKind
from topics.front.live.subscriptions import Reader, begin_at, heads_of
from topics.front.live.topic_streams import TopicStream

FAILURES = {
    401: (Unauthorized.code, CloseCode.POLICY_VIOLATION),
    408: (Throttled.code, CloseCode.POLICY_VIOLATION),
    429: (Throttled.code, CloseCode.TRY_AGAIN_LATER),
    500: (Internal.code, CloseCode.INTERNAL_ERROR),
    503: (ShuttingDown.code, CloseCode.GOING_AWAY),
}
PING = control_frame(Opcode.PING)

log = structlog.get_logger()


def json_frame(document: dict[str, Any]) -> bytes:
    """Return a text message with one JSON object."""
    return text_frame(json_bytes(document))


def reply(op: bytes, request_id: bytes, **members: Any) -> bytes:
    """Return the reply to a command.

    ``request_id`` is the exact JSON text of the command's request id.
    """
    tail = b"," + json_bytes(members)[1:] if members else b"}"
    return text_frame(b'{"op":"%b","request_id":%b%b' % (op, request_id, tail))


def refusal(request_id: bytes, failure: TopicsError) -> bytes:
    """Return the reply that reports why a command was refused."""
    if isinstance(failure, Internal):
        log.error("shard call failed", route="ws", error=failure.message)
        failure = Internal("internal error")
    detail = {"detail": failure.detail} if failure.detail else {}
    return reply(b"error", request_id, code=failure.code, message=failure.message, **detail)


class WebSocketStream(TopicStream):
    """The topics that one socket follows."""

    kind = StreamKind.WEB_SOCKET

    def page_event(self, reader: Reader, page: FeedPage) -> tuple[bytes, ...]:  # noqa: ARG002 - equal for all readers
        """Return ``op: record``."""
        event = page.renderings.get(WebSocketStream)
        if event is None:
            event = page.renderings[WebSocketStream] = text_frame(
                b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":['
                % (page.topic.encode(), page.from_seq, page.to_seq, page.head_seq),
                page.body,
                b"]}",
            )
        return (event,)

    def tombstone_event(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """Return ``op: tombstone``."""
        return json_frame({"op": "tombstone", "topic": reader.topic, **tombstone})

    def caught_up_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return ``op: caught_up``."""
        return json_frame({"op": "caught_up", "topic": reader.topic, "head_seq": head_seq})

    def deleted_event(self, reader: Reader, head_seq: int) -> bytes:
        """Return ``op: topic_deleted``."""
        members = {"topic": reader.topic, "head_seq": head_seq, "reason": "deleted"}
        return json_frame({"op": "topic_deleted", **members})

    def topic_error_event(self, reader: Reader, failure: TopicsError) -> bytes:
        """Return ``op: error`` for one topic."""
        members = {"topic": reader.topic, "code": failure.code, "message": failure.message}
        return json_frame({"op": "error", "request_id": None, **members})

    def failure_event(self, code: int, error: str) -> bytes:
        """Return ``op: error`` and the CLOSE frame."""
        name, close_code = FAILURES[code]
        members = {"request_id": None, "code": name, "message": error}
        return json_frame({"op": "error", **members}) + close_frame(close_code, error)

    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """Return ``op: error`` for paced topics. The socket stays open."""
        members = {"code": Throttled.code, "message": PACED, "retry_after_ms": retry_after_ms}
        return json_frame({"op": "error", "request_id": None, **members, "topics": topics})

    def heartbeat(self) -> bytes:
        """Return a ping frame."""
        return PING

    async def subscribe(self, request_id: bytes, asked: WatchRequest, most: int) -> None:
        """Follow more topics, up to ``most`` on one socket.

        Raise `InvalidRequest`, `TopicNotFound` or `NotReady`.
        """
        if len(self.readers.keys() | asked.starts.keys()) > most:
            raise InvalidRequest(f"more than {most} topics on one socket", field="topics", max=most)
        heads = await heads_of(self.live.shards, asked.starts)
        unknown = asked.starts.keys() - heads.keys()
        if unknown:
            raise TopicNotFound(min(unknown))
        topics = {}
        for topic, head in heads.items():
            begun = begin_at(asked.starts[topic], head)
            topics[topic] = begun.members()
            self.add(topic, asked.view, Start(begun.from_seq, epoch=begun.epoch or None))
        self.outbox.write(reply(b"subscribed", request_id, topics=topics))
        self.catch_up()

    def unsubscribe(self, request_id: bytes, topic: str) -> bytes:
        """Stop following the topic. Return the reply."""
        self.remove(topic)
        return reply(b"unsubscribed", request_id, topic=topic)
