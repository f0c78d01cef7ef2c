"""Deletes of topics and records, which free space on a full disk (§1, §4; decision 0015).

A delete may use the log's reserve if all frames of its group free space. A delete that found no
space because it shared a group with an append is retried once (`held_topics.py`).

A delete of many records is processed in slices, and the reply is sent when the last slice is
committed. In each shard, at most one first slice and one later slice are in flight at any time. The
shard serves other requests between slices, so no loop iteration takes long. In the meantime,
records may be appended to the topic or removed from it, and the topic may be configured or deleted.
If an error or a kill interrupts the delete, only the oldest of the matching records have been
deleted, and the client gets no success reply.

A topic that is the source or a dest of routers is deleted in two steps. It is held while the owner
of the routers removes them, and then deleted. If the owner is unavailable, the topic is not
deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json
from topics.actors.rpc.session import InboundMessage, Reply
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.held_topics import Retries
from topics.actors.shard.service import Service
from topics.engine.changes import delete_records, delete_topic
from topics.engine.changes.delete_records import DeleteRecords, RemainingDelete
from topics.engine.topic import Topic
from topics.errors import TopicNotFound, TopicsError
from topics.formats.api import answers
from topics.formats.api.diff_body import decode_delete
from topics.formats.names import covered
from topics.formats.wire.calls import (
    DELETE_RECORDS,
    NO_RESULT,
    ROUTER_CASCADE,
    ROUTER_OWNER,
    TOPIC_DELETE,
    CascadeParams,
    CascadeResult,
    NoResult,
    TopicDeleteParams,
    TopicParams,
)
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

DeleteCall: TypeAlias = InboundMessage[TopicDeleteParams, NoResult]
RecordsCall: TypeAlias = InboundMessage[TopicParams, NoResult]


class Deletes(Service):
    """Handles `topic.delete` and `topic.delete_records`."""

    def __init__(self, context: ShardContext, retries: Retries) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._retries = retries
        # Held while a later slice is in flight, so that all large deletes of the shard get an equal
        # share of the loop.
        self._slices = trio.Lock()
        self._has_first_slice = False  # true while the first slice of a large delete is in flight

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(TOPIC_DELETE, self._delete)
        router.serve(DELETE_RECORDS, self._delete_records)

    def _delete(
        self, request: DeleteCall, *, routers: Sequence[str] = (), is_retry: bool = False
    ) -> None:
        """Delete a topic.

        ``routers``: names of routers that have already been removed for this request.
        """
        params = request.params
        self._context.check_writable()
        name = params.topic
        handler = partial(self._delete, routers=routers)
        if self._context.held.defer_if_held(name, handler, request):
            return
        self._context.remove_expired(self._engine.topics.get(name))
        # If routers refer to the topic, their owner must remove them before the topic is deleted.
        if self._context.routers_of(name) and name in self._engine.topics:
            # Check the preconditions first, so that a refused delete removes no routers.
            delete_topic.check(self._engine.table, name, params.if_empty)
            self._remove_routers(request, routers)
        else:
            self._delete_now(request, routers, is_retry=is_retry)

    def _remove_routers(self, request: DeleteCall, routers: Sequence[str]) -> None:
        """Remove the topic's routers, and then delete the topic."""
        name, context = request.params.topic, self._context
        # The hold defers other changes of the topic until the owner has replied.
        context.held.hold(name)
        # The owner may remove routers, so the request must complete.
        request.disable_timeout()

        # Handle the reply of the owner. Always release the topic, and run the deferred calls last.
        def then(answer: Reply[CascadeResult] | TopicsError) -> None:
            deferred = context.held.release(name)
            if isinstance(answer, TopicsError):
                answer_error(request, answer)
            else:
                answer.release()
                self._delete_with_routers(request, [*routers, *answer.result.routers])
            for call in deferred:
                call()

        context.peers.call(ROUTER_OWNER, ROUTER_CASCADE, CascadeParams(name), b"", then)

    def _delete_with_routers(self, request: DeleteCall, routers: Sequence[str]) -> None:
        # Runs even if the client's front has disconnected, because the routers are already removed.
        try:
            self._context.check_writable()
            self._delete_now(request, routers, is_retry=False)
        except Exception as error:
            answer_error(request, error)

    def _delete_now(self, request: DeleteCall, routers: Sequence[str], *, is_retry: bool) -> None:
        params = request.params
        change = delete_topic.decide(
            self._engine.table, params.topic, params.if_empty, self._context.now
        )
        # The client's API key may not cover all routers, so the reply lists only covered names.
        visible = [name for name in routers if covered(name, params.prefixes)]
        body = answers.deleted(params.topic, existed=change is not None, routers=visible)
        if change is None:
            return reply_json(request, NO_RESULT, body, params.at)
        request.disable_timeout()

        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                handler = partial(self._delete, routers=routers)
                return self._retries.refuse(handler, request, result, is_retry=is_retry)
            return reply_json(request, NO_RESULT, body, params.at)

        return self._commits.submit(change, settle)

    def _delete_records(self, request: RecordsCall, *, is_retry: bool = False) -> None:
        params = request.params
        self._context.check_writable()
        if self._context.held.defer_if_held(params.topic, self._delete_records, request):
            return
        body = decode_delete(request.attachment)
        topic = self._context.find_topic(params.topic)
        # Hold the topic until it has no pending change. Otherwise a replay could apply caps
        # differently (`must_wait`).
        if body.match is not None and delete_records.must_wait(self._engine.table, topic.name):
            self._context.held.hold(topic.name)
            self._context.start(self._delete_when_idle, topic, request)
            return
        whole = delete_records.remaining_delete(
            self._engine.table, topic.name, body.before_seq, body.match
        )
        request.disable_timeout()
        if self._has_first_slice:  # several first slices would make an iteration long
            self._context.start(self._delete_remaining, request, whole, 0)
            return
        change = delete_records.decide(self._engine.table, whole, self._context.now)
        # The first slice is processed without a task, because most deletes have only one slice.
        self._has_first_slice = change.rest is not None

        def settle(result: LogProgress | OSError) -> None:
            if change.rest is not None:
                self._has_first_slice = False
            if isinstance(result, OSError):
                self._retries.refuse(self._delete_records, request, result, is_retry=is_retry)
            elif change.rest is None:
                self._answer(request, topic, change.deleted)
            else:
                self._context.start(self._delete_remaining, request, change.rest, change.deleted)

        self._commits.submit(change, settle)

    async def _delete_when_idle(self, topic: Topic, request: RecordsCall) -> None:
        await self._commits.wait_idle(topic)
        self._context.release_topic(topic.name, (self._delete_records, request))

    async def _delete_remaining(
        self, request: RecordsCall, rest: RemainingDelete, deleted: int
    ) -> None:
        """Delete the remaining slices, and reply when the last slice is committed.

        ``deleted``: the number of records deleted so far.
        """
        left: RemainingDelete | None = rest
        is_retry = False
        try:
            while left is not None:
                # One slice at a time. The lock is released between slices, so that other deletes
                # can continue.
                async with self._slices:
                    change, result = await self._delete_slice(left)
                if not isinstance(result, OSError):
                    left, deleted, is_retry = change.rest, deleted + change.deleted, False
                # If the log had no space for the group, which may also have contained an append,
                # retry the delete in a group of its own, which may use the reserve of the log.
                elif isinstance(result, NoSpace) and not is_retry:
                    is_retry = True
                else:
                    raise unwritable(result)
        except Exception as error:
            with self._context.iteration():
                answer_error(request, error)
        else:
            with self._context.iteration():
                self._answer(request, rest.topic, deleted)

    async def _delete_slice(
        self, rest: RemainingDelete
    ) -> tuple[DeleteRecords, LogProgress | OSError]:
        """Delete the next slice and return its outcome.

        Raises `TopicNotFound` if the topic is deleted.
        """
        topic, held = rest.topic, self._context.held
        await held.wait_free(topic.name)
        # If the deletion of the topic is pending, wait for its outcome, because it may be undone.
        if topic.deleted:
            await self._commits.wait_idle(topic)
        if topic.deleted:
            raise TopicNotFound(topic.name)
        holds = rest.match is not None and delete_records.must_wait(self._engine.table, topic.name)
        if holds:
            held.hold(topic.name)
            await self._commits.wait_idle(topic)
        try:
            self._context.begin_iteration()
            change = delete_records.decide(self._engine.table, rest, self._context.now)
            return change, await self._commits.submit_and_wait(change)
        finally:
            if holds:
                self._context.release_topic(topic.name)

    def _answer(self, request: RecordsCall, topic: Topic, deleted: int) -> None:
        body = answers.records_deleted(
            topic.name,
            deleted,
            earliest_seq=topic.start_seq,
            head_seq=topic.head_seq,
            count=topic.count,
            size=topic.bytes,
        )
        reply_json(request, NO_RESULT, body, request.params.at)
