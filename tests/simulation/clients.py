"""A client over any byte stream: HTTP/1.1 with one connection for calls and one for each event
stream. The history contains all of its requests and responses.

A call is recorded when it is sent. Its status stays None if the connection is lost, if no response
arrives within `LIMIT_S`, or if the client is stopped. The next call reconnects. Each event with
data is a `StreamEvent`. Comments and ``retry`` fields are ignored. A stream that was opened ends
with an artificial `StreamEvent` named ``end``, whose data names the side that ended it:

    left    the client; recorded before the server can detect it
    lost    the server or the network

Time is trio's and randomness is only the ``rng``, so a seed reproduces every byte under a virtual
clock.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import chain, repeat
from typing import Any, Self, TypeAlias, cast

import msgspec
import trio

from tests.simulation.history import Call, History, StreamEvent
from tests.support.sse import Decoder, Unchunk

Connect: TypeAlias = Callable[[], Awaitable[trio.abc.Stream]]
Token: TypeAlias = Callable[[], str]

END, LEFT, LOST = "end", "left", "lost"
JSON, EVENTS, TAR = "application/json", "text/event-stream", "application/x-tar"
LIMIT_S = 45.0  # above the 30 s that a call may request to wait
HASTE_S = (0.0, 0.001, 0.02, 0.3)  # timeouts of calls that are abandoned early
IDLE_S = 70.0  # the server closes a connection that was idle for 75 s
CONNECT_S = (0.02, 5.0)  # between two attempts to connect; doubled each time
RETRIED = (None, 429, 503)  # perhaps not executed: retry
RETRY_PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 20.0)  # between two retries
PAUSES_S = (0.001, 0.05, 1.0)  # within a request that is sent in two fragments
CHUNK_BYTES = 1 << 16
UNTIL_THE_END = 1 << 62  # length of a response body that extends to the end of the connection
BROKEN = (OSError, EOFError, trio.BrokenResourceError, trio.ClosedResourceError)


class Wire:
    """One connection. Methods raise an exception of `BROKEN` when it is lost."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream, self._buffer = stream, bytearray()
        self._unchunk: Unchunk | None = None  # of a chunked response
        self._left = 0  # remaining bytes of a response that is not chunked
        self.is_reusable = True  # another request may follow a response that was read completely
        self.used_at = trio.current_time()

    async def send(self, call: Call, accept: str, rng: random.Random, slow: float) -> None:
        """Send a request. ``slow`` is the share of requests that are sent in two fragments."""
        content = b"" if call.body is None else msgspec.json.encode(call.body)
        headers = {"Host": "localhost", "Accept": accept} | call.headers
        if call.body is not None:
            headers |= {"Content-Type": JSON, "Content-Length": f"{len(content)}"}
        fields = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        data = f"{call.method} {call.path} HTTP/1.1{fields}\r\n\r\n".encode() + content
        at = rng.randrange(1, len(data)) if rng.random() < slow else len(data)
        # the server may respond before it has read the complete request
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(data[:at])
            if at < len(data):
                await trio.sleep(rng.choice(PAUSES_S))
                await self._stream.send_all(data[at:])

    async def head(self) -> tuple[int, str]:
        """Return status and media type of the response. Interim responses are skipped."""
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            await self._receive_more()
        first, *lines = self._buffer[:end].decode("latin-1").lower().split("\r\n")
        del self._buffer[: end + 4]
        status = int(first.split(" ")[1])
        if status < 200:
            return await self.head()
        fields = dict(line.split(": ", 1) for line in lines)
        self._unchunk = Unchunk() if fields.get("transfer-encoding") == "chunked" else None
        self._left = int(fields.get("content-length", UNTIL_THE_END))
        self.is_reusable = fields.get("connection") != "close"
        return status, fields.get("content-type", "").partition(";")[0]

    async def chunk(self) -> bytes:
        """Return the next chunk of the body, or b"" at its end."""
        while True:
            at = len(self._buffer) if self._unchunk else self._left
            chunk = bytes(self._buffer[:at])
            del self._buffer[:at]
            self._left -= len(chunk)
            if self._unchunk:
                chunk = self._unchunk.feed(chunk)
            if chunk or (self._unchunk.ended if self._unchunk else not self._left):
                return chunk
            await self._receive_more()

    async def value(self, media: str) -> Any:
        """Return the complete body: JSON as a value, a tar as bytes, anything else as text."""
        content = bytearray()
        while chunk := await self.chunk():
            content += chunk
        self.used_at = trio.current_time()
        if media == TAR:
            return bytes(content)
        return msgspec.json.decode(content) if media == JSON else content.decode()

    async def _receive_more(self) -> None:
        chunk = await self._stream.receive_some(CHUNK_BYTES)
        if not chunk:
            raise EOFError("the connection has ended")
        self._buffer += chunk

    async def close(self) -> None:
        """Close the connection, even during a request."""
        await trio.aclose_forcefully(self._stream)


