"""Appends: decide at once, answer when the log has made the records as durable as their class
promises (§2).

    rpc/append       one request; a body above STREAMED_MIN_BYTES becomes a streamed append
    rpc/append.many  several short requests to one topic, each decided by itself, answered together
"""

from __future__ import annotations

from typing import Any

from topics.actors.rpc.message_router import InboundMessage, MessageRouter
from topics.actors.rpc.replies import map_error, request_of, total_ms
from topics.actors.shard.append_batch import Asker, Batch, Part
from topics.actors.shard.context import ShardContext, clock
from topics.actors.shard.room import refuse
from topics.actors.shard.service import Service
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES, Done, StreamedAppends
from topics.engine.shard import Append, InFlightDuplicate
from topics.formats.api import answers
from topics.formats.api.requests import decode_append
from topics.formats.buffers import Buffer
from topics.storage.wal.writer import Progress


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
        router.route("rpc/append", self._append)
        router.route("rpc/append.many", self._append_many)

    def _append(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        self._context.check_writable(grows=True)
        if self._context.held.defer_if_held(params["topic"], self._append, message):
            return
        if len(message.attachment) > STREAMED_MIN_BYTES:
            self._context.held.take(params["topic"])
            rpc.outlast()  # it ends when all of its body is written
            self._context.start(self._append_streamed, message)
            return
        self._append_now(rpc, params, message.attachment)
        rpc.outlast()
        message.release()

    def _append_many(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        self._context.check_writable(grows=True)
        if self._context.held.defer_if_held(params["topic"], self._append_many, message):
            return
        lengths = params["lengths"]
        batch, content, end = Batch(rpc, len(lengths)), message.attachment, 0
        for index, length in enumerate(lengths):
            part, start, end = Part(batch, index), end, end + length
            try:
                self._append_now(part, params, content[start:end])
            except Exception as error:
                part.error(*map_error(error, message))
        rpc.outlast()
        message.release()

    def _append_now(self, asker: Asker, params: dict[str, Any], content: Buffer) -> None:
        body = decode_append(content, params["key"], self._limits)
        self._context.freshen(self._engine.topics.get(params["topic"]))
        outcome = self._engine.append(params["topic"], body, self._context.now, params["prefixes"])
        if isinstance(outcome, Append):
            self._commits.submit(
                outcome, lambda result: _answer_append(outcome, asker, params, result)
            )
            reservation = self._engine.reserve(outcome.topic)
            if reservation is not None:
                self._commits.submit(reservation, None)
        elif isinstance(outcome, InFlightDuplicate):
            outcome.leader.followers.append((asker, params))
        else:
            _reply_appended(
                asker, params, outcome.first_seq, outcome.record_count, (0.0, 0.0), deduped=True
            )

    async def _append_streamed(self, message: InboundMessage) -> None:
        rpc, params = request_of(message)
        name = params["topic"]
        try:
            outcome = await self.streamed.run(
                name, message.attachment, params["key"], params["prefixes"]
            )
        except Exception as error:
            rpc.error(*map_error(error, message))
        else:
            if isinstance(outcome, Done):
                _reply_change(
                    rpc, params, outcome.change, outcome.progress, created=outcome.created
                )
            elif isinstance(outcome, OSError):
                refuse(rpc, outcome)
            else:
                _reply_appended(
                    rpc, params, outcome.first_seq, outcome.record_count, (0.0, 0.0), deduped=True
                )
        message.release()
        self._context.give_back(name)


def _answer_append(
    change: Append, asker: Asker, params: dict[str, Any], result: Progress | OSError
) -> None:
    if isinstance(result, OSError):
        for lost, _ in ((asker, params), *change.followers):
            refuse(lost, result)
        return
    _reply_change(asker, params, change, result, created=change.created)
    for follower, asked in change.followers:
        _reply_change(follower, asked, change, result, deduped=True)


def _reply_change(
    asker: Asker,
    params: dict[str, Any],
    change: Append,
    progress: Progress,
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    took = (progress.write_ms, progress.sync_ms if change.topic.config.durable else 0.0)
    _reply_appended(
        asker, params, change.first_seq, change.count, took, created=created, deduped=deduped
    )


def _reply_appended(
    asker: Asker,
    params: dict[str, Any],
    first_seq: int,
    count: int,
    took: tuple[float, float],
    *,
    created: bool = False,
    deduped: bool = False,
) -> None:
    body = answers.appended(
        params["topic"],
        first_seq,
        count,
        with_seqs=params["seqs"],
        created=created,
        deduped=deduped,
    )
    end = answers.performance(total_ms(params), wal_ms=took[0], fsync_ms=took[1])
    asker.reply({"status": 201 if created else 200}, body + end)
