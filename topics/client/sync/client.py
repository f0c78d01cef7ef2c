# Generated from topics/client/aio/client.py by tests/client/unasync.py. Change that one.
"""The client for threads: a server, its topics and queues.

    with Topics() as client:
        orders = client.topic("orders")
        orders.append({"sku": "A1"})
        for event in client.watch("orders"):
            match event:
                case Record(data=data): ...
                case Tombstone(): ...        # records were lost; the watch goes on

Each call is tried until `Retry.deadline` while the server is busy, stops, starts or cannot be
reached. Objects may be used by several threads.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from datetime import datetime
from functools import cached_property
from time import sleep
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from topics.client import calls, values
from topics.client.calls import Call, Retry, Tries
from topics.client.errors import NotFound, TopicsError, error_of
from topics.client.http import CONNECT_S, http_options, lost, stream_timeouts
from topics.client.settings import resolve
from topics.client.sync.pool import Pool
from topics.client.sync.worker import Worker
from topics.client.threads import Producing, shielded
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

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")


class Topics:
    """A server. ``node`` is this program's identity: its own records are not shown to it.
    ``timeout`` is that of one request, ``connect_timeout`` that of a connection, in s; without
    ``key``, it is that of the environment, unless it is empty. ``on_pause(failure, pause_s)`` is
    called before a request is tried again. No proxy of the environment is used.
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
        retry: Retry = Retry(),  # noqa: B008 - frozen
        on_pause: Callable[[TopicsError, float], None] | None = None,
    ) -> None:
        self.target, self.node, self.timeout = resolve(url, key, context), node, timeout
        self.retry, self._on_pause = retry, on_pause
        self.pool = Pool(self.target, min(timeout, connect_timeout))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def http(self) -> httpx2.Client:
        """The connections of streams."""
        import httpx2

        return httpx2.Client(**http_options(self.target, self.timeout))

    def close(self) -> None:
        """Close all connections."""
        self.pool.close()
        if "http" in vars(self):
            self.http.close()

    def copy(self, *, timeout: float, retry: Retry) -> Topics:
        """The same server by connections of its own."""
        return Topics(
            self.target.url, key=self.target.key, node=self.node, timeout=timeout, retry=retry
        )

    def call(self, call: Call[T]) -> T:
        """Send it, again if that helps. Raises `TopicsError`."""
        tries = Tries(self.retry)
        while True:
            try:
                return self.once(call)
            except TopicsError as failure:
                pause_s = tries.pause_after(failure, is_repeatable=call.is_repeatable)
                self.pause(pause_s, failure)

    def once(self, call: Call[T]) -> T:
        """Send it once. Raises `TopicsError`."""
        return self.pool.send(call, self.timeout)

    def pause(self, pause_s: float, failure: TopicsError) -> None:
        """Wait before the next try."""
        if self._on_pause is not None:
            self._on_pause(failure, pause_s)
        sleep(pause_s)

    def topic(self, name: str) -> Topic:
        """A topic, which need not be there yet."""
        return Topic(self, name)

    def queue(self, name: str) -> Queue:
        """A queue, which need not be there yet."""
        return Queue(self, name)

    def topics(self, prefix: str = "") -> Iterator[values.TopicInfo]:
        """All topics by name."""
        return self.pages(lambda cursor: calls.list_topics(prefix, cursor))

    def put_router(self, name: str, source: str, dest: str, **options: Any) -> values.RouterInfo:
        """Make or configure a router (§6)."""
        return self.call(calls.put_router(name, source, dest, options))

    def router(self, name: str) -> values.RouterInfo:
        """A router with its lag."""
        return self.call(calls.get_router(name))

    def drop_router(self, name: str) -> bool:
        """Whether it was there. Copies stay."""
        return self.call(calls.drop_router(name))

    def routers(
        self, prefix: str = "", *, source: str = "", dest: str = ""
    ) -> Iterator[values.RouterInfo]:
        """Routers by name."""
        query = {"prefix": prefix, "source": source, "dest": dest}
        return self.pages(lambda cursor: calls.list_routers(cursor, **query))

    def watch(
        self,
        *topics: str | tuple[str, Start],
        cursor: Cursor | None = None,
        node: str | None = None,
    ) -> Watch:
        """What is in these topics, and what comes, as one stream: from the beginning, behind a seq
        or from `TAIL` on, or from where ``cursor`` stands.
        """
        known = {} if cursor is None else cursor.positions
        return Watch(self, Watching(topics, node or self.node, known), cursor)

    def cursor(self, name: str) -> Cursor:
        """A place in topics that survives this program (`Cursor`)."""
        return Cursor(self, name)

    def pages(self, page: Callable[[str | None], Call[calls.Page[T]]]) -> Iterator[T]:
        """What all pages of a list hold."""
        cursor = None
        while True:
            found = self.call(page(cursor))
            yield from found.items
            cursor = found.next_cursor
            if cursor is None:
                return


