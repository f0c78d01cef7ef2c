"""Worker: jobs of a queue, one after the other or many at once.

    with client.queue("jobs").worker(concurrency=4) as worker:
        for job in worker:
            with job:
                handle(job.data)

    claimed --> held --with job: no exception--> acked
                 |          '--an exception----> nacked, with its text and a delay that grows
                 |--the worker ends-----------> given back at once
                 '--its lease is lost---------> nothing: somebody else may have it

A thread with a connection of its own extends the leases of all jobs that are held, at a third of
their time: a handler may take as long as it needs. SIGTERM ends the loop behind the job that is
being handled. Several threads may iterate over one worker.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from time import monotonic
from types import FrameType, TracebackType
from typing import Any, Final, Self

from topics.client import calls
from topics.client.calls import Caller, Retry
from topics.client.errors import TopicsError
from topics.client.values import JobRecord, Settled

LOG = logging.getLogger("topics.client")

ERROR_MAX_BYTES: Final = 1024
DELAY_MAX_S: Final = 300.0
EXTEND_PART: Final = 3.0  # of a lease, between two extensions
EXTEND_AGAIN_S: Final = 1.0  # after an extension that failed


class _Ended(BaseException):
    """SIGTERM came while the worker waited for jobs."""


class HeldJob:
    """A job that a worker holds until ``until``, of the monotonic clock."""

    def __init__(self, record: JobRecord, until: float) -> None:
        self.record, self.until = record, until
        self.is_settled = self._is_lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.record, name)

    @property
    def lost(self) -> bool:
        """Whether somebody else may have it by now."""
        return self._is_lost or monotonic() >= self.until

    def lose(self) -> None:
        """The server says that this worker does not hold it."""
        self._is_lost = True

    def nack_fields(self, error: str | None, delay: float | None) -> dict[str, Any]:
        """What is sent with a nack. Without ``delay`` it is 1, 2, 4 ... s, and some chance."""
        if delay is None:
            doubled = 2.0 ** min(self.record.deliveries - 1, 16)
            delay = min(doubled, DELAY_MAX_S) * calls.CHANCE.uniform(0.8, 1.2)
        fields: dict[str, Any] = {"delay_ms": int(1000 * delay)}
        if error is not None:
            fields["error"] = _cut(error)
        return fields

    def failed(self, error: Exception) -> dict[str, Any]:
        """The nack of a job whose handler has raised."""
        LOG.warning("job %s#%d failed", self.record.topic, self.record.seq, exc_info=error)
        return self.nack_fields(f"{type(error).__name__}: {error}", None)


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
        else:
            self.nack(delay=0.0)  # Ctrl-C: the job is not to blame
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


def worker_name() -> str:
    """A name that no other worker has."""
    return f"{socket.gethostname()[:64]}:{os.getpid()}:{calls.CHANCE.randrange(1 << 32):08x}"


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:ERROR_MAX_BYTES].decode("utf-8", "ignore")


class Worker:
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
        self._client, self._queue = client, queue
        self._concurrency, self._lease_s = concurrency, lease_s
        self.node = node or worker_name()
        self._drain = drain
        self._held: dict[str, Job] = {}  # by lease
        self._ready: list[Job] = []  # claimed, and not given out yet
        self._lock = threading.Lock()
        self._claiming = threading.Lock()
        self._is_stopped, self._done = False, threading.Event()
        self._stopping = threading.Condition()  # reentrant: SIGTERM may come while it is held
        self._is_waiting = False  # in the main thread, for jobs
        self._keeper = threading.Thread(target=self._keep, name=f"leases of {queue}")
        self._keeper.daemon = True
        self._before: Any = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        try:
            self._give_back()
        finally:
            self._done.set()
            self._keeper.join()
            if self._before is not None:
                signal.signal(signal.SIGTERM, self._before)

    def stop(self) -> None:
        """Claim nothing more: loops end behind the job that they handle."""
        with self._stopping:
            self._is_stopped = True
            self._stopping.notify_all()

    def is_stopped(self, wait_s: float = 0.0) -> bool:
        """Whether nothing more is claimed, now or ``wait_s`` s from now."""
        with self._stopping:
            return self._stopping.wait_for(lambda: self._is_stopped, wait_s)

    def _on_sigterm(self, _number: int, _frame: FrameType | None) -> None:
        self.stop()
        if self._is_waiting:
            raise _Ended

    def __iter__(self) -> Iterator[Job]:
        while (job := self._next()) is not None:
            yield job

    def _next(self) -> Job | None:
        with self._claiming:  # one of the threads asks, the others wait for what it gets
            while not self._ready:
                if self._is_stopped or not self._claim():
                    return None
            return None if self._is_stopped else self._ready.pop(0)

    def _claim(self) -> bool:
        """Ask for jobs. False: there are no more."""
        most = self._concurrency - len(self._held)
        wait_s = 0.0 if self._drain else calls.WAIT_S
        try:
            self._is_waiting = threading.current_thread() is threading.main_thread()
            if self._is_stopped:  # since the last look, and nothing would end the wait
                return False
            jobs = self._client.call(
                calls.claim(self._queue, self.node, max(most, 1), self._lease_s, wait_s)
            )
        except _Ended:
            return False
        finally:
            self._is_waiting = False
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
        return not self._client.call(call).skipped

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
        """The thread that extends leases."""
        pause_s = extend_s = self._lease_s / EXTEND_PART
        with closing(self._client.copy(timeout=pause_s, retry=Retry(deadline=pause_s))) as own:
            while not self._done.wait(pause_s):
                pause_s = extend_s if self._extend(own) else min(EXTEND_AGAIN_S, extend_s)

    def _extend(self, own: Caller) -> bool:
        with self._lock:
            held = [*self._held.values()]
        if not held:
            return True
        began = monotonic()
        try:
            skipped = own.call(extension(self._queue, self.node, held, self._lease_s)).skipped
        except TopicsError as failure:
            LOG.warning("leases of %s not extended: %s", self._queue, failure)
            return False
        extended(held, skipped, began + self._lease_s)
        return True


def extension(
    queue: str, node: str, held: Iterable[HeldJob], lease_s: float
) -> calls.Call[Settled]:
    """The call that extends the leases of all jobs that are held."""
    records = [job.record for job in held]
    return calls.settle(queue, "extend", node, records, lease_ms=int(1000 * lease_s))


def extended(held: Iterable[HeldJob], skipped: list[int], until: float) -> None:
    """What came of it."""
    for job in held:
        if job.record.seq in skipped:
            job.lose()
        else:
            job.until = until
