"""Polled claims: lease jobs for a worker's request, immediately or within its `wait_ms` (§10.2).

    WAITING --leased--> LOGGING --the log has the leases--> replied
       |                   '--cancelled, its front has disconnected--> its leases are released
       |--wait_ms is over--> replied, with no jobs
       '--cancelled, its front has disconnected--> dropped

A claim waits for the log only if the queue's leases are durable. If a client does not receive the
response, the front returns the leases in `UnclaimedParams`, and the shard releases them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import count
from typing import Any, TypeAlias

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error, total_ms
from topics.actors.rpc.session import InboundMessage, LinkSession
from topics.actors.shard.context import ShardContext
from topics.actors.shard.deadlines import Deadline
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.queues.job_dispatch import JobDispatch
from topics.actors.shard.queues.wait_list import Claimer
from topics.actors.shard.service import Service
from topics.engine.changes import lease_jobs
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.leases import LeaseHolder
from topics.engine.topic import Topic
from topics.formats.api import answers, queue_answers
from topics.formats.api.limits import CLAIM_BYTES_MAX
from topics.formats.api.queue_bodies import Claim, decode_claim
from topics.formats.wire.calls import (
    CALL_CANCELLED,
    CLAIM,
    UNCLAIMED,
    CallCancelledParams,
    ClaimResult,
    TopicParams,
    UnclaimedParams,
)
from topics.formats.wire.envelope import ErrorCode
from topics.storage.wal.log_progress import LogProgress

ClaimCall: TypeAlias = InboundMessage[TopicParams, ClaimResult]


class PolledClaim(Claimer):
    """A claim that is waiting for its reply. ``leased``: the change that has leased jobs to it."""

    __slots__ = ("capacity", "claim", "claims", "deadline", "is_done", "leased", "request")
    is_stream = False
    max_bytes = CLAIM_BYTES_MAX

    def __init__(
        self, claims: Claims, request: ClaimCall, topic: Topic, holder: LeaseHolder, claim: Claim
    ) -> None:
        self.topic, self.holder, self.lease_ms = topic, holder, claim.lease_ms
        self.claims, self.request, self.claim, self.capacity = (
            claims,
            request,
            claim,
            claim.max_jobs,
        )
        self.deadline: Deadline | None = None
        self.leased: LeaseChange | None = None
        self.is_done = False

    def begin_waiting(self) -> None:
        """See `Claimer.begin_waiting`."""
        if self.claim.wait_ms:
            self.deadline = self.claims.set_deadline(self)

    def served(self, change: LeaseChange) -> None:
        """See `Claimer.served`."""
        self.leased = change
        if self.deadline is not None:
            self.deadline.cancel()

    def settle(self, change: LeaseChange, result: LogProgress | OSError) -> None:
        """See `Claimer.settle`."""
        if self.is_done:
            return  # the claim has been dropped in the meantime, and its leases were released
        self.claims.remove(self)
        if isinstance(result, OSError):
            answer_error(self.request, unwritable(result))
        else:
            self.claims.answer(self, change)

    def finish_unserved(self) -> None:
        """See `Claimer.finish_unserved`."""
        self.claims.remove(self)
        self.claims.answer(self, None)

    def end(self, error: Exception) -> None:
        """See `Claimer.end`."""
        self.claims.remove(self)
        answer_error(self.request, error)


class Claims(Service):
    """Handles `queue.claim`."""

    def __init__(self, context: ShardContext, dispatch: JobDispatch) -> None:
        self._context, self._commits, self._engine = context, context.commits, context.engine
        self._dispatch = dispatch
        self._polls: dict[tuple[LinkSession, int], PolledClaim] = {}
        # Claims that are waiting for a held queue, oldest first. They are not in a wait list yet.
        self._deferred: dict[tuple[LinkSession, int], ClaimCall] = {}

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(CLAIM, self._claim)
        router.subscribe(CALL_CANCELLED, self._cancelled)
        router.subscribe(UNCLAIMED, self._unclaimed)

    def on_session_closed(self, session: LinkSession) -> None:
        """Drop the claims of the session. Called when its front has disconnected."""
        for poll in tuple(self._polls.values()):
            if poll.request.session is session:
                self._drop(poll)
        self._deferred = {key: call for key, call in self._deferred.items() if key[0] != session}
        self._context.deadlines.wake()  # request an iteration, because this runs outside one

    def _claim(self, request: ClaimCall) -> None:
        context, params = self._context, request.params
        if self._deferred:
            self._deferred.pop((request.session, request.cid), None)
        context.check_writable()
        if params.topic in context.held.waiting:
            context.held.defer_if_held(params.topic, self._claim, request)
            self._note_deferred(request)
            return
        claim = decode_claim(request.attachment, context.limits)
        topic = context.find_queue(params.topic)
        topic.touch(*context.now)
        holder = jobs_of(topic).leases.poller(claim.node)
        poll = PolledClaim(self, request, topic, holder, claim)
        is_served = self._dispatch.serve_immediately(poll)
        if poll.is_done:
            return
        request.disable_timeout()  # the claim ends with its own wait_ms
        request.release()
        self._polls[request.session, request.cid] = poll
        if not is_served:
            self._dispatch.join(poll, may_wait=claim.wait_ms > 0)

    def _note_deferred(self, request: ClaimCall) -> None:
        while self._deferred:  # first drop the oldest claims that have timed out
            oldest = next(iter(self._deferred))
            if self._deferred[oldest].is_open:
                break
            del self._deferred[oldest]
        self._deferred[request.session, request.cid] = request

    # End of a claim

    def set_deadline(self, poll: PolledClaim) -> Deadline:
        """Set the deadline at which the claim's wait_ms is over."""
        until = trio.current_time() + poll.claim.wait_ms / 1000
        return self._context.deadlines.call_at(until, partial(self._dispatch.end_wait, poll))

    def answer(self, poll: PolledClaim, change: LeaseChange | None) -> None:
        """Reply with the jobs of ``change``, or with no jobs if it is None."""
        topic, params = poll.topic, poll.request.params
        jobs = jobs_of(topic)
        jobs.advance(self._commits.now().ms)
        ready = jobs.counters(topic.count).ready
        leased, seqs = (change.jobs, [*change.seqs]) if change is not None else ((), [])
        body = queue_answers.claimed(topic.name, queue_answers.jobs_json(leased), ready)
        body += answers.performance(total_ms(params.at), throttle_ms=poll.request.parked_ms)
        number = leased[0].number if leased else 0
        poll.request.reply(ClaimResult(number, seqs), body)

    def remove(self, poll: PolledClaim) -> None:
        """Remove the claim and cancel its deadline."""
        poll.is_done = True
        if poll.deadline is not None:
            poll.deadline.cancel()
        self._polls.pop((poll.request.session, poll.request.cid), None)

    # Messages from the front

    def _cancelled(self, message: InboundMessage[CallCancelledParams, Any]) -> None:
        key = message.session, message.params.cid
        poll, deferred = self._polls.get(key), self._deferred.pop(key, None)
        if poll is not None:
            self._drop(poll)
        elif deferred is not None:
            _refuse(deferred)
        # If neither exists, the reply is already in transit to the front, which then returns the
        # leases in `UNCLAIMED`.

    def _unclaimed(self, message: InboundMessage[UnclaimedParams, Any]) -> None:
        params = message.params
        topic = self._engine.topics.get(params.topic)
        if topic is not None and topic.jobs is not None and not topic.deleted:
            self._release_leases(topic, zip(params.seqs, count(params.number)))

    def _drop(self, poll: PolledClaim) -> None:
        self.remove(poll)
        self._dispatch.leave(poll)
        if poll.leased is not None and not poll.topic.deleted:
            self._release_leases(poll.topic, [(job.seq, job.number) for job in poll.leased.jobs])
        _refuse(poll.request)

    def _release_leases(self, topic: Topic, leases: Iterable[tuple[int, int]]) -> None:
        """Release the leases with these seqs and numbers, unless they have changed since then."""
        change = lease_jobs.unclaim(topic, leases, self._commits.now())
        if change.frames:
            self._context.submit_or_undo(change, grows=True)
        self._dispatch.note_claimable(topic)


def _refuse(request: ClaimCall) -> None:
    request.error(ErrorCode.TIMEOUT, "the front is no longer waiting for jobs")
