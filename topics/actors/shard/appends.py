"""Appends: decide at once, answer when the log has made the records as durable as their class
promises (§2).

An append message holds a batch of n >= 1 requests to one topic. Each is decided by itself, all are
answered in one message. A single request with a body above STREAMED_MIN_BYTES becomes a streamed
append.
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.typed_calls import serve
from topics.actors.shard.append_batch import AppendBatch, AppendCall, settle_all
from topics.actors.shard.context import ShardContext
from topics.actors.shard.service import Service
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES, StreamedAppends
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.formats.api.append_body import check_may_configure, decode_append
from topics.formats.api.limits import MOVE_LIMITS, Limits
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import APPEND


class Appends(Service):
    """Handles the appends of the front, and those of shards, which move records."""

    def __init__(self, context: ShardContext, streamed: StreamedAppends) -> None:
        self._context, self._commits, self._streamed = context, context.commits, streamed
        self._engine, self._limits, self._peers = context.engine, context.limits, context.peers

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, APPEND, self._append)

    def _append(self, request: AppendCall) -> None:
        params = request.params
        self._context.check_writable(grows=True)
        if self._context.held.defer_if_held(params.topic, self._append, request):
            return
        if params.lengths is None and len(request.attachment) > STREAMED_MIN_BYTES:
            self._streamed.begin(request)
            return
        # What a shard appends has been within the limits before, and is longer by its stamp.
        limits = MOVE_LIMITS if self._peers.is_peer(request.session) else self._limits
        batch = AppendBatch(request, self._context.band_of(params.topic))
        bodies = (request.attachment,) if params.lengths is None else batch.bodies()
        for index, body in enumerate(bodies):
            try:
                self._decide(batch, index, body, limits)
            except Exception as error:
                batch.fail(index, error)
        request.outlast()
        request.release()

    def _decide(self, batch: AppendBatch, index: int, content: Buffer, limits: Limits) -> None:
        params = batch.params
        body = decode_append(content, params.key, limits)
        check_may_configure(body, params.may_configure)
        self._context.freshen(self._engine.topics.get(params.topic))
        outcome = self._engine.append(params.topic, body, self._context.now, params.prefixes)
        if isinstance(outcome, Append):
            if outcome.created:
                batch.band = outcome.topic.band(self._context.now.ms)
            self._commits.submit(outcome, partial(settle_all, outcome, batch, index))
            reservation = self._engine.reserve(outcome.topic)
            if reservation is not None:
                self._commits.submit(reservation, None)
        elif isinstance(outcome, InFlightDuplicate):
            outcome.leader.followers.append((batch, index))
        else:
            batch.answer_known(index, outcome)
