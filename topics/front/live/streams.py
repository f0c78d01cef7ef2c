"""Streams: connections on which the server sends events until either side closes the stream.

    begin --> events and heartbeats --client disconnected or slow, drain, `fail`--> end

`Streams` contains the streams of a front, and `Stream` is one of them. Its `Outbox` writes events
to the socket immediately and keeps the part that the socket has not accepted. A stream needs no
task in addition to the task of its connection, because events are written in the loop iteration
that reads their messages from the ring.

An unexpected error in one stream must not affect other streams, so all calls of a stream go through
`Stream.attempt`, which closes only this stream.
"""

from __future__ import annotations

import contextlib
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

import structlog
import trio

from topics.actors.link.tick import TICK_INTERVAL_S, wait_tick
from topics.engine.access import Principal
from topics.formats.api.response_heads import CHUNK_END, LAST_CHUNK, chunk_of, chunk_start
from topics.front.error_answers import status_of
from topics.front.held_memory import HeldMemory, Holding
from topics.front.keys import Keys
from topics.front.limits import FrontSlots

log = structlog.get_logger()

CHECKS_MAX = 256  # maximum number of streams checked in one loop iteration (some milliseconds)
# Maximum number of long writes and ends of streams in one loop iteration, which take some
# milliseconds.
HEAVY_STREAMS_MAX = 16
NOTICE_INTERVAL_S = 10.0  # minimum interval between two notices to a stream that it is paced
UNSENT_MAX_BYTES = 128 * 1024  # unsent bytes in the kernel beyond the client's receive window
# Maximum time for which the client's kernel may leave sent bytes unacknowledged.
UNCONFIRMED_MAX_S = 60.0
RECEIVE_BYTES = 4096
# Maximum length of one write call, because one iteration may send a long page to many streams.
SEND_MAX_BYTES = 256 * 1024
JOIN_MAX_BYTES = 32 * 1024  # longer parts are not copied into a joined buffer

Args = TypeVarTuple("Args")


class StreamKind(IntEnum):
    """The kinds of streams. Each value is a row index in the metric ``topics_streams``."""

    WATCH = 0
    WORK = 1
    WEB_SOCKET = 2


