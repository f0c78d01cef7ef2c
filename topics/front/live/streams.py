"""Streams: clients that are told of what happens, as it happens, until either side ends it.

    begin --> told, with a heartbeat in between --client gone or slow, drain, `fail`--> end

Subclasses say what is told: records of topics (topic_streams.py), leased jobs (work_stream.py). A
stream has no task besides its connection's: events are written to its socket from the loop that
took their messages out of the ring. An unexpected error in one stream ends that stream and no
other.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeVarTuple

import trio

from topics.engine.access import Principal
from topics.front.live.live import Live, StreamKind
from topics.front.live.outbox import Outbox
from topics.front.live.subscriptions import TOLD_EVERY_S

LOG = logging.getLogger("topics.front")

UNCONFIRMED_MAX_S = 60.0  # sent bytes without a confirmation by the client's kernel
RECEIVE_BYTES = 4096

Args = TypeVarTuple("Args")


class Stream(ABC):
    """One client that is told of what happens."""

    has_own_slot = False  # from before it begins
    kind: StreamKind

    def __init__(
        self, live: Live, sock: socket.socket, principal: Principal, heartbeat_s: float
    ) -> None:
        self.live, self.sock, self.principal, self.heartbeat_s = live, sock, principal, heartbeat_s
        self.key = principal.digest
        self.ended = False
        self.told_at = -math.inf  # when it was last told that it is paced
        self.scope = trio.CancelScope()  # of `until_ended`
        self.outbox = Outbox(live, sock, self)

    # What subclasses say: bytes

    @abstractmethod
    def failure_event(self, code: int, error: str) -> bytes:
        """Why the stream ends."""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Nothing has happened."""

    @abstractmethod
    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """What comes of these topics comes so much later; the stream goes on."""

    # Life

    def begin(self) -> None:
        """Take part in what all streams do, until `end`."""
        if self.sock.family != socket.AF_UNIX:
            # A client that has vanished silently is noticed by what its kernel does not confirm.
            self.sock.setsockopt(
                socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNCONFIRMED_MAX_S * 1000)
            )
        self.live.add(self)

    async def until_ended(self) -> None:
        """Wait for the end of the stream; received bytes are discarded, a hang-up is an end."""
        with self.scope:
            with contextlib.suppress(OSError):
                while not self.ended:
                    await trio.lowlevel.wait_readable(self.sock)
                    try:
                        if not self.sock.recv(RECEIVE_BYTES):
                            break
                    except BlockingIOError:
                        continue
            await self.live.turn()

    def tick(self, now: float) -> None:
        """Send a heartbeat, or end a stream whose client is too slow."""
        outbox = self.outbox
        if outbox.unsent is not None:
            if outbox.is_late:
                self.shed()
        elif now - outbox.last_sent >= self.heartbeat_s:
            outbox.write(self.heartbeat())

    def shed(self) -> None:
        """As `topics.front.held_memory.Client.shed`, and for a client that is too slow."""
        self.attempt(self.fail, 408, "the client reads too slowly")

    def drain(self) -> None:
        """The server shuts down."""
        self.fail(503, "the server is shutting down")

    def fail(self, code: int, error: str) -> None:
        """Tell why, if the socket takes it, and end."""
        if not self.ended:
            if not self.outbox.write_last(self.failure_event(code, error)):
                LOG.debug("stream ended without its client hearing why")
            self.end()

    def end(self) -> None:
        """Send nothing more; whoever runs the connection closes it."""
        if not self.ended:
            self.ended = True
            self.scope.cancel()
            self.outbox.close()
            self.live.remove(self)

    def attempt(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Run what concerns this stream alone; an unexpected error ends this stream only."""
        try:
            call(*args)
        except Exception:
            self.broke()

    def broke(self) -> None:
        """End the stream because of the unexpected error that is being handled."""
        LOG.exception("unexpected stream error")
        try:
            self.fail(500, "internal error")
        except Exception:
            LOG.exception("unexpected stream error")
            self.end()

    def tell_paces(self, now: float, pauses_s: dict[str, float]) -> None:
        """Tell how long its topics pause, unless it was told within TOLD_EVERY_S or the socket
        takes no more.
        """
        if pauses_s and now - self.told_at >= TOLD_EVERY_S and not self.is_stalled:
            self.told_at = now
            longest_ms = math.ceil(1000 * max(pauses_s.values()))
            self.outbox.write(self.paced_event(longest_ms, sorted(pauses_s)))

    # The socket

    @property
    def is_stalled(self) -> bool:
        """The socket takes no more for now."""
        return self.outbox.unsent is not None

    def sent_whole(self) -> None:  # noqa: B027 - only sessions keep account of it
        """The socket has taken all that was written; a backlog comes next."""

    def resumed(self) -> None:  # noqa: B027 - only topic streams have more to say then
        """The socket takes what it is given again."""
