"""One request through the unmodified Hypercorn stack, on a connection that belongs to the fast lane.

    raw head --> ProtocolWrapper --> body, exactly up to its end --> [app answers] --> Updated(idle) --> fast lane
                        |
                        '--> HTTP/2 or WebSocket --> all bytes, until the connection ends

Hypercorn gets exactly one request's bytes, after the strict reader has judged their framing: it never sees the next request, so
two readings of one message cannot differ. Each cold request has a protocol object of its own (30 us beside the 500 us that
such a request takes).
"""

from __future__ import annotations

from dataclasses import dataclass

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import ProtocolWrapper
from hypercorn.protocol.h2 import H2Protocol
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from topics.front.connections import NEVER, Connection
from topics.front.http1 import Framing

READ_AHEAD_BYTES = 64 * 1024  # pipelined behind a request that Hypercorn still answers
CONNECTION_KEY = "topics.connection"  # in the ASGI scope's state
INTERIM = b"HTTP/1.1 1"


@dataclass(frozen=True, slots=True)
class ColdLane:
    """What Hypercorn needs to serve a connection."""

    app: ASGIWrapper
    config: Config
    context: WorkerContext


class Bridge:
    """Carries bytes between one connection and one Hypercorn protocol object."""

    def __init__(self, connection: Connection, cold: ColdLane) -> None:
        self._connection = connection
        self._cold = cold
        self._sending = trio.Lock()
        self._answered = trio.CancelScope()  # around the reading side; cancelled when the answer is out
        self._muted = False
        self.has_answered = False  # at least in part
        self._protocol: ProtocolWrapper

    async def run(self, head: bytes, parts: Framing) -> None:
        """Feed one request and return when it is answered; the connection then is between two requests, or closing.

        Raises `InvalidRequest` for a body with broken framing that nothing has been answered to yet.
        """
        connection = self._connection
        async with TaskGroup() as group:
            self._protocol = self._new_protocol(group)
            await self._protocol.initiate()
            try:
                with self._answered:
                    await self._feed(head, parts)
            except BaseException:
                self._muted = True  # the app is cancelled now and must not answer
                connection.lower_shields()
                raise
        connection.deadline = NEVER
        connection.waits_since = NEVER
        if not parts.done:
            connection.closing = connection.unread_body = True
        elif not self._between_requests():
            connection.closing = True

    def _new_protocol(self, group: TaskGroup) -> ProtocolWrapper:
        cold, sock = self._cold, self._connection.sock
        client = parse_socket_addr(sock.family, sock.getpeername())
        server = parse_socket_addr(sock.family, sock.getsockname())
        state = ConnectionState({CONNECTION_KEY: self._connection})
        return ProtocolWrapper(cold.app, cold.config, cold.context, group, state, False, client, server, self._take, "http/1.1")

    async def _feed(self, head: bytes, parts: Framing) -> None:
        """All that the client says until the answer is out. Returns when the client has gone first."""
        await self._protocol.handle(RawData(head))
        if self._switched():
            await self._feed_everything()
        else:
            await self._feed_body(parts)
            await self._wait_for_hang_up()
        self._connection.closing = True
        await self._protocol.handle(Closed())
        if self._switched():
            self._connection.lower_shields()  # an answer that waits for HTTP/2 flow control would wait for ever

    def _switched(self) -> bool:
        """Does the connection speak something else than HTTP/1 requests from now on?"""
        inner = self._protocol.protocol
        return not isinstance(inner, H11Protocol) or not isinstance(inner.connection, h11.Connection)

    def _between_requests(self) -> bool:
        inner = self._protocol.protocol
        if not isinstance(inner, H11Protocol) or not isinstance(inner.connection, h11.Connection):
            return False
        machine = inner.connection
        at_rest = machine.our_state is h11.IDLE and machine.their_state is h11.IDLE
        return inner.stream is None and at_rest and not machine.trailing_data[0]

    async def _feed_body(self, parts: Framing) -> None:
        connection = self._connection
        connection.begin_body()
        while not parts.done:
            if connection.pos == len(connection.buffer):
                if not await connection.receive():
                    raise ConnectionResetError("the client left within a body")
                connection.earned(len(connection.buffer))
            start = connection.pos
            _, connection.pos = parts.take(connection.buffer, start)
            await self._protocol.handle(RawData(connection.buffer[start : connection.pos]))
        connection.deadline = NEVER

    async def _wait_for_hang_up(self) -> None:
        """Returns a moment after the client has closed its side; until then reads ahead, up to a bound."""
        connection = self._connection
        while len(connection.buffer) - connection.pos < READ_AHEAD_BYTES:
            if not await connection.receive():
                await trio.sleep(connection.timings.tick_s)  # it may only be half-closed and wait for its answer
                return
        connection.waits_since = connection.connections.now
        await trio.sleep_forever()

    async def _feed_everything(self) -> None:
        connection = self._connection
        inner = self._protocol.protocol
        self._update(idle=isinstance(inner, H2Protocol) and inner.idle)
        while True:
            if connection.pos < len(connection.buffer):
                data = connection.buffer[connection.pos :]
                connection.pos = len(connection.buffer)
                try:
                    await self._protocol.handle(RawData(data))
                except KeyError:  # Hypercorn's, for the rest of a body after its stream was answered
                    return
            if not await connection.receive():
                return

    async def _take(self, event: Event) -> None:
        """What Hypercorn sends."""
        if self._muted:
            return
        if isinstance(event, RawData):
            await self._send(event.data)
        elif isinstance(event, Closed):
            self._connection.closing = True
            self._answered.cancel()
            await self._protocol.handle(Closed())
        elif isinstance(event, Updated):
            self._update(idle=event.idle)

    def _update(self, *, idle: bool) -> None:
        connection = self._connection
        if not self._switched():
            if idle:
                self._answered.cancel()
            return
        connection.idle = idle
        connection.deadline = connection.connections.now + connection.timings.idle_s if idle else NEVER
        if idle and connection.connections.draining:
            connection.end_idle()

    async def _send(self, data: bytes) -> None:
        # Shielded: a half-sent piece would spoil the framing. The sweep ends a send that does not move.
        if not data.startswith(INTERIM):
            self.has_answered = True
        try:
            with trio.CancelScope(shield=True):
                async with self._sending:
                    await self._connection.send(data)
        except (OSError, trio.ClosedResourceError):
            self._connection.closing = True
            self._answered.cancel()
            await self._protocol.handle(Closed())
