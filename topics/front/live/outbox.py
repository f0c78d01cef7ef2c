"""Outbox: what one client is sent, written at once, and the part that its socket has not taken.

    open --socket takes less than all--> stalled --client reads again--> open
      '------------------------------------'--close, socket error--> closed

While the outbox is open, `write` sends from the caller's turn of the loop and nothing is kept.
While it is stalled, a task of its own sends the unsent part of one write, and then the backlog:
answers, jobs and ends that belong behind it. Streams show no further pages to a stalled client, so
an outbox never holds more than the end of one write, one page of leased jobs and what answers the
client's own requests.
"""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Protocol

import trio

from topics.front.live.live import Live
from topics.front.live.subscriptions import Isolated


class OutboxOwner(Isolated, Protocol):
    """The stream that writes."""

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
        self.moved_at = live.now  # when the socket last took something
        self.unsent: memoryview | None = None  # while the outbox is stalled
        self._sending = trio.CancelScope()  # of the task that sends it

    def write(self, data: bytes) -> None:
        """Send, or keep what the socket does not take.

        While the outbox is stalled only bounded or final data may be written.
        """
        if self.is_closed:
            return
        if self.unsent is not None:
            self.backlog.append(data)
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._owner.end()
            return
        self.last_sent = time.monotonic()
        self.sent_bytes += sent
        if sent < len(data):
            self.unsent = memoryview(data)[sent:]
            self.moved_at = self._live.now
            self._sending = trio.CancelScope()
            self._live.nursery.start_soon(self._send_unsent, self._sending)
        else:
            self._owner.sent_whole()

    def write_last(self, data: bytes) -> bool:
        """Send all that waits and ``data``, as much as the socket takes now; False when it takes
        nothing.
        """
        if self.unsent is not None:
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
        """Send nothing more."""
        self.is_closed = True
        self._sending.cancel()

    async def _send_unsent(self, scope: trio.CancelScope) -> None:
        """A task of its own: it waits for this client only, and ends with the stream."""
        try:
            with scope:
                while self.unsent is not None and not self.is_closed:
                    await trio.lowlevel.wait_writable(self._sock)
                    self._send_some(self.unsent)
        except (OSError, trio.ClosedResourceError):
            self._owner.end()
        if not self.is_closed:
            self._owner.attempt(self._owner.resumed)

    def _send_some(self, unsent: memoryview) -> None:
        with contextlib.suppress(BlockingIOError):
            sent = self._sock.send(unsent)
            self.moved_at = self.last_sent = time.monotonic()
            self.sent_bytes += sent
            self.unsent = unsent[sent:] if sent < len(unsent) else self._next_unsent()

    def _next_unsent(self) -> memoryview | None:
        self._owner.sent_whole()
        backlog, self.backlog = self.backlog, []
        return memoryview(b"".join(backlog)) if backlog else None
