"""Outbox: what one client is sent, written at once, and the part that its socket has not taken.

    open --socket takes less than all--> stalled --client reads again--> open
      '------------------------------------'--close, socket error--> closed

While the outbox is open, `write` sends from the caller's turn of the loop and nothing is kept.
While it is stalled, a task of its own sends the unsent part of one write, and then the backlog:
answers, jobs and ends that belong behind it. Streams show no further pages to a stalled client, so
an outbox never holds more than the end of one write, one page of leased jobs and what answers the
client's own requests. What it holds stands in the ledger (`topics.front.held_memory`), and goes
when it closes.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Protocol

import trio

from topics.front.held_memory import Client, Holding
from topics.front.live.live import Live
from topics.front.live.subscriptions import Isolated

SEND_MAX_BYTES = 256 * 1024  # in a turn: many streams may be sent a long page in one
JOIN_MAX_BYTES = 32 * 1024  # a longer part is sent as it is


class OutboxOwner(Client, Isolated, Protocol):
    """The stream that writes."""

    key: bytes  # of the client, in the ledger

    def sent_whole(self) -> None:
        """The socket has taken all that was written; a backlog comes next."""

    def resumed(self) -> None:
        """The socket takes what it is given again."""

    def end(self) -> None:
        """The socket has failed."""


class Outbox:
    """The sending side of one client's socket."""

    def __init__(self, live: Live, sock: socket.socket, owner: OutboxOwner) -> None:
        self._live, self._sock, self._owner = live, sock, owner
        self.is_closed = False
        self.sent_bytes = 0  # by this stream
        self.backlog: list[bytes] = []  # to be sent behind the unsent part
        self.last_sent = live.now
        self.unsent: memoryview | None = None  # while the outbox is stalled
        self.holding: Holding | None = None  # likewise
        self._sending = trio.CancelScope()  # of the task that sends it

    @property
    def is_late(self) -> bool:
        """The client takes too little."""
        return self.holding is not None and self.holding.due <= trio.current_time()

    def write(self, *parts: bytes) -> None:
        """Send, or keep what the socket does not take. Long parts are not copied.

        While the outbox is stalled only bounded or final data may be written.
        """
        if self.is_closed:
            return
        if self.unsent is not None:
            for part in parts:
                self._keep(part)
            return
        if len(parts) > 1 and sum(map(len, parts)) <= JOIN_MAX_BYTES:
            parts = (b"".join(parts),)
        try:
            sent = self._send_at_once(parts)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._owner.end()
            return
        self.last_sent = time.monotonic()
        self.sent_bytes += sent
        for part in parts:
            if sent < len(part):
                self._keep(part, sent)
            sent = max(0, sent - len(part))
        if self.unsent is None:
            self._owner.sent_whole()
        else:
            self._sending = trio.CancelScope()
            self._live.nursery.start_soon(self._send_unsent, self._sending)

    def _send_at_once(self, parts: Sequence[bytes]) -> int:
        if len(parts) == 1 and len(parts[0]) <= SEND_MAX_BYTES:
            return self._sock.send(parts[0])
        return self._sock.sendmsg(_first_of(parts, SEND_MAX_BYTES))

    def _keep(self, part: bytes, sent: int = 0) -> None:
        """What the socket has not taken of a part, to be sent when it is this part's turn."""
        held, now = self._live.held, trio.current_time()
        if self.holding is None:
            self.holding = held.hold(self._owner, self._owner.key, now)
        held.add(self.holding, part, len(part), now)
        if self.unsent is None:
            self.unsent = memoryview(part)[sent:]
        else:
            self.backlog.append(part)

    def write_last(self, data: bytes) -> bool:
        """Send all that waits and ``data``, as much as the socket takes now; False when it takes
        nothing, or too much waits.
        """
        if self.unsent is not None:
            if sum(map(len, self.backlog), len(self.unsent)) > SEND_MAX_BYTES:
                return False
            data = b"".join((self.unsent, *self.backlog, data))
        try:
            sent = self._sock.send(data)
        except OSError:
            return False
        self.sent_bytes += sent
        if sent == len(data):
            self._owner.sent_whole()
        return True

    def close(self) -> None:
        """Send nothing more, and give the memory back at once."""
        if not self.is_closed:
            self.is_closed = True
            self.unsent, self.backlog = None, []
            self._release()
            self._sending.cancel()
            del self._owner  # no circle: nothing waits for the garbage collector

    async def _send_unsent(self, scope: trio.CancelScope) -> None:
        """A task of its own: it waits for this client only, and ends with the stream."""
        try:
            with scope:
                while self.unsent is not None and not self.is_closed:
                    await trio.lowlevel.wait_writable(self._sock)
                    await self._live.turn()
                    if self.unsent is not None:
                        self._send_some(self.unsent)
        except (OSError, trio.ClosedResourceError):
            if not self.is_closed:
                self._owner.end()
        if not self.is_closed:
            self._owner.attempt(self._owner.resumed)

    def _send_some(self, unsent: memoryview) -> None:
        with contextlib.suppress(BlockingIOError):
            sent = self._sock.send(unsent[:SEND_MAX_BYTES])
            self.last_sent = time.monotonic()
            self.sent_bytes += sent
            if sent < len(unsent):
                self.unsent = unsent[sent:]
                if self.holding is not None:
                    self.holding.took(sent, trio.current_time())
            else:
                self._send_next()

    def _send_next(self) -> None:
        """A part was sent whole: another one is the oldest that is unsent now."""
        self.unsent = None
        self._release()
        backlog, self.backlog = self.backlog, []
        if not backlog:
            self._owner.sent_whole()
        for part in _joined(backlog):
            self._keep(part)

    def _release(self) -> None:
        if self.holding is not None:
            holding, self.holding = self.holding, None
            self._live.held.release(holding)


def _first_of(parts: Sequence[bytes], most: int) -> list[memoryview]:
    """The first bytes of these parts."""
    found = []
    for part in parts:
        found.append(memoryview(part)[:most])
        most -= len(found[-1])
    return found


def _joined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """The same bytes: short parts that follow each other as one."""
    for are_short, some in groupby(parts, lambda part: len(part) <= JOIN_MAX_BYTES):
        if are_short:
            yield b"".join(some)
        else:
            yield from some