class Streams:
    """All streams of a front: their limits, ticks, drain and deferred writes.

    One task checks each stream at its due time, for heartbeats and slow readers. Another task makes
    deferred calls, so that the results of one batch of messages are sent to a client in one write.
    """

    def __init__(self, slots: FrontSlots, keys: Keys, held: HeldMemory) -> None:
        self.slots, self.keys, self.held = slots, keys, held
        self.now = time.monotonic()  # time of the last tick
        self.streams: set[Stream] = set()
        # Keyed by the number of the tick at which the streams are checked.
        self._due: defaultdict[int, set[Stream]] = defaultdict(set)
        self._tick = int(trio.current_time() // TICK_INTERVAL_S)  # the number of the last tick
        self.stream_counts = [0] * len(StreamKind)
        self.draining = False
        self.nursery: trio.Nursery
        self._deferred: list[tuple[Stream, Callable[[], None]]] = []
        self._has_deferred = trio.Event()
        self._heavy_count = trio.CapacityLimiter(HEAVY_STREAMS_MAX)
        # The last short event and its chunk. A page is one `bytes` object for all streams, so the
        # chunk of an event is made once.
        self.shared = b""
        self.shared_chunk: tuple[bytes, ...] = (b"",)

    async def run(self) -> None:
        """Check streams and make deferred calls until cancelled."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self._run_deferred)
            while True:
                await wait_tick()
                self.tick()
                # The loop may have missed ticks: check the streams of all ticks since the last one.
                last = int(trio.current_time() // TICK_INTERVAL_S)
                while self._tick < last:
                    self._tick += 1
                    while self._tick in self._due:
                        self._check_due(self._due[self._tick])
                        await trio.lowlevel.checkpoint()

    def tick(self) -> None:
        """Store the time of a tick."""
        self.now = time.monotonic()

    # The following functions are separate from the loops of the tasks, because the variables of a
    # running loop would keep a reference to a stream that has ended.

    def schedule_check(self, stream: Stream, seconds: float) -> None:
        """Schedule a check of the stream for the first tick after ``seconds``, or earlier."""
        tick = max(int((trio.current_time() + seconds) // TICK_INTERVAL_S), self._tick) + 1
        if stream.tick is None or tick < stream.tick:
            self._unschedule(stream)
            stream.tick = tick
            self._due[tick].add(stream)

    def _unschedule(self, stream: Stream) -> None:
        """Remove the stream from the schedule of checks."""
        tick, stream.tick = stream.tick, None
        if tick is not None:
            self._due[tick].discard(stream)
            if not self._due[tick]:
                del self._due[tick]

    def _check_due(self, due: set[Stream]) -> None:
        """Check a bounded number of the streams that are due at one tick, and schedule their next
        checks.
        """
        for stream in [*islice(due, CHECKS_MAX)]:
            self._unschedule(stream)
            stream.attempt(stream.check)
            if not stream.ended:
                self.schedule_check(stream, stream.until_check_s())

    def _make_deferred(self) -> None:
        """Make the deferred calls."""
        deferred, self._deferred = self._deferred, []
        for stream, call in deferred:
            stream.attempt(call)

    async def _run_deferred(self) -> None:
        while True:
            # This task runs after the loop has handled the current batch of messages.
            await self._has_deferred.wait()
            self._has_deferred = trio.Event()
            self._make_deferred()

    def defer(self, stream: Stream, call: Callable[[], None]) -> None:
        """Make a call after the current batch of messages, so that one batch causes one write."""
        self._deferred.append((stream, call))
        self._has_deferred.set()

    def call_in(self, seconds: float, call: Callable[[], None]) -> None:
        """Call ``call`` after ``seconds``. ``call`` must neither wait nor raise.

        This function is used only under pressure.
        """

        async def wait() -> None:
            await trio.sleep(seconds)
            call()

        self.nursery.start_soon(wait)

    async def wait_iteration(self) -> None:
        """Wait for a loop iteration in which fewer than `HEAVY_STREAMS_MAX` streams do long
        work.
        """
        async with self._heavy_count:
            pass

    def check_limits(self, principal: Principal, leaving: Stream | None = None) -> None:
        """Check the limits for one more stream.

        The caller must call `hold_slot` before the next await. ``leaving`` is a stream that the new
        stream replaces. Raise `Throttled` if a limit is reached (§11).
        """
        self.slots.streams.check(principal, leaving=0 if leaving is None or leaving.ended else 1)

    def hold_slot(self, principal: Principal) -> Callable[[], None]:
        """Acquire the slot that `check_limits` has found free, and return a function that releases
        it.

        The slot is held while a slow client receives the head of its stream. Call the returned
        function when the stream begins, or when it is clear that it never begins.
        """
        self.slots.streams.add(principal)
        return partial(self.slots.streams.release, principal)

    def add(self, stream: Stream) -> None:
        """Add a stream that begins.

        A stream that begins during the drain, or whose key has changed since its request was
        admitted, fails immediately.
        """
        self.streams.add(stream)
        self.stream_counts[stream.kind] += 1
        self.schedule_check(stream, stream.until_check_s())
        if not stream.has_own_slot:
            self.slots.streams.add(stream.principal)
        if self.draining:
            stream.drain()
        elif (failure := self.keys.refusal(stream.principal)) is not None:
            stream.fail(status_of(failure), failure.message)

    def remove(self, stream: Stream) -> None:
        """Remove a stream that has ended. Safe to call twice."""
        if stream in self.streams:
            self.streams.remove(stream)
            self._unschedule(stream)
            self.stream_counts[stream.kind] -= 1
            if not stream.has_own_slot:
                self.slots.streams.release(stream.principal)

    def drain(self) -> None:
        """Close all streams because the server shuts down, including streams that begin later."""
        self.draining = True
        for stream in list(self.streams):
            stream.attempt(stream.drain)

    def end_refused(self) -> None:
        """Close the streams whose keys were removed or whose rights have changed."""
        for stream in list(self.streams):
            if (failure := self.keys.refusal(stream.principal)) is not None:
                stream.attempt(stream.fail, status_of(failure), failure.message)


class Stream(ABC):
    """One client that receives events.

    Subclasses define the events: records of topics (topic_streams.py), leased jobs
    (work_stream.py).

        begin --> running --fail: last event--> end
                     |------until_ended: the client closes its side--> end
                     '------socket error--> end
    """

    # True if the stream acquires its slot before it begins and releases the slot itself.
    has_own_slot = False
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
        self.tick: int | None = None  # the number of the tick at which it is checked
        self.notified_at = -math.inf  # time of the last notice that it is paced
        self.scope = trio.CancelScope()  # the cancel scope of `until_ended`
        self.outbox = Outbox(live, sock, self, is_chunked=is_chunked)

    # Event bytes, which subclasses define

    @abstractmethod
    def failure_event(self, code: int, error: str) -> bytes:
        """Return the event that reports why the stream ends."""

    @abstractmethod
    def heartbeat(self) -> bytes:
        """Return the bytes that keep an idle connection open."""

    @abstractmethod
    def paced_event(self, retry_after_ms: int, topics: list[str]) -> bytes:
        """Return the event that reports that events of these topics are delayed.

        The stream continues.
        """

    # Begin and end

    def begin(self) -> None:
        """Set up the socket, and register the stream with `Streams` until `end`."""
        if self.sock.family != socket.AF_UNIX:
            # The kernel ends the connection of a client that has vanished silently, because it no
            # longer acknowledges sent bytes.
            timeout_ms = int(UNCONFIRMED_MAX_S * 1000)
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)
            # Otherwise the kernel may queue up to 4 MB before a pong, and a slow client would
            # receive the pong too late.
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_MAX_BYTES)
        self.live.add(self)

    async def until_ended(self) -> None:
        """Wait for the end of the stream.

        Discard received bytes, and close the stream on a hang-up.
        """
        with self.scope:
            with contextlib.suppress(OSError):
                while not self.ended:
                    await trio.lowlevel.wait_readable(self.sock)
                    try:
                        if not self.sock.recv(RECEIVE_BYTES):
                            break
                    except BlockingIOError:
                        continue
            # Limit the number of streams that end in one iteration.
            await self.live.wait_iteration()
            self.outbox.finish()
            self.end()

    def until_check_s(self) -> float:
        """Return the seconds until the stream must be checked."""
        holding = self.outbox.holding
        if holding is not None:
            return holding.due - trio.current_time()
        # The check is due one tick early, because streams are checked only at ticks, and the next
        # tick would be too late.
        return self.outbox.last_sent + self.heartbeat_s - TICK_INTERVAL_S - time.monotonic()

    def check(self) -> None:
        """If a check is due, send a heartbeat, or close the stream if its client is too slow."""
        if self.until_check_s() <= 0:
            self.disconnect() if self.outbox.holding else self.outbox.write(self.heartbeat())

    def disconnect(self) -> None:
        """Close the stream, because its client reads too slowly or its memory is needed."""
        self.attempt(self.fail, 408, "the client reads too slowly")

    def drain(self) -> None:
        """Close the stream, because the server shuts down."""
        self.fail(503, "the server is shutting down")

    def fail(self, code: int, error: str) -> None:
        """Send an event with the reason, if the socket accepts it, and close the stream."""
        if not self.ended:
            if not self.outbox.write_last(self.failure_event(code, error)):
                log.debug("failure event not sent", code=code, reason=error)
            self.end()

    def end(self) -> None:
        """Close the stream without sending more data.

        The task of the connection then closes the connection.
        """
        if not self.ended:
            self.ended = True
            self.scope.cancel()
            self.outbox.close()
            self.live.remove(self)

    def attempt(self, call: Callable[[*Args], Any], *args: *Args) -> None:
        """Run an operation of this stream. An unexpected error closes this stream only."""
        try:
            call(*args)
        except Exception:
            self.fail_unexpectedly()

    def fail_unexpectedly(self) -> None:
        """Close the stream because of an unexpected error.

        Call this in an ``except`` block.
        """
        log.exception("stream failed")
        try:
            self.fail(500, "internal error")
        except Exception:
            log.exception("stream failed")
            self.end()

    def notify_pauses(self, now: float, pauses_s: dict[str, float]) -> None:
        """Notify the client that events of these topics are paused, and of the longest pause.

        ``pauses_s`` maps topics to seconds. Send nothing if the last notice was sent less than
        `NOTICE_INTERVAL_S` ago, or if the socket accepts no data.
        """
        if pauses_s and now - self.notified_at >= NOTICE_INTERVAL_S and not self.is_stalled:
            self.notified_at = now
            longest_ms = math.ceil(1000 * max(pauses_s.values()))
            self.outbox.write(self.paced_event(longest_ms, sorted(pauses_s)))

    # The socket

    @property
    def is_stalled(self) -> bool:
        """Whether the socket currently accepts no data."""
        return self.outbox.unsent is not None

    def on_sent(self) -> None:  # noqa: B027 - only some streams use it
        """Called when the socket has accepted all written data."""

    def resumed(self) -> None:  # noqa: B027 - only topic streams react to it
        """Called when a stalled socket accepts data again."""


class Outbox:
    """The sending side of one client's socket.

        open --socket accepts only a part--> stalled --client reads again--> open
          '------------------------------------'--close, socket error--> closed

    While it is open, `write` sends in the caller's loop iteration, and no data is kept. While it is
    stalled, a separate task sends the unsent part of one write, and then the backlog: later
    responses, jobs and end events. Streams send no further pages to a stalled client. So the outbox
    never holds more than the end of one write, one page of leased jobs and the responses to the
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
        self.sent_bytes = 0  # total bytes that this stream has sent
        self.backlog: list[bytes] = []  # parts to send after the unsent part
        self.last_sent = live.now
        self.unsent: memoryview | None = None  # set while the outbox is stalled
        self.holding: Holding | None = None  # set while the outbox is stalled
        # The cancel scope of the task that sends the unsent data.
        self._sending = trio.CancelScope()

    def write(self, *parts: bytes) -> None:
        """Send the parts, and keep the bytes that the socket does not accept.

        Long parts are not copied. While the outbox is stalled, callers may write only data of
        bounded size, or final data.
        """
        if self.is_closed:
            return
        if self._is_chunked:
            live = self._live
            is_shared = parts[0] is live.shared and len(parts) == 1
            parts = live.shared_chunk if is_shared else self._chunk(parts)
        # Keep the order: the unsent data is sent first.
        if self.unsent is not None:
            self._keep_unsent(parts, 0)
            return
        size = sum(map(len, parts))
        # Join short parts, so that they are sent as one buffer.
        if len(parts) > 1 and size <= JOIN_MAX_BYTES:
            parts = (b"".join(parts),)
        try:
            if len(parts) == 1 and size <= SEND_MAX_BYTES:
                sent = self._sock.send(parts[0])
            else:
                # The length of one write is bounded, so that a long page does not block the loop.
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
            self._owner.on_sent()
        else:
            self._keep_unsent(parts, sent)
            self._sending = trio.CancelScope()
            self._live.nursery.start_soon(self._send_unsent, self._sending)

    def _chunk(self, parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Return the parts of one chunk of a chunked body."""
        size = sum(map(len, parts))
        if len(parts) == 1 and size <= JOIN_MAX_BYTES:
            live = self._live
            live.shared, live.shared_chunk = parts[0], (chunk_of(parts[0]),)
            return live.shared_chunk
        # Nothing is sent for empty data, because an empty chunk would end the body.
        return (chunk_start(size), *parts, CHUNK_END) if size else parts

    def _keep_unsent(self, parts: Sequence[bytes], sent: int) -> None:
        """Keep the parts, excluding their first ``sent`` bytes."""
        for part in parts:
            if sent < len(part):
                self._keep(part, sent)
            sent = max(0, sent - len(part))

    def _keep(self, part: bytes, sent: int = 0) -> None:
        """Keep the bytes of a part from offset ``sent``, after all data that is already unsent."""
        held, now = self._live.held, trio.current_time()
        if self.holding is None:
            # The stream is checked when its client counts as too slow.
            self.holding = held.hold(self._owner, self._owner.principal.digest, now)
            self._live.schedule_check(self._owner, self.holding.due - now)
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
            self._owner.on_sent()
        return True

    def finish(self) -> None:
        """Send the last chunk of a chunked body.

        Called when the client has closed its side but may still be reading.
        """
        if self._is_chunked and self.unsent is None and not self.is_closed:
            with contextlib.suppress(OSError):
                self.sent_bytes += self._sock.send(LAST_CHUNK)

    def close(self) -> None:
        """Stop sending, and free the unsent data immediately."""
        if not self.is_closed:
            self.is_closed = True
            self.unsent, self.backlog = None, []
            self._release()
            self._sending.cancel()
            # Break the reference cycle, so that no memory waits for the garbage collector.
            del self._owner

    async def _send_unsent(self, scope: trio.CancelScope) -> None:
        """Send the unsent data. The task waits only for this client and ends with the stream."""
        try:
            with scope:
                while self.unsent is not None and not self.is_closed:
                    await trio.lowlevel.wait_writable(self._sock)
                    await self._live.wait_iteration()
                    # The stream may have ended during the waits.
                    if self.unsent is not None:
                        self._send_some(self.unsent)
        except (OSError, trio.ClosedResourceError):
            if not self.is_closed:
                self._owner.end()
        if not self.is_closed:
            self._owner.attempt(self._owner.resumed)

    def _send_some(self, unsent: memoryview) -> None:
        """Send a bounded number of unsent bytes. After the last one, continue with the backlog."""
        with contextlib.suppress(BlockingIOError):
            sent = self._sock.send(unsent[:SEND_MAX_BYTES])
            self.last_sent = time.monotonic()
            self.sent_bytes += sent
            if sent < len(unsent):
                self.unsent = unsent[sent:]
                if self.holding is not None:
                    self.holding.count_sent(sent, trio.current_time())
            else:
                self._send_next()

    def _send_next(self) -> None:
        """Continue with the backlog, because the unsent part was sent completely."""
        self.unsent = None
        self._release()
        backlog, self.backlog = self.backlog, []
        if not backlog:
            self._owner.on_sent()
        for part in _joined(backlog):
            self._keep(part)

    def _release(self) -> None:
        """Release the holding of the unsent data."""
        if self.holding is not None:
            holding, self.holding = self.holding, None
            self._live.held.release(holding)


def _first_of(parts: Sequence[bytes], most: int) -> list[memoryview]:
    """Return views of the first ``most`` bytes of the parts."""
    found = []
    for part in parts:
        found.append(memoryview(part)[:most])
        most -= len(found[-1])
    return found


def _joined(parts: Sequence[bytes]) -> Iterator[bytes]:
    """Yield the same bytes, with adjacent short parts joined."""
    for are_short, some in groupby(parts, lambda part: len(part) <= JOIN_MAX_BYTES):
        if are_short:
            yield b"".join(some)
        else:
            yield from some
