"""Job calls: ack, nack and extend leased jobs, and list the leases of a queue (§10.4 to §10.6).

An ack is a delete. The reply is sent when the delete is as durable as the queue's class promises,
and the delete may use the log's reserve. All acks that one loop iteration receives for one queue
are combined into one delete. The other calls wait for the log only if the queue's leases are
durable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, reply_json, total_ms
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.held_topics import Retries
from topics.actors.shard.queues.job_dispatch import JobDispatch
from topics.actors.shard.service import Service
from topics.engine.changes import finish_jobs, lease_jobs
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue import claims
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.jobs import QueueCounters
from topics.engine.queue.leases import Lease
from topics.engine.topic import Topic
from topics.formats.api import answers, queue_answers
from topics.formats.api.queue_bodies import JobsRequest, decode_ack, decode_extend, decode_nack
from topics.formats.wire.calls import (
    ACK,
    EXTEND,
    LEASES,
    NACK,
    NO_RESULT,
    LeasesParams,
    LeasesResult,
    NoResult,
    TopicParams,
)
from topics.storage.wal.log_progress import LogProgress

JobsCall: TypeAlias = InboundMessage[TopicParams, NoResult]


class JobCalls(Service):
    """Handles `queue.ack`, `queue.nack`, `queue.extend` and `queue.leases`."""

    def __init__(self, context: ShardContext, dispatch: JobDispatch, retries: Retries) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._dispatch, self._retries = dispatch, retries
        # The acks received in this iteration, by queue.
        self.gathered: dict[str, list[tuple[JobsCall, JobsRequest]]] = {}

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(ACK, self._ack)
        router.serve(NACK, self._nack)
        router.serve(EXTEND, self._extend)
        router.serve(LEASES, self._leases)

    def _ack(self, request: JobsCall, *, is_retry: bool = False) -> None:
        context, params = self._context, request.params
        context.check_writable()
        if params.topic in context.held.waiting:
            context.held.defer_if_held(params.topic, self._ack, request)
            return
        gathered = request, decode_ack(request.attachment, context.limits)
        # A retry is processed immediately and in a group of its own, because its frame may use the
        # log's reserve only if the group contains no appends.
        if is_retry:
            self._decide_acks(params.topic, [gathered], is_retry=True)
        else:
            request.disable_timeout()  # the ack is processed in this iteration
            self.gathered.setdefault(params.topic, []).append(gathered)

    def decide_gathered(self) -> None:
        """Process the acks of this iteration. All acks for one queue share one DELETE frame.

        If the frame is torn, all of its acks are lost. No reply is sent before the frame is as
        durable as the queue's class promises.
        """
        gathered, self.gathered = self.gathered, {}
        for name, acks in gathered.items():
            self._decide_acks(name, acks, is_retry=False)

    def _decide_acks(
        self, name: str, acks: list[tuple[JobsCall, JobsRequest]], *, is_retry: bool
    ) -> None:
        context = self._context
        if name in context.held.waiting:  # another message of this iteration has held the queue
            for request, _ in acks:
                context.held.defer_if_held(name, self._ack, request)
            return
        # The acks of several clients end their leases separately and share one delete.
        begun: list[tuple[JobsCall, list[Lease], list[int]]] = []
        leases: list[Lease] = []
        try:
            topic = context.find_queue(name)
            for request, fields in acks:
                ended, skipped = finish_jobs.begin_ack(
                    topic, fields.node, fields.seqs, fields.lease_ids, context.now
                )
                begun.append((request, ended, skipped))
                leases += ended
            change = finish_jobs.ack(topic, leases, context.now)
        # The topic was deleted or is not a queue. All requests get the same error.
        except Exception as error:
            for request, _ in acks:
                answer_error(request, error)
            return

        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                for request, _, _ in begun:
                    self._retries.refuse(self._ack, request, result, is_retry=is_retry)
                return
            # All replies contain the counters after the commit, so compute the counters once.
            ready, in_flight, *_ = self._counters(topic)
            sync_ms = result.sync_ms if topic.config.durable else 0.0
            for request, ended, skipped in begun:
                body = queue_answers.settled(
                    b"acked", topic.name, len(ended), skipped, ready, in_flight
                )
                body += answers.performance(
                    total_ms(request.params.at), wal_ms=result.write_ms, fsync_ms=sync_ms
                )
                request.reply(NO_RESULT, body)

        self._commits.submit(change, settle)

    def _nack(self, request: JobsCall) -> None:
        context, params = self._context, request.params
        context.check_writable()
        if context.held.defer_if_held(params.topic, self._nack, request):
            return
        fields = decode_nack(request.attachment, context.limits)
        topic = context.find_queue(params.topic)
        context.check_leasable(topic)
        # Release the leases. The jobs are claimable again after their delay.
        change = lease_jobs.nack(
            *(topic, fields.node, fields.seqs, fields.lease_ids, fields.delay_ms, context.now),
            error=fields.error,
        )
        # The jobs may be claimable immediately, and a stream may have capacity again.
        self._dispatch.note_claimable(topic)

        def answer() -> bytes:
            ready, in_flight, *_ = self._counters(topic)
            count = len(change.seqs)
            return queue_answers.settled(
                b"nacked", topic.name, count, change.skipped, ready, in_flight
            )

        self._settle(change, request, answer)

    def _extend(self, request: JobsCall) -> None:
        context, params = self._context, request.params
        context.check_writable()
        if context.held.defer_if_held(params.topic, self._extend, request):
            return
        fields = decode_extend(request.attachment, context.limits)
        topic = context.find_queue(params.topic)
        context.check_leasable(topic)
        change = lease_jobs.extend(
            topic, fields.node, fields.seqs, fields.lease_ids, fields.lease_ms, context.now
        )
        self._dispatch.note_claimable(topic)  # the jobs may become claimable earlier than before

        def answer() -> bytes:
            return queue_answers.extended(topic.name, change.seqs, change.until_ts, change.skipped)

        self._settle(change, request, answer)

    def _settle(self, change: LeaseChange, request: JobsCall, answer: Callable[[], bytes]) -> None:
        """Reply when the log has the change, or immediately if the change needs no frames."""
        # The reply is rendered only when the outcome is known.
        at = request.params.at

        def settle(result: LogProgress | OSError) -> None:
            if isinstance(result, OSError):
                return answer_error(request, unwritable(result))
            return reply_json(request, NO_RESULT, answer(), at)

        if change.frames:
            request.disable_timeout()
            self._commits.submit(change, settle)
        else:
            reply_json(request, NO_RESULT, answer(), at)

    def _leases(self, request: InboundMessage[LeasesParams, LeasesResult]) -> None:
        params = request.params
        topic = self._context.find_queue(params.topic)
        # Request one lease more than the page contains, to determine whether another page exists.
        found = claims.leases(topic, params.after, params.limit + 1, params.node, self._context.now)
        page = found[: params.limit]
        items = [
            queue_answers.lease_json(
                lease.seq,
                lease.node,
                lease.number if params.with_ids else None,
                lease.deadline_ts,
                lease.deliveries,
                lease.error,
            )
            for lease in page
        ]
        next_after = page[-1].seq if len(found) > len(page) else None
        request.reply(LeasesResult(next_after), queue_answers.leases(items))

    def _counters(self, topic: Topic) -> QueueCounters:
        jobs = jobs_of(topic)
        jobs.advance(self._commits.now().ms)
        return jobs.counters(topic.count)
