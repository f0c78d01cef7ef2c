"""Endpoints: a topic as an end of a router, in the shard that owns the topic (§6.1)."""

from __future__ import annotations

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.room import unwritable
from topics.actors.shard.service import Service
from topics.engine.changes import put_topic
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.wire.calls import ROUTER_ENDPOINT, EndpointParams, EndpointResult
from topics.storage.wal.progress import Progress

NO_TOPIC = EndpointResult(0, 0, 0)


class Endpoints(Service):
    """Handles `router.endpoint`."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        router.serve(ROUTER_ENDPOINT, self._endpoint)

    def _endpoint(self, request: InboundMessage[EndpointParams, EndpointResult]) -> None:
        # Also of a held topic: one that is held for its delete waits for the owner of the routers,
        # which may wait for this answer.
        params = request.params
        topic = self._engine.topics.get(params.topic)
        if topic is None and not params.create:
            return request.reply(NO_TOPIC)
        if topic is not None and not topic.pending_sync:
            return request.reply(_result(topic))
        if topic is None:
            self._context.check_writable(grows=True)
        # It may be there without being durable: then this waits for it.
        now = self._context.now
        change = put_topic.decide(
            self._engine.table,
            params.topic,
            TopicConfigPatch(),
            now,
            has_place=now.ms <= params.place_until_ms,
        )
        request.outlast()

        def settle(result: Progress | OSError) -> None:
            if isinstance(result, OSError):
                return answer_error(request, unwritable(result))
            return request.reply(_result(change.topic))

        return self._commits.submit(change, settle)


def _result(topic: Topic) -> EndpointResult:
    return EndpointResult(topic.id, topic.epoch, topic.head_seq)
