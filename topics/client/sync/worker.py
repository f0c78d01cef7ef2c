# Generated from topics/client/aio/worker.py by tests/client/unasync.py. Change that one.
"""Worker: jobs of a queue, one after the other or many at once.

    with client.queue("jobs").worker(concurrency=4) as worker:
        for job in worker:
            with job:
                handle(job.data)

    claimed --> held --with job: no exception--> acked
                 |          '--an exception----> nacked, with its text and a delay that grows
                 |--the worker ends-----------> given back at once
                 '--its lease is lost---------> nothing: somebody else may have it

The leases of all jobs that are held are extended in the background, by connections of their own, at
a third of their time (`topics.client.threads`). Several threads may iterate over one worker.
"""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from topics.client import calls
from topics.client.calls import Retry
from topics.client.errors import TopicsError
from topics.client.jobs import (
    EXTEND_AGAIN_S,
    EXTEND_PART,
    LOG,
    HeldJob,
    extended,
    extension,
    worker_name,
)
from topics.client.sync.pool import Caller
from topics.client.threads import Background, Lock, shielded
from topics.client.values import JobRecord


class Job(HeldJob):
    """A job that this worker holds. ``with job:`` acks it, or nacks it on an exception.
    ``job.lost``: its lease is not this worker's any more. It has what its record has.
    """

    def __init__(self, worker: Worker, record: JobRecord, until: float) -> None:
        super().__init__(record, until)
        self._worker = worker

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if self.is_settled:
            return False
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self._settle("nack", self.failed(error))
            return True
        else:  # Ctrl-C, or a cancellation: the job is not to blame
            with shielded():
                self.nack(delay=0.0)
        return False

    def ack(self) -> bool:
        """It is done. False: its lease was lost, and it may be done again."""
        return self._settle("ack", {})

    def nack(self, *, error: str | None = None, delay: float | None = None) -> bool:
        """It comes again, after 1, 2, 4 ... s if ``delay`` does not say it."""
        return self._settle("nack", self.nack_fields(error, delay))

    def _settle(self, what: str, fields: dict[str, Any]) -> bool:
        self.is_settled = True
        return self._worker.settle(self, what, fields)


class Worker(Background):
    """Claims jobs, at most ``concurrency`` at once, and keeps their leases. ``drain``: the loop
    ends when the queue is empty.
    """

    def __init__(
        self,
        client: Caller,
        queue: str,
        *,
        concurrency: int,
        lease_s: float,
        node: str | None,
        drain: bool,
    ) -> None:
        super().__init__(f"leases of {queue}")
        self._client, self._queue = client, queue
        self._concurrency, self._lease_s = concurrency, lease_s
        self.node, self._drain = node or worker_name(), drain
        self._held: dict[str, Job] = {}  # by lease
        self._ready: list[Job] = []  # claimed, and not given out yet
        self._lock = threading.Lock()  # of both; never held while a request is sent
        self._claiming = Lock()

    def __enter__(self) -> Self:
        self._begin(self._keep)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        try:
            with shielded():
                self._give_back()
        finally:
            self._end()

    def __iter__(self) -> Self:  # not a generator: a loop that is left needs no clean-up
        return self

    def __next__(self) -> Job:
        job = self._next()
        if job is None:
            raise StopIteration
        return job

    def _next(self) -> Job | None:
        with self._claiming:  # one iterator sends the claim, the others wait for its jobs
            while not self._ready:
                if self._is_stopped or not self._claim():
                    return None
            return None if self._is_stopped else self._ready.pop(0)

    def _claim(self) -> bool:
        """Ask for jobs. False: there are no more."""
        most = max(self._concurrency - len(self._held), 1)
        wait_s = 0.0 if self._drain else calls.WAIT_S
        call = calls.claim(self._queue, self.node, most, self._lease_s, wait_s)
        jobs = self._unless_stopped(partial(self._client.call, call))
        until = monotonic() + self._lease_s
        for record in jobs:
            job = Job(self, record, until)
            with self._lock:
                self._held[record.lease_id] = job
            self._ready.append(job)
        return bool(jobs) or not self._drain

    def settle(self, job: Job, what: str, fields: dict[str, Any]) -> bool:
        """Ack or nack a job, unless it is lost."""
        with self._lock:
            self._held.pop(job.record.lease_id, None)
        if job.lost:
            return False
        call = calls.settle(self._queue, what, self.node, (job.record,), **fields)
        settled = self._client.call(call)
        return not settled.skipped

    def _give_back(self) -> None:
        """Jobs that nobody has begun go to others at once."""
        with self._lock:
            jobs = [job for job in self._ready if job.record.lease_id in self._held]
            self._ready.clear()
            for job in jobs:
                del self._held[job.record.lease_id]
        if jobs:
            records = [job.record for job in jobs]
            self._client.call(calls.nack(self._queue, self.node, records, 0.0, None))

    def _keep(self) -> None:
        """Extend leases until the worker ends."""
        pause_s = extend_s = self._lease_s / EXTEND_PART
        with self._client.copy(timeout=pause_s, retry=Retry(deadline=pause_s)) as own:
            while not self._ends_within(pause_s):
                pause_s = extend_s if self._extend(own) else min(EXTEND_AGAIN_S, extend_s)

    def _extend(self, own: Caller) -> bool:
        with self._lock:
            held = [*self._held.values()]
        if not held:
            return True
        began = monotonic()
        try:
            settled = own.call(extension(self._queue, self.node, held, self._lease_s))
        except TopicsError as failure:
            LOG.warning("leases of %s not extended: %s", self._queue, failure)
            return False
        extended(held, settled.skipped, began + self._lease_s)
        return True
