"""The front process: serves HTTP to clients, and calls the shards over its links."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence

import structlog
import trio

from topics.actors.link.board import Board, FrontState
from topics.actors.link.counters import CounterCells
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.key_table import KeyReader, KeyTable
from topics.actors.link.link import Link
from topics.actors.link.link_memory import LinkMemory
from topics.actors.link.process_id import FRONT
from topics.actors.link.tick import wait_tick
from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.front.http.accepting import connections_max
from topics.front.server import Server
from topics.process import logs
from topics.process.children import on_sigterm
from topics.process.collector import freeze_survivors
from topics.process.measure import measure

log = structlog.get_logger()


def main(
    settings: Settings,
    keys: KeyTable,
    board: Board,
    links: Sequence[LinkMemory],
    listener: socket.socket,
) -> None:
    """Run the front. Returns after SIGTERM, when all requests in flight have a response."""
    _warn_unreachable_cap(settings, connections_max(settings.shards))
    own = [Link(memory, board, FRONT) for memory in links]
    freeze_survivors()
    EventLoop().run(_serve, settings, keys, listener, board, own)
    board.front.state = FrontState.DOWN


async def _serve(
    settings: Settings,
    keys: KeyTable,
    listener: socket.socket,
    board: Board,
    links: Sequence[Link],
) -> None:
    shards = Shards(links, board)
    stop = trio.Event()

    def drain() -> None:
        board.front.state = FrontState.DRAINING
        stop.set()

    on_sigterm(drain)
    board.front.state = FrontState.SERVING
    async with trio.open_nursery() as nursery:
        nursery.start_soon(shards.run)
        nursery.start_soon(_publish_heartbeat, board)
        server = Server(
            settings,
            KeyReader(keys),
            shards,
            probe_auth=settings.probe_auth,
            board=board,
            write_request=logs.write_request,
        )
        nursery.start_soon(measure, CounterCells(board, FRONT), links, server.measured)
        # Accept connections only when the link sessions are open (or after a timeout), so that a
        # restarted front rejects no request because of a missing session.
        await shards.wait_linked()
        await server.run(listener, stop)
        nursery.cancel_scope.cancel()


def _warn_unreachable_cap(settings: Settings, most: int) -> None:
    cap = settings.max_sse_connections
    if cap > most:
        log.warning("stream limit unreachable", max_sse_connections=cap, max_connections=most)


async def _publish_heartbeat(board: Board) -> None:
    while True:
        board.front.heartbeat_ms = time.monotonic_ns() // 1_000_000
        logs.report_dropped()
        await wait_tick()
