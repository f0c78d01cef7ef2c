"""The HTTP server of one front process: builds the parts, accepts clients, sweeps, drains.

    listener --> Acceptor --> a FastLane task per connection --> Guard --> Dispatcher --> routes
                                                                              '-> shards (Backend)

Drain: new requests are refused; in-flight requests finish; long polls end after `POLL_GRACE_S`;
connections that remain are cut; clients that connected meanwhile have a moment for their answers.
"""

from __future__ import annotations

import logging
import socket
from email.utils import formatdate

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.trio.lifespan import Lifespan
from hypercorn.trio.worker_context import WorkerContext

from topics.actors.link.ledger import LimitsLedger
from topics.config import Settings
from topics.engine.access import Access
from topics.formats.api.response_heads import ResponseHeads
from topics.front.backend import Backend
from topics.front.dispatch import Dispatcher
from topics.front.guard import Guard
from topics.front.http.accepting import Acceptor, connections_max
from topics.front.http.body_reader import BodyReader
from topics.front.http.cold_bridge import ColdLane
from topics.front.http.cold_lane import hypercorn_config, make_app
from topics.front.http.connection import Connection, Timings
from topics.front.http.connections import Connections
from topics.front.http.fast_lane import FastLane, Lanes
from topics.front.http.head_reader import HeadReader
from topics.front.limits import make_slots
from topics.front.live.live import Live
from topics.front.routes.context import RouteContext
from topics.front.routes.table import ROUTES, match, operations_for

LOG = logging.getLogger("topics.front")

DRAIN_SHARE = 0.75  # of drain_ms; the rest is for the shards, which must outlive every request
LATE_SHARE = 0.05  # of that time again, for answers to clients that connected during the drain
POLL_GRACE_S = 0.5  # a read that still runs after so long is a long poll, and is ended


class Server:
    """All parts of a front. Tests read ``connections`` and sweep by hand."""

    def __init__(
        self,
        settings: Settings,
        access: Access,
        backend: Backend,
        *,
        probe_auth: bool = False,
        use_fast_lane: bool = True,
        timings: Timings | None = None,
        ledger: LimitsLedger | None = None,
    ) -> None:
        self._drain_s = DRAIN_SHARE * settings.drain_ms / 1000
        self._poll_grace_s = min(POLL_GRACE_S, self._drain_s / 2)
        self._responses = ResponseHeads()
        self.slots = make_slots(settings, connections_max(), ledger)
        self.connections = Connections(
            timings or Timings(), trio.current_time(), settings.arena_bytes
        )
        self.acceptor = Acceptor(
            self._responses, self.slots.connections, lambda: self.connections.request_count
        )
        self.guard = Guard(
            settings,
            access,
            match,
            backend.shard_of,
            self.slots.requests,
            probe_auth=probe_auth,
        )
        self.live = Live(backend, settings, self.slots)
        context = RouteContext.of(backend, settings, self.guard.drain, self.live)
        self.dispatcher = Dispatcher(operations_for(context), backend.readiness)
        self._app = ASGIWrapper(
            make_app(self.guard.drain, self.dispatcher, ROUTES)  # type: ignore[arg-type]
        )
        self._config = hypercorn_config()
        self.lanes = self._make_lanes(settings, backend, use_fast_lane=use_fast_lane)
        self._tick(0.0)

    def _make_lanes(self, settings: Settings, backend: Backend, *, use_fast_lane: bool) -> Lanes:
        inline_bytes = settings.inline_bytes
        return Lanes(
            guard=self.guard,
            heads=HeadReader(self.guard, inline_bytes=inline_bytes, use_fast_lane=use_fast_lane),
            bodies=BodyReader(backend, self.guard.body_limits, inline_bytes=inline_bytes),
            dispatcher=self.dispatcher,
            connections=self.connections,
            cold=ColdLane(self._app, self._config, WorkerContext(None)),
            responses=self._responses,
        )

    async def run(self, listener: socket.socket, stop: trio.Event) -> None:
        """Serve until ``stop`` is set and all connections have ended, or most of ``drain_ms`` has
        passed.
        """
        lifespan = Lifespan(self._app, self._config, {})
        async with trio.open_nursery() as app_nursery:
            await app_nursery.start(lifespan.handle_lifespan)
            await lifespan.wait_for_startup()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.connections.run, self._tick)
                nursery.start_soon(self.live.run)
                await self._serve_until(listener, stop, nursery)
                nursery.cancel_scope.cancel()
            await lifespan.wait_for_shutdown()
            app_nursery.cancel_scope.cancel()

    def _tick(self, _now: float) -> None:
        self._responses.set_date(formatdate(usegmt=True).encode("ascii"))
        self.acceptor.tick()

    async def _serve_until(
        self, listener: socket.socket, stop: trio.Event, nursery: trio.Nursery
    ) -> None:
        """Accept also while draining: a client that connects then gets an answer and does not
        hang in the listen queue.
        """
        with listener:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(self._accept, listener, nursery)
                await stop.wait()
                await self._drain()
                accepting.cancel_scope.cancel()
        await self._end_late()

    async def _accept(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        def take(sock: socket.socket, said: bytes) -> None:
            connection = Connection(sock, self.connections, said)
            self.connections.add(connection)
            nursery.start_soon(self._serve, connection)

        await self.acceptor.run(listener, take)

    async def _serve(self, connection: Connection) -> None:
        try:
            await FastLane(connection, self.lanes).run()
        finally:
            self.connections.remove(connection)
            self.acceptor.left()

    async def _drain(self) -> None:
        """In-flight requests finish, long polls end early, all other connections are cut."""
        self.guard.drain.begin()
        self.live.drain()
        self.connections.drain()
        with trio.move_on_after(self._poll_grace_s):
            await self.connections.wait_empty()
        self.guard.drain.stop_waiting()
        with trio.move_on_after(self._drain_s - self._poll_grace_s):
            await self.connections.wait_empty()
        if self.connections.leaving:
            count = self.connections.leaving
            LOG.warning("connections cut: %d did not end within the drain time", count)
            self.connections.cut_all()

    async def _end_late(self) -> None:
        """No client can connect any more: a moment for the answers to those that did during the
        drain.
        """
        self.connections.drain()
        with trio.move_on_after(LATE_SHARE * self._drain_s):
            await self.connections.wait_empty()
        self.connections.cut_all()


async def serve(
    settings: Settings,
    access: Access,
    backend: Backend,
    listener: socket.socket,
    *,
    stop: trio.Event,
    probe_auth: bool = False,
    ledger: LimitsLedger | None = None,
) -> None:
    """Serve HTTP on a listening socket until ``stop`` is set and the drain is over; closes
    ``listener``.

    ``probe_auth``: TOPICS_PROBE_AUTH, health and readiness need a key too. ``ledger``: shares the
    caps of limits with other fronts.
    """
    server = Server(settings, access, backend, probe_auth=probe_auth, ledger=ledger)
    await server.run(listener, stop)
