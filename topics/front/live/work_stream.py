"""Work stream (§10.8): leases jobs to one client and pushes them as server-sent events.

    work.jobs --> events --> socket --all data accepted--> work.taken, then the next work.jobs

    id: SEQ        the job's seq; an error event has no id
    event: job     or ``error``, which reports that the stream ends or is paced
    data: JSON     a member as in ``claimed``, with the job's topic

The shard sends the next jobs only after the socket has accepted the previous ones. So a client that
reads slowly delays only its own jobs, and at most one page of jobs is kept in memory for it. When a
stream ends, for any reason, its shard releases its leases.
"""

from __future__ import annotations

from topics.formats.api.watch import HEARTBEAT_MS
from topics.formats.wire.calls import WorkJobsParams
from topics.front.http.connection import Connection
from topics.front.live.live import Live
from topics.front.live.sse import HEARTBEAT, RETRY, data_lines, error_event, paced_event
from topics.front.live.streams import StreamKind
from topics.front.live.work_subscriptions import JobReceiver, WorkSubscription
from topics.front.pressure.governor import COALESCE_S


class WorkStream(JobReceiver):
    """The response to one `GET /v0/topics/:topic/work`."""

    has_own_slot = True  # its subscription has acquired the slot
    kind = StreamKind.WORK
    live: Live

    def __init__(self, live: Live, subscription: WorkSubscription, connection: Connection) -> None:
        super().__init__(
            live,
            connection.sock,
            subscription.principal,
            HEARTBEAT_MS / 1000,
            is_chunked=connection.is_chunked,
        )
        self._subscription, self._connection = subscription, connection
        self._has_untaken = False  # true while the socket has not accepted all jobs

    async def run(self) -> None:
        """Push jobs until either side closes the stream."""
        try:
            self.begin()
            self.outbox.write(RETRY + HEARTBEAT)
            self._subscription.begin(self)
            await self.until_ended()
        finally:
            self.end()
            self._connection.sent_bytes += self.outbox.sent_bytes

    def show(self, params: WorkJobsParams, jobs: bytes) -> None:
        """Push jobs to the client."""
        self._has_untaken = True
        subscription = self._subscription
        self.outbox.write(job_events(subscription.topic, params, jobs))
        # If the write has failed, `end` has already closed the subscription, without counting this
        # page.
        subscription.pages += 1
        if (pause_s := self.live.work.pause_s(subscription)) > COALESCE_S:
            self.notify_pauses(self.live.now, {subscription.topic: pause_s})

    def on_sent(self) -> None:
        """Let the shard send the next jobs, because the socket has accepted all written data."""
        if self._has_untaken and not self.outbox.backlog:
            self._has_untaken = False
            self.live.work.taken(self._subscription)

    def end(self) -> None:
        """Close the stream and its subscription, so that the shard releases the leases."""
        super().end()
        self.live.work.close(self._subscription)

    def failure_event(self, code: int, error: str) -> bytes:
        """Return ``event: error``."""
        return error_event(code, error)

    def heartbeat(self) -> bytes:
        """Return a comment."""
        return HEARTBEAT

    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """Return ``event: error`` 429. The stream continues."""
        return paced_event(retry_after_ms, topics)


def job_events(topic: str, params: WorkJobsParams, jobs: bytes) -> bytes:
    """Return an ``event: job`` for each of the jobs."""
    opening = b'{"topic":"%b",' % topic.encode()
    events, start = [], 0
    for seq, length in zip(params.seqs, params.lengths, strict=True):
        job = data_lines(opening + jobs[start + 1 : start + length])
        events.append(b"id: %d\nevent: job\n%b\n\n" % (seq, job))
        start += length
    return b"".join(events)
