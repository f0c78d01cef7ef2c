"""Deletes, of topics and of records: the changes that make room on a full disk (§1, §4; decision
0015).

A delete may use the log's reserve when all frames of its group make room. One that had no room
beside an append is handled once more (`retries.py`).
"""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import reply_json
from topics.actors.rpc.typed_calls import InboundCall, serve
from topics.actors.shard.context import ShardContext
from topics.actors.shard.held_topics import Request
from topics.actors.shard.retries import Retries
from topics.actors.shard.service import Service
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.delete_body import decode_delete
from topics.formats.wire.calls import (
    DELETE_RECORDS,
    NO_RESULT,
    TOPIC_DELETE,
    DeleteRecordsParams,
    NoResult,
    TopicDeleteParams,
)
from topics.storage.wal.progress import Progress


class Deletes(Service):
    """Handles `topic.delete` and `topic.delete_records`."""

    def __init__(self, context: ShardContext, retries: Retries) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._retries = retries

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, TOPIC_DELETE, self._delete)
        serve(router, DELETE_RECORDS, self._delete_records)

    def _delete(
        self, request: InboundCall[TopicDeleteParams, NoResult], *, again: bool = False
    ) -> None:
        params = request.params
        self._context.check_writable()
        name = params.topic
        if self._context.held.defer_if_held(name, self._delete, request):
            return None
        self._context.freshen(self._engine.topics.get(name))
        change = self._engine.delete(name, params.if_empty, self._context.now)
        if change is None:
            body = answers.deleted(name, existed=False)
            return reply_json(request, NO_RESULT, body, params.at)
        request.outlast()

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return self._retries.refuse(self._delete, request, result, again=again)
            body = answers.deleted(name, existed=True)
            return reply_json(request, NO_RESULT, body, params.at)

        return self._commits.submit(change, settle)

    def _delete_records(
        self, request: InboundCall[DeleteRecordsParams, NoResult], *, again: bool = False
    ) -> None:
        params = request.params
        self._context.check_writable()
        if self._context.held.defer_if_held(params.topic, self._delete_records, request):
            return
        asked = decode_delete(request.attachment)
        topic = self._context.fresh_topic(params.topic)
        if asked.match is not None and self._engine.delete_must_wait(topic.name):
            self._context.held.take(topic.name)
            self._context.start(self._delete_when_idle, topic, request)
            return
        change = self._engine.delete_records(
            topic.name, asked.before_seq, asked.match, self._context.now
        )
        request.outlast()

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return self._retries.refuse(self._delete_records, request, result, again=again)
            body = answers.records_deleted(
                topic.name,
                change.deleted,
                earliest_seq=topic.start_seq,
                head_seq=topic.head_seq,
                count=topic.count,
                size=topic.bytes,
            )
            return reply_json(request, NO_RESULT, body, params.at)

        self._commits.submit(change, settle)

    async def _delete_when_idle(self, topic: Topic, request: Request) -> None:
        await self._commits.wait_idle(topic)
        self._context.give_back(topic.name, (self._delete_records, request))
