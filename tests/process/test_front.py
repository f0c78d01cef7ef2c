"""A front without clients: its state on the board from its start to its end."""

from __future__ import annotations

import gc
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from topics.actors.link.board import Board, FrontState
from topics.actors.link.key_table import KeyTable
from topics.actors.link.tick import TICK_INTERVAL_S
from topics.config import Settings
from topics.front.server import Server
from topics.process import front

Serve = Callable[[Server, socket.socket, trio.Event], Awaitable[None]]


@pytest.fixture
def restore_sigterm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    yield
    signal.signal(signal.SIGTERM, before)


def run(monkeypatch: pytest.MonkeyPatch, board: Board, serve: Serve) -> None:
    """Run a front whose server is replaced by ``serve``, until its end."""
    monkeypatch.setattr(Server, "run", serve)
    with socket.socket() as listener:
        front.main(Settings(), KeyTable(), board, [], listener)


@pytest.mark.usefixtures("restore_sigterm")
def test_a_sigterm_drains_a_serving_front(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(1)
    cells = board.front
    states: list[FrontState] = []

    async def serve(_server: Server, _listener: socket.socket, stop: trio.Event) -> None:
        states.append(cells.state)
        signal.raise_signal(signal.SIGTERM)
        await stop.wait()
        states.append(cells.state)

    run(monkeypatch, board, serve)
    assert states == [FrontState.SERVING, FrontState.DRAINING]
    assert cells.state is FrontState.DOWN


@pytest.mark.usefixtures("restore_sigterm")
def test_a_sigterm_before_the_front_serves_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(1)
    stopped: list[bool] = []

    async def serve(_server: Server, _listener: socket.socket, stop: trio.Event) -> None:
        await stop.wait()
        stopped.append(stop.is_set())

    def interrupted(server: Server, *args: object, **named: object) -> None:
        signal.raise_signal(signal.SIGTERM)
        begin(server, *args, **named)

    begin: Any = Server.__init__
    monkeypatch.setattr(Server, "__init__", interrupted)
    run(monkeypatch, board, serve)
    assert stopped == [True]
    assert board.front.state is FrontState.DOWN


async def test_a_front_updates_its_heartbeat_with_each_tick(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    board = Board(1)
    nursery.start_soon(front._publish_heartbeat, board)
    for _ in range(2):
        await trio.sleep(TICK_INTERVAL_S * 1.5)
        assert board.front.heartbeat_ms > 0
        board.front.heartbeat_ms = 0
