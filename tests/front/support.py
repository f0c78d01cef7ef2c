"""A server on a real socket with shards in this process, and a client that says exactly the bytes
it is told.
"""

from __future__ import annotations

import gzip
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import trio
import trio.testing

from topics.actors.link.arena import Holder
from topics.actors.shard_client.readiness import Readiness
from topics.actors.shard_client.shard_link import Listener
from topics.config import Settings
from topics.engine.access import Access
from topics.errors import (
    Internal,
    InvalidRequest,
    NotReady,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
)
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event, P, R
from topics.front.backend import Body
from topics.front.http.connections import Timings
from topics.front.http.server import Server


class FakeReply:
    def __init__(self, result: Any, body: bytes | memoryview, owner: FakeBackend) -> None:
        self.result = result
        self.body = body
        self._owner = owner
        self._released = False
        owner.replies_out += 1

    def release(self) -> None:
        assert not self._released, "released twice"
        self._released = True
        self._owner.replies_out -= 1

    def on_lost(self, let_go: Callable[[], object]) -> None:
        self._owner.let_go.append(let_go)


class FakeBlock:
    """Arena memory. The owner counts what is out."""

    def __init__(self, length: int, owner: FakeBackend) -> None:
        self.view = memoryview(bytearray(length))
        self.freed = False
        self._owner = owner
        owner.blocks_out += 1

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        if self._owner.full:
            return None
        old, self.view = self.view, memoryview(bytearray(length))
        self.view[:keep] = old[:keep]
        return iter([None])

    def shrink(self, n: int) -> None:
        self.view = self.view[:n]

    def free(self) -> None:
        assert not self.freed, "freed twice"
        self.freed = True
        self._owner.blocks_out -= 1


@dataclass
class FakeBackend:
    """Crude shards: topics are lists of JSON values."""

    shards: int = 2
    topics: dict[str, list[Any]] = field(default_factory=dict)
    ready: bool = True
    full: bool = False
    holders: list[Holder] = field(default_factory=list)  # of every block that was ever out
    let_go: list[Callable[[], object]] = field(default_factory=list)  # of replies that took long
    replies_out: int = 0
    blocks_out: int = 0
    calls: list[tuple[str, Any, bytes]] = field(default_factory=list)
    cancelled: int = 0
    waiting: int = 0
    gate: trio.Event | None = None  # calls of topic "slow" wait for it
    answer_bytes: int = 0  # size of a diff's filler
    listener: Listener | None = None

    def shard_of(self, topic: str) -> int:
        return crc32(topic.encode()) % self.shards

    async def call(self, shard: int, call: Call[P, R], params: Any, body: Body = b"") -> FakeReply:
        raw = self._take(body)
        self.calls.append((call.method, params, raw))
        if not self.ready:
            await trio.lowlevel.checkpoint()
            raise NotReady("the shard is recovering")
        if getattr(params, "topic", "") == "slow" and self.gate is not None:
            self.waiting += 1
            try:
                await self.gate.wait()
            except trio.Cancelled:
                self.cancelled += 1
                raise
            finally:
                self.waiting -= 1
        await trio.lowlevel.checkpoint()
        return FakeReply(*self._answer(call, params, raw, shard), self)

    def listen(self, listener: Listener) -> None:
        self.listener = listener

    def ask(
        self,
        shard: int,
        call: Call[P, R],
        params: Any,
        body: Body,
        then: Callable[[FakeReply | TopicsError], None],
    ) -> None:
        raw = self._take(body)
        self.calls.append((call.method, params, raw))
        then(FakeReply(*self._answer(call, params, raw, shard), self))

    def notify(self, shard: int, event: Event[P], params: P) -> None:
        self.calls.append((event.method, params, b""))

    def flush(self, shard: int) -> None:
        pass

    def reserve(self, shard: int, length: int, holder: Holder | None) -> FakeBlock | None:
        if self.full:
            return None
        if holder is not None:
            self.holders.append(holder)
        return FakeBlock(length, self)

    def make_room(self, shard: int, holder: Holder, now: float) -> bool:
        return False

    def readiness(self) -> Readiness:
        return Readiness(self.ready, 1.0 if self.ready else 0.25, len(self.topics), False)

    def _take(self, body: Body) -> bytes:
        if isinstance(body, FakeBlock):
            raw = bytes(body.view)
            body.free()
            return raw
        return bytes(body)  # type: ignore[arg-type]

    def _answer(
        self, call: Call[P, R], params: Any, raw: bytes, shard: int
    ) -> tuple[tuple[Any, ...], bytes]:
        if call is calls.TOPIC_LIST:
            return calls.TopicListResult(self._items(params, shard)), b""
        topic = params.topic
        assert self.shard_of(topic) == shard
        if topic == "bug":
            raise RuntimeError("a secret of the inside")
        if topic == "shard-bug":
            raise Internal("a secret of the shard")
        try:
            document = json.loads(raw) if raw else {}
        except ValueError:
            raise InvalidRequest("the body is not JSON") from None
        rows = self.topics.get(topic)
        answer: dict[str, Any] = {"topic": topic}
        result: tuple[Any, ...] = calls.NO_RESULT
        if call is calls.APPEND:
            outcome = calls.AppendOutcome.CREATED if rows is None else calls.AppendOutcome.APPENDED
            result = calls.AppendResult(bytes((outcome,)))
            self.topics.setdefault(topic, []).extend(document["records"])
            head = len(self.topics[topic])
            answer |= {"head_seq": head, "created": rows is None}
        elif call is calls.TOPIC_PUT:
            result = calls.TopicPutResult(rows is None)
            self.topics.setdefault(topic, [])
            answer |= {"created": rows is None, "config": document}
        elif call is calls.TOPIC_DELETE:
            if params.if_empty and rows:
                raise TopicNotEmpty("the topic holds records")
            answer |= {"deleted": self.topics.pop(topic, None) is not None}
        elif rows is None:
            raise TopicNotFound(topic)
        elif call is calls.DIFF:
            result = calls.DiffResult(None)
            answer |= {
                "records": rows[document.get("from_seq", 0) :],
                "filler": "x" * self.answer_bytes,
            }
        else:
            answer |= {"head_seq": len(rows), "touch": getattr(params, "touch", None)}
        answer["performance"] = {"server_total_ms": 0.01}
        return result, json.dumps(answer).encode()

    def _items(self, params: calls.TopicListParams, shard: int) -> list[tuple[str, bytes]]:
        prefixes = None if params.prefixes is None else tuple(params.prefixes)
        names = sorted(
            name
            for name in self.topics
            if self.shard_of(name) == shard
            and name.startswith(params.prefix)
            and (params.after is None or name > params.after)
            and (prefixes is None or name.startswith(prefixes))
        )
        return [(name, b'{"topic":"%b"}' % name.encode()) for name in names[: params.limit]]


