"""Acceptor: accepts clients, a bounded number per iteration; refuses them if no slot is free.

    listen queue --accept, many per iteration--> waiting --take, few per iteration--> protocols
                     |                             |-- clients with a key: taken first
                     |                             '-- half-closed: taken last, closed for a slot
                     |-- `connections_max` are open --.
                     '-- no descriptor is free -------+-- many are waiting: the oldest gets 429
                                                      |-- a connection is quiet: it is closed
                                                      '-- otherwise: the new client gets 429

Because quiet connections are closed (`Connections.evict`), clients that connect and send nothing do
not exclude other clients. A client that is neither accepted nor refused would hang in the listen
queue. So the front accepts clients even if many are waiting and no slot is free. For each accepted
client, it then refuses the client that has been waiting longest, either among the clients without a
key or among those that share the key with the most waiting clients. It keeps a spare descriptor, so
that it can accept and refuse a client when no other descriptor is free.

If more clients are waiting than one iteration takes, clients whose first input contains a known key
are taken first, one for each key in rotation. So clients without a key, or clients that share a
key, cannot delay the clients of another key, regardless of their number. A client may close its
connection while it is waiting. The front cannot distinguish such a client from a half-closed client
that is still reading, so both are served last.

If the listen queue is full, the kernel drops new connections, and the clients retry after 1, 3 and
7 s. So the front accepts clients before it serves them (decision 0074). An iteration takes as many
waiting clients as there were requests from established clients in the last iteration, within
bounds. It stops after `SPENT_MAX_S`. So established clients keep half of the loop's time,
regardless of the number of new clients.

If the descriptor limit is reached, the acceptor must not stop or spin: it waits `RETRY_S`, or
refuses a client with the spare descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import structlog
import trio

from topics.errors import Throttled
from topics.formats.api.response_heads import ResponseHeads
from topics.front.error_answers import error_answer
from topics.front.http.connection import HALF_CLOSED, HANG_UP, poll_now
from topics.front.limits import Slots

log = structlog.get_logger()

LINGERING_MAX = 32  # refused clients whose sockets stay open so that they can read the refusal
DISCARD_BYTES = 64 * 1024  # maximum unread input that is discarded before a socket is closed


class Refusals:
    """The refused clients of one listener."""

    def __init__(self, responses: ResponseHeads, lines: Callable[[], bytes]) -> None:
        """``lines`` returns the header lines for a response to a client whose request was not
        read."""
        self.count = 0  # refused clients since startup
        self._responses, self._lines = responses, lines
        self._logged = 0  # the value of `count` at the last log line
        self._reason = ""
        # Refused sockets whose output is closed, oldest first. Without this queue, closing a
        # socket with unread input would reset the connection and the client would lose the
        # response.
        self._lingering: deque[socket.socket] = deque()

    def note(self, reason: str) -> None:
        """Count a client that was refused or could not be accepted."""
        self.count += 1
        self._reason = reason

    def refuse(self, sock: socket.socket, failure: Throttled) -> None:
        """Send the failure as a response.

        The socket is closed later, so that the client can read the response.
        """
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
        """Log one line for all refusals since the last such line."""
        if self.count > self._logged:
            count = self.count - self._logged
            log.warning("clients refused", reason=self._reason, count=count, open_count=open_count)
            self._logged = self.count

    def close_all(self) -> None:
        """Close the sockets of all refused clients."""
        self._close_all_but(0)

    def _close_all_but(self, most: int) -> None:
        """Close the oldest sockets of refused clients until at most ``most`` are open."""
        while len(self._lingering) > most:
            sock = self._lingering.popleft()
            # Closing a socket with unread input sends a reset, and the client would lose the
            # response.
            with contextlib.suppress(OSError):
                sock.recv(DISCARD_BYTES)
            sock.close()


CONNECTIONS_MAX = 16_384
# Descriptors for everything except clients: rings, arenas, doorbells, the log, imports.
FILES_RESERVED = 128
FILES_OF_SHARD = 6  # for each shard after the first: two doorbells and four directories
ACCEPTS_PER_ITERATION = 64  # each takes 0.03 ms
TAKEN_PER_ITERATION_MAX = 64
TAKEN_PER_ITERATION_MIN = 8
PEEKED_BYTES = 4096  # maximum number of bytes checked for a key; most request heads are shorter
SPENT_MAX_S = 0.002  # time per iteration for new clients, of which at least one is keyless
CHECK_BATCH = 64  # waiting clients checked for a hang-up in one call, which takes 0.03 ms
CHECKS_PER_ITERATION = 8
# While no slot is free, at most this many clients without a key, and at most this many clients that
# share a key, may wait. They wait for about a second.
WAITING_MAX = 512
UNSORTED_MAX = 512  # clients that have sent no input yet; checking them takes 0.2 ms
TASK_END_PASSES = 2  # maximum number of iterations until a cancelled task closes its connection
RETRY_S = 0.1
FIRST_READ_BYTES = 64 * 1024
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
OUT_OF_MEMORY = (errno.ENOBUFS, errno.ENOMEM)
BROKEN = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)

# A function that takes a new socket and the input that was already read from it.
Take = Callable[[socket.socket, bytes], None]


def connections_max(shards: int) -> int:
    """Return the number of clients that the descriptor limit allows, after subtracting the
    descriptors that the process itself needs.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    own = FILES_RESERVED + FILES_OF_SHARD * (shards - 1)
    files = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft - own
    return max(1, min(CONNECTIONS_MAX, files))


