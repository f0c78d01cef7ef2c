"""Streams: clients that are told of what happens, as it happens, until either side ends it.

    begin --> told, with a heartbeat in between --client gone or slow, drain, `fail`--> end

`Streams` are those of a front, `Stream` is one of them, and its `Outbox` writes what it is told to
its socket, at once, and keeps the part that the socket has not taken. A stream has no task besides
its connection's: events are written from the loop that took their messages out of the ring. An
unexpected error in one stream ends that stream and no other: it is called with `Stream.attempt`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeVarTuple

import trio

from topics.actors.link.beat import BEAT_S, wait_beat
from topics.engine.access import Principal
from topics.formats.api.response_heads import CHUNK_END, LAST_CHUNK, chunk_of, chunk_start
from topics.front.error_answers import status_of
from topics.front.held_memory import HeldMemory, Holding
from topics.front.keys import Keys
from topics.front.limits import FrontSlots

LOG = logging.getLogger("topics.front")

LOOKS_MAX = 256  # streams that are looked after in a pass of the loop: some milliseconds
TURNS_MAX = 16  # long writes and ends of streams in a pass of the loop: some milliseconds
TOLD_EVERY_S = 10.0  # how often a stream is told that it is paced, at most
UNSENT_MAX_BYTES = 128 * 1024  # in the kernel, beyond the client's receive window
UNCONFIRMED_MAX_S = 60.0  # sent bytes without a confirmation by the client's kernel
RECEIVE_BYTES = 4096
SEND_MAX_BYTES = 256 * 1024  # in a turn: many streams may be sent a long page in one
JOIN_MAX_BYTES = 32 * 1024  # a longer part is sent as it is

Args = TypeVarTuple("Args")


class StreamKind(IntEnum):
    """Indexes of the row of each kind in ``topics_streams``."""

    WATCH = 0
    WORK = 1
    WEB_SOCKET = 2


class Streams:
    """All streams of a front: their limits, ticks, drain and deferred writes.

    One task looks after streams, each when it is due: heartbeats, slow readers. Another one makes
    deferred calls, so that what one batch of messages causes for a client is one write.
    """

    def __init__(self, slots: FrontSlots, keys: Keys, held: HeldMemory) -> None:
        self.slots, self.keys, self.held = slots, keys, held
        self.now = time.monotonic()  # of the last beat
        self.streams: set[Stream] = set()
        self._due: defaultdict[int, set[Stream]] = defaultdict(set)  # by the number of the beat
        self._beat = int(trio.current_time() // BEAT_S)  # the last one
        self.stream_counts = [0] * len(StreamKind)
        self.draining = False
        self.nursery: trio.Nursery
        self._deferred: list[tuple[Stream, Callable[[], None]]] = []
        self._has_deferred = trio.Event()
        self._turns = trio.CapacityLimiter(TURNS_MAX)
        # The last short event and its chunk, shared by all streams that receive this event.
        self.shared = b""
        self.shared_chunk: tuple[bytes, ...] = (b"",)

    async def run(self) -> None:
        """Look after streams until cancelled."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self._run_deferred)
            while True:
                await wait_beat()
                self.beat()
                last = int(trio.current_time() // BEAT_S)
                while self._beat < last:
                    self._beat += 1
                    while self._beat in self._due:
                        self._look_after_some(self._due[self._beat])
                        await trio.lowlevel.checkpoint()

    def beat(self) -> None:
        """Note the time of a beat."""
        self.now = time.monotonic()

    # Not in the loops of the tasks, whose variables would hold a stream that has ended.

    def look_in(self, stream: Stream, seconds: float) -> None:
        """Look after the stream so much later, if not before."""
        beat = max(int((trio.current_time() + seconds) // BEAT_S), self._beat) + 1
        if stream.beat is None or beat < stream.beat:
            self._forget(stream)
            stream.beat = beat
            self._due[beat].add(stream)

    def _forget(self, stream: Stream) -> None:
        beat, stream.beat = stream.beat, None
        if beat is not None:
            self._due[beat].discard(stream)
            if not self._due[beat]:
                del self._due[beat]

    def _look_after_some(self, due: set[Stream]) -> None:
        for stream in [*islice(due, LOOKS_MAX)]:
            self._forget(stream)
            stream.attempt(stream.look)
            if not stream.ended:
                self.look_in(stream, stream.quiet_s())

    def _make_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for stream, call in deferred:
            stream.attempt(call)

    async def _run_deferred(self) -> None:
        while True:
            await self._has_deferred.wait()
            self._has_deferred = trio.Event()
            self._make_deferred()

    def defer(self, stream: Stream, call: Callable[[], None]) -> None:
        """Call it when the loop has handled what it is handling: one write for one batch."""
        self._deferred.append((stream, call))
        self._has_deferred.set()

    def call_in(self, seconds: float, call: Callable[[], None]) -> None:
        """Make a call so much later, which neither waits nor raises. Nothing waits here on a calm
        front.
        """

        async def wait() -> None:
            await trio.sleep(seconds)
            call()

        self.nursery.start_soon(wait)

    async def turn(self) -> None:
        """Wait for a pass of the loop in which few streams do what takes long."""
        async with self._turns:
            pass

    def check_room(self, principal: Principal, leaving: Stream | None = None) -> None:
        """Check the limits for one more stream; `hold_slot` follows before its task waits for
        anything. ``leaving`` is a stream that it replaces. Raises `Throttled` (§11).
        """
        self.slots.streams.check(principal, leaving=0 if leaving is None or leaving.ended else 1)

    def hold_slot(self, principal: Principal) -> Callable[[], None]:
        """Take the slot that `check_room` has found: a slow client may take the head of its stream
        late. What is returned gives it back; call it when the stream begins, or if it never will.
        """
        self.slots.streams.add(principal)
        return partial(self.slots.streams.release, principal)

    def add(self, stream: Stream) -> None:
        """A stream begins. One that begins during the drain, or whose key has changed since its
        request was admitted, is told so at once.
        """
        self.streams.add(stream)
        self.stream_counts[stream.kind] += 1
        self.look_in(stream, stream.quiet_s())
        if not stream.has_own_slot:
            self.slots.streams.add(stream.principal)
        if self.draining:
            stream.drain()
        elif (failure := self.keys.refusal(stream.principal)) is not None:
            stream.fail(status_of(failure), failure.message)

    def remove(self, stream: Stream) -> None:
        """A stream has ended."""
        if stream in self.streams:
            self.streams.remove(stream)
            self._forget(stream)
            self.stream_counts[stream.kind] -= 1
            if not stream.has_own_slot:
                self.slots.streams.release(stream.principal)

    def drain(self) -> None:
        """The server shuts down: tell all streams, and those that still begin."""
        self.draining = True
        for stream in list(self.streams):
            stream.attempt(stream.drain)

    def end_refused(self) -> None:
        """The keys have changed: end the streams whose keys are gone or have other rights."""
        for stream in list(self.streams):
            if (failure := self.keys.refusal(stream.principal)) is not None:
                stream.attempt(stream.fail, status_of(failure), failure.message)


class Stream(ABC):
    """One client that is told of what happens. Subclasses say what that is: records of topics
    (topic_streams.py), leased jobs (work_stream.py).
    """

    has_own_slot = False  # which it took before it began, and gives back itself
    kind: StreamKind

    def __init__(
        self,
        live: Streams,
        sock: socket.socket,
        principal: Principal,
        heartbeat_s: float,
        *,
        is_chunked: bool = False,
    ) -> None:
        self.live, self.sock, self.principal, self.heartbeat_s = live, sock, principal, heartbeat_s
        self.ended = False
        self.beat: int | None = None  # with which it is looked after
        self.told_at = -math.inf  # when it was last told that it is paced
        self.scope = trio.CancelScope()  # of `until_ended`
        self.outbox = Outbox(live, sock, self, is_chunked=is_chunked)

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
            timeout_ms = int(UNCONFIRMED_MAX_S * 1000)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            # Otherwise up to 4 MB may be queued before a pong, and a slow client would get it too
            # late.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)
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
            self.outbox.finish()
            self.end()

    def quiet_s(self) -> float:
        """How long nobody need look after it."""
        holding = self.outbox.holding
        if holding is not None:
            return holding.due - trio.current_time()
        # One tick early, because streams are checked only at ticks, and the next one would be late.
        return self.outbox.last_sent + self.heartbeat_s - BEAT_S - time.monotonic()

    def look(self) -> None:
        """Send a heartbeat, or end a stream whose client is too slow, if it is time."""
        if self.quiet_s() <= 0:
            self.shed() if self.outbox.holding else self.outbox.write(self.heartbeat())

    def shed(self) -> None:
        """End it: its client is too slow, or its memory is needed."""
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

    def attempt(self, call: Callable[[*Args], Any], *args: *Args) -> None:
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

    def sent_whole(self) -> None:  # noqa: B027 - only some keep account of it
        """The socket has taken all that was written; a backlog comes next."""

    def resumed(self) -> None:  # noqa: B027 - only topic streams have more to say then
        """The socket takes what it is given again."""


class Outbox:
    """The sending side of one client's socket.

        open --socket takes less than all--> stalled --client reads again--> open
          '------------------------------------'--close, socket error--> closed

    While it is open, `write` sends from the caller's iteration of the loop, and no data is kept.
    While it is stalled, a task of its own sends the unsent part of one write, and then the backlog:
    later answers, jobs and ends. Streams send no further pages to a stalled client. So the outbox
    never holds more than the end of one write, one page of leased jobs and the answers to the
    client's own requests. The ledger counts this data (`topics.front.held_memory`), which is freed
    when the outbox closes.

    With ``is_chunked``, each write is sent as one chunk, so that a client that reads chunk by chunk
    gets each event as soon as it is written. Long parts are not copied for this purpose.
    """

    def __init__(
        self, live: Streams, sock: socket.socket, owner: Stream, *, is_chunked: bool = False
    ) -> None:
        self._live, self._sock, self._owner = live, sock, owner
        self._is_chunked = is_chunked
        self.is_closed = False
        self.sent_bytes = 0  # by this stream
        self.backlog: list[bytes] = []  # to be sent behind the unsent part
        self.last_sent = live.now
        self.unsent: memoryview | None = None  # while the outbox is stalled
        self.holding: Holding | None = None  # likewise
        self._sending = trio.CancelScope()  # of the task that sends it

    def write(self, *parts: bytes) -> None:
        """Send, or keep what the socket does not take. Long parts are not copied.

        While the outbox is stalled only bounded or final data may be written.
        """
        if self.is_closed:
            return
        if self._is_chunked:
            live = self._live
            is_shared = parts[0] is live.shared and len(parts) == 1
            parts = live.shared_chunk if is_shared else self._chunk(parts)
        if self.unsent is not None:
            self._keep_rest(parts, 0)
            return
        size = sum(map(len, parts))
        if len(parts) > 1 and size <= JOIN_MAX_BYTES:
            parts = (b"".join(parts),)
        try:
            if len(parts) == 1 and size <= SEND_MAX_BYTES:
                sent = self._sock.send(parts[0])
            else:
                some = parts if size <= SEND_MAX_BYTES else _first_of(parts, SEND_MAX_BYTES)
                sent = self._sock.sendmsg(some)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._owner.end()
            return
        self.last_sent = time.monotonic()
        self.sent_bytes += sent
        if sent == size:
            self._owner.sent_whole()
        else:
            self._keep_rest(parts, sent)
            self._sending = trio.CancelScope()
            self._live.nursery.start_soon(self._send_unsent, self._sending)

    def _chunk(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        size = sum(map(len, parts))
        if len(parts) == 1 and size <= JOIN_MAX_BYTES:
            live = self._live
            live.shared, live.shared_chunk = parts[0], (chunk_of(parts[0]),)
            return live.shared_chunk
        return (chunk_start(size), *parts, CHUNK_END) if size else parts

    def _keep_rest(self, parts: Sequence[bytes], sent: int) -> None:
        for part in parts:
            if sent < len(part):
                self._keep(part, sent)
            sent = max(0, sent - len(part))

    def _keep(self, part: bytes, sent: int = 0) -> None:
        """What the socket has not taken of a part, to be sent when it is this part's turn."""
        held, now = self._live.held, trio.current_time()
        if self.holding is None:
            self.holding = held.hold(self._owner, self._owner.principal.digest, now)
            self._live.look_in(self._owner, self.holding.due - now)
        held.add(self.holding, part, len(part), now)
        if self.unsent is None:
            self.unsent = memoryview(part)[sent:]
        else:
            self.backlog.append(part)

    def write_last(self, data: bytes) -> bool:
        """Send the unsent data, ``data`` and the end of a chunked body without waiting.

        The socket may accept only a part. Return False if it accepts nothing, or if too much data
        is unsent.
        """
        if self._is_chunked:
            data = chunk_of(data) + LAST_CHUNK
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

    def finish(self) -> None:
        """Complete the body, because the client has closed its side but may still read."""
        if self._is_chunked and self.unsent is None and not self.is_closed:
            with contextlib.suppress(OSError):
                self.sent_bytes += self._sock.send(LAST_CHUNK)

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