class Topic(Producing):
    """A topic of a server, by its name."""

    client: Topics

    def __init__(self, client: Topics, name: str) -> None:
        self.client, self.name = client, name

    def put(self, **config: Any) -> values.TopicState:
        """Make it, or change those fields of its config (§0.10) that are named."""
        self.client.call(calls.put_topic(self.name, config))
        return self.state()

    def state(self) -> values.TopicState:
        """Where it stands."""
        return self.client.call(calls.get_topic(self.name))

    def plan(self, **config: Any) -> values.TopicPut:
        """Return what `put` would do with this config, without changing anything."""
        return self.client.call(calls.put_topic(self.name, config, dry_run=True))

    def drop(self, *, if_empty: bool = False) -> bool:
        """Remove the topic with all its records. Whether it was there."""
        return self.client.call(calls.drop_topic(self.name, if_empty=if_empty))

    def append(
        self,
        *data: Any,
        records: Iterable[Mapping[str, Any]] | None = None,
        key: str | None = calls.AUTO,
        node: str | None = None,
        **options: Any,
    ) -> values.Receipt:
        """Append payloads, or whole ``records`` (§2) with tags and meta, as one write. With a key
        it happens once, however often it is tried; without one it is not sent again once it may
        have arrived. ``options``: the other fields of the body, as ``create`` or ``config``.
        """
        body = {"records": calls.records_of(data, records), **options}
        return self.client.call(calls.append(self.name, body, key, node or self.client.node))

    def read(
        self, after: int = 0, *, limit: int | None = None, follow: bool = False
    ) -> Iterator[values.Event]:
        """Records behind a seq, and tombstones where some were lost. ``follow``: also those that
        come, with a `CaughtUp` whenever there are no more; then it ends with ``limit`` records.
        """
        reading = calls.Reading(self.name, after, limit, self.client.node, follow=follow)
        while not reading.is_done:
            yield from reading.take(self.client.call(reading.call()))

    def since(self, when: datetime | float) -> int:
        """The seq behind which all records are from this time (a datetime, or s since 1970) on."""
        search = calls.Search(self.name, self.state(), calls.ms_of(when))
        while not search.is_done:
            search.take(self.client.call(search.call()))
        return search.low

    def delete(self, *, before: int | None = None, tag: str | None = None) -> values.Deleted:
        """Delete records for good (§5): those before a seq, those with a tag, or tags that begin
        with what stands before a ``*``.
        """
        return self.client.call(calls.delete_records(self.name, before=before, tag=tag))