@dataclass
class Answered:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        body = (
            gzip.decompress(self.body)
            if self.headers.get("content-encoding") == "gzip"
            else self.body
        )
        return json.loads(body)

    @property
    def code(self) -> str:
        document = self.json()
        assert set(document) <= {"error", "performance"}
        assert set(document["error"]) <= {"code", "message", "detail"}
        return str(document["error"]["code"])


class RawClient:
    """Speaks HTTP/1.1 as bytes."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self._buffer = b""
        self.continued = 0  # interim answers heard

    async def say(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def hear(self, *, method: str = "POST") -> Answered:
        """The next final answer. Fails when the connection ends before it does."""
        while b"\r\n\r\n" not in self._buffer:
            await self._more()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if first.startswith("HTTP/1.1 100"):
            self.continued += 1
            return await self.hear(method=method)
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        status = int(first.split()[1])
        length = 0 if method == "HEAD" or status == 100 else int(headers["content-length"])
        while len(self._buffer) < length:
            await self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        return Answered(status, headers, body)

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
        await self.say(request(method, path, body, **headers))
        return await self.hear(method=method)

    async def is_closed(self) -> bool:
        """Waits for the server to close. False when it says something instead."""
        if self._buffer:
            return False
        try:
            with trio.fail_after(10):
                return await self.stream.receive_some(4096) == b""
        except trio.BrokenResourceError:
            return True

    async def _more(self) -> None:
        with trio.fail_after(20):
            data = await self.stream.receive_some(65536)
        if not data:
            raise EOFError(f"the server closed; so far: {self._buffer[:200]!r}")
        self._buffer += data


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """One request's bytes; ``content_type=""`` leaves the field out."""
    fields = {"host": "localhost"}
    if body:
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1"] + [
        f"{name}: {value}" for name, value in fields.items() if value
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


@dataclass
class Running:
    server: Server
    backend: FakeBackend
    stop: trio.Event
    address: tuple[str, int]
    stopped: trio.Event

    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        self.clients.append(RawClient(await trio.open_tcp_stream(*self.address)))
        return self.clients[-1]

    def sweep_in(self, seconds: float) -> None:
        """Let the sweep see a later time."""
        self.server.connections.sweep(trio.current_time() + seconds)

    async def until(self, condition: Callable[[], bool]) -> None:
        with trio.fail_after(10):
            while not condition():  # the kernel is in between: there is no event to wait for
                await trio.testing.wait_all_tasks_blocked(0.001)


Start = Callable[..., Awaitable[Running]]


@asynccontextmanager
async def running(
    *,
    keys: str = "",
    fast: bool = True,
    settings: Settings | None = None,
    backend: FakeBackend | None = None,
    timings: Timings | None = None,
    probe_auth: bool = False,
) -> AsyncIterator[Running]:
    """A server until the block ends. Afterwards no block and no reply may be out."""
    backend = backend or FakeBackend()
    settings = settings or Settings(inline_bytes=4096, max_body_bytes=1024 * 1024, drain_ms=2000)
    listener = socket.create_server(("127.0.0.1", 0))
    address = listener.getsockname()
    server = Server(
        settings,
        Access.parse(keys),
        backend,
        use_fast_lane=fast,
        timings=timings or Timings(tick_s=0.2),
        probe_auth=probe_auth,
    )
    run = Running(server, backend, trio.Event(), address, trio.Event())

    async def serve() -> None:
        await server.run(listener, run.stop)
        run.stopped.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        try:
            yield run
        finally:
            run.stop.set()
            for client in run.clients:
                client.stream.socket.close()
    assert len(server.connections) == 0
    assert backend.blocks_out == 0
    assert backend.replies_out == 0
