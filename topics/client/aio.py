"""The client for asyncio and trio: the names of sync.py, to be awaited.

    async with AsyncTopics() as client:
        await client.topic("orders").append({"sku": "A1"})
        async for event in client.watch("orders"):
            ...

A worker extends its leases in a task of the caller's loop, so a handler that computes for longer
than a third of its lease belongs into a thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import datetime
from time import monotonic
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc
import httpx2

from topics.client import calls, values
from topics.client.calls import Call, Retry, Tries
from topics.client.errors import NotFound, TopicsError, error_of
from topics.client.http import CONNECT_S, http_options, lost, stream_timeouts, timeouts
from topics.client.settings import resolve
from topics.client.sync import ms_of
from topics.client.watching import (
    CURSOR_CONFIG,
    CURSOR_PREFIX,
    EVENT_MAX_BYTES,
    Progress,
    Shown,
    Start,
    Watching,
    ended,
)
from topics.client.worker import (
    EXTEND_AGAIN_S,
    EXTEND_PART,
    LOG,
    HeldJob,
    extended,
    extension,
    worker_name,
)

T = TypeVar("T")


class AsyncTopics:
    """A server, as `Topics`."""

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        context: str | None = None,
        node: str | None = None,
        timeout: float = 30.0,
        retry: Retry = Retry(),  # noqa: B008 - frozen
        on_pause: Callable[[TopicsError, float], None] | None = None,
    ) -> None:
        self.target, self.node, self.timeout = resolve(url, key, context), node, timeout
        self.retry, self._on_pause = retry, on_pause
        self.http = httpx2.AsyncClient(**http_options(self.target, timeout))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self.http.aclose()

    async def call(self, call: Call[T]) -> T:
        """Send it, again if that helps. Raises `TopicsError`."""
        tries = Tries(self.retry)
        while True:
            try:
                return await self.once(call)
            except TopicsError as failure:
                pause_s = tries.pause_after(failure, is_repeatable=call.is_repeatable)
                await self.pause(pause_s, failure)

    async def once(self, call: Call[T]) -> T:
        """Send it once. Raises `TopicsError`."""
        wait = timeouts(self.timeout + call.wait_s, min(self.timeout, CONNECT_S))
        try:
            answer = await self.http.request(
                call.method, call.path, content=call.content, headers=call.headers, timeout=wait
            )
        except httpx2.RequestError as error:
            raise lost(error, self.target) from error
        return call.result(answer.status_code, answer.headers, answer.content)

    async def pause(self, pause_s: float, failure: TopicsError) -> None:
        """Wait before the next try."""
        if self._on_pause is not None:
            self._on_pause(failure, pause_s)
        await anyio.sleep(pause_s)

    def topic(self, name: str) -> AsyncTopic:
        """A topic, which need not be there yet."""
        return AsyncTopic(self, name)

    def queue(self, name: str) -> AsyncQueue:
        """A queue, which need not be there yet."""
        return AsyncQueue(self, name)

    def topics(self, prefix: str = "") -> AsyncIterator[values.TopicInfo]:
        """All topics by name."""
        return self.pages(lambda cursor: calls.list_topics(prefix, cursor))

    async def put_router(
        self, name: str, source: str, dest: str, **options: Any
    ) -> values.RouterInfo:
        """Make or configure a router (§6)."""
        return await self.call(calls.put_router(name, source, dest, options))

    async def router(self, name: str) -> values.RouterInfo:
        """A router with its lag."""
        return await self.call(calls.get_router(name))

    async def drop_router(self, name: str) -> bool:
        """Whether it was there. Copies stay."""
        return await self.call(calls.drop_router(name))

    def routers(
        self, prefix: str = "", *, source: str = "", dest: str = ""
    ) -> AsyncIterator[values.RouterInfo]:
        """Routers by name."""
        query = {"prefix": prefix, "source": source, "dest": dest}
        return self.pages(lambda cursor: calls.list_routers(cursor, **query))

    def watch(
        self,
        *topics: str | tuple[str, Start],
        cursor: AsyncCursor | None = None,
        node: str | None = None,
    ) -> AsyncWatch:
        """As `Topics.watch`."""
        known = {} if cursor is None else cursor.positions
        return AsyncWatch(self, Watching(topics, node or self.node, known), cursor)

    def cursor(self, name: str) -> AsyncCursor:
        """A place in topics that survives this program (`Cursor`)."""
        return AsyncCursor(self, name)

    async def pages(self, page: Callable[[str | None], Call[calls.Page[T]]]) -> AsyncIterator[T]:
        """What all pages of a list hold."""
        cursor = None
        while True:
            found = await self.call(page(cursor))
            for item in found.items:
                yield item
            cursor = found.next_cursor
            if cursor is None:
                return


class AsyncTopic:
    """A topic of a server, as `Topic`."""

    def __init__(self, client: AsyncTopics, name: str) -> None:
        self.client, self.name = client, name

    async def put(self, **config: Any) -> values.TopicState:
        """Make it, or change those fields of its config (§0.10) that are named."""
        await self.client.call(calls.put_topic(self.name, config))
        return await self.state()

    async def state(self) -> values.TopicState:
        """Where it stands."""
        return await self.client.call(calls.get_topic(self.name))

    async def plan(self, **config: Any) -> values.TopicPut:
        """See `Topic.plan`."""
        return await self.client.call(calls.put_topic(self.name, config, dry_run=True))

    async def drop(self, *, if_empty: bool = False) -> bool:
        """Remove the topic with all its records. Whether it was there."""
        return await self.client.call(calls.drop_topic(self.name, if_empty=if_empty))

    async def append(
        self,
        *data: Any,
        records: Iterable[Mapping[str, Any]] | None = None,
        key: str | None = calls.AUTO,
        node: str | None = None,
        **options: Any,
    ) -> values.Receipt:
        """As `Topic.append`."""
        body = {"records": calls.records_of(data, records), **options}
        return await self.client.call(calls.append(self.name, body, key, node or self.client.node))

    async def read(
        self, after: int = 0, *, limit: int | None = None, follow: bool = False
    ) -> AsyncIterator[values.Event]:
        """As `Topic.read`."""
        reading = calls.Reading(self.name, after, limit, self.client.node, follow=follow)
        while not reading.is_done:
            for event in reading.take(await self.client.call(reading.call())):
                yield event

    async def since(self, when: datetime | float) -> int:
        """As `Topic.since`."""
        search = calls.Search(self.name, await self.state(), ms_of(when))
        while not search.is_done:
            search.take(await self.client.call(search.call()))
        return search.low

    async def delete(self, *, before: int | None = None, tag: str | None = None) -> values.Deleted:
        """As `Topic.delete`."""
        return await self.client.call(calls.delete_records(self.name, before=before, tag=tag))


class AsyncQueue(AsyncTopic):
    """A queue of a server, as `Queue`."""

    async def put(self, **config: Any) -> values.TopicState:
        """As `AsyncTopic.put`; the type is queue."""
        return await super().put(type="queue", **config)

    async def plan(self, **config: Any) -> values.TopicPut:
        """See `AsyncTopic.plan`. The type is ``queue``."""
        return await super().plan(type="queue", **config)

    def worker(
        self,
        *,
        concurrency: int = 1,
        lease: float = 30.0,
        node: str | None = None,
        drain: bool = False,
    ) -> AsyncWorker:
        """Work on its jobs (`AsyncWorker`)."""
        return AsyncWorker(self, concurrency=concurrency, lease_s=lease, node=node, drain=drain)

    async def claim(
        self, node: str, most: int = 1, *, lease: float | None = None, wait: float = 0.0
    ) -> list[values.JobRecord]:
        """As `Queue.claim`."""
        return await self.client.call(calls.claim(self.name, node, most, lease, wait))

    async def ack(self, node: str, *jobs: values.JobRecord) -> list[int]:
        """As `Queue.ack`."""
        return (await self.client.call(calls.settle(self.name, "ack", node, jobs))).skipped

    async def nack(
        self, node: str, *jobs: values.JobRecord, delay: float = 0.0, error: str | None = None
    ) -> list[int]:
        """As `Queue.nack`."""
        return (await self.client.call(calls.nack(self.name, node, jobs, delay, error))).skipped

    def leases(self, node: str | None = None) -> AsyncIterator[values.Lease]:
        """Who holds which job."""
        return self.client.pages(lambda cursor: calls.list_leases(self.name, cursor, node))

    async def redrive(self, **options: Any) -> values.Redriven:
        """As `Queue.redrive`."""
        return await self.client.call(calls.redrive(self.name, **options))


class AsyncWatch:
    """A stream of events, as an asynchronous iterator."""

    def __init__(self, client: AsyncTopics, watching: Watching, cursor: AsyncCursor | None) -> None:
        self._client, self.watching, self._cursor = client, watching, cursor
        self._events = self._run()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[values.Event]:
        return self._events

    async def __anext__(self) -> values.Event:
        return await anext(self._events)

    async def close(self) -> None:
        """End the stream."""
        await self._events.aclose()

    async def _run(self) -> AsyncGenerator[values.Event]:
        watching, cursor, tries = self.watching, self._cursor, Tries(self._client.retry)
        for topic in watching.unknown:
            watching.begin(await self._client.topic(topic).state())
        while True:
            try:
                async with aclosing(self._stream(tries)) as stream:
                    async for shown in stream:
                        if cursor is not None:
                            cursor.shown = shown
                        yield shown.event
                        watching.done(shown)
                        if cursor is not None and cursor.done():
                            await cursor.save()
                        if not watching.topics:
                            return
                failure = ended()
            except TopicsError as error:
                failure = error
            await self._client.pause(tries.pause_after(failure), failure)

    async def _stream(self, tries: Tries) -> AsyncGenerator[Shown]:
        path, headers = self.watching.request()
        http, target = self._client.http, self._client.target
        try:
            async with http.sse(
                path, headers=headers, timeout=stream_timeouts(), max_event_size=EVENT_MAX_BYTES
            ) as source:
                answer = source.response
                if answer.status_code != 200:
                    raise error_of(answer.status_code, answer.headers, await answer.aread())
                async for event in source:
                    for shown in self.watching.take(event.event, event.data, event.id):
                        yield shown
                    tries.succeeded()
        except httpx2.RequestError as error:
            raise lost(error, target) from error


class AsyncCursor(Progress):
    """Where a reader stands in its topics, as `Cursor`."""

    def __init__(self, client: AsyncTopics, name: str) -> None:
        super().__init__()
        self._client, self._name = client, CURSOR_PREFIX + name

    async def __aenter__(self) -> Self:
        try:
            self.load(await self._client.call(calls.diff(self._name, 0)))
        except NotFound:
            await self._client.call(calls.put_topic(self._name, CURSOR_CONFIG))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.leave(kind)
        with anyio.CancelScope(shield=True):
            await self.save()

    async def save(self) -> None:
        """Write it down, if it has moved."""
        if not self.is_saved:
            await self._client.call(calls.append(self._name, self.record()))
            self.saved()


class AsyncJob(HeldJob):
    """A job that this worker holds, as `Job`."""

    def __init__(self, worker: AsyncWorker, record: values.JobRecord, until: float) -> None:
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
        else:  # cancelled: the job is not to blame
            with anyio.CancelScope(shield=True):
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


class AsyncWorker:
    """Claims jobs, at most ``concurrency`` at once, and keeps their leases, as `Worker`; signals
    are the caller's.
    """

    def __init__(
        self, queue: AsyncQueue, *, concurrency: int, lease_s: float, node: str | None, drain: bool
    ) -> None:
        self._queue, self._concurrency, self._lease_s = queue, concurrency, lease_s
        self.node, self._drain = node or worker_name(), drain
        self._held: dict[str, AsyncJob] = {}  # by lease
        self._ready: list[AsyncJob] = []  # claimed, and not given out yet
        self._claiming = anyio.Lock()
        self._tasks: anyio.abc.TaskGroup
        self._is_stopped = False
        self._waiting: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._keep)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        self.stop()
        with anyio.CancelScope(shield=True):
            jobs, self._ready = self._ready, []
            if jobs:
                await self._queue.nack(self.node, *(job.record for job in jobs))
        self._tasks.cancel_scope.cancel()
        return await self._tasks.__aexit__(kind, error, trace)

    def stop(self) -> None:
        """Claim nothing more: loops end behind the job that they handle."""
        self._is_stopped = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def __aiter__(self) -> AsyncIterator[AsyncJob]:
        while (job := await self._next()) is not None:
            yield job

    async def _next(self) -> AsyncJob | None:
        async with self._claiming:
            while not self._ready:
                if self._is_stopped or not await self._claim():
                    return None
            return None if self._is_stopped else self._ready.pop(0)

    async def _claim(self) -> bool:
        """Ask for jobs. False: there are no more."""
        most = max(self._concurrency - len(self._held), 1)
        wait_s = 0.0 if self._drain else calls.WAIT_S
        jobs: list[values.JobRecord] = []
        with anyio.CancelScope() as self._waiting:
            jobs = await self._queue.claim(self.node, most, lease=self._lease_s, wait=wait_s)
        self._waiting = None
        for record in jobs:
            job = AsyncJob(self, record, monotonic() + self._lease_s)
            self._held[record.lease_id] = job
            self._ready.append(job)
        return bool(jobs) or not self._drain

    async def settle(self, job: AsyncJob, what: str, fields: dict[str, Any]) -> bool:
        """Ack or nack a job, unless it is lost."""
        self._held.pop(job.record.lease_id, None)
        if job.lost:
            return False
        call = calls.settle(self._queue.name, what, self.node, (job.record,), **fields)
        return not (await self._queue.client.call(call)).skipped

    async def _keep(self) -> None:
        """The task that extends leases."""
        pause_s = extend_s = self._lease_s / EXTEND_PART
        while True:
            await anyio.sleep(pause_s)
            pause_s = extend_s
            held, began = [*self._held.values()], monotonic()
            if held:
                call = extension(self._queue.name, self.node, held, self._lease_s)
                try:
                    skipped = (await self._queue.client.once(call)).skipped
                except TopicsError as failure:
                    LOG.warning("leases of %s not extended: %s", self._queue.name, failure)
                    pause_s = min(EXTEND_AGAIN_S, extend_s)
                else:
                    extended(held, skipped, began + self._lease_s)