class Acceptor:
    """Accepts the clients of one listener.

    ``request_count`` returns the number of requests since startup. ``lines`` is passed to
    `Refusals`. ``evict`` is `Connections.evict`; while many clients are waiting, it may close only
    connections without a key. ``key_of`` returns the key in the first input of a client, or None.
    """

    def __init__(
        self,
        responses: ResponseHeads,
        lines: Callable[[], bytes],
        slots: Slots,
        request_count: Callable[[], int],
        evict: Callable[[bool], bool],
        key_of: Callable[[bytes], bytes | None],
    ) -> None:
        self.slots, self._evict, self._key_of = slots, evict, key_of
        self.refusals = Refusals(responses, lines)
        self._request_count = request_count
        # The spare descriptor is closed to accept a client if no other descriptor is free. It is -1
        # while it is closed, or if it could not be opened. `tick` opens it again.
        self._spare_fd = -1
        self._is_running = False
        # Accepted clients that no protocol is serving yet. A socket is in exactly one of these
        # queues and uses one slot. Each exit from a queue must either pass the socket to ``take``,
        # which keeps the slot, or close the socket and release the slot.
        self._unsorted: deque[socket.socket] = deque()  # accepted just now, or without input
        # Keyed by API key; the keys are served in rotation.
        self._known: dict[bytes, deque[socket.socket]] = {}
        self._waiting: deque[socket.socket] = deque()  # all other clients
        self._half_closed: deque[socket.socket] = deque()  # their clients may have disconnected

    async def run(self, listener: socket.socket, take: Take) -> None:
        """Accept until cancelled, then close waiting sockets.

        ``take`` is called with each socket and its first input. Raise `OSError` if the listener
        breaks.
        """
        listener.setblocking(False)
        self._is_running = True
        self._open_spare()
        try:
            seen = self._request_count()
            silent = 0  # new clients whose first request has not been counted yet
            while True:
                # Do not sleep while clients are waiting, but let other tasks run.
                if self._count or self._half_closed:
                    await trio.lowlevel.checkpoint()
                else:
                    await trio.lowlevel.wait_readable(listener)
                # Accept new clients first, even if many are waiting, because the kernel drops
                # connections when its queue is full.
                for _ in range(ACCEPTS_PER_ITERATION):
                    if not (await self._may_accept(listener) and await self._accept(listener)):
                        break
                # The number of requests from established clients since the last iteration
                # determines how many new clients this iteration takes. The first requests of new
                # clients do not count, so that new clients do not raise their own limit.
                requests, seen = self._request_count() - seen, self._request_count()
                of_others = max(0, requests - silent)
                silent = max(0, silent - requests)
                most = min(TAKEN_PER_ITERATION_MAX, max(TAKEN_PER_ITERATION_MIN, of_others))
                for sock in self._next_clients(most):
                    take(sock, _prepare(sock))
                    silent += 1
        finally:
            self.close()

    def tick(self) -> None:
        """Log refusals, and close the sockets of refused clients. Call this once a second."""
        self.refusals.log(self.slots.used)
        self.refusals.close_all()
        if self._is_running:
            self._open_spare()

    def close(self) -> None:
        """Close all waiting and refused sockets, and the spare descriptor."""
        self._is_running = False
        for sockets in self._queues:
            while sockets:
                sockets.popleft().close()
                self.slots.release()
        self._known.clear()
        self.refusals.close_all()
        self._close_spare()

    def _open_spare(self) -> None:
        """Open the spare descriptor if it is closed and a descriptor is free."""
        if self._spare_fd < 0:
            with contextlib.suppress(OSError):
                self._spare_fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _close_spare(self) -> None:
        """Close the spare descriptor, so that one descriptor is free."""
        if self._spare_fd >= 0:
            os.close(self._spare_fd)
            self._spare_fd = -1

    @property
    def _queues(self) -> list[deque[socket.socket]]:
        """All queues of waiting clients, in the order in which they are served."""
        return [*self._known.values(), self._waiting, self._unsorted, self._half_closed]

    @property
    def _count(self) -> int:
        """The number of waiting clients, excluding half-closed ones."""
        known = sum(map(len, self._known.values()))
        return known + len(self._waiting) + len(self._unsorted)

    def _next_clients(self, most: int) -> Iterator[socket.socket]:
        """Yield the clients that this iteration takes, about ``most``."""
        if self._count + len(self._half_closed) <= most:  # the usual case: take all clients
            for sockets in self._queues:
                while sockets:
                    yield sockets.popleft()
            self._known.clear()
            return
        # More clients are waiting than can be served. Only in this case does the order matter, so
        # only now is the input searched for keys.
        self._sort_by_key()
        until = time.monotonic() + SPENT_MAX_S
        # Clients with a key are served first.
        while self._known and most and time.monotonic() < until:
            yield self._next_known()
            most -= 1
        # Clients without a key are next, at least one per iteration.
        here = deque(self._next_waiting(max(1, most)))
        while here:
            yield here.popleft()
            most -= 1
            if time.monotonic() > until:
                break
        # The time is up. Put the rest back in the same order, so that no client loses its position.
        self._waiting.extendleft(reversed(here))
        # Clients that have sent no input yet follow.
        for _ in range(max(0, min(most, len(self._unsorted)))):
            yield self._unsorted.popleft()
        # Half-closed clients are served last, one per iteration.
        if self._half_closed:
            yield self._half_closed.popleft()

    def _next_known(self) -> socket.socket:
        """Return the next client with a key. The keys are served in rotation."""
        key, sockets = next(iter(self._known.items()))
        # Move the key to the end of the dict, so that the next call serves another key.
        del self._known[key]
        sock = sockets.popleft()
        if sockets:
            self._known[key] = sockets
        return sock

    def _next_waiting(self, most: int) -> list[socket.socket]:
        """Return the next clients without a key that have not hung up in the meantime."""
        waiting, found = self._waiting, list[socket.socket]()
        for _ in range(CHECKS_PER_ITERATION):
            if not waiting or len(found) == most:
                break
            # Check many sockets with one system call, and only as many as are likely to be used.
            some = [waiting.popleft() for _ in range(min(CHECK_BATCH, len(waiting)))]
            here = [sock for sock, _ in self._still_connected(some)]
            free = most - len(found)
            found += here[:free]
            waiting.extendleft(reversed(here[free:]))
        return found

    def _sort_by_key(self) -> None:
        """Sort the newly accepted clients into clients with and without a key.

        Clients that have sent nothing yet are checked again in the next iteration, unless there are
        more than `UNSORTED_MAX`.
        """
        fresh, self._unsorted = self._unsorted, deque()
        for sock, events in self._still_connected(fresh):
            if not events & select.POLLIN:
                self._unsorted.append(sock)
            elif (key := self._key_of(_peek(sock))) is not None:
                self._known.setdefault(key, deque()).append(sock)
            else:
                self._waiting.append(sock)
        while len(self._unsorted) > UNSORTED_MAX:
            self._waiting.append(self._unsorted.popleft())

    def _still_connected(self, sockets: Iterable[socket.socket]) -> list[tuple[socket.socket, int]]:
        """Return the sockets whose clients have not hung up, each with its events.

        Half-closed sockets are moved to their own queue. Sockets of clients that have hung up are
        closed.
        """
        events = poll_now([sock.fileno() for sock in sockets], select.POLLIN | HALF_CLOSED)
        here = []
        for sock in sockets:
            found = events.get(sock.fileno(), 0)
            # The client has closed the connection completely, so no response can be delivered.
            if found & HANG_UP:
                sock.close()
                self.slots.release()
            elif found & HALF_CLOSED:
                self._half_closed.append(sock)
            else:
                here.append((sock, found))
        return here

    async def _accept(self, listener: socket.socket, *, again: bool = False) -> bool:
        """Accept or refuse one client.

        Return False if no client is waiting or none can be accepted. ``again`` is true if the
        previous call found no free descriptor.
        """
        try:
            # The listener does not block. If no client is waiting, this raises BlockingIOError.
            sock, _ = listener.accept()
        except BlockingIOError:
            return False
        except OSError as failure:
            # No descriptor is free. Close a quiet connection, let its task run so that the
            # descriptor becomes free, and try once more.
            if failure.errno in OUT_OF_FILES and not again:
                self._evict(False)
                # In these iterations the poller also notices clients that have disconnected.
                for _ in range(TASK_END_PASSES):
                    await trio.lowlevel.checkpoint()
                return await self._accept(listener, again=True)
            return await self._can_continue(listener, failure)
        try:
            await self._acquire()
        except Throttled as failure:
            self._refuse(sock, failure)
        else:
            self._unsorted.append(sock)
        return True

    async def _may_accept(self, listener: socket.socket) -> bool:
        """Return False if a new client would be refused although waiting clients will soon free
        slots.

        A waiting client becomes quiet as soon as it has been served, and can then be closed.
        """
        if not self.slots.is_full or self._count < TAKEN_PER_ITERATION_MIN:
            return True
        return bool(poll_now([listener.fileno()], select.POLLIN)) and await self._free_slot()

    async def _acquire(self) -> None:
        """Acquire a slot. Raise `Throttled` if none is free and none can be freed."""
        if self.slots.is_full:
            await self._free_slot()
        self.slots.acquire()

    async def _free_slot(self) -> bool:
        """Close the connection of another client for a new one. Return whether a slot is free."""
        # Clients without a key are refused first. If few of them are waiting, a client of the key
        # with the most waiting clients is refused. Both kinds of waiting clients have a limit, so
        # that a flood of one kind cannot use all slots.
        waiting = self._waiting
        if len(waiting) < WAITING_MAX:
            waiting = max(self._known.values(), key=len, default=waiting)
        # Close a client that has closed its side, otherwise one from a long queue, otherwise a
        # quiet connection.
        if self._half_closed:
            self._half_closed.popleft().close()
            self.slots.release()
        elif len(waiting) >= WAITING_MAX:
            self._refuse(waiting.popleft(), self.slots.failure())
            self.slots.release()
        elif self._evict(self._count >= TAKEN_PER_ITERATION_MIN):
            # `_evict` has cancelled a task. The slot is free after the task has run.
            for _ in range(TASK_END_PASSES):
                if not self.slots.is_full:
                    break
                await trio.lowlevel.checkpoint()
        return not self.slots.is_full

    def _refuse(self, sock: socket.socket, failure: Throttled) -> None:
        self.refusals.note(f"at most {failure.detail['max']} connections")
        self.refusals.refuse(sock, failure)

    async def _can_continue(self, listener: socket.socket, failure: OSError) -> bool:
        """Handle a failed accept. Return whether to accept again in this iteration.

        Raise ``failure`` if the listener is broken.
        """
        # The listener itself is broken, so each further attempt would fail.
        if failure.errno in BROKEN or listener.fileno() < 0:
            raise failure
        if failure.errno in OUT_OF_FILES:
            return await self._refuse_with_spare(listener)
        if failure.errno in OUT_OF_MEMORY:
            self.refusals.note(os.strerror(failure.errno))
            await trio.sleep(RETRY_S)
            return False
        return True  # the error affects only one client

    async def _refuse_with_spare(self, listener: socket.socket) -> bool:
        """Refuse one client with the spare descriptor, because descriptors ran out below
        ``connections_max``.

        Return whether a client was refused.
        """
        self.refusals.close_all()
        if self._spare_fd < 0:
            self.refusals.note("no file descriptor left")
            await trio.sleep(RETRY_S)
            return False
        # Closing the spare descriptor frees one descriptor for this client. It is opened again
        # after the client has been refused.
        self._close_spare()
        try:
            sock, _ = listener.accept()
        except OSError:  # the kernel reports the limit before it checks for a waiting client
            return False
        else:
            self.refusals.note("no file descriptor left")
            self.refusals.refuse(sock, self.slots.failure())
            self.refusals.close_all()
            return True
        finally:
            self._open_spare()


def _peek(sock: socket.socket) -> bytes:
    """Return the first input of a client without consuming it."""
    try:
        return sock.recv(PEEKED_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # the client has just disconnected
        return b""


def _prepare(sock: socket.socket) -> bytes:
    """Set up a new client's socket and read its first input.

    Most clients have already sent a request, so this read saves them an iteration of the loop.
    """
    sock.setblocking(False)
    # Without Nagle's algorithm, because the front writes complete responses and events.
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        return sock.recv(FIRST_READ_BYTES)
    except OSError:
        # There is no input yet, or the client has disconnected. The next read distinguishes the two
        # cases.
        return b""