class Queue(Topic):
    """A queue of a server, by its name. `put` makes one."""

    def put(self, **config: Any) -> values.TopicState:
        """As `Topic.put`; the type is queue."""
        return super().put(type="queue", **config)

    def plan(self, **config: Any) -> values.TopicPut:
        """See `Topic.plan`. The type is ``queue``."""
        return super().plan(type="queue", **config)

    def worker(
        self,
        *,
        concurrency: int = 1,
        lease: float = 30.0,
        node: str | None = None,
        drain: bool = False,
    ) -> Worker:
        """Work on its jobs (`Worker`)."""
        return Worker(
            self.client, self.name, concurrency=concurrency, lease_s=lease, node=node, drain=drain
        )

    def claim(
        self, node: str, most: int = 1, *, lease: float | None = None, wait: float = 0.0
    ) -> list[values.JobRecord]:
        """Lease jobs to ``node`` (§10.2); ``wait`` s for the first, at most 30."""
        return self.client.call(calls.claim(self.name, node, most, lease, wait))

    def ack(self, node: str, *jobs: values.JobRecord) -> list[int]:
        """The jobs are done. Seqs of those that this node does not hold any more."""
        settled = self.client.call(calls.settle(self.name, "ack", node, jobs))
        return settled.skipped

    def nack(
        self, node: str, *jobs: values.JobRecord, delay: float = 0.0, error: str | None = None
    ) -> list[int]:
        """The jobs come again, ``delay`` s later. Seqs as `ack` gives them."""
        settled = self.client.call(calls.nack(self.name, node, jobs, delay, error))
        return settled.skipped

    def leases(self, node: str | None = None) -> Iterator[values.Lease]:
        """Who holds which job."""
        return self.client.pages(lambda cursor: calls.list_leases(self.name, cursor, node))

    def redrive(self, **options: Any) -> values.Redriven:
        """Move dead letters of this topic back to their queue: ``to`` another topic, those with a
        ``tag``, ``before`` a seq, at most ``limit``.
        """
        return self.client.call(calls.redrive(self.name, **options))


class Watch:
    """A stream of events, as an iterator; it ends by `close`, or with its ``with``."""

    def __init__(self, client: Topics, watching: Watching, cursor: Cursor | None) -> None:
        self._client, self.watching, self._cursor = client, watching, cursor
        self._events = self._run()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[values.Event]:
        return self._events

    def __next__(self) -> values.Event:
        return next(self._events)

    def close(self) -> None:
        """End the stream."""
        self._events.close()

    def _run(self) -> Generator[values.Event]:
        watching, cursor, tries = self.watching, self._cursor, Tries(self._client.retry)
        for topic in watching.unknown:
            watching.begin(self._client.topic(topic).state())
        while True:
            try:
                with closing(self._stream(tries)) as stream:
                    for shown in stream:
                        if cursor is not None:
                            cursor.shown = shown
                        yield shown.event
                        watching.done(shown)
                        if cursor is not None and cursor.done():
                            cursor.save()
                        if not watching.topics:
                            return
                failure = ended()
            except TopicsError as error:
                failure = error
            self._client.pause(tries.pause_after(failure), failure)

    def _stream(self, tries: Tries) -> Generator[Shown]:
        import httpx2

        path, headers = self.watching.request()
        http, target = self._client.http, self._client.target
        try:
            with http.sse(
                path, headers=headers, timeout=stream_timeouts(), max_event_size=EVENT_MAX_BYTES
            ) as source:
                answer = source.response
                if answer.status_code != 200:
                    raise error_of(answer.status_code, answer.headers, answer.read())
                for event in source:
                    yield from self.watching.take(event.event, event.data, event.id)
                    tries.succeeded()
        except httpx2.RequestError as error:
            raise lost(error, target) from error


class Cursor(Progress):
    """Where a reader stands in its topics, kept by the server in the topic ``cursor:NAME``.

        with client.cursor("billing") as cursor:
            for event in client.watch("orders", cursor=cursor):
                ...

    What the loop has asked the next event after counts as read. It is saved every second, and at
    the end; an exception leaves the event that raised it to the next run.
    """

    def __init__(self, client: Topics, name: str) -> None:
        super().__init__()
        self._client, self._name = client, CURSOR_PREFIX + name

    def __enter__(self) -> Self:
        try:
            self.load(self._client.call(calls.diff(self._name, 0)))
        except NotFound:
            self._client.call(calls.put_topic(self._name, CURSOR_CONFIG))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        self.leave(kind)
        with shielded():
            self.save()

    def save(self) -> None:
        """Write it down, if it has moved."""
        if not self.is_saved:
            self._client.call(calls.append(self._name, self.record()))
            self.saved()
