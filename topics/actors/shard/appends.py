"""Appends: decide at once, answer when the log has made the records as durable as their class
promises (§2).

An append message holds a batch of n >= 1 requests to one topic. Each is decided by itself, all are
answered in one message. A single request with a body above STREAMED_MIN_BYTES becomes a streamed
append.
"""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import total_ms
from topics.actors.rpc.typed_calls import serve
from topics.actors.shard.append_batch import AppendBatch, AppendCall
from topics.actors.shard.context import ShardContext, clock
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES, Done, StreamedAppends
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.formats.api import answers
from topics.formats.api.requests import decode_append
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import APPEND
from topics.storage.wal.progress import Progress


class Appends(Service):
    """Handles the appends of all fronts."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits = context, context.commits
        self._engine, self._limits = context.engine, context.limits
        self.streamed = StreamedAppends(
            context.engine, context.commits, context.limits, context.disk, clock
        )

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, APPEND, self._append)

    def _append(self, request: AppendCall) -> None:
        params = request.params
        self._context.check_writable(grows=True)
        if self._context.held.defer_if_held(params.topic, self._append, request):
            return
        if params.lengths is None and len(request.attachment) > STREAMED_MIN_BYTES:
            self._context.held.take(params.topic)
            request.outlast()  # it ends when all of its body is written
            self._context.start(self._append_streamed, request)
            return
        batch = AppendBatch(request)
        for index, body in enumerate(batch.bodies()):
            try:
                self._append_now(batch, index, body)
            except Exception as error:
                batch.fail(index, error)
        request.outlast()
        request.release()

    def _append_now(self, batch: AppendBatch, index: int, content: Buffer) -> None:
        params = batch.params
        body = decode_append(content, params.key, self._limits)
        self._context.freshen(self._engine.topics.get(params.topic))
        outcome = self._engine.append(params.topic, body, self._context.now, params.prefixes)
        if isinstance(outcome, Append):
            self._commits.submit(
                outcome, lambda result: _answer_append(outcome, batch, index, result)
            )
            reservation = self._engine.reserve(outcome.topic)
            if reservation is not None:
                self._commits.submit(reservation, None)
        elif isinstance(outcome, InFlightDuplicate):
            outcome.leader.followers.append((batch, index))
        else:
            _answer_known(batch, index, outcome.first_seq, outcome.record_count)

    async def _append_streamed(self, request: AppendCall) -> None:
        params, batch = request.params, AppendBatch(request)
        try:
            outcome = await self.streamed.run(
                params.topic, request.attachment, params.key, params.prefixes
            )
        except Exception as error:
            batch.fail(0, error)
        else:
            if isinstance(outcome, Done):
                _answer_change(batch, 0, outcome.change, outcome.progress, created=outcome.created)
            elif isinstance(outcome, OSError):
                batch.fail(0, unwritable(outcome))
            else:
                _answer_known(batch, 0, outcome.first_seq, outcome.record_count)
        request.release()
        self._context.give_back(params.topic)


def _answer_append(
    change: Append, batch: AppendBatch, index: int, result: Progress | OSError
) -> None:
    if isinstance(result, OSError):
        for lost, at in ((batch, index), *change.followers):
            lost.fail(at, unwritable(result))
        return
    _answer_change(batch, index, change, result, created=change.created)
    for follower, at in change.followers:
        _answer_change(follower, at, change, result, deduped=True)


def _answer_known(batch: AppendBatch, index: int, first_seq: int, count: int) -> None:
    _answer(batch, index, first_seq, count, 0.0, 0.0, deduped=True)


def _answer_change(
    batch: AppendBatch,
    index: int,
    change: Append,
    progress: Progress,
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    sync_ms = progress.sync_ms if change.topic.config.durable else 0.0
    _answer(
        batch,
        index,
        change.first_seq,
        change.count,
        progress.write_ms,
        sync_ms,
        created=created,
        deduped=deduped,
    )


def _answer(
    batch: AppendBatch,
    index: int,
    first_seq: int,
    count: int,
    write_ms: float,
    sync_ms: float,
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    params = batch.params
    body = answers.appended(
        params.topic,
        first_seq,
        count,
        with_seqs=params.with_seqs,
        created=created,
        deduped=deduped,
    )
    end = answers.performance(total_ms(params.at), wal_ms=write_ms, fsync_ms=sync_ms)
    batch.succeed(index, body + end, created=created)