class Events:
    """The events of a requested stream. There are none if the request was refused or got no
    response.
    """

    def __init__(self, call: Call, history: History) -> None:
        self.call, self._history, self._decoder = call, history, Decoder()
        self.wire: Wire | None = None  # while the stream is open
        self._received: deque[StreamEvent] = deque()

    def end(self, how: str) -> None:
        """Record the end of a stream that was open."""
        if self.wire is not None:
            self.wire = None
            self._history.record_stream_event(self.call, END, "", how)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._received:
            if self.wire is None:
                raise StopAsyncIteration
            chunk = b""
            with suppress(*BROKEN):
                chunk = await self.wire.chunk()
            self._take(chunk) if chunk else self.end(LOST)
        return self._received.popleft()

    def _take(self, chunk: bytes) -> None:
        for event in self._decoder.feed(chunk):
            if event.data is not None:
                name, data = event.event or "message", msgspec.json.decode(event.data)
                self._history.record_stream_event(self.call, name, event.id or "", data)
                self._received.append(cast("StreamEvent", self._history.entries[-1]))


class Client:
    """A simulated client. ``token``: the current key, if the server requires one. ``haste``: the
    share of calls that are abandoned early. ``slow``: the share of requests that are sent in two
    fragments. ``until``: when the client stops retrying.
    """

    def __init__(
        self,
        name: str,
        connect: Connect,
        history: History,
        rng: random.Random,
        token: Token | None = None,
    ) -> None:
        self.name, self.rng, self._connect, self._history = name, rng, connect, history
        self._token = token
        self._wire: Wire | None = None
        self.haste = self.slow = 0.0
        self.until = float("inf")

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Call:
        """Send a request and wait for the response. ``_`` in names of headers stands for ``-``."""
        wire = await self._connected()
        call = self._record_request(method, path, body, headers)
        status, answer, is_reusable = None, None, False
        is_hasty = self.rng.random() < self.haste
        try:
            with (
                trio.move_on_after(self.rng.choice(HASTE_S) if is_hasty else LIMIT_S),
                suppress(*BROKEN),
            ):
                await wire.send(call, JSON, self.rng, self.slow)
                new_status, media = await wire.head()
                status, answer = new_status, await wire.value(media)
                is_reusable = wire.is_reusable
        finally:
            self._history.record_response(call, status, answer)
            if not is_reusable:
                await wire.close()
        if is_reusable:
            self._wire = wire
        return call

    async def call_until_final(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> Call:
        """Retry until the response is final or the time limit is reached."""
        pauses = chain(RETRY_PAUSES_S, repeat(RETRY_PAUSES_S[-1]))
        while (call := await self.call(method, path, body, **headers)).status in RETRIED:
            if trio.current_time() > self.until:
                break
            await trio.sleep(next(pauses) * self.rng.uniform(0.5, 1.0))
        return call

    @asynccontextmanager
    async def stream(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> AsyncIterator[Events]:
        """Open an event stream on its own connection, and close it at the end."""
        wire = await self._new_wire()
        call = self._record_request(method, path, body, headers)
        events, status, answer = Events(call, self._history), None, None
        try:
            with trio.move_on_after(LIMIT_S), suppress(*BROKEN):
                await wire.send(call, EVENTS, self.rng, self.slow)
                new_status, media = await wire.head()
                if new_status == 200 and media == EVENTS:
                    events.wire = wire
                else:
                    answer = await wire.value(media)
                status = new_status
            self._history.record_response(call, status, answer)
            yield events
        finally:
            if not call.ended:
                self._history.record_response(call, None, None)
            events.end(LEFT)
            await wire.close()

    def _record_request(self, method: str, path: str, body: Any, headers: dict[str, str]) -> Call:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self._token is not None:
            sent["Authorization"] = f"Bearer {self._token()}"
        return self._history.record_request(self.name, method, path, body, **sent)

    async def _connected(self) -> Wire:
        """Return a new or idle connection. No other call uses it until its response is complete."""
        wire, self._wire = self._wire, None
        if wire is not None and trio.current_time() - wire.used_at > IDLE_S:
            await wire.close()
            wire = None
        return wire or await self._new_wire()

    async def _new_wire(self) -> Wire:
        pause_s, most_s = CONNECT_S
        while True:
            with suppress(*BROKEN):
                return Wire(await self._connect())
            await trio.sleep(pause_s * self.rng.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, most_s)
