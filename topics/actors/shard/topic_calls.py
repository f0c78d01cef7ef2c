"""Topic calls: create, configure, describe and list topics (§1)."""

from __future__ import annotations

from typing import Any

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.queues.lease_logging import LeaseLogging
from topics.actors.shard.service import Service
from topics.engine.changes import put_topic
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.api import answers
from topics.formats.api.decoding import decode_config, ignored_in
from topics.formats.api.topic_config import TopicConfigPatch
from topics.formats.wire.calls import (
    NO_RESULT,
    TOPIC_GET,
    TOPIC_LIST,
    TOPIC_PUT,
    NoResult,
    PutResult,
    TopicGetParams,
    TopicListParams,
    TopicListResult,
    TopicPutParams,
)
from topics.storage.wal.log_progress import LogProgress

RESULTS = tuple(PutResult(created) for created in (False, True))


class TopicCalls(Service):
    """Handles `topic.put`, `topic.get` and `topic.list`."""

    def __init__(self, context: ShardContext) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._leases = LeaseLogging(context)

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(TOPIC_PUT, self._put)
        router.serve(TOPIC_GET, self._get)
        router.serve(TOPIC_LIST, self._list)

    def _put(self, request: InboundMessage[TopicPutParams, PutResult]) -> None:
        params = request.params
        if params.dry_run:
            self._plan(request)
            return
        self._context.check_writable(grows=params.topic not in self._engine.topics)
        if self._context.held.defer_if_held(params.topic, self._put, request):
            return
        # Records that expired under the old config must not reappear under the new config.
        self._context.remove_expired(self._engine.topics.get(params.topic))
        change = put_topic.decide(
            self._engine.table,
            params.topic,
            decode_config(request.attachment),
            self._context.now,
            params.prefixes,
        )
        # The reply lists the fields of the body that were ignored.
        ignored = ignored_in(request.attachment, TopicConfigPatch)
        request.disable_timeout()
        request.release()
        topic, config = change.topic, change.topic.config

        # Leases that were granted before the queue kept them in the log are logged before the
        # reply.
        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                answer(result)
            elif self._leases.is_due(topic):
                self._leases.log(topic, answer)
            else:
                answer(None)

        def answer(error: OSError | None) -> None:
            if error is not None:
                return answer_error(request, unwritable(error))
            body = answers.configured(
                topic.name,
                config,
                created=change.created,
                epoch=topic.epoch,
                dropped=change.dropped if change.changes_limits else None,
            )
            return reply_json(request, RESULTS[change.created], body + ignored, params.at)

        self._commits.submit(change, settle)

    def _plan(self, request: InboundMessage[TopicPutParams, PutResult]) -> None:
        params, context = request.params, self._context
        context.remove_expired(self._engine.topics.get(params.topic))
        # Compute the result of the PUT, but change nothing.
        config, epoch, dropped = put_topic.plan(
            self._engine.table,
            params.topic,
            decode_config(request.attachment),
            context.now,
            params.prefixes,
        )
        body = answers.configured(
            params.topic,
            config,
            created=epoch is None,
            epoch=epoch,
            dropped=dropped,
            dry_run=True,
        )
        ignored = ignored_in(request.attachment, TopicConfigPatch)
        reply_json(request, RESULTS[False], body + ignored, params.at)

    def _get(self, request: InboundMessage[TopicGetParams, NoResult]) -> None:
        params = request.params
        topic = self._context.find_topic(params.topic)
        if params.touch:
            topic.touch(*self._commits.now())
        body = answers.state(_state(topic, self._commits.now()))
        reply_json(request, NO_RESULT, body, params.at)

    def _list(self, request: InboundMessage[TopicListParams, TopicListResult]) -> None:
        params, now = request.params, self._commits.now()
        prefix, after, prefixes, limit = params.prefix, params.after, params.prefixes, params.limit
        items: list[tuple[str, bytes]] = []
        for name in self._engine.names(prefix, after, prefixes, limit):
            topic = self._context.find_topic(name)
            if params.touch:
                topic.touch(*now)
            items.append((name, _summary(topic, now)))
        request.reply(TopicListResult(items))


def _summary(topic: Topic, now: Now) -> bytes:
    """Render the topic's entry in a list. Lists may be long, so no general encoder is used.

    A topic name contains no characters that JSON must escape.
    """
    wrote = "null" if topic.last_write_ts is None else topic.last_write_ts
    durable = "true" if topic.config.durable else "false"
    return (
        f'{{"topic":"{topic.name}","head_seq":{topic.head_seq},"earliest_seq":{topic.start_seq}'
        f',"count":{topic.count},"bytes":{topic.bytes},"epoch":{topic.epoch}'
        f',"last_write_ts":{wrote},"durable":{durable}'
        f',"effective_priority":{topic.effective_priority(now.ms)}}}'
    ).encode()


def _state(topic: Topic, now: Now) -> dict[str, Any]:
    fields = _log_state(topic, now)
    if topic.jobs is not None:
        topic.jobs.advance(now.ms)
        fields["queue"] = topic.jobs.counters(topic.count)._asdict()
    return fields


def _log_state(topic: Topic, now: Now) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "type": topic.config.type,
        "head_seq": topic.head_seq,
        "earliest_seq": topic.earliest_seq,
        "next_seq": topic.head_seq + 1,
        "count": topic.count,
        "bytes": topic.bytes,
        "epoch": topic.epoch,
        "config": topic.config.as_json(),
        "effective_priority": topic.effective_priority(now.ms),
        "last_write_ts": topic.last_write_ts,
        "last_read_ts": topic.last_read_ts,
    }
