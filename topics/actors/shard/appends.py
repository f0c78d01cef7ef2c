"""Appends: evaluates each request immediately, and replies when its records are durable (§2).

The topic's durability class defines when records are durable. An append message contains n >= 1
requests to one topic. All their results are sent in one reply.

Adjacent requests are evaluated together if one append of all their records has the same outcome as
separate appends. They produce one change, one frame and one commit, and each result contains the
seqs of its request. A request with an invalid body is refused without affecting the other requests.
The following requests are evaluated individually, in order: a request with a key or a config, the
first request to a topic that does not exist, and all requests of a group that the topic refuses.

If a frame is torn, all requests of its group are lost. None of them was acknowledged, because each
reply waits until the complete frame is as durable as the class promises.

A single request with a body above STREAMED_MIN_BYTES becomes a streamed append.

If the log finds no space while a backup keeps files, the lost appends are evaluated once more when
these files have been deleted (``space_waits.py``). Appends that arrive in the meantime also wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.shard.append_batch import AppendBatch, AppendCall
from topics.actors.shard.context import ShardContext
from topics.actors.shard.group_commit import Settle
from topics.actors.shard.held_topics import handle_late
from topics.actors.shard.service import Service
from topics.actors.shard.space_waits import SpaceWaits
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES, StreamedAppends
from topics.engine.changes import append, reservation
from topics.engine.changes.append import Append, InFlightDuplicate
from topics.engine.dedupe import DedupeEntry
from topics.engine.priority import NEW_BAND
from topics.errors import NotReady
from topics.formats.api.append_body import AppendBody, check_may_configure, decode_append, joined
from topics.formats.api.limits import MOVE_LIMITS
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import APPEND

JOINED_MAX_BYTES = 256 << 10  # maximum total body size of the requests that share a frame


class Appends(Service):
    """Handles appends from the front, and from shards that move records."""

    def __init__(self, context: ShardContext, streamed: StreamedAppends, space: SpaceWaits) -> None:
        self._context, self._commits, self._streamed = context, context.commits, streamed
        self._space = space
        self._engine, self._limits, self._peers = context.engine, context.limits, context.peers

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(APPEND, self._append)

    def _append(self, request: AppendCall) -> None:
        context, params, space = self._context, request.params, self._space
        # Lost appends may be retried if a backup keeps files that can be deleted.
        may_wait = space.may_free_space
        # If a backup keeps files on a full disk, wait until they are deleted. Later appends must
        # not overtake waiting appends.
        if space.is_active or (may_wait and context.wal.lacks_space):
            space.defer(partial(handle_late, self._append, request))
            return
        context.check_writable(grows=True)
        # If another change holds the topic, handle the request when the topic is released.
        held = context.held
        if held.waiting and held.defer_if_held(params.topic, self._append, request):
            return
        # A long body is handled in a task. A batch of short bodies is evaluated here.
        if params.lengths is None and len(request.attachment) > STREAMED_MIN_BYTES:
            self._streamed.begin(request)
            return
        topic = self._engine.topics.get(params.topic)
        # Use the band that the topic has before this append, or the band of new topics.
        batch = AppendBatch(request, NEW_BAND if topic is None else topic.band(context.now.ms))
        if may_wait:
            batch.enable_retry(self._defer_retry)
        if params.lengths is None:
            self._decide_one(batch)
        else:
            self._decide_all(batch, enumerate(batch.bodies()))
        # From here on, the reply depends on the log, which always reports success or failure.
        request.disable_timeout()
        # The bodies have been decoded. Free their block of the link's arena, unless a retry needs
        # it.
        if type(request.attachment) is not bytes and not batch.may_retry:
            request.release()

    def _defer_retry(self, batch: AppendBatch) -> None:
        self._space.defer(partial(self._decide_retry, batch))

    def _decide_retry(self, batch: AppendBatch) -> None:
        """Retry the requests of a batch whose frames the log could not write.

        Each request is retried only once.
        """
        # The topic may be held by a change that arrived in the meantime.
        params, held = batch.params, self._context.held
        if held.waiting and held.defer_call_if_held(
            params.topic, partial(self._decide_retry, batch)
        ):
            return
        lost = batch.take_retries()
        try:
            # The disk may be full again.
            self._context.check_writable(grows=True)
        except NotReady as error:
            for index in lost:
                batch.fail(index, error)
            return
        # The bodies were kept for this retry, and are decoded again.
        if params.lengths is None:
            self._decide_one(batch)
        else:
            bodies = batch.bodies()
            self._decide_all(batch, ((index, bodies[index]) for index in lost))

    def _decode(self, batch: AppendBatch, content: Buffer) -> AppendBody:
        params = batch.params
        # Records that another shard moves here were within the limits, but the stamp that the move
        # adds has made them larger.
        limits = MOVE_LIMITS if batch.request.session in self._peers.open else self._limits
        body = decode_append(content, params.key, limits)
        if body.config is not None:
            check_may_configure(params.may_configure)
        return body

    def _decide_one(self, batch: AppendBatch) -> None:
        try:
            self._decide(batch, 0, self._decode(batch, batch.request.attachment))
        except Exception as error:
            batch.fail(0, error)

    def _decide_all(self, batch: AppendBatch, bodies: Iterable[tuple[int, Buffer]]) -> None:
        # Collect adjacent requests until one cannot join the group. The order of the requests is
        # kept.
        params, size = batch.params, 0
        group: list[tuple[int, AppendBody]] = []
        for index, content in bodies:
            try:
                body = self._decode(batch, content)
            except Exception as error:
                batch.fail(index, error)
                continue
            size += len(content)
            # Close the group before a request that cannot join it: a request that has a key, a
            # config or another ``node``, or that would exceed the size limit.
            is_alone = body.idempotency_key is not None or body.config is not None
            if group and (is_alone or size > JOINED_MAX_BYTES or body.node != group[0][1].node):
                self._decide_group(batch, group)
                group, size = [], len(content)
            group.append((index, body))
            # The first request creates the topic, and its outcome determines whether the topic
            # exists for the following requests.
            if is_alone or not self._engine.topics.get(params.topic):
                self._decide_group(batch, group)
                group, size = [], 0
        self._decide_group(batch, group)

    def _decide_group(self, batch: AppendBatch, group: list[tuple[int, AppendBody]]) -> None:
        """Evaluate adjacent requests together, or separately if the joint append is refused."""
        if len(group) > 1:
            # All requests share one change. Each request gets its share of the seqs
            # (`settle_joined`).
            bodies = [body for _, body in group]
            try:
                change = self._append_now(batch, joined(bodies))
            except Exception:  # each request is evaluated alone below, and gets its own error
                change = None
            if change is not None:
                assert isinstance(change, Append), "a request without a key is not a duplicate"
                parts = [(index, len(body.records)) for index, body in group]
                self._submit(change, partial(batch.settle_joined, parts, change))
                return
        for index, body in group:
            try:
                self._decide(batch, index, body)
            except Exception as error:
                batch.fail(index, error)

    def _decide(self, batch: AppendBatch, index: int, body: AppendBody) -> None:
        outcome = self._append_now(batch, body)
        if isinstance(outcome, Append):
            # If the request has created its topic, the config of the topic determines the band.
            if outcome.created:
                batch.band = outcome.topic.band(self._context.now.ms)
            self._submit(outcome, partial(batch.settle, index, outcome))
        elif isinstance(outcome, InFlightDuplicate):
            # An append with the same key is pending; this request gets the same reply.
            outcome.leader.followers.append((batch, index))
        else:
            batch.answer_known(index, outcome)

    def _append_now(
        self, batch: AppendBatch, body: AppendBody
    ) -> Append | InFlightDuplicate | DedupeEntry:
        params = batch.params
        topic = self._engine.topics.get(params.topic)
        # Expired records must not count against the caps of this write.
        if topic is not None and (topic.committed.ttl_ms or topic.floor_due):
            self._context.remove_expired(topic)
        return append.decide(
            self._engine.table, params.topic, body, self._context.now, params.prefixes
        )

    def _submit(self, change: Append, settle: Settle) -> None:
        self._context.append_count += 1
        self._commits.submit(change, settle)
        # A topic of class fsync needs no reservation, because each write is synced before it is
        # acknowledged.
        if change.topic.config.durability != "fsync":
            reserved = reservation.decide(change.topic)
            if reserved is not None:
                self._commits.submit(reserved, None)
