"""The client for asyncio and trio: a server, its topics and queues.

    async with AsyncTopics() as client:
        orders = client.topic("orders")
        await orders.append({"sku": "A1"})
        async for event in client.watch("orders"):
            match event:
                case Record(data=data): ...
                case Tombstone(): ...        # records were lost; the watch continues

Calls are retried until `Retry.deadline` while the server is busy, restarts or cannot be reached.
Watches, workers and publishers retry indefinitely unless the client has a `Retry`. Objects may be
used by several tasks.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime
from ssl import SSLContext
from typing import Any, Unpack

from topics.client import calls, values
from topics.client.aio.producer import AsyncProducer
from topics.client.aio.publisher import AsyncPublisher
from topics.client.aio.watcher import AsyncCursor, AsyncStreamer, AsyncWatch
from topics.client.aio.worker import AsyncWorker
from topics.client.calls import AppendFields, Retry, RouterOptions, TopicConfig
from topics.client.errors import TopicsError
from topics.client.http import CONNECT_S
from topics.client.settings import resolve
from topics.client.watching import Start, WatchState

MAX_UNACKED: int = 8 << 20  # bytes


class AsyncTopics(AsyncStreamer):
    """A client for one server. ``node`` is the identity of this program: reads and watches skip
    its own records. ``timeout`` limits a request and ``connect_timeout`` the opening of a
    connection, both in seconds. If ``url`` or ``key`` is not given, the environment and the
    contexts file apply (`topics.client.settings`).
    ``on_pause(failure, pause_s)`` is called after each failed attempt; by default, the logger
    ``topics.client`` logs a warning. ``ssl_context`` sets certificates for ``https://``. Proxy
    settings in the environment are ignored.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        key: str | None = None,
        context: str | None = None,
        node: str | None = None,
        timeout: float = 30.0,
        connect_timeout: float = CONNECT_S,
        retry: Retry | None = None,
        on_pause: Callable[[TopicsError, float], None] | None = None,
        ssl_context: SSLContext | None = None,
    ) -> None:
        super().__init__(
            resolve(url, key, context)._replace(ssl_context=ssl_context),
            node=node,
            timeout=timeout,
            connect_timeout=connect_timeout,
            retry=retry,
            on_pause=on_pause,
        )

    def topic(self, name: str) -> AsyncTopic:
        """Return a topic, which need not exist yet."""
        return AsyncTopic(self, name)

    def queue(self, name: str) -> AsyncQueue:
        """Return a queue, which need not exist yet."""
        return AsyncQueue(self, name)

    def topics(self, prefix: str = "") -> AsyncIterator[values.TopicInfo]:
        """Yield all topics, ordered by name (§1.3)."""
        return self.pages(lambda cursor: calls.list_topics(prefix, cursor))

    async def put_router(
        self, name: str, source: str, dest: str, **options: Unpack[RouterOptions]
    ) -> values.RouterInfo:
        """Create or configure a router (§6)."""
        return await self.call(calls.put_router(name, source, dest, options))

    async def router(self, name: str) -> values.RouterInfo:
        """Return a router with its lag (§6)."""
        return await self.call(calls.get_router(name))

    async def drop_router(self, name: str) -> bool:
        """Delete a router and return whether it existed. Forwarded records remain (§6)."""
        return await self.call(calls.drop_router(name))

    def routers(
        self, prefix: str = "", *, source: str = "", dest: str = ""
    ) -> AsyncIterator[values.RouterInfo]:
        """Yield routers, ordered by name (§6)."""
        query = {"prefix": prefix, "source": source, "dest": dest}
        return self.pages(lambda cursor: calls.list_routers(cursor, **query))

    def watch(
        self,
        *topics: str | tuple[str, Start],
        cursor: AsyncCursor | None = None,
        node: str | None = None,
    ) -> AsyncWatch:
        """Return the existing and the new records of topics as one stream (§7). A topic starts at
        its first record, after a seq, or with the next new record (`TAIL`). With a ``cursor``, a
        topic starts at the cursor's position. Records of ``node`` are skipped.
        """
        self.check_open()
        known = {} if cursor is None else cursor.positions
        return AsyncWatch(self, WatchState(topics, node or self.node, known), cursor)

    def cursor(self, name: str) -> AsyncCursor:
        """Return a stored position in topics (`AsyncCursor`)."""
        return AsyncCursor(self, name)

    def publisher(
        self, *, max_unacked: int = MAX_UNACKED, name: str | None = None
    ) -> AsyncPublisher:
        """Return a publisher of records to many topics over one WebSocket (`AsyncPublisher`).
        ``name`` is the prefix of the idempotency keys and must be different in each run of a
        program.
        """
        return AsyncPublisher(self, max_unacked=max_unacked, name=name or uuid.uuid4().hex)


