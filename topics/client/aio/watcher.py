"""Watch and Cursor: event streams that survive restarts, and stored positions in these streams."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Self

from topics.client import calls, values
from topics.client.aio.caller import AsyncCaller
from topics.client.calls import LOG, SHUTDOWN_S, Attempts
from topics.client.errors import NotFound, Refused, TopicsError, error_of
from topics.client.http import http_options, lost, shut_down, stream_timeouts
from topics.client.tasks import AsyncBackground, AsyncLock, AsyncOpened, AsyncStop, shielded
from topics.client.watching import (
    CURSOR_CONFIG,
    CURSOR_PREFIX,
    EVENT_MAX_BYTES,
    SAVE_INTERVAL_S,
    Position,
    PositionedEvent,
    Progress,
    WatchState,
    ended,
)

if TYPE_CHECKING:
    import httpx2


class AsyncStreamer(AsyncCaller):
    """A caller that also opens event streams."""

    _http: httpx2.AsyncClient | None = None
    _http_pid = 0

    @property
    def http(self) -> httpx2.AsyncClient:
        """The connections of streams. A forked process opens its own."""
        import httpx2

        if self._http is None or self._http_pid != os.getpid():
            self._http = httpx2.AsyncClient(**http_options(self.target, self.timeout))
            self._http_pid = os.getpid()  # set last, because another thread may be here
        return self._http

    @property
    def opened(self) -> AsyncOpened[AsyncWatch]:
        """The watches that have a stream or wait to open it again."""
        watches: AsyncOpened[AsyncWatch] = vars(self).setdefault("_opened", AsyncOpened())
        return watches

    async def close(self) -> None:
        """Close all watches and all connections. Calls that are in progress, and all later calls,
        raise `ClientClosed`. Stop workers first, because they settle their jobs over these
        connections. Producers and publishers have their own connections and are closed separately.
        """
        self._closing.set()  # first, so that no watch opens a stream again
        for watch in [*self.opened]:
            await watch.close()
        await super().close()
        if self._http is not None and self._http_pid == os.getpid():
            await self._http.aclose()


class AsyncWatch:
    """An iterator over the events of a stream. After a failure of the server or the connection, it
    continues at its position. It ends after `close`, or when all its topics are deleted.
    """

    def __init__(
        self, client: AsyncStreamer, watching: WatchState, cursor: AsyncCursor | None
    ) -> None:
        self._client, self.watching, self._cursor = client, watching, cursor
        self._attempts, self._stop = Attempts(client.retry_streams), AsyncStop()
        self._shown: Iterator[PositionedEvent] = iter(())  # the rest of the stream's last event
        # The last returned event. It counts as handled when the caller requests the next event.
        self._handled: PositionedEvent | None = None
        self._stack: AsyncExitStack | None = None  # resources of the open stream
        self._events: AsyncIterator[httpx2.ServerSentEvent]
        self._response: httpx2.Response | None = None
        self._is_reading, self._pid = False, os.getpid()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> values.Event:
        event = await self._next(None)
        if event is None:
            raise StopAsyncIteration
        return event

    async def next(self, timeout: float | None = None) -> values.Event | None:  # noqa: ASYNC109 - the sync client has the same parameter
        """Return the next event, or None if the watch has ended. Raise `TimeoutError` after
        ``timeout`` s without an event; the next call opens the stream again.
        """
        until = None if timeout is None else monotonic() + timeout
        event = await self._next(until)
        if event is None and until is not None and monotonic() >= until and not self._is_over:
            raise TimeoutError(f"no event within {timeout} s")
        return event

    async def close(self) -> None:
        """Close the watch. Another thread or task that waits for an event leaves its loop."""
        self._stop.set()
        await self._stop.wait_until_interrupted()
        if not self._is_reading:
            await self._disconnect()

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or self._client.is_closed or not self.watching.topics

    async def _next(self, until: float | None) -> values.Event | None:
        if self._handled is not None:
            self.watching.done(self._handled)
            self._handled = None
            if self._cursor is not None:
                self._cursor.done()
        self._is_reading = True
        try:
            while not self._is_over:
                for shown in self._shown:
                    self._handled = shown
                    if self._cursor is not None:
                        self._cursor.shown = shown
                    return shown.event
                if until is not None and monotonic() >= until:
                    return None
                await self._more(until)
        finally:
            self._is_reading = False
            if self._is_over:
                await self._disconnect()
        return None

    async def _more(self, until: float | None) -> None:
        """Wait for the next event, or until the stream may be opened again after a failure."""
        if self._pid != os.getpid():  # the stream belongs to the parent process
            self._pid, self._stack = os.getpid(), None
        left_s = None if until is None else max(until - monotonic(), 0.0)
        self._client.opened.add(self)  # before any wait, so that `close` of the client ends it
        try:
            shown = await self._stop.interrupts(self._receive, self._abort, left_s)
            if shown is None:
                await self._disconnect()
            else:
                self._shown = shown
        except TopicsError as failure:
            await self._disconnect()
            if self._is_over:
                return
            pause_s = self._attempts.pause_after(failure)
            self._client.opened.add(self)
            self._client.report_pause(failure, pause_s)
            await self._stop.wait(pause_s if left_s is None else min(pause_s, left_s))
        except BaseException:  # a cancellation or Ctrl-C: an event may have been read in part
            await self._disconnect()
            raise

    async def _receive(self) -> Iterator[PositionedEvent]:
        import httpx2

        for topic in self.watching.unknown:
            self.watching.begin(await self._client.once(calls.get_topic(topic)))
        try:
            if self._stack is None:
                await self._connect()
            event = await anext(self._events, None)
        except (httpx2.RequestError, RuntimeError) as error:
            self._client.check_open()  # a closed httpx2 client raises RuntimeError
            if isinstance(error, RuntimeError):
                raise
            raise lost(error, self._client.target) from error
        if event is None:
            raise ended()
        shown = self.watching.take(event.event, event.data, event.id)
        self._attempts.succeeded()
        return shown

    async def _connect(self) -> None:
        self._client.check_open()
        path, headers = self.watching.request()
        self._stack = AsyncExitStack()
        source = await self._stack.enter_async_context(
            self._client.http.sse(
                path, headers=headers, timeout=stream_timeouts(), max_event_size=EVENT_MAX_BYTES
            )
        )
        self._response = answer = source.response
        if self._stop.is_set():
            self._abort()
        if answer.status_code != 200:
            raise error_of(answer.status_code, answer.headers, await answer.aread())
        self._events = aiter(source)

    async def _disconnect(self) -> None:
        stack, self._stack, self._response = self._stack, None, None
        self._client.opened.discard(self)
        if stack is not None:
            with shielded():
                await stack.aclose()

    def _abort(self) -> None:
        """Unblock another thread that waits for the next event."""
        if self._response is not None:
            shut_down(self._response.extensions["network_stream"].get_extra_info("socket"))


class AsyncCursor(AsyncBackground, Progress):
    """The position of a reader in its topics, stored by the server in the topic ``cursor:NAME``.

        async with client.cursor("billing") as cursor:
            async for event in client.watch("orders", cursor=cursor):
                ...

    An event counts as read when the loop requests the next one, or when the block ends without an
    exception. The position is saved within a second of a change, and at the end of the block. After
    an exception, Ctrl-C or a cancellation, the next run receives the event again.

    The first save creates the topic. If the key has the scope admin, the topic keeps one record and
    has the durability ``fsync``. Otherwise, create the topic first, or it will keep a record of
    each save.
    """

    def __init__(self, client: AsyncCaller, name: str) -> None:
        AsyncBackground.__init__(self, f"cursor {name}")
        Progress.__init__(self)
        self._client, self._topic = client, CURSOR_PREFIX + name
        self._creation: dict[str, object] = {}  # the options that create the topic
        self._saving = AsyncLock()

    async def __aenter__(self) -> Self:
        try:
            page = await self._client.call(calls.diff(self._topic, 0))
            if not page.caught_up:
                page = await self._client.call(calls.diff(self._topic, page.head_seq - 1))
            self.load(page)
        except NotFound:
            self._creation = {"create": True, "config": CURSOR_CONFIG}
        await self._begin(self._keep)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self.done()
                await self.save()
            else:
                with shielded():
                    await self._save_soon(SHUTDOWN_S)
        finally:
            await self._end()

    async def save(self) -> None:
        """Save the position now, if it has changed. Raises `TopicsError`."""
        await self._save(inf)

    async def _keep(self) -> None:
        """Save changed positions until the block ends."""
        while not await self._wait_for_end(SAVE_INTERVAL_S):
            await self._save_soon(SAVE_INTERVAL_S)

    async def _save_soon(self, timeout_s: float) -> None:
        """Save the position within ``timeout_s`` s, or log the failure."""
        try:
            await self._save(monotonic() + timeout_s)
        except TopicsError as failure:
            LOG.warning("positions not saved in %s: %s", self._topic, failure)

    async def _save(self, until: float) -> None:
        async with self._saving:
            if (positions := self.unsaved()) is None:
                return
            try:
                await self._append(positions, until)
            except Refused:
                if "config" not in self._creation:
                    raise
                self._creation = {"create": True}  # the key lacks the scope admin
                await self._append(positions, until)
            self._creation = {}
            self.saved(positions)

    async def _append(self, positions: Mapping[str, Position], until: float) -> None:
        body = {"records": [{"data": positions}], **self._creation}
        await self._client.call(calls.append(self._topic, body), until=until)
