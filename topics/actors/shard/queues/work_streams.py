"""Work streams: lease jobs to clients and send them as they become available (§10.8).

    work.open --> WAITING --leased--> PAGE IN FLIGHT --work.taken--> WAITING, or FULL
                     ^                                                             |
                     '--a job is acked, nacked, expires or is removed--------------'
    work.close, end of the session     the leases are released and the stream is removed
    queue deleted, records unreadable  the same, and work.ended is sent

A stream holds at most ``max_jobs`` leases. One page of jobs is in flight at a time, so further jobs
stay in the queue if the client is slow. When the front closes a stream, the jobs of a page that it
has not sent to the client are released without counting as delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.session import InboundMessage, LinkSession
from topics.actors.shard.context import ShardContext
from topics.actors.shard.queues.job_dispatch import JobDispatch
from topics.actors.shard.queues.wait_list import Claimer
from topics.actors.shard.service import Service
from topics.engine.changes import lease_jobs
from topics.engine.changes.lease_jobs import LeaseChange
from topics.engine.queue.leases import LeaseHolder
from topics.engine.topic import Topic
from topics.errors import Internal, NotAQueue, TopicNotFound
from topics.formats.api import queue_answers
from topics.formats.api.limits import DEFAULT_BATCH_BYTES
from topics.formats.wire.calls import (
    NO_RESULT,
    WORK_CLOSE,
    WORK_ENDED,
    WORK_JOBS,
    WORK_OPEN,
    WORK_TAKEN,
    NoResult,
    WorkCloseParams,
    WorkEndedParams,
    WorkJobsParams,
    WorkOpenParams,
    WorkTakenParams,
)
from topics.formats.wire.contract import Event, P
from topics.formats.wire.message import PeerClosed
from topics.storage.wal.log_progress import LogProgress


class WorkStream(Claimer):
    """An open work stream.

    ``page``: the seq and the lease number of each job in flight to the client, or None if no page
    is in flight. ``pages``: the number of pages sent so far.
    """

    __slots__ = ("max_jobs", "number", "page", "pages", "session", "streams")
    is_stream = True
    max_bytes = DEFAULT_BATCH_BYTES

    def __init__(
        self,
        streams: WorkStreams,
        session: LinkSession,
        topic: Topic,
        params: WorkOpenParams,
        max_jobs: int,
    ) -> None:
        self.topic, self.lease_ms = topic, params.lease_ms
        self.holder = LeaseHolder(params.node, is_stream=True)
        self.streams, self.session, self.number = streams, session, params.work
        self.max_jobs, self.pages = max_jobs, 0
        self.page: list[tuple[int, int]] | None = None

    @property
    def capacity(self) -> int:  # type: ignore[override]
        """The number of further jobs that the stream may hold; 0 while a page is in flight."""
        # The stream may hold more than `max_jobs`, because an ack that freed capacity may have been
        # undone.
        return 0 if self.page is not None else max(0, self.max_jobs - self.holder.held)

    def served(self, change: LeaseChange) -> None:
        """See `Claimer.served`."""
        self.page = [(job.seq, job.number) for job in change.jobs]
        self.pages += 1

    def settle(self, change: LeaseChange, result: LogProgress | OSError) -> None:
        """See `Claimer.settle`."""
        self.streams.settle(self, change, result)

    def finish_unserved(self) -> None:
        """See `Claimer.finish_unserved`."""
        raise AssertionError("a stream always waits")

    def end(self, error: Exception) -> None:
        """See `Claimer.end`."""
        self.streams.end(self, error)


class WorkStreams(Service):
    """All work streams of a shard."""

    def __init__(self, context: ShardContext, dispatch: JobDispatch) -> None:
        self._context, self._commits, self._dispatch = context, context.commits, dispatch
        self._engine = context.engine
        self._by_session: dict[LinkSession, dict[int, WorkStream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._by_session.values()))

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(WORK_OPEN, self._open)
        router.subscribe(WORK_TAKEN, self._taken)
        router.subscribe(WORK_CLOSE, self._close)

    def on_session_closed(self, session: LinkSession) -> None:
        """Release the leases of the session's streams."""
        for stream in tuple(self._by_session.get(session, {}).values()):
            self._release(stream)
        self._context.deadlines.wake()  # request an iteration, because this runs outside one

    # Jobs

    def settle(
        self, stream: WorkStream, change: LeaseChange, result: LogProgress | OSError
    ) -> None:
        """Send the jobs that were leased to the stream, if it is still open."""
        if self._find(stream.session, stream.number) is not stream:
            return
        if isinstance(result, OSError):
            stream.page = None  # the stream holds fewer jobs now, and joins the wait list again
            return
        stream.topic.touch(*self._context.now)
        jobs = queue_answers.jobs_json(change.jobs)
        params = WorkJobsParams(stream.number, list(change.seqs), [len(job) for job in jobs])
        self._send(stream, WORK_JOBS, params, b"".join(jobs))

    def _send(self, stream: WorkStream, event: Event[P], params: P, attachment: bytes) -> None:
        try:
            stream.session.notify(event, params, attachment)
        except PeerClosed:
            self._release(stream)

    # Ends of streams

    def end(self, stream: WorkStream, error: Exception) -> None:
        """End a stream, because its queue has been deleted or its records are unreadable."""
        if isinstance(error, TopicNotFound):
            code, message = NotAQueue.code, f'topic "{stream.topic.name}" is no longer a queue'
        else:
            code, message = Internal.code, "the jobs are unreadable"
        self._release(stream)
        self._send(stream, WORK_ENDED, WorkEndedParams(stream.number, code, message), b"")

    def _release(self, stream: WorkStream, unshown: Iterable[tuple[int, int]] = ()) -> None:
        """Remove the stream and release its leases, so that its jobs are claimable.

        ``unshown``: the seqs and lease numbers of jobs that were not sent to the client. Do nothing
        if the stream has already been removed.
        """
        if self._find(stream.session, stream.number) is not stream:
            return
        of_session = self._by_session[stream.session]
        del of_session[stream.number]
        if not of_session:
            del self._by_session[stream.session]
        self._dispatch.unfollow(stream)
        if stream.holder.held and not stream.topic.deleted:
            now = self._commits.now()
            # First release the unshown jobs, whose deliveries do not count, then all other jobs.
            for change in (
                lease_jobs.unclaim(stream.topic, unshown, now),
                lease_jobs.release(stream.topic, stream.holder, now),
            ):
                if change.frames:
                    self._context.submit_or_undo(change, grows=True)
            self._dispatch.note_claimable(stream.topic)

    def _find(self, session: LinkSession, number: int) -> WorkStream | None:
        return self._by_session.get(session, {}).get(number)

    # Messages from the front

    def _open(self, request: InboundMessage[WorkOpenParams, NoResult]) -> None:
        context, params, session = self._context, request.params, request.session
        context.check_writable()
        topic = context.find_queue(params.topic)
        topic.touch(*context.now)
        # A new stream replaces an open stream with the same number.
        earlier = self._find(session, params.work)
        if earlier is not None:
            self._release(earlier)
        max_jobs = max(1, min(params.max_jobs, context.limits.claim))
        stream = WorkStream(self, session, topic, params, max_jobs)
        self._by_session.setdefault(session, {})[params.work] = stream
        self._dispatch.follow(stream)
        self._dispatch.join(stream, may_wait=True)
        request.reply(NO_RESULT)

    def _taken(self, message: InboundMessage[WorkTakenParams, Any]) -> None:
        stream = self._find(message.session, message.params.work)
        if stream is not None and stream.page is not None:
            stream.page = None
            if stream.capacity:
                self._dispatch.join(stream, may_wait=True)

    def _close(self, message: InboundMessage[WorkCloseParams, Any]) -> None:
        # The stream may have ended while the event was in transit.
        stream = self._find(message.session, message.params.work)
        if stream is not None:
            is_shown = message.params.pages >= stream.pages
            self._release(stream, () if is_shown else stream.page or ())
