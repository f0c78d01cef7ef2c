"""WebSocket (``/v0/ws``, §7.3): publish and subscribe with JSON messages on one connection.

    receive --reader--> frames --text--> command --> publishes, subscriptions (in order)
       ^                            '---> pong, close
       '-- while publishes in flight are below the bounds and the client reads the replies

The shards process the same bytes as for HTTP. One loop iteration handles at most
`FRAMES_PER_ITERATION` frames of a socket, and sends their replies in one write. Three conditions
close a socket that uses more than its share:

- A message is not complete within the time limit of HTTP bodies.
- The unread input of all clients is above its bound (held_memory.py).
- The client does not read.

Only a publish may be a long message. So if the key lacks the scope WRITE, a long message closes the
socket.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from typing import Any

import trio
from websockets.frames import Close, CloseCode, Frame, Opcode

from topics.config import Settings
from topics.engine.access import Principal, Scope
from topics.errors import InvalidRequest, TopicsError
from topics.formats.api.append_slices import without_records
from topics.formats.api.limits import WEBSOCKET_MESSAGE_MAX_BYTES, Limits
from topics.formats.api.watch import HEARTBEAT_MS
from topics.formats.api.websocket_commands import (
    CommandHead,
    decode_command,
    decode_subscribe,
    request_id_of,
)
from topics.formats.api.websocket_frames import (
    WebSocketFrameReader,
    close_frame,
    control_frame,
    utf8_steps,
)
from topics.front.authorization import authorize, check_topic_name
from topics.front.body_limits import short_body_max, too_large
from topics.front.drain import shutting_down
from topics.front.http.connection import NEVER, RECV_BYTES, Connection
from topics.front.live.live import Live
from topics.front.live.web_socket_publish import COPY_BYTES, Publishes
from topics.front.live.web_socket_stream import WebSocketStream, refusal, reply


class MessageClock:
    """The time limit for receiving the current message on one socket. The message is late at
    ``due``.
    """

    def __init__(self, connection: Connection) -> None:
        self._timings = connection.timings
        self._left_s = self._timings.body_grace_s
        self.due = NEVER

    def restart(self) -> None:
        """Reset the limit, because no message is incomplete or a new message begins."""
        self._left_s = self._timings.body_grace_s

    def start_waiting(self) -> None:
        """Start the clock, because the socket waits for the client."""
        self.due = time.monotonic() + self._left_s

    def received(self, count: int) -> None:
        """Stop the clock, and extend the limit for ``count`` received bytes."""
        left_s = self.due - time.monotonic()
        earned_s = count / self._timings.body_bytes_per_s
        self._left_s = min(left_s + earned_s, self._timings.body_grace_s)
        self.due = NEVER


FRAMES_PER_ITERATION = 64  # about 1 ms of work; then other connections run
# Number of frames after which publishes are sent, so that the shard can process them while the
# front decodes the remaining frames.
FLUSH_EVERY = 32
NO_SPACE = "no memory for the rest of this message; try again later"


class WebSocket(WebSocketStream):
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
        self._publishes = Publishes(live, settings, self, self._send_answers)
        # A list, so that the replies of an iteration are sent in one write.
        self._replies: list[bytes] = []  # this iteration's replies; empty whenever this task waits
        # Set when the front may read the socket again, because the publishes have fallen below the
        # bounds or the client reads.
        self._has_space = trio.Event()
        self._clock = MessageClock(connection)
        self._held_bytes = 0  # received bytes of the incomplete message
        self._draining = False
        self._short_max_bytes = short_body_max(settings)
        may_write = principal.allows(Scope.WRITE)
        most = min(settings.max_body_bytes, WEBSOCKET_MESSAGE_MAX_BYTES)
        # Only a publish may be long, and it requires the scope WRITE.
        self._message_max_bytes = most if may_write else self._short_max_bytes

    # Input

    async def run(self) -> None:
        """Serve until either side closes the socket. Raise `OSError` if the connection fails."""
        connection = self._connection
        self.begin()
        try:
            with self.scope:
                # The client may send frames right after the handshake. They are in the buffer of
                # the connection.
                data = connection.buffer[connection.pos :]
                connection.buffer, connection.pos = b"", 0
                await self._serve(WebSocketFrameReader(self._message_max_bytes), data)
            # Linger, so that unread input does not make the client lose the close frame.
            if self.ended:
                connection.unread_body = True
        finally:
            self.end()
            del self._publishes  # break the reference cycle, as in `Outbox.close`
            connection.sent_bytes += self.outbox.sent_bytes

    async def _serve(self, reader: WebSocketFrameReader, data: bytes) -> None:
        """Handle frames and wait for input, until either side closes the socket."""
        # Commands that arrived before the end of the stream are not executed after it, because the
        # key may have been removed.
        while not self.ended and await self._handle(reader, data):
            data = b""
            # The reader has further complete frames. Handle them in the next iteration of the event
            # loop.
            if reader.has_more:
                await self._wait_for_space()
                await trio.lowlevel.checkpoint()
            elif not (data := await self._receive(is_mid_message=reader.is_incomplete)):
                break

    async def _handle(self, reader: WebSocketFrameReader, data: bytes) -> bool:
        """Handle the frames that ``data`` completes. Return False to close the connection.

        No message is kept after this returns, because the client may then be silent for days.
        """
        frames = reader.feed(data, FRAMES_PER_ITERATION)
        failure = reader.failure
        try:
            if not await self._handle_frames(frames):
                return False
        # The frames before the invalid one were handled, and their replies are sent first.
        except UnicodeDecodeError:
            failure = Close(CloseCode.INVALID_DATA, "a text message is not valid UTF-8")
        if failure is not None:
            self.outbox.write(close_frame(failure.code, failure.reason))
            self._connection.unread_body = True
            return False
        # No message is incomplete, or another message has begun. Control frames do not restart the
        # clock.
        if not reader.is_incomplete or any(frame.opcode < Opcode.CLOSE for frame in frames):
            self._clock.restart()
        # The ledger is updated only when the number has changed.
        if reader.held_bytes != self._held_bytes:
            self._hold(reader.held_bytes)
        return True

    async def _receive(self, *, is_mid_message: bool) -> bytes:
        """Return the client's next input, or empty bytes at the end of the input.

        ``is_mid_message`` is true within a message: then the time limit of the message runs.
        """
        while True:
            await self._wait_for_space()
            if is_mid_message:
                self._clock.start_waiting()
                # Schedule the check that enforces the time limit.
                self.live.schedule_check(self, self._clock.due - time.monotonic())
            await trio.lowlevel.wait_readable(self.sock)
            try:
                data = self.sock.recv(RECV_BYTES)
            except BlockingIOError:
                continue
            self._connection.received_bytes += len(data)
            if is_mid_message:
                self._clock.received(len(data))
            return data

    async def _wait_for_space(self) -> None:
        """Wait until the publishes in flight are below the bounds, and the client reads the
        replies.
        """
        # A loop, because the condition may hold again when this task runs.
        while self._publishes.is_full or self.is_stalled:
            self._has_space = trio.Event()
            await self._has_space.wait()

    def _hold(self, length: int) -> None:
        """Report the number of bytes of an incomplete message to the ledger."""
        self._held_bytes = length
        self.live.held.unread.keep(self, self.principal.digest, length)

    def until_check_s(self) -> float:
        """Return the seconds until the stream must be checked, or until the current message is late
        if that is earlier.
        """
        return min(super().until_check_s(), self._clock.due - time.monotonic())

    def check(self) -> None:
        """Close the socket if a message was not completed in time. Otherwise check the socket like
        any other stream.
        """
        if self._clock.due <= time.monotonic():
            self.fail(408, "the message was not received in time")
        else:
            super().check()

    def resumed(self) -> None:
        """Resume reading, and catch up, because the socket accepts data again."""
        self._has_space.set()
        super().resumed()

    def drain(self) -> None:
        """Refuse new publishes. Close the socket when all publishes have been answered."""
        self._draining = True
        if self._publishes.is_idle:
            super().drain()

    def end(self) -> None:
        """Close the stream, and release the memory of an incomplete message."""
        self._hold(0)
        super().end()

    def disconnect(self) -> None:
        """Close the socket, because its client reads too slowly, or because the memory of its
        unsent data or incomplete message is needed.
        """
        if self.outbox.holding is None:
            self.attempt(self.fail, 429, NO_SPACE)
        else:
            super().disconnect()

    # Frames

    async def _handle_frames(self, frames: list[Frame]) -> bool:
        """Handle the received frames. Return False to close the socket.

        Raise `UnicodeDecodeError` if a text message is not UTF-8.
        """
        try:
            # Messages are executed in order. A long message waits here and delays the later ones.
            for number, frame in enumerate(frames, 1):
                if frame.opcode is Opcode.TEXT:
                    if (waiting := self._command(bytes(frame.data))) is not None:
                        await waiting
                    if number % FLUSH_EVERY == 0:
                        self._publishes.flush()
                elif not self._control(frame):
                    return False
        # Earlier commands get their replies even after an error.
        finally:
            self._publishes.flush()
            self._send_replies()
        return True

    def _control(self, frame: Frame) -> bool:
        """Reply to a frame that is not a text message. Return False to close the socket."""
        if frame.opcode is Opcode.PING:
            self._replies.append(control_frame(Opcode.PONG, bytes(frame.data)))
        elif frame.opcode is Opcode.BINARY:
            self._replies.append(refusal(b"null", InvalidRequest("messages must be JSON text")))
        elif frame.opcode is Opcode.CLOSE:
            self._replies.append(control_frame(Opcode.CLOSE, bytes(frame.data)))
            return False
        return True

    def _send_replies(self) -> None:
        """Send the replies of this iteration in one write."""
        if self._replies:
            replies, self._replies = self._replies, []
            self.outbox.write(b"".join(replies))

    def _send_answers(self, answers: bytes) -> None:
        """Send the results of publishes, and resume reading.

        During the drain, close the socket if it was the last result.
        """
        if self.ended:
            return
        self.outbox.write(answers)
        self._has_space.set()
        if self._draining:
            self.drain()

    # Commands

    def _command(self, message: bytes) -> Coroutine[Any, Any, None] | None:
        """Execute a message. Return a coroutine to await if the command must wait."""
        # A long message would block the loop while it is decoded.
        if len(message) > self._short_max_bytes:
            return self._long_command(message)
        message.decode()  # raises `UnicodeDecodeError` if it is not UTF-8
        return self._decided(message, message)

    async def _long_command(self, message: bytes) -> None:
        """Execute a command that takes long to decode.

        Other connections run between the steps. Replies to earlier commands are sent first.
        """
        # Send earlier publishes first, so that the order of messages is kept.
        self._publishes.flush()
        self._send_replies()
        for _ in utf8_steps(message):
            await trio.lowlevel.checkpoint()
        for envelope in without_records(message):
            await trio.lowlevel.checkpoint()
            if envelope is not None and not self.ended:
                waiting = self._decided(envelope, message)
                if waiting is not None:
                    await waiting

    def _decided(self, envelope: bytes, message: bytes) -> Coroutine[Any, Any, None] | None:
        """Execute the command in ``envelope``: the message, possibly without its records."""
        try:
            head = decode_command(envelope)
        except TopicsError as failure:
            self._replies.append(refusal(request_id_of(envelope), failure))
            return None
        request_id = bytes(head.request_id)
        try:
            if head.op == "publish":
                return self._publish(head, request_id, message)
            # Only a publish may be long.
            if len(message) > (most := self._short_max_bytes):
                raise too_large(most)
            if head.op == "subscribe":
                return self._subscribe(request_id, message)
            if head.op == "unsubscribe":
                topic = self._topic(head, Scope.READ)
                self._replies.append(self.unsubscribe(request_id, topic))
            elif head.op == "ping":
                self._replies.append(reply(b"pong", request_id))
            else:
                raise InvalidRequest("op must be subscribe, unsubscribe, publish or ping")
        except TopicsError as failure:
            self._replies.append(refusal(request_id, failure))
        return None

    def _publish(
        self, head: CommandHead, request_id: bytes, message: bytes
    ) -> Coroutine[Any, Any, None] | None:
        """Publish a message. Return a coroutine to await if the message takes long to copy.

        Raise `TopicsError` if the publish is refused.
        """
        if self._draining:
            raise shutting_down()
        topic = self._topic(head, Scope.WRITE)
        if not self.live.pressure.is_unthrottled:
            shard = self.live.shards.shard_of(topic)
            self.live.pressure.check_write(self.principal.digest, topic, shard, message)
        # Copying a long message takes several steps.
        if len(message) > COPY_BYTES:
            return self._publishes.add_long(topic, head.return_seqs, request_id, message)
        self._publishes.add(topic, head.return_seqs, request_id, message)
        return None

    async def _subscribe(self, request_id: bytes, message: bytes) -> None:
        """Subscribe to topics.

        Replies to earlier commands are sent first, because this waits for shards.
        """
        self._publishes.flush()
        self._send_replies()
        most = self._settings.max_watch_topics
        try:
            asked = decode_subscribe(message, self._limits, most)
            for topic in asked.starts:
                authorize(self.principal, Scope.READ, topic)
            await self.subscribe(request_id, asked, most)
        except TopicsError as failure:
            self._replies.append(refusal(request_id, failure))

    def _topic(self, head: CommandHead, scope: Scope) -> str:
        """Return the checked topic of a command. Raise `InvalidRequest` or `Forbidden`."""
        if head.topic is None:
            raise InvalidRequest("topic is required", field="topic")
        check_topic_name(head.topic, field="topic")
        authorize(self.principal, scope, head.topic)
        return head.topic
