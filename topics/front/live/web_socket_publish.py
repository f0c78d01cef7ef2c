"""WebSocket publishes (§7.3): sends batches to the shards, and their results to the client.

    publishes of one read --by topic--> batch --one message--> shard --one message--> results

Publishes to one topic that arrive in one read are sent as batches of bounded length. The publishes
of a batch share one reply. The results of one topic are in order. The shard processes each publish
separately. A publish that is too long for an inline message is sent alone, in shared memory. A very
long publish is copied there in steps (`add_long`).

Publishes are sent without waiting for each other. The unanswered publishes are bounded for each
socket and for all sockets (`is_full`). Above a bound, the socket is not read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import trio

from topics.actors.rpc.replies import failures_of
from topics.actors.rpc.session import Reply
from topics.config import Settings
from topics.engine.access import Scope
from topics.errors import TopicsError
from topics.formats.api.websocket_frames import text_frame
from topics.formats.wire.calls import (
    APPEND,
    AppendOutcome,
    AppendParams,
    AppendResult,
    band_in,
    outcome_in,
)
from topics.front.body_limits import no_space
from topics.front.http.connection import RECV_BYTES
from topics.front.live.live import Live
from topics.front.live.streams import Stream
from topics.front.live.web_socket_stream import refusal
from topics.front.request import Body, listed

UNANSWERED_MAX = 1024  # maximum number of unanswered publishes per socket
UNANSWERED_MAX_BYTES = 16 << 20
COPY_BYTES = 1 << 20  # maximum number of bytes copied in one step


class PublishBatch:
    """Publishes to one topic that are sent together.

    ``at`` is the time of the first publish in monotonic ns.
    """

    __slots__ = ("at", "bodies", "length", "request_ids", "seqs", "topic")

    def __init__(self, topic: str, seqs: bool) -> None:
        self.topic, self.seqs, self.at = topic, seqs, time.monotonic_ns()
        self.request_ids: list[bytes] = []
        self.bodies: list[bytes] = []
        self.length = 0  # total length of the bodies, in bytes


class MessageFiller:
    """The `BlockFiller` (`topics.actors.link.arena`) of a block that is filled within a few
    iterations.
    """

    failure: Exception | None = None

    def turnover_s(self, _now: float) -> float:
        """Return 0, because the block is filled quickly."""
        return 0.0

    def abort(self, failure: Exception) -> None:
        """Stop the copying with this failure, because the block is needed elsewhere."""
        self.failure = failure


class Publishes:
    """The publishes of one socket.

    ``on_answers`` is called with the joined results of a loop iteration.
    """

    def __init__(
        self,
        live: Live,
        settings: Settings,
        stream: Stream,
        on_answers: Callable[[bytes], None],
    ) -> None:
        self._live, self._settings, self._stream = live, settings, stream
        self._on_answers = on_answers
        self._prefixes = listed(stream.principal.prefixes)
        self._may_configure = stream.principal.allows(Scope.ADMIN)
        self._batch_max_bytes = min(settings.inline_bytes, RECV_BYTES)
        self._batches: dict[str, PublishBatch] = {}  # not sent yet; empty whenever the socket waits
        self._unanswered = self._unanswered_bytes = 0
        self._answers: list[bytes] = []

    @property
    def is_idle(self) -> bool:
        """Whether all publishes were answered, and the results were sent to the client."""
        return not self._unanswered and not self._answers

    @property
    def is_full(self) -> bool:
        """Whether the socket must not be read until a publish is answered.

        Even above the bound for all sockets, each socket may have one publish in flight.
        """
        if self._unanswered_bytes and self._live.publish_bytes >= self._live.publish_max_bytes:
            return True
        return self._unanswered >= UNANSWERED_MAX or self._unanswered_bytes >= UNANSWERED_MAX_BYTES

    def add(self, topic: str, seqs: bool, request_id: bytes, message: bytes) -> None:
        """Add a publish to a batch. `flush` sends it."""
        batch, length = self._batches.get(topic), len(message)
        # Publishes of one batch have equal options, and one batch fits into an inline message.
        if batch is not None and (
            batch.seqs != seqs or batch.length + length > self._batch_max_bytes
        ):
            self._send(batch)
            batch = None
        if batch is None:
            batch = self._batches[topic] = PublishBatch(topic, seqs)
        self._count_in(batch, request_id, length)
        batch.bodies.append(message)

    async def add_long(self, topic: str, seqs: bool, request_id: bytes, message: bytes) -> None:
        """Publish a message that takes long to copy.

        The caller must call `flush` first, so that the order of the publishes is kept.
        """
        batch, shard = PublishBatch(topic, seqs), self._live.shards.shard_of(topic)
        self._count_in(batch, request_id, len(message))
        try:
            body = await self._filled(shard, message)
        except TopicsError as failure:
            # The publish fails, but the socket continues.
            self._answered(batch, failure)
        except BaseException:
            self._count_out(batch)
            raise
        else:
            self._ask(batch, shard, None, body)

    async def _filled(self, shard: int, message: bytes) -> Body:
        """Copy the message into shared memory, in steps. Raise `Throttled` or `NotReady`."""
        filling, view = MessageFiller(), memoryview(message)
        block = self._live.shards.reserve(shard, len(message), filling)
        if block is None:
            raise no_space()
        try:
            for start in range(0, len(message), COPY_BYTES):
                end = start + COPY_BYTES
                block.view[start:end] = view[start:end]
                await trio.lowlevel.checkpoint()
                # The block is needed for another body, or the shard went down.
                if filling.failure is not None:
                    raise filling.failure
        except BaseException:
            block.free()
            raise
        return block

    def _count_in(self, batch: PublishBatch, request_id: bytes, length: int) -> None:
        """Add a publish to its batch, and count it as unanswered."""
        batch.request_ids.append(request_id)
        batch.length += length
        self._unanswered += 1
        self._unanswered_bytes += length
        self._live.publish_bytes += length

    def _count_out(self, batch: PublishBatch) -> None:
        """Stop counting the publishes of a batch as unanswered."""
        self._unanswered -= len(batch.request_ids)
        self._unanswered_bytes -= batch.length
        self._live.publish_bytes -= batch.length

    def flush(self) -> None:
        """Send the batches."""
        batches, self._batches = self._batches, {}
        for batch in batches.values():
            self._send(batch)

    def _send(self, batch: PublishBatch) -> None:
        """Send a batch to the shard of its topic."""
        bodies = batch.bodies
        lengths = [len(body) for body in bodies] if len(bodies) > 1 else None
        shard = self._live.shards.shard_of(batch.topic)
        try:
            body = b"".join(bodies) if lengths else self._attachment(shard, bodies[0])
        except TopicsError as failure:
            self._stream.attempt(self._answered, batch, failure)
        else:
            self._ask(batch, shard, lengths, body)
        batch.bodies = []  # long bodies are in shared memory now

    def _ask(
        self, batch: PublishBatch, shard: int, lengths: Sequence[int] | None, body: Body
    ) -> None:
        """Call the shard. The result is passed to `_answered`."""
        params = AppendParams(
            *(batch.topic, None, batch.seqs, self._prefixes, batch.at, lengths),
            may_configure=self._may_configure,
        )

        def answered(answer: Reply[AppendResult] | TopicsError) -> None:
            self._stream.attempt(self._answered, batch, answer)

        self._live.shards.call(shard, APPEND, params, body, answered)

    def _attachment(self, shard: int, body: bytes) -> Body:
        """Return the body in the form in which it is sent.

        A long body is copied into shared memory, without waiting. Raise `Throttled` or `NotReady`.
        """
        if len(body) <= self._settings.inline_bytes:
            return body
        block = self._live.shards.reserve(shard, len(body), None)
        if block is None:
            raise no_space()
        block.view[: len(body)] = body
        return block

    def _answered(self, batch: PublishBatch, answer: Reply[AppendResult] | TopicsError) -> None:
        """Add the results of a batch, and schedule their delivery."""
        self._count_out(batch)
        # Results of one batch of messages are sent in one write.
        if not self._answers:
            self._live.defer(self._stream, self._deliver)
        if isinstance(answer, TopicsError):
            self._answers += [refusal(request_id, answer) for request_id in batch.request_ids]
        else:
            self._add_answers(batch, answer)

    def _add_answers(self, batch: PublishBatch, answer: Reply[AppendResult]) -> None:
        """Add an ack or an error for each publish.

        The attachment contains the concatenated JSON objects of the acks.
        """
        bodies, result = bytes(answer.body), answer.result
        self._live.pressure.bands.store(batch.topic, band_in(result.outcomes[-1]))
        answer.release()
        failures = iter(failures_of(result) if result.failures else ())
        end = 0
        for request_id, byte, length in zip(
            batch.request_ids, result.outcomes, result.lengths or (len(bodies),), strict=True
        ):
            if outcome_in(byte) == AppendOutcome.FAILED:
                self._answers.append(refusal(request_id, next(failures)))
                continue
            start, end = end + 1, end + length  # skip the opening brace of the object
            self._answers.append(
                text_frame(b'{"op":"ack","request_id":%b,%b' % (request_id, bodies[start:end]))
            )

    def _deliver(self) -> None:
        """Send the collected results to the client."""
        answers, self._answers = self._answers, []
        self._on_answers(b"".join(answers))
