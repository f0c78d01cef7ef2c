"""HTTP server of one front process: builds its parts, accepts clients, enforces deadlines, drains.

    listener --> Acceptor --> an Http1Protocol for each connection --> Guard --> Dispatcher
                                         data plane: operations --> shards <--.       |
                                         admin plane: Quart views ------------'-------'

The drain has these steps:

- New requests are refused, and in-flight requests finish.
- Long polls end after `POLL_GRACE_S`.
- The remaining connections are reset when their share of ``drain_ms`` is over.
- Clients that connected during the drain get a short time for their responses.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence

import structlog
import trio

from topics.actors.link.board import Board
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.tick import wait_tick
from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.engine.access import Access
from topics.formats.api.response_heads import ResponseHeads
from topics.front.access_log import AccessLog, Write
from topics.front.authorization import key_of
from topics.front.data.context import RouteContext
from topics.front.dispatch import Dispatcher
from topics.front.guard import Guard
from topics.front.held_memory import HeldMemory
from topics.front.http.accepting import Acceptor, connections_max
from topics.front.http.admin_plane import AdminApplication, AdminPlane
from topics.front.http.body_reader import BodyReader
from topics.front.http.connection import Connection, Connections, Timings
from topics.front.http.exchange import HttpParts
from topics.front.http.head_reader import HeadReader
from topics.front.http.http1_protocol import Http1Protocol
from topics.front.http.poller import Poller
from topics.front.http.request_counts import RequestCounts, RequestIds
from topics.front.keys import Keys, KeySource
from topics.front.limits import make_slots
from topics.front.live.live import Live
from topics.front.pressure.pressure import Pressure
from topics.front.proxies import TrustedProxies
from topics.front.table import match, operations_for

log = structlog.get_logger()

DRAIN_SHARE = 0.75  # share of drain_ms; the rest is for the shards, which must outlive requests
# The date format of RFC 9110. It requires the C locale, which this program never changes.
DATE = "%a, %d %b %Y %H:%M:%S GMT"
# Additional share of the drain time, for responses to clients that connected during the drain.
LATE_SHARE = 0.05
POLL_GRACE_S = 0.5  # a read that is still running after this time is a long poll, and is ended


class Server:
    """All parts of a front. Tests read ``connections`` and call `Connections.sweep` directly."""

    def __init__(
        self,
        settings: Settings,
        key_source: KeySource,
        shards: Shards,
        *,
        probe_auth: bool = False,
        timings: Timings | None = None,
        write_request: Write | None = None,
        board: Board | None = None,
    ) -> None:
        """``probe_auth`` is TOPICS_PROBE_AUTH: health and readiness also need a key.

        ``timings`` are the time limits of connections; None means the defaults. ``write_request``
        writes a line of the access log. ``board`` has the metrics of all processes.
        """
        self._drain_s = DRAIN_SHARE * settings.drain_ms / 1000
        self._poll_grace_s = min(POLL_GRACE_S, self._drain_s / 2)
        self._responses = ResponseHeads()
        self.slots = make_slots(settings, connections_max(settings.shards))
        held = HeldMemory(settings.max_held_bytes)
        self._key_source, self._shards = key_source, shards
        self.keys = Keys(key_source.access)
        self.connections = Connections(
            timings or Timings(), trio.current_time(), held, has_keys=self.keys.access.enabled
        )
        self.guard = Guard(
            settings,
            self.keys,
            match,
            shards.shard_of,
            self.slots.requests,
            probe_auth=probe_auth,
        )
        self.request_counts = RequestCounts()
        self._ids = RequestIds()
        self.acceptor = Acceptor(
            self._responses,
            self._lines_of_unread,
            self.slots.connections,
            lambda: self.connections.request_count,
            self.connections.evict,
            lambda initial_input: key_of(self.keys.access, initial_input),
        )
        lag = EventLoop.of_this_run().lag
        self.pressure = Pressure(shards.count, shards.delay_ms, lag=lag)
        self.live = Live(shards, settings, self.slots, self.pressure, self.keys, held)
        self._context = context = RouteContext.of(
            shards,
            settings,
            self.guard.drain,
            self.live,
            Board(shards.count) if board is None else board,
        )
        self.dispatcher = Dispatcher(operations_for(context), shards.readiness)
        self._admin = AdminPlane(self._load_admin)
        self.parts = self._make_parts(settings, shards, write_request)
        # Set the date of responses before the first request.
        self._tick(0.0)

    def _make_parts(
        self, settings: Settings, shards: Shards, write_request: Write | None
    ) -> HttpParts:
        """Return the objects that all connections share."""
        inline_bytes, log = settings.inline_bytes, None
        if settings.access_log != "off" and write_request is not None:
            log = AccessLog(settings.access_log, write_request)
        return HttpParts(
            guard=self.guard,
            heads=HeadReader(self.guard, self.dispatcher.operations, inline_bytes=inline_bytes),
            bodies=BodyReader(shards, self.guard, inline_bytes=inline_bytes),
            dispatcher=self.dispatcher,
            admin=self._admin,
            connections=self.connections,
            responses=self._responses,
            ids=self._ids,
            counts=self.request_counts,
            log=log,
            proxies=TrustedProxies(settings.trusted_proxies),
            on_end=self.slots.connections.release,
        )

    def _lines_of_unread(self) -> bytes:
        """Return the header lines for a response to a client whose request was not read."""
        return self._ids.line() + self.guard.cors.lines_of_unread

    def _load_admin(self) -> AdminApplication:
        """Import and build the admin plane, in a thread.

        The import is local, because the data plane must not wait for it at startup.
        """
        from topics.front.admin.application import make_application

        return make_application(self.dispatcher, self._context)

    def measured(self) -> Mapping[str, int | Sequence[int]]:
        """Return the metrics that the front counts, by name."""
        return {
            **self.request_counts.values(),
            "topics_connections_open": len(self.connections),
            "topics_connections_refused_total": self.acceptor.refusals.count,
            "topics_streams": self.live.stream_counts,
            "topics_held_answer_bytes": self.connections.held.size,
            "topics_held_request_bytes": self.connections.held.unread.size,
            "topics_backups_total": self._context.backups.counts,
            "topics_backup_finished_ms": self._context.backups.finished_ms,
        }

    async def run(self, listener: socket.socket, stop: trio.Event) -> None:
        """Serve until ``stop`` is set and all connections have ended.

        Return before ``drain_ms`` has passed since ``stop`` was set.
        """
        # The admin plane ends last, because its requests run in tasks of the inner nursery.
        async with trio.open_nursery() as admin:
            admin.start_soon(self._admin.run)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.connections.run, self._tick)
                nursery.start_soon(self.connections.disconnect_excess)
                nursery.start_soon(self.live.run)
                nursery.start_soon(self._watch_keys)
                nursery.start_soon(self.pressure.run)
                poller = Poller(nursery, self.connections)
                nursery.start_soon(poller.run)
                await self._serve_until(listener, stop, poller)
                nursery.cancel_scope.cancel()
            self._admin.end()

    async def _watch_keys(self) -> None:
        """Check for new keys at each tick, until cancelled."""
        while True:
            if (access := self._key_source.changed()) is not None:
                self._replace_keys(access)
            await wait_tick()

    def _replace_keys(self, access: Access) -> None:
        """Replace the keys, and end the calls, streams and sessions that they no longer permit.

        This function never waits.
        """
        self.keys.access = access
        # The cached heads of requests were admitted with the old keys.
        self.parts.heads.clear()
        self.guard.drain.end_refused(self.guard.renewed)
        self.live.end_refused()
        self._context.watches.end_refused()

    def _tick(self, _now: float) -> None:
        """Update the date of responses and the acceptor, once a second."""
        self._responses.set_date(time.strftime(DATE, time.gmtime()).encode("ascii"))
        self.acceptor.tick()

    async def _serve_until(self, listener: socket.socket, stop: trio.Event, poller: Poller) -> None:
        """Accept clients until the end of the drain.

        A client that connects during the drain gets a response and does not hang in the listen
        queue.
        """
        with listener:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, listener, poller)
                await stop.wait()
                await self._drain()
                accepting.cancel_scope.cancel()
        await self._end_late()

    async def _accept(self, listener: socket.socket, poller: Poller) -> None:
        """Accept clients and start a protocol for each of them, until cancelled."""

        def take(sock: socket.socket, initial_input: bytes) -> None:
            connection = Connection(sock, self.connections, initial_input)
            self.connections.add(connection)
            Http1Protocol(connection, self.parts, poller).begin()

        await self.acceptor.run(listener, take)

    async def _drain(self) -> None:
        """Let in-flight requests finish, end long polls early, and reset the remaining
        connections.
        """
        self.guard.drain.begin()
        self.live.drain()
        self.connections.drain()
        # Reads that finish on their own get a normal response.
        with trio.move_on_after(self._poll_grace_s):
            await self.connections.wait_closed()
        self.guard.drain.stop_waiting()
        with trio.move_on_after(self._drain_s - self._poll_grace_s):
            await self.connections.wait_closed()
        if self.connections.draining_count:
            count = self.connections.draining_count
            log.warning("connections cut", count=count, reason="the drain timed out")
            self.connections.abort_all()

    async def _end_late(self) -> None:
        """Wait a short time for responses to clients that connected during the drain.

        The listener is already closed, so no further client can connect.
        """
        self.connections.drain()
        with trio.move_on_after(LATE_SHARE * self._drain_s):
            await self.connections.wait_closed()
        self.connections.abort_all()
