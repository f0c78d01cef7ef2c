"""Worker: claims jobs from a queue and keeps their leases while the jobs are being handled.

    await client.queue("jobs").worker().run(handle, concurrency=4)

    async with client.queue("jobs").worker() as worker:   # one job at a time
        async for job in worker:
            async with job:
                await handle(job)

    claimed --> held --the block ends------------> acked
                 |   '-it raises an exception----> nacked, with its text and a growing delay
                 |--Ctrl-C, or a cancellation----> released immediately
                 '--the lease is lost------------> not settled: another worker may hold the job

A background task (`topics.client.tasks`) extends all leases when a third of their duration has
passed. Several tasks may iterate over one worker. The worker claims at most one job for each
waiting iterator, so every claimed job is handled immediately.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from math import inf
from time import monotonic
from types import TracebackType
from typing import Any, Self

from topics.client import calls
from topics.client.aio.caller import AsyncCaller
from topics.client.calls import LOG, SHUTDOWN_S, Attempts
from topics.client.errors import ConnectionLost, TopicsError
from topics.client.jobs import EXTEND_DIVISOR, EXTEND_RETRY_S, HeldJob, worker_name
from topics.client.tasks import AsyncLock, AsyncWorking, shielded
from topics.client.values import JobRecord


class AsyncJob(HeldJob):
    """A job that this worker holds. ``async with job:`` acks it, or nacks it after an
    exception. ``job.lost``: another worker may hold it.
    """

    def __init__(self, worker: AsyncWorker, record: JobRecord, until: float) -> None:
        super().__init__(record, until)
        self._worker = worker

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _trace: TracebackType | None,
    ) -> bool:
        if self.is_settled:
            return False
        if error is None:
            await self.ack()
        elif isinstance(error, Exception):
            await self._settle("nack", self.failed(error))
            return True
        else:  # Ctrl-C or a cancellation is not a failure of the job
            self._settled = False
            with shielded():
                await self._worker.release([self])
        return False

    async def ack(self) -> bool:
        """Complete the job. Return whether the lease was still held; otherwise the job may run
        again. After the first ack or nack, return the result of that call.
        """
        return await self._settle("ack", {})

    async def nack(self, *, error: str | None = None, delay: float | None = None) -> bool:
        """Release the job, to be claimed again after ``delay`` s. The default is 1, 2, 4, … s,
        depending on the number of deliveries. Return what `ack` returns.
        """
        return await self._settle("nack", self.nack_fields(error, delay))

    async def _settle(self, what: str, fields: dict[str, Any]) -> bool:
        if self._settled is None:
            self._settled = False
            self._settled = await self._worker.settle(self, what, fields)
        return self._settled


class AsyncWorker(AsyncWorking):
    """Claims jobs and keeps their leases. With ``drain``, the worker ends when the queue is empty.
    While the server is unreachable, the worker waits, unless the client has a `Retry`.
    """

    def __init__(
        self, client: AsyncCaller, queue: str, *, lease_s: float, node: str | None, drain: bool
    ) -> None:
        super().__init__(f"leases of {queue}")
        self._client, self._queue, self._lease_s = client, queue, lease_s
        self.node, self._drain = node or worker_name(), drain
        self._claims, self._attempts = client.caller(), Attempts(client.retry_streams)
        self._extends = client.caller(timeout=lease_s / EXTEND_DIVISOR)
        self._held: dict[str, AsyncJob] = {}  # by lease id
        self._ready: list[AsyncJob] = []  # claimed jobs that have not been handed out yet
        self._lock = threading.Lock()  # not held while a request is sent
        self._waiting = 0  # number of waiting iterators
        self._claiming = AsyncLock()
        self._is_entered = False

    async def __aenter__(self) -> Self:
        self._is_entered = True
        await self._begin(self._keep)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.stop()
        with self._lock:
            jobs = self._ready if kind is None else [*self._held.values()]
        with shielded():
            await self.release(jobs)
        try:
            await self._end()
        finally:
            with shielded():
                await self._claims.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AsyncJob:
        job = await self._next()
        if job is None:
            raise StopAsyncIteration
        return job

    async def run(
        self, handler: Callable[[AsyncJob], Awaitable[object]], *, concurrency: int = 1
    ) -> None:
        """Call ``handler`` for each job, for up to ``concurrency`` jobs at the same time, until
        `stop` is called. If the handler returns, the job is acked; if it raises, the job
        is nacked. Raises `TopicsError`.
        """
        if concurrency < 1:
            raise ValueError(f"the concurrency {concurrency} is below 1")
        async with nullcontext() if self._is_entered else self:
            await self._run_concurrently(partial(self._handle, handler), concurrency)

    async def _handle(self, handler: Callable[[AsyncJob], Awaitable[object]]) -> None:
        async for job in self:
            async with job:
                await handler(job)

    async def _next(self) -> AsyncJob | None:
        with self._lock:
            self._waiting += 1
        try:
            async with self._claiming:  # one iterator claims, the others wait for its jobs
                while not self._stop.is_set():
                    while self._ready:
                        job = self._ready.pop(0)
                        if not job.lost:
                            return job
                        with self._lock:
                            self._held.pop(job.record.lease_id, None)
                    if not await self._claim():
                        return None
                return None
        finally:
            with self._lock:
                self._waiting -= 1

    async def _claim(self) -> bool:
        """Claim jobs. Return whether the queue may have more jobs."""
        self._client.check_open()  # jobs are settled over the connections of the client
        wait_s = 0.0 if self._drain else calls.WAIT_S
        call = calls.claim(self._queue, self.node, self._waiting, self._lease_s, wait_s)
        try:
            once = partial(self._claims.once, call)
            jobs = await self._stop.interrupts(once, self._claims.pool.abort)
        except TopicsError as failure:
            pause_s = self._attempts.pause_after(failure)
            self._client.report_pause(failure, pause_s)
            await self._stop.wait(pause_s)
            return True
        self._attempts.succeeded()
        until = monotonic() + self._lease_s
        for record in jobs or ():
            job = AsyncJob(self, record, until)
            with self._lock:
                self._held[record.lease_id] = job
            self._ready.append(job)
        return bool(jobs) or not self._drain

    async def settle(self, job: AsyncJob, what: str, fields: dict[str, Any]) -> bool:
        """Ack or nack a job, unless it is lost. While the server is unavailable, retry until the
        lease expires.
        """
        with self._lock:
            self._held.pop(job.record.lease_id, None)
        if job.lost:
            return False
        call = calls.settle(self._queue, what, self.node, (job.record,), **fields)
        retry = self._client.retry_streams
        try:
            settled = await self._client.call(call, until=job.until, retry=retry)
        except TopicsError as failure:
            is_temporary = isinstance(failure, ConnectionLost) or failure.is_temporary
            if retry.deadline < inf or not is_temporary:
                raise
            # The lease expires before the next attempt, so another worker receives the job.
            LOG.warning("%s of job %s#%d failed: %s", what, job.topic, job.seq, failure)
            return False
        return not settled.skipped

    async def release(self, jobs: list[AsyncJob]) -> None:
        """Release jobs that will not be handled. Log a failure instead of raising it, because the
        leases expire.
        """
        with self._lock:
            held = [job.record for job in jobs if self._held.pop(job.record.lease_id, None)]
            self._ready = [job for job in self._ready if job not in jobs]
        if not held:
            return
        call = calls.nack(self._queue, self.node, held, 0.0, None)
        try:
            await self._client.call(call, until=monotonic() + SHUTDOWN_S)
        except TopicsError as failure:
            LOG.warning("%d jobs of %s not released: %s", len(held), self._queue, failure)

    async def _keep(self) -> None:
        """Extend leases until the worker ends."""
        pause_s = extend_s = self._lease_s / EXTEND_DIVISOR
        async with self._extends as own:
            while not await self._wait_for_end(pause_s):
                pause_s = extend_s if await self._extend(own) else min(EXTEND_RETRY_S, extend_s)

    async def _extend(self, own: AsyncCaller) -> bool:
        """Extend the leases of all held jobs. Return whether the server has replied."""
        with self._lock:
            held = [*self._held.values()]
        if not held:
            return True
        began = monotonic()
        records, lease_ms = [job.record for job in held], int(1000 * self._lease_s)
        call = calls.settle(self._queue, "extend", self.node, records, lease_ms=lease_ms)
        try:
            settled = await own.once(call)
        except TopicsError as failure:
            LOG.warning("leases of %s not extended: %s", self._queue, failure)
            return False
        for job in held:
            if job.record.seq in settled.skipped:
                job.lose()
            else:
                job.until = began + self._lease_s
        return True
