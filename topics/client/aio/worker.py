"""Worker: jobs of a queue, one after the other or many at once.

    async with client.queue("jobs").worker(concurrency=4) as worker:
        async for job in worker:
            async with job:
                await handle(job.data)

    claimed --> held --with job: no exception--> acked
                 |          '--an exception----> nacked, with its text and a delay that grows
                 |--the worker ends-----------> released immediately
                 '--its lease is lost---------> not settled: another worker may hold it

A background task of the worker (`topics.client.tasks`) extends all leases when a third of their
time has passed. It has its own connections. Several tasks may iterate over one worker.
"""

from __future__ import annotations

import threading
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Self

from topics.client import calls
from topics.client.calls import AsyncCaller, Retry
from topics.client.errors import TopicsError
from topics.client.jobs import EXTEND_AGAIN_S, EXTEND_PART, LOG, HeldJob, worker_name
from topics.client.tasks import AsyncBackground, AsyncLock, shielded
from topics.client.values import JobRecord


class AsyncJob(HeldJob):
    """A job that this worker holds. ``async with job:`` acks it, or nacks it on an exception.
    ``job.lost``: its lease is not this worker's any more. It has what its record has.
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
            with shielded():
                await self.nack(delay=0.0)
        return False

    async def ack(self) -> bool:
        """It is done. False: its lease was lost, and it may be done again."""
        return await self._settle("ack", {})

    async def nack(self, *, error: str | None = None, delay: float | None = None) -> bool:
        """It comes again, after 1, 2, 4 ... s if ``delay`` does not say it."""
        return await self._settle("nack", self.nack_fields(error, delay))

    async def _settle(self, what: str, fields: dict[str, Any]) -> bool:
        self.is_settled = True
        return await self._worker.settle(self, what, fields)


class AsyncWorker(AsyncBackground):
    """Claims jobs, at most ``concurrency`` at once, and keeps their leases. ``drain``: the loop
    ends when the queue is empty.
    """

    def __init__(
        self,
        client: AsyncCaller,
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
        self._held: dict[str, AsyncJob] = {}  # by lease
        self._ready: list[AsyncJob] = []  # claimed, and not given out yet
        self._lock = threading.Lock()  # of both; never held while a request is sent
        self._claiming = AsyncLock()

    async def __aenter__(self) -> Self:
        await self._begin(self._keep)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        try:
            with shielded():
                await self._give_back()
        finally:
            await self._end()

    def __aiter__(self) -> Self:  # not a generator: a loop that is left needs no clean-up
        return self

    async def __anext__(self) -> AsyncJob:
        job = await self._next()
        if job is None:
            raise StopAsyncIteration
        return job

    async def _next(self) -> AsyncJob | None:
        async with self._claiming:  # one iterator sends the claim, the others wait for its jobs
            while not self._ready:
                if self._is_stopped or not await self._claim():
                    return None
            return None if self._is_stopped else self._ready.pop(0)

    async def _claim(self) -> bool:
        """Claim jobs. Return whether more may come."""
        most = max(self._concurrency - len(self._held), 1)
        wait_s = 0.0 if self._drain else calls.WAIT_S
        call = calls.claim(self._queue, self.node, most, self._lease_s, wait_s)
        jobs = await self._unless_stopped(partial(self._client.call, call))
        until = monotonic() + self._lease_s
        for record in jobs:
            job = AsyncJob(self, record, until)
            with self._lock:
                self._held[record.lease_id] = job
            self._ready.append(job)
        return bool(jobs) or not self._drain

    async def settle(self, job: AsyncJob, what: str, fields: dict[str, Any]) -> bool:
        """Ack or nack a job, unless it is lost."""
        with self._lock:
            self._held.pop(job.record.lease_id, None)
        if job.lost:
            return False
        call = calls.settle(self._queue, what, self.node, (job.record,), **fields)
        settled = await self._client.call(call)
        return not settled.skipped

    async def _give_back(self) -> None:
        """Release the jobs that no loop has taken."""
        with self._lock:
            jobs = [job for job in self._ready if job.record.lease_id in self._held]
            self._ready.clear()
            for job in jobs:
                del self._held[job.record.lease_id]
        if jobs:
            records = [job.record for job in jobs]
            await self._client.call(calls.nack(self._queue, self.node, records, 0.0, None))

    async def _keep(self) -> None:
        """Extend leases until the worker ends."""
        pause_s = extend_s = self._lease_s / EXTEND_PART
        async with self._client.copy(timeout=pause_s, retry=Retry(deadline=pause_s)) as own:
            while not await self._ends_within(pause_s):
                pause_s = extend_s if await self._extend(own) else min(EXTEND_AGAIN_S, extend_s)

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
            settled = await own.call(call)
        except TopicsError as failure:
            LOG.warning("leases of %s not extended: %s", self._queue, failure)
            return False
        for job in held:
            if job.record.seq in settled.skipped:
                job.lose()
            else:
                job.until = began + self._lease_s
        return True