class AsyncTopic:
    """A topic on a server, identified by its name."""

    def __init__(self, client: AsyncTopics, name: str) -> None:
        self.client, self.name = client, name

    async def put(self, **config: Unpack[TopicConfig]) -> values.TopicState:
        """Create the topic, or change the given fields of its config (§0.10)."""
        await self.client.call(calls.put_topic(self.name, config))
        return await self.state()

    async def state(self) -> values.TopicState:
        """Return the topic's state (§1.2)."""
        return await self.client.call(calls.get_topic(self.name))

    async def plan(self, **config: Unpack[TopicConfig]) -> values.TopicPut:
        """Return what `put` would do with this config, without changing anything."""
        return await self.client.call(calls.put_topic(self.name, config, dry_run=True))

    async def drop(self, *, if_empty: bool = False) -> bool:
        """Delete the topic with all its records and return whether it existed (§1.4)."""
        return await self.client.call(calls.drop_topic(self.name, if_empty=if_empty))

    async def append(
        self,
        *data: Any,
        records: Iterable[Mapping[str, Any]] | None = None,
        key: str | None = calls.AUTO,
        **options: Unpack[AppendFields],
    ) -> values.Receipt:
        """Append payloads as one write (§2), each with the same ``tag``, ``meta``, ``delay`` or
        ``deliver_at``. Each item of ``records`` is a record with fields of its own. ``create``
        and ``config`` are described in §2.

        With a ``key``, all attempts together append the records once; the default is a new key. If
        the key is None, a request that the server may have received is not sent again.
        """
        node = options.pop("node", None)
        body = calls.append_body(data, records, options)
        return await self.client.call(calls.append(self.name, body, key, node or self.client.node))

    async def read(
        self, after: int = 0, *, limit: int | None = None, follow: bool = False
    ) -> AsyncIterator[values.Event]:
        """Yield at most ``limit`` records after a seq, and tombstones for lost records (§3). With
        ``follow``, also yield new records, and `CaughtUp` whenever the end is reached.
        """
        reading = calls.Reading(self.name, after, limit, self.client.node, follow=follow)
        while not reading.is_done:
            for event in reading.take(await self.client.call(reading.call())):
                yield event

    async def since(self, when: datetime | float) -> int:
        """Return the seq after which all records have at least this time, a datetime or seconds
        since 1970.
        """
        search = calls.Search(self.name, await self.state(), calls.ms_of(when))
        while not search.is_done:
            search.take(await self.client.call(search.call()))
        return search.low

    async def delete(self, *, before: int | None = None, tag: str | None = None) -> values.Deleted:
        """Delete the records before a seq, the records with a tag, or the records that match both
        (§5). A ``*`` at the end of the tag matches any characters.
        """
        return await self.client.call(calls.delete_records(self.name, before=before, tag=tag))

    def producer(
        self,
        *,
        linger: float = 0.02,
        max_records: int = 1000,
        max_bytes: int = 1 << 20,
        max_unacked: int = MAX_UNACKED,
        name: str | None = None,
    ) -> AsyncProducer:
        """Return a producer, which combines many small appends into a few requests
        (`AsyncProducer`). A request contains up to ``max_records`` records and ``max_bytes``
        bytes, and is delayed by up to ``linger`` s.
        """
        return AsyncProducer(
            self.client,
            self.name,
            linger=linger,
            max_records=max_records,
            max_bytes=max_bytes,
            max_unacked=max_unacked,
            name=name or uuid.uuid4().hex,
        )


class AsyncQueue(AsyncTopic):
    """A queue on a server, identified by its name (§10)."""

    async def put(self, **config: Unpack[TopicConfig]) -> values.TopicState:
        """Create the queue, or change the given fields of its config (§0.10)."""
        config["type"] = "queue"
        return await super().put(**config)

    async def plan(self, **config: Unpack[TopicConfig]) -> values.TopicPut:
        """Return what `put` would do with this config, without changing anything."""
        config["type"] = "queue"
        return await super().plan(**config)

    def worker(
        self, *, lease: float = 30.0, node: str | None = None, drain: bool = False
    ) -> AsyncWorker:
        """Return a worker for the queue's jobs (`AsyncWorker`). ``lease`` is in s. With ``drain``,
        the worker ends when the queue is empty.
        """
        return AsyncWorker(self.client, self.name, lease_s=lease, node=node, drain=drain)

    async def claim(
        self, node: str, most: int = 1, *, lease: float | None = None, wait: float = 0.0
    ) -> list[values.JobRecord]:
        """Lease up to ``most`` jobs to ``node`` (§10.2). If no job is ready, wait up to ``wait`` s,
        at most 30 s.
        """
        return await self.client.call(calls.claim(self.name, node, most, lease, wait))

    async def ack(self, node: str, *jobs: values.JobRecord) -> list[int]:
        """Complete jobs (§10.4). Return the seqs that this node no longer holds."""
        settled = await self.client.call(calls.settle(self.name, "ack", node, jobs))
        return settled.skipped

    async def nack(
        self, node: str, *jobs: values.JobRecord, delay: float = 0.0, error: str | None = None
    ) -> list[int]:
        """Release jobs, to be claimed again after ``delay`` s (§10.5). Return the same as `ack`."""
        settled = await self.client.call(calls.nack(self.name, node, jobs, delay, error))
        return settled.skipped

    def leases(self, node: str | None = None) -> AsyncIterator[values.Lease]:
        """Yield the leases of the queue, or only the leases of ``node`` if it is given."""
        return self.client.pages(lambda cursor: calls.list_leases(self.name, cursor, node))

    async def redrive(
        self,
        *,
        to: str | None = None,
        tag: str | None = None,
        before: int | None = None,
        limit: int | None = None,
    ) -> values.Redriven:
        """Move dead letters of this topic back to their queues, or to the topic ``to`` (§10.6). If
        ``tag`` or ``before`` is given, only dead letters with this tag or below this seq are moved.
        At most ``limit`` are moved.
        """
        call = calls.redrive(self.name, to=to, tag=tag, before=before, limit=limit)
        return await self.client.call(call)
