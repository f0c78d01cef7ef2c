"""Accepting clients: all that wait, a bounded number in a turn, and an answer for those that there
is no room for.

    wait_readable --> accept, until nobody waits or the turn is full --> a task for each
                         |-- connections_max are open ------> 429 throttled, close
                         '-- no descriptor left: the spare -> 429 throttled, close

A client that is neither taken nor refused hangs: the listen queue says nothing. A turn takes as
many as there were requests of others in the last one, within bounds: whoever is there already has
half of the loop, however many come at once.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import socket
from collections import deque
from collections.abc import Callable

import trio

from topics.errors import Throttled
from topics.formats.api.http1 import ResponseHeads
from topics.front.errors import error_answer

LOG = logging.getLogger("topics.front")

CONNECTIONS_MAX = 16_384
FILES_KEPT = 128  # descriptors for what is not a client: rings, arenas, bells, the log, imports
ACCEPTS_PER_TURN = 64  # at most; all others wait for them and for their first requests ...
ACCEPTS_BESIDE_FEW = 8  # ... so that many when fewer than that are asking
RETRY_S = 0.1
LINGERING_MAX = 32  # refused clients that may still read why
FIRST_READ_BYTES = 64 * 1024
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)

Take = Callable[[socket.socket, bytes], None]


def connections_max() -> int:
    """How many clients the descriptors of this process are enough for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft - FILES_KEPT
    return max(1, min(CONNECTIONS_MAX, files))


class Door:
    """One listener's clients. ``take`` gets each socket and what it has said so far; `tick` once a
    second.
    """

    def __init__(self, responses: ResponseHeads, most: int, heard: Callable[[], int]) -> None:
        """``heard``: how many requests there have been."""
        self.most = most
        self.open = 0  # taken, and not left yet
        self.refused = 0  # since the start
        self._responses, self._heard = responses, heard
        self._told = 0  # of the refused, how many the log knows
        self._why = ""
        self._lingering: deque[socket.socket] = deque()
        self._spare = -1
        self._accepts = False

    async def run(self, listener: socket.socket, take: Take) -> None:
        """Accept until cancelled. Raises OSError when the listener is broken."""
        listener.setblocking(False)
        self._accepts, self._spare = True, _spare_file()
        try:
            heard, unheard = self._heard(), 0
            while True:
                await trio.lowlevel.wait_readable(listener)
                requests, heard = self._heard() - heard, self._heard()
                others = max(0, requests - unheard)
                unheard = max(
                    0, unheard - requests
                )  # newcomers whose first request is still to come
                for _ in range(min(ACCEPTS_PER_TURN, max(ACCEPTS_BESIDE_FEW, others))):
                    if not await self._accept(listener, take):
                        break
                    unheard += 1
        finally:
            self.close()

    def left(self) -> None:
        """A client that was taken has gone."""
        self.open -= 1

    def tick(self) -> None:
        """Log what was refused, and let go of those that had a second to read why."""
        if self.refused > self._told:
            LOG.warning(
                "clients refused: %s (%d since the last line, %d open)",
                self._why,
                self.refused - self._told,
                self.open,
            )
            self._told = self.refused
        self._let_go(0)
        if self._accepts and self._spare < 0:
            self._spare = _spare_file()

    def close(self) -> None:
        """Give back what is kept."""
        self._accepts = False
        self._let_go(0)
        if self._spare >= 0:
            os.close(self._spare)
            self._spare = -1

    async def _accept(self, listener: socket.socket, take: Take) -> bool:
        """Take or refuse one client; False when nobody waits any more, or nobody can be taken."""
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return False
        except OSError as failure:
            if failure.errno in BROKEN or listener.fileno() < 0:
                raise
            if failure.errno in OUT_OF_FILES:
                return await self._refuse_with_spare(listener)
            if failure.errno in OUT_OF_MEMORY:
                self._note(os.strerror(failure.errno))
                await trio.sleep(RETRY_S)
            return (
                failure.errno not in OUT_OF_MEMORY
            )  # what fails for one client is no reason to stop
        if self.open >= self.most:
            self._note(f"at most {self.most} connections")
            self._refuse(sock)
            return True
        self.open += 1
        take(sock, _prepared(sock))
        return True

    async def _refuse_with_spare(self, listener: socket.socket) -> bool:
        """Descriptors have run out before ``most`` was reached: the spare one is enough to say so."""
        self._let_go(0)
        if self._spare < 0:
            self._note("no file descriptor left")
            await trio.sleep(RETRY_S)
            return False
        os.close(self._spare)
        try:
            sock, _ = listener.accept()
        except OSError:  # a limit that is reached is told before it is known whether somebody waits
            return False
        else:
            self._note("no file descriptor left")
            self._refuse(sock)
            self._let_go(0)
            return True
        finally:
            self._spare = _spare_file()

    def _note(self, why: str) -> None:
        self.refused += 1
        self._why = why

    def _refuse(self, sock: socket.socket) -> None:
        """Tell why, and close a little later: a close with unread input is a reset, which takes the
        answer back.
        """
        failure = Throttled(
            "there are too many connections",
            limit="max_connections",
            max=self.most,
            retry_after_ms=1000,
        )
        answer = error_answer(failure)
        head = self._responses.render(answer.status, len(answer.body), answer.headers, close=True)
        with contextlib.suppress(OSError):
            sock.setblocking(False)
            sock.send(head + answer.body)
            sock.shutdown(socket.SHUT_WR)
        self._lingering.append(sock)
        self._let_go(LINGERING_MAX)

    def _let_go(self, most: int) -> None:
        while len(self._lingering) > most:
            sock = self._lingering.popleft()
            with contextlib.suppress(OSError):
                sock.recv(FIRST_READ_BYTES)
            sock.close()


def _prepared(sock: socket.socket) -> bytes:
    """Set a new client up; what it has said already. Most have, and are spared a turn of the loop
    by looking at once.
    """
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return sock.recv(FIRST_READ_BYTES)
    except OSError:  # nothing yet, or gone: its task will see
        return b""


def _spare_file() -> int:
    """A descriptor to give up when there is no other; -1 when there is none even now."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
