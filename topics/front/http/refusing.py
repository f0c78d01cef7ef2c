"""Refused clients: 429 on a fresh socket, and a moment to read it.

    send the answer --> shut down writing --> linger, up to `LINGERING_MAX` --tick--> close

Closing a socket with unread input sends a reset, which takes the answer back.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections import deque
from collections.abc import Callable

from topics.errors import Throttled
from topics.formats.api.response_heads import ResponseHeads
from topics.front.errors import error_answer

LOG = logging.getLogger("topics.front")

LINGERING_MAX = 32  # refused clients that may still read why
DISCARD_BYTES = 64 * 1024  # of their input, before a socket is closed


class Refusals:
    """The refused clients of one listener."""

    def __init__(self, responses: ResponseHeads, lines: Callable[[], bytes]) -> None:
        """``lines``: the field lines of an answer to a client of which nothing was read."""
        self.count = 0  # since the start
        self._responses, self._lines = responses, lines
        self._logged = 0  # of `count`
        self._reason = ""
        self._lingering: deque[socket.socket] = deque()

    def note(self, reason: str) -> None:
        """A client was refused, or not even accepted."""
        self.count += 1
        self._reason = reason

    def refuse(self, sock: socket.socket, failure: Throttled) -> None:
        """Send the failure, and close a little later."""
        answer = error_answer(failure)
        head = self._responses.render(
            answer.status, len(answer.body), answer.headers, lines=self._lines(), close=True
        )
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(head + answer.body)
            sock.shutdown(socket.SHUT_WR)
        self._lingering.append(sock)
        self._close_all_but(LINGERING_MAX)

    def log(self, open_count: int) -> None:
        """One line about all refusals since the last line."""
        if self.count > self._logged:
            message = "clients refused: %s (%d since the last line, %d open)"
            LOG.warning(message, self._reason, self.count - self._logged, open_count)
            self._logged = self.count

    def close_all(self) -> None:
        """Close the sockets of all refused clients."""
        self._close_all_but(0)

    def _close_all_but(self, most: int) -> None:
        while len(self._lingering) > most:
            sock = self._lingering.popleft()
            with contextlib.suppress(OSError):
                sock.recv(DISCARD_BYTES)
            sock.close()
