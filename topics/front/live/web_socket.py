"""``/v0/ws`` (§7): publish and subscribe as JSON messages on one connection. The shards do what
they do for HTTP, with the same bytes.

Publishes are asked one after the other without waiting; their answers come in the order of each
topic. Those to one topic that came together go to its shard as one message, a burst, and so do
their answers. What has been asked and not been answered is bounded, for a socket and for all of
them: above it nothing more is read. So are messages that are not whole (message_budget.py). In one
turn a socket is heard for `FRAMES_PER_TURN`, however many have come, and answered in one write.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import trio

from topics.actors.shard_client.errors import failures_of
from topics.config import Settings
from topics.engine.access import Principal, Scope
from topics.errors import (
    Forbidden,
    Internal,
    InvalidRequest,
    ShuttingDown,
    Throttled,
    TopicNotFound,
    TopicsError,
    UpgradeRequired,
)
from topics.formats.api.fields import Headers, list_members
from topics.formats.api.requests import Limits
from topics.formats.api.watch import (
    HEARTBEAT_MS,
    CommandHead,
    Start,
    decode_command,
    decode_subscribe,
    request_id_of,
)
from topics.formats.api.websocket import (
    Binary,
    Close,
    CloseCode,
    Event,
    Failure,
    FrameParser,
    Ping,
    Text,
    accept_key,
    close_frame,
    is_key,
    ping_frame,
    pong_frame,
    text_frame,
)
from topics.formats.json_text import json_bytes
from topics.formats.names import valid_topic_name
from topics.formats.wire.calls import APPEND, AppendOutcome, AppendParams, AppendResult
from topics.front.backend import Body, Reply, listed
from topics.front.guard import HeadFields, draining
from topics.front.http.bodies import no_room, short_body_max, too_large
from topics.front.http.connections import NEVER, RECV_BYTES, Connection
from topics.front.live.live import Live
from topics.front.live.pages import FeedPage
from topics.front.live.streams import Reader, Stream
from topics.front.live.watch import heads_of

LOG = logging.getLogger("topics.front")
ASKED_MAX = 1024  # publishes that wait for their answer ...
FLUSH_EVERY = (
    32  # messages: the shard is at work on the first of many while the front reads the rest
)
ASKED_BYTES_MAX = 16 << 20  # ... and the bytes of them
FRAMES_PER_TURN = 64  # 1 ms of publishes or refusals; then everybody else has a turn
VERSION = b"13"
FAILURES = {
    408: (Throttled.code, CloseCode.POLICY_VIOLATION),
    429: (Throttled.code, CloseCode.TRY_AGAIN_LATER),
    500: (Internal.code, CloseCode.INTERNAL_ERROR),
    503: (ShuttingDown.code, CloseCode.GOING_AWAY),
}


def upgrade(fields: HeadFields) -> Headers:
    """The headers of the answer that makes a connection a WebSocket. Raises `InvalidRequest`,
    `UpgradeRequired`.
    """
    protocols = list_members(fields.joined(b"upgrade"))
    options = list_members(fields.joined(b"connection"))
    if b"websocket" not in protocols or b"upgrade" not in options:
        raise UpgradeRequired("this path speaks WebSocket")
    if fields.values(b"sec-websocket-version") != [VERSION]:
        raise UpgradeRequired("WebSocket version 13 is spoken here")
    keys = fields.values(b"sec-websocket-key")
    if len(keys) != 1 or not is_key(keys[0]):
        raise InvalidRequest("Sec-WebSocket-Key must be 16 bytes in base64")
    return (
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-accept", accept_key(keys[0])),
    )


class _Burst:
    """Publishes to one topic that go to its shard together. ``at``: when the first of them came."""

    __slots__ = ("at", "bodies", "length", "request_ids", "seqs", "topic")

    def __init__(self, topic: str, seqs: bool) -> None:
        self.topic, self.seqs, self.at = topic, seqs, time.monotonic_ns()
        self.request_ids: list[bytes] = []
        self.bodies: list[bytes] = []
        self.length = 0  # of the bodies

    def add(self, request_id: bytes, body: bytes) -> None:
        """One more."""
        self.request_ids.append(request_id)
        self.bodies.append(body)
        self.length += len(body)


class SocketStream(Stream):
    """One WebSocket."""

    def __init__(
        self,
        live: Live,
        connection: Connection,
        principal: Principal,
        settings: Settings,
        limits: Limits,
    ) -> None:
        super().__init__(live, connection.sock, principal, HEARTBEAT_MS / 1000)
        self._connection, self._settings, self._limits = connection, settings, limits
        self._asked = self._asked_bytes = 0
        self._answers: list[bytes] = []
        self._replies: list[bytes] = []  # of this turn; empty whenever this task waits
        self._room = trio.Event()
        self._burst_bytes = min(settings.inline_bytes, RECV_BYTES)
        self._bursts: dict[str, _Burst] = {}  # not sent, by topic; empty whenever this task waits
        self._touched: set[int] = set()  # shards that were asked and not flushed
        self._draining = False
        self._patience_s = (
            connection.timings.body_grace_s
        )  # for the rest of the message that has begun
        self._holds = 0  # bytes of a message that is not whole
        self._message_due = NEVER  # when that is over; only waiting for the client counts

    # What it shows

    def shown_page(self, reader: Reader, page: FeedPage) -> bytes:  # noqa: ARG002 - equal for all readers
        """``op: record``."""
        shown = page.shown.get(SocketStream)
        if shown is None:
            shown = page.shown[SocketStream] = text_frame(
                b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}'
                % (page.topic.encode(), page.from_seq, page.to_seq, page.head_seq, page.body)
            )
        return shown

    def shown_tombstone(self, reader: Reader, tombstone: dict[str, Any]) -> bytes:
        """``op: tombstone``."""
        return _frame({"op": "tombstone", "topic": reader.topic, **tombstone})

    def shown_caught_up(self, reader: Reader, head_seq: int) -> bytes:
        """``op: caught_up``."""
        return _frame({"op": "caught_up", "topic": reader.topic, "head_seq": head_seq})

    def shown_deleted(self, reader: Reader, head_seq: int) -> bytes:
        """``op: topic_deleted``."""
        return _frame(
            {
                "op": "topic_deleted",
                "topic": reader.topic,
                "head_seq": head_seq,
                "reason": "deleted",
            }
        )

    def shown_failure(self, code: int, error: str) -> bytes:
        """``op: error``, and the close."""
        name, close_code = FAILURES[code]
        return _frame(
            {"op": "error", "request_id": None, "code": name, "message": error}
        ) + close_frame(close_code, error)

    def shown_trouble(self, reader: Reader, failure: TopicsError) -> bytes:
        """``op: error`` about one topic."""
        return _frame(
            {
                "op": "error",
                "request_id": None,
                "topic": reader.topic,
                "code": failure.code,
                "message": failure.message,
            }
        )

    def moved(self, reader: Reader) -> None:
        """Only the client keeps its place."""

    def shown_heartbeat(self) -> bytes:
        """A ping."""
        return ping_frame()

    # What it hears

    async def run(self) -> None:
        """Until either side ends it. Raises OSError when the client breaks off."""
        connection, parser = self._connection, FrameParser(self._settings.max_body_bytes)
        self.begin()
        try:
            with self.scope:
                data = connection.buffer[connection.pos :]
                connection.buffer, connection.pos = b"", 0
                while await self._take(events := parser.feed(data, FRAMES_PER_TURN)):
                    if not parser.is_amid or any(
                        isinstance(event, Text | Binary) for event in events
                    ):
                        self._patience_s = connection.timings.body_grace_s
                    if parser.held_bytes or self._holds:
                        self._hold(parser.held_bytes)
                    data = b""
                    if parser.has_more:
                        await self._wait_for_room()
                        await trio.lowlevel.checkpoint()
                    elif not (data := await self._receive(amid=parser.is_amid)):
                        break
            if (
                self.ended
            ):  # by us: what the client is still saying must not keep it from hearing why
                connection.unread_body = True
        finally:
            self.end()

    async def _receive(self, *, amid: bool) -> bytes:
        """What the client says next. A message has the time that a body of HTTP has: its memory is
        not for clients that never end one.
        """
        while True:
            await self._wait_for_room()
            if amid:
                self._message_due = time.monotonic() + self._patience_s
            await trio.lowlevel.wait_readable(self.sock)
            try:
                data = self.sock.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            if amid:
                timings = self._connection.timings
                earned_s = len(data) / timings.body_bytes_per_s
                left_s = self._message_due - time.monotonic()
                self._patience_s = min(left_s + earned_s, timings.body_grace_s)
                self._message_due = NEVER
            return data

    async def _wait_for_room(self) -> None:
        """Until enough of what was asked is answered, and the client takes the answers."""
        while (
            self._asked >= ASKED_MAX
            or self._asked_bytes >= self._asked_bytes_max
            or self.is_stalled
        ):
            self._room = trio.Event()
            await self._room.wait()

    @property
    def _asked_bytes_max(self) -> int:
        """All sockets together have a bound, too; within it everybody may have one message asked."""
        return 1 if self.live.messages.is_asked_full else ASKED_BYTES_MAX

    def _hold(self, length: int) -> None:
        """So much of a message has come that is not whole."""
        self._holds = length
        self.live.messages.hold(self, length)

    def give_up(self) -> None:
        """As `Holder.give_up`."""
        self.fail(429, "there is no room for the rest of this message; try again later")

    def end(self) -> None:
        """As any stream, and hold nothing."""
        self.live.messages.release(self)
        super().end()

    def tick(self, now: float) -> None:
        """As any stream, and give up on a message that does not come to its end."""
        if self._message_due <= now:
            self.fail(408, "the message took too long to come")
        else:
            super().tick(now)

    async def _take(self, events: list[Event]) -> bool:
        """Do what came; False when it was the last."""
        try:
            for number, event in enumerate(events, 1):
                if isinstance(event, Text):
                    await self._command(event.payload)
                    if number % FLUSH_EVERY == 0:
                        self._flush()
                elif isinstance(event, Ping):
                    self._replies.append(pong_frame(event.payload))
                elif isinstance(event, Binary):
                    self._refuse(b"null", InvalidRequest("messages are JSON text"))
                elif isinstance(event, Close):
                    self._replies.append(
                        close_frame(
                            event.code if event.code != CloseCode.NO_STATUS else CloseCode.NORMAL
                        )
                    )
                    return False
                elif isinstance(event, Failure):
                    self._replies.append(close_frame(event.code, event.reason))
                    self._connection.unread_body = True
                    return False
        finally:
            self._flush()
            self._send_replies()
        return True

    def _flush(self) -> None:
        """Send off what was published."""
        bursts, self._bursts = self._bursts, {}
        for burst in bursts.values():
            self._ask(burst)
        for shard in self._touched:
            self.live.backend.flush(shard)
        self._touched.clear()

    def _send_replies(self) -> None:
        if self._replies:
            replies, self._replies = self._replies, []
            self.write(b"".join(replies))

    async def _command(self, message: bytes) -> None:
        try:
            head = decode_command(message)
        except TopicsError as failure:
            self._refuse(request_id_of(message), failure)
            return
        request_id = bytes(head.request_id)
        try:
            if head.op == "publish":
                self._publish(head, request_id, message)
            elif len(message) > (most := short_body_max(self._settings)):
                raise too_large(most)
            elif head.op == "subscribe":
                self._flush()
                self._send_replies()
                await self._subscribe(request_id, message)
            elif head.op == "unsubscribe":
                self._unsubscribe(head, request_id)
            elif head.op == "ping":
                self._replies.append(text_frame(b'{"op":"pong","request_id":%b}' % request_id))
            else:
                raise InvalidRequest("op is subscribe, unsubscribe, publish or ping")
        except TopicsError as failure:
            self._refuse(request_id, failure)

    def _publish(self, head: CommandHead, request_id: bytes, message: bytes) -> None:
        if self._draining:
            raise draining()
        topic = self._topic(head, Scope.WRITE | Scope.ADMIN if head.config else Scope.WRITE)
        burst = self._bursts.get(topic)
        if burst is not None and (
            burst.seqs != head.return_seqs or burst.length + len(message) > self._burst_bytes
        ):
            self._ask(burst)
            burst = None
        if burst is None:
            burst = self._bursts[topic] = _Burst(topic, head.return_seqs)
        burst.add(request_id, message)
        self._asked += 1
        self._asked_bytes += len(message)
        self.live.messages.asked += len(message)

    def _ask(self, burst: _Burst) -> None:
        backend, bodies = self.live.backend, burst.bodies
        shard = backend.shard_of(burst.topic)
        params = AppendParams(
            burst.topic,
            None,
            burst.seqs,
            listed(self.principal.prefixes),
            burst.at,
            [len(body) for body in bodies] if len(bodies) > 1 else None,
        )
        self._touched.add(shard)

        def answered(answer: Reply[AppendResult] | TopicsError) -> None:
            self.attempt(self._answered, burst, answer)

        try:
            body = self._carried(shard, bodies[0]) if len(bodies) == 1 else b"".join(bodies)
        except TopicsError as failure:
            answered(failure)
        else:
            backend.ask(shard, APPEND, params, body, answered)
        burst.bodies = []  # long ones lie in shared memory now

    def _carried(self, shard: int, body: bytes) -> Body:
        """A long body goes through shared memory: what finds no room there must not wait here.
        Raises `Throttled`, `NotReady`.
        """
        if len(body) <= self._settings.inline_bytes:
            return body
        block = self.live.backend.reserve(shard, len(body), None)
        if block is None:
            raise no_room()
        block.view[: len(body)] = body
        return block

    def _answered(self, burst: _Burst, answer: Reply[AppendResult] | TopicsError) -> None:
        self._asked -= len(burst.request_ids)
        self._asked_bytes -= burst.length
        self.live.messages.asked -= burst.length
        if not self._answers:
            self.live.soon(self, self._send_answers)
        if isinstance(answer, TopicsError):
            self._answers += [_refusal(request_id, answer) for request_id in burst.request_ids]
            return
        bodies, result = bytes(answer.body), answer.result
        answer.release()
        failures, end = iter(failures_of(result)), 0
        for request_id, outcome, length in zip(
            burst.request_ids, result.outcomes, result.lengths or (len(bodies),), strict=True
        ):
            if outcome == AppendOutcome.FAILED:
                self._answers.append(_refusal(request_id, next(failures)))
                continue
            start, end = end + 1, end + length  # without its brace
            self._answers.append(
                text_frame(b'{"op":"ack","request_id":%b,%b' % (request_id, bodies[start:end]))
            )

    def _send_answers(self) -> None:
        answers, self._answers = self._answers, []
        if not self.ended:
            self.write(b"".join(answers))
        self._room.set()
        if self._draining and not self._asked:
            super().drain()

    def resumed(self) -> None:
        """Go on reading."""
        self._room.set()

    def drain(self) -> None:
        """First what was asked is answered; nothing new is taken."""
        self._draining = True
        if not self._asked and not self._answers:
            super().drain()

    async def _subscribe(self, request_id: bytes, message: bytes) -> None:
        asked = decode_subscribe(message, self._limits, self._settings.max_watch_topics)
        for topic in asked.starts:
            self._authorize(topic, Scope.READ)
        if len(self.readers.keys() | asked.starts.keys()) > self._settings.max_watch_topics:
            most = self._settings.max_watch_topics
            raise InvalidRequest(f"more than {most} topics on one socket", field="topics", max=most)
        heads = await heads_of(self.live, asked.starts)
        unknown = asked.starts.keys() - heads.keys()
        if unknown:
            raise TopicNotFound(min(unknown))
        topics = {}
        for topic, (head_seq, earliest_seq, epoch) in heads.items():
            start = asked.starts[topic]
            from_seq = head_seq if start.tail else start.from_seq
            known = start.epoch or (epoch if from_seq <= head_seq else None)
            topics[topic] = {
                "from_seq": from_seq,
                "head_seq": head_seq,
                "earliest_seq": earliest_seq,
                "epoch": epoch,
            }
            self.add(topic, asked.view, Start(from_seq, epoch=known))
        self.write(
            text_frame(
                b'{"op":"subscribed","request_id":%b,"topics":%b}'
                % (request_id, json_bytes(topics))
            )
        )
        self.catch_up()

    def _unsubscribe(self, head: CommandHead, request_id: bytes) -> None:
        topic = self._topic(head, Scope.READ)
        self.remove(topic)
        self._replies.append(
            text_frame(
                b'{"op":"unsubscribed","request_id":%b,"topic":%b}'
                % (request_id, json_bytes(topic))
            )
        )

    def _topic(self, head: CommandHead, scope: Scope) -> str:
        if head.topic is None:
            raise InvalidRequest("topic is required", field="topic")
        if not valid_topic_name(head.topic):
            raise InvalidRequest(
                "not a topic name: 1 to 255 of A-Z a-z 0-9 . _ : -, the first a letter or digit",
                field="topic",
            )
        self._authorize(head.topic, scope)
        return head.topic

    def _authorize(self, topic: str, scope: Scope) -> None:
        if not self.principal.allows(scope):
            raise Forbidden(
                f"the key lacks the scope {str(scope.name).lower()}", scope=str(scope.name).lower()
            )
        if not self.principal.covers(topic):
            raise Forbidden("the name is outside the key's prefixes")

    def _refuse(self, request_id: bytes, failure: TopicsError) -> None:
        self._replies.append(_refusal(request_id, failure))


def _frame(document: dict[str, Any]) -> bytes:
    return text_frame(json_bytes(document))


def _refusal(request_id: bytes, failure: TopicsError) -> bytes:
    if isinstance(failure, Internal):
        LOG.error("a bug in a shard while it answered a WebSocket: %s", failure.message)
        failure = Internal("internal error")
    detail = b',"detail":' + json_bytes(failure.detail) if failure.detail else b""
    return text_frame(
        b'{"op":"error","request_id":%b,"code":%b,"message":%b%b}'
        % (request_id, json_bytes(failure.code), json_bytes(failure.message), detail)
    )
