"""Streams without a server: the test replies for the shard, and the clients are at the other ends
of socket pairs.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple

import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.wire import TABLE
from topics.config import Settings
from topics.engine.access import ANYONE
from topics.engine.priority import BANDS, NEW_BAND
from topics.errors import TopicsError
from topics.formats.api.limits import limits_of
from topics.formats.api.watch import Start, View
from topics.formats.wire import calls
from topics.formats.wire.contract import Call, Event, P, R
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.limits import make_slots
from topics.front.live.live import Live
from topics.front.live.streams import Stream
from topics.front.live.watch_sessions import WatchSession
from topics.front.live.watch_streams import WatchStream
from topics.front.live.web_socket import WebSocket
from topics.front.pressure.governor import COALESCE_AT, LATE_MAX, PACE_AT, SHARE_MAX
from topics.front.pressure.pressure import Pressure

BY_METHOD = {row.method: row for row in TABLE if isinstance(row, Call)}
# Defaults for pages that do not specify these fields
PAGE = {"band": NEW_BAND, "is_awaited": False}


def calm() -> Pressure:
    """Return the pressure of a front of two shards without lag."""
    return Pressure(2, lambda _shard: 0.0)


def press(pressure: Pressure, pace: float = 0.0) -> None:
    """Simulate lag, so that pages are coalesced. With a ``pace``, streams are also paced."""
    pressure.is_unthrottled = False
    for governor in pressure.governors:
        late = PACE_AT + pace * (LATE_MAX - PACE_AT) if pace else COALESCE_AT
        governor.is_unthrottled, governor._late = False, late


def refuse_next(pressure: Pressure) -> None:
    """Keep the pressure constant, and refuse the next write or stream of any band."""
    press(pressure, pace=1.0)
    pressure.tick = lambda lag_ms: None  # type: ignore[method-assign]
    for governor in pressure.governors:
        governor.share, governor._shares = SHARE_MAX, [SHARE_MAX] * BANDS
        governor._debts = [1.0] * BANDS


def relax(pressure: Pressure) -> None:
    """Stop the simulated lag."""
    press(pressure)
    pressure.is_unthrottled = True
    for governor in pressure.governors:
        governor.is_unthrottled, governor._late = True, 0.0


def deliver(live: Live, shard: int, method: str, params: dict[str, Any], body: bytes) -> None:
    """Deliver an event of a shard, by its method and the names of its params."""
    if method == calls.FEED_PAGE.method:
        live.page(shard, calls.FeedPageParams(**PAGE | params), body)
    elif method == calls.FEED_ENDED.method:
        live.feed_ended(shard, calls.FeedEndedParams(**params))
    elif method == calls.WORK_JOBS.method:
        live.jobs(shard, calls.WorkJobsParams(**params), body)
    else:
        live.work_ended(shard, calls.WorkEndedParams(**params))


class ShardReply:
    """A reply of a shard."""

    def __init__(self, result: tuple[Any, ...], body: bytes) -> None:
        self.result, self.body = result, body

    def release(self) -> None:
        """Do nothing, because no memory is shared."""


SETTINGS = Settings()
SEND_BYTES = 8192  # Approximate capacity of a client's socket, for tests whose pages are larger

OnResult = Callable[[Any], None]


class ShardCall(NamedTuple):
    """A call of the front. ``then`` receives the reply."""

    method: str
    params: dict[str, Any]
    body: bytes
    then: OnResult


class Block:
    """A body in shared memory."""

    def __init__(self, length: int, holder: Any) -> None:
        self.view, self.holder, self.is_free = memoryview(bytearray(length)), holder, False

    def free(self) -> None:
        self.is_free = True


class Shards:
    """One shard, or two. Calls wait in ``pending`` for `settle` or `refuse`. ``events`` has the
    received events, and ``deferred`` has the ``is_deferred`` of each.
    """

    def __init__(self) -> None:
        self.pending: list[ShardCall] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.deferred: list[bool] = []
        self.elsewhere: set[str] = set()  # Topics of a second shard
        self.heads: dict[str, tuple[int, int, int]] = {}  # The heads that `answer` returns
        self.blocks: list[Block] = []  # All blocks that were ever reserved
        self.is_full = False

    def listen(self, listener: Any) -> None:
        """Do nothing, because the tests call `Live` directly."""

    def shard_of(self, topic: str) -> int:
        return int(topic in self.elsewhere)

    async def answer(
        self, shard: int, call: Call[P, R], params: Any, body: bytes = b""
    ) -> ShardReply:
        """Reply to a query of topic heads immediately. All other calls wait for `settle`."""
        if call is calls.TOPIC_HEADS:
            await trio.lowlevel.checkpoint()
            heads = {name: self.heads[name] for name in params.topics if name in self.heads}
            return ShardReply(calls.TopicHeadsResult(heads), b"")
        replied, replies = trio.Event(), list[ShardReply | TopicsError]()

        def then(answer: ShardReply | TopicsError) -> None:
            replies.append(answer)
            replied.set()

        self.call(shard, call, params, body, then)
        await replied.wait()
        if isinstance(replies[0], TopicsError):
            raise replies[0]
        return replies[0]

    def call(self, shard: int, call: Call[P, R], params: Any, body: Any, then: OnResult) -> None:
        raw = body if isinstance(body, bytes) else bytes(body.view)
        self.pending.append(ShardCall(call.method, params._asdict(), raw, then))

    def reserve(self, shard: int, length: int, holder: Any) -> Block | None:
        if self.is_full:
            return None
        self.blocks.append(Block(length, holder))
        return self.blocks[-1]

    def notify(
        self, shard: int, event: Event[P], params: Any, *, is_deferred: bool = False
    ) -> None:
        self.events.append((event.method, params._asdict()))
        self.deferred.append(is_deferred)

    def settle(self, method: str, body: bytes = b"", **result: Any) -> dict[str, Any]:
        """Reply to the oldest call of this method and return its params."""
        params, then = self._next(method)
        then(ShardReply(BY_METHOD[method].result(**result), body))
        return params

    def refuse(self, method: str, failure: TopicsError) -> None:
        """Fail the oldest call of this method."""
        _, then = self._next(method)
        then(failure)

    def _next(self, method: str) -> tuple[dict[str, Any], OnResult]:
        number = [call.method for call in self.pending].index(method)
        _, params, _, then = self.pending.pop(number)
        return params, then


class Socket:
    """The socket that a stream is sent through."""

    def __init__(self, sock: socket.socket, *, is_chunked: bool = False) -> None:
        self.sock, self.is_chunked = sock, is_chunked
        self.sent_bytes = 0


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return the server's end, which has a small send buffer, and the client's."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
    theirs.setblocking(False)
    return ours, theirs


class Listener:
    """The client's end of a stream's socket."""

    sock: socket.socket

    def receive(self) -> bytes:
        """Return the bytes received since the last call."""
        received = b""
        with suppress(BlockingIOError):
            while chunk := self.sock.recv(1 << 20):
                received += chunk
        return received

    async def receive_all(self) -> bytes:
        """Return all bytes that arrive until no more arrive."""
        received = b""
        while chunk := self.receive():
            received += chunk
            await wait_all_tasks_blocked()
        return received


def make_heartbeat_due(stream: Stream) -> None:
    """Pretend that nothing was sent for the duration of a heartbeat."""
    stream.outbox.last_sent -= stream.heartbeat_s
    stream.live.schedule_check(stream, 0.0)


class Client(Listener):
    """A watch stream of topic ``t`` and the other end of its socket."""

    def __init__(
        self,
        live: Live,
        seq: int = 0,
        epoch: int = 1,
        topic: str = "t",
        *,
        is_chunked: bool = False,
    ) -> None:
        ours, self.sock = socket_pair()
        self.session = WatchSession("wid", ANYONE, View(), 15.0, {topic: (seq, epoch)})
        connection: Any = Socket(ours, is_chunked=is_chunked)
        self.stream = self.session.stream = WatchStream(live, self.session, connection)
        self.stream.begin()
        self.stream.add(topic, View(), Start(seq, epoch=epoch))
        self.stream.catch_up()

    async def follow(self, topic: str) -> None:
        """Subscribe to another topic from its first record."""
        self.session.cursors[topic] = 0, 1
        self.stream.add(topic, View(), Start(0, epoch=1))
        self.stream.catch_up()
        await wait_all_tasks_blocked()

    def close(self) -> None:
        self.stream.end()
        self.stream.sock.close()
        self.sock.close()


class SocketClient(Listener):
    """A WebSocket and its other end."""

    def __init__(
        self, live: Live, settings: Settings = SETTINGS, timings: Timings | None = None
    ) -> None:
        ours, self.sock = socket_pair()
        connection = Connection(ours, Connections(timings or Timings(), 0.0))
        self.stream = WebSocket(live, connection, ANYONE, settings, limits_of(settings))

    def close(self) -> None:
        self.stream.end()
        self.stream.sock.close()
        self.sock.close()


class LiveHarness:
    """A running `Live`, its shard, and the clients that were created here."""

    def __init__(self) -> None:
        self.shards = Shards()
        self.pressure = calm()
        self.live = Live(self.shards, SETTINGS, make_slots(SETTINGS, 100), self.pressure)  # type: ignore[arg-type]
        self.clients: list[Client | SocketClient] = []
        self.exits = ExitStack()  # Closed when all tasks have ended

    async def client(self, seq: int = 0, **fields: Any) -> Client:
        """Return a client whose stream has made its first calls."""
        client = Client(self.live, seq, **fields)
        self.clients.append(client)
        await wait_all_tasks_blocked()
        return client

    def socket(self, *, begins: bool = True, **fields: Any) -> SocketClient:
        """Return a WebSocket. Unless it ``begins``, `WebSocket.run` must begin it."""
        client = SocketClient(self.live, **fields)
        self.clients.append(client)
        if begins:
            client.stream.begin()
        return client

    async def answer(self, method: str, body: bytes = b"", **result: Any) -> dict[str, Any]:
        """Reply as `Shards.settle`, and wait for all consequences."""
        params = self.shards.settle(method, body, **result)
        await wait_all_tasks_blocked()
        return params

    async def page(
        self, from_seq: int, to_seq: int, *, feed: int = 1, tombstone: Any = None
    ) -> None:
        """Deliver a complete page of a feed between these seqs, and wait for all consequences."""
        self.event(
            0,
            "feed.page",
            {"feed": feed, **page(from_seq, to_seq, tombstone)},
            records(from_seq, to_seq, tombstone),
        )
        await wait_all_tasks_blocked()

    def event(self, shard: int, method: str, params: dict[str, Any], body: bytes) -> None:
        """Deliver an event of a shard."""
        deliver(self.live, shard, method, params, body)


def page(
    from_seq: int, to_seq: int, tombstone: dict[str, Any] | None = None, head_seq: int | None = None
) -> dict[str, Any]:
    """Return the fields of a page that contains all its records except lost ones."""
    first_seq = tombstone["gap_to"] if tombstone else from_seq
    return {
        "from_seq": from_seq,
        "to_seq": to_seq,
        "head_seq": to_seq if head_seq is None else head_seq,
        "earliest_seq": 1,
        "record_count": to_seq - first_seq,
        "tombstone": tombstone,
    }


def records(from_seq: int, to_seq: int, tombstone: dict[str, Any] | None = None) -> bytes:
    """Return the body of such a page."""
    first_seq = tombstone["gap_to"] if tombstone else from_seq
    return b",".join(b'{"$seq":%d}' % seq for seq in range(first_seq + 1, to_seq + 1))


def gap(gap_from: int, gap_to: int, reason: str = "mixed") -> dict[str, Any]:
    """Return a tombstone."""
    return {
        "gap_from": gap_from,
        "gap_to": gap_to,
        "reason": reason,
        "earliest_seq": 1,
        "head_seq": gap_to,
    }


@asynccontextmanager
async def live_harness() -> AsyncIterator[LiveHarness]:
    """Run a `Live` with a fake shard until the block ends."""
    made = LiveHarness()
    with made.exits:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.live.run)
            await wait_all_tasks_blocked()
            yield made
            for client in made.clients:
                client.close()
            nursery.cancel_scope.cancel()
