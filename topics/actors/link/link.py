"""Link: bidirectional messages between two processes, over two rings, two arenas and two doorbells.

            adopt: clear and announce             the peer announces the same session
    CLOSED --------------------------> WAITING ------------------------------------------> OPEN
       ^                                  |                                                  |
       '----------------------------------'---------- the board's session number changes ----'
                                                              (on_close if OPEN)

An end never resets fields that the other end owns. An end that starts, or detects that the board's
session number has changed, sets its own head and tail to 0. Then it stores the new session number
in its own session fields. Data is transferred only while all four session fields of the two rings
equal the number on the board. So no byte of an old session is ever read, regardless of the order in
which the two ends detect the change.

Only the second end (the shard, in a link between the front and a shard) stops reading while its own
unsent messages exceed the size of the ring. If both ends did that, they could deadlock.

    send ──▶ queue ──flush──▶ ring           one copy, one store, at most one wake-up
                       └────▶ unsent ──▶ ring    messages that did not fit, as space appears

Messages are delivered in the order of ``send``. A message may be quiet: it does not cause a flush,
but is sent with the next message that does. So it does not wake the peer by itself.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from topics.actors.link.arena import ArenaBlock, ArenaReader, ArenaWriter
from topics.actors.link.board import Board
from topics.actors.link.event_loop import EventLoop
from topics.actors.link.fences import load_fences
from topics.actors.link.link_memory import LinkMemory
from topics.actors.link.process_id import ProcessId
from topics.actors.link.ring import HEAD, RingConsumer, RingDamaged, RingProducer
from topics.actors.link.tick import wait_tick
from topics.formats.buffers import Buffer
from topics.formats.wire.envelope import Refusal, encode
from topics.formats.wire.message import (
    ARENA,
    ARENA_REF,
    ERROR,
    RELEASE,
    Assembler,
    Message,
    PeerClosed,
    encode_head,
)

OnMessages: TypeAlias = Callable[[list[Message]], None]

# A queue with more bytes is written buffer by buffer, to avoid an additional copy.
JOIN_BYTES: Final = 1 << 20
DEFERRED_MAX: Final = 64  # maximum number of quiet messages that wait for a flush
# Number of queued buffers that causes an early flush, so that the peer can begin to process them.
EARLY_FLUSH_BUFFERS: Final = 16
RELEASE_DELAY_S: Final = 0.050  # seconds that a release waits for another flush


class LinkTimer:
    """One timer for all links of a trio run.

    The fences of `topics.actors.link.ring` make lost wake-ups impossible. The timer verifies this:
    with each tick it checks every link. If a wake-up was lost, the timer repeats it, and the link
    counts it (`late_bells`).
    """

    def __init__(self) -> None:
        self.links: set[Link] = set()
        self._is_check_due = False

    @classmethod
    def of_this_run(cls) -> LinkTimer:
        """Return the timer of the current trio run. The first call starts it."""
        try:
            return _TIMER.get()
        except LookupError:
            timer = cls()
            _TIMER.set(timer)
            trio.lowlevel.spawn_system_task(timer.run)
            return timer

    def schedule_check(self) -> None:
        """Check the links within `RELEASE_DELAY_S`, to flush queued releases and trim arenas.

        A release that is queued outside of a loop iteration would otherwise wait for the next tick.
        """
        if not self._is_check_due:
            self._is_check_due = True
            trio.lowlevel.spawn_system_task(self._check_later)

    async def _check_later(self) -> None:
        await trio.sleep(RELEASE_DELAY_S)
        self._is_check_due = False
        await self._check_links()

    async def run(self) -> None:
        """Check every link with each tick."""
        while True:
            await wait_tick()
            await self._check_links()

    async def _check_links(self) -> None:
        """Check all links, and trim their arenas.

        Other tasks run between two calls of `ArenaWriter.trim`.
        """
        for link in tuple(self.links):
            link.check()
            while link.writer.trim():
                await trio.lowlevel.checkpoint()


_TIMER: trio.lowlevel.RunVar[LinkTimer] = trio.lowlevel.RunVar("topics link timer")


class Link:
    """One end of a link. It belongs to the thread that runs ``run``. Only ``run`` may block."""

    def __init__(self, memory: LinkMemory, board: Board, own: ProcessId) -> None:
        """Create the end of process ``own``, which is one of ``memory.ends``."""
        end = memory.ends.index(own)
        self.own, self.peer = own, memory.ends[1 - end]
        sizes, fences = memory.sizes, load_fences()
        self._bell, self._peer_bell = memory.bells[end], memory.bells[1 - end]
        self._cell = board.session_cell(own, self.peer)
        self._fence = fences.full
        self._consumer = RingConsumer(memory.rings[1 - end], self._peer_bell, fences)
        self.producer = RingProducer(memory.rings[end], self._peer_bell, fences)
        self.reader = ArenaReader(memory.arenas[1 - end])
        self.writer = ArenaWriter(memory.arenas[end])
        self._assembler = Assembler()
        self._inline_bytes, self._half_ring = sizes.inline_bytes, sizes.ring_bytes // 2
        # With a longer backlog, this end stops reading. Only the second end has this limit. If both
        # ends had it, each could wait for the other (module docstring).
        self._backlog_max = sizes.ring_bytes if end == 1 else sys.maxsize
        self._timer: LinkTimer | None = None  # set while `run` is running
        # The session that this end has announced in its session fields; 0: no session yet. Data is
        # accepted only while the board and the four fields of the rings agree (`_peer_agrees`).
        self._session = 0
        # True from ``on_open`` to ``on_close``. Written by `_enter` only.
        self._open = False
        self.message_id = 0  # id of the last queued message
        self.queue: list[bytes] = []  # buffers of messages since the last flush
        self._queued_bytes = 0
        self.is_due = False
        """Whether the queue contains a message that is not quiet, so that `flush` must send it."""
        self._deferred_count = 0  # quiet messages in the queue
        # Flushed data that did not fit in the ring, in the order of sending. While there is such
        # data, newly flushed messages are appended to it and not written to the ring.
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        # Used by `check`: an end that sleeps although it has work has missed a wake-up.
        self._is_asleep = False
        self.late_bells = 0
        """Number of lost wake-ups that the timer found. Must stay 0."""
        self.stalls = 0
        """Number of times that the ring was full while no earlier message waited for space."""

    def __str__(self) -> str:
        return f"{self.own} to {self.peer}"

    # --- sending ---

    @property
    def connected(self) -> bool:
        """Whether both ends are in the current session of the board."""
        return self._open and self._cell[0] == self._session

    @property
    def backlog_bytes(self) -> int:
        """Bytes that have been passed to `send` and are not in the ring yet."""
        return self._queued_bytes + self._unsent_bytes

    @property
    def unread_bytes(self) -> int:
        """Bytes in the ring that the peer has not read."""
        return self.producer.unread_bytes

    def send(
        self,
        subject: str,
        payload: bytes,
        attachment: Buffer | ArenaBlock = b"",
        *,
        message_id: int | None = None,
        flags: int = 0,
    ) -> int:
        """Queue one message, which ``flush`` publishes. Never blocks. Return its message id.

        A long attachment is sent through the arena, or through the ring in parts if the arena is
        full. The link takes ownership of an ArenaBlock, even if it raises PeerClosed because no
        session is open. ``flags``: set only by the link itself.
        """
        if message_id is None:
            self.message_id = message_id = self.message_id + 1
        # Most attachments are short `bytes`, which are queued as they are.
        if type(attachment) is not bytes or len(attachment) > self._inline_bytes:
            attachment, flags = self._in_arena(attachment)
        # The board may contain a newer session number that `run` has not detected yet. Then no
        # message may be sent.
        if not self._open or self._cell[0] != self._session:
            raise self._peer_closed_error()
        head = encode_head(message_id, subject, payload, len(attachment), flags)
        self.queue.append(head)
        if attachment:
            self.queue.append(attachment)
        self._queued_bytes += len(head) + len(attachment)
        self.is_due = True
        return message_id

    def _in_arena(self, attachment: Buffer | ArenaBlock) -> tuple[bytes, int]:
        """Return a reference to the attachment in the arena, and the flag for it.

        Return a copy of the attachment if it is short or does not fit in the arena.
        """
        if not isinstance(attachment, ArenaBlock):
            view = memoryview(attachment).cast("B")
            if len(view) <= self._inline_bytes or (block := self.reserve(len(view))) is None:
                # Copy, because the caller may change the memory of the view before it is written.
                return bytes(view), 0
            block.view[:] = view
            attachment = block
        # A block of an ended session cannot be sent, because it is in the half that the current
        # session does not use.
        if not self.connected or attachment.session != self._session:
            attachment.free()
            raise self._peer_closed_error()
        self.writer.mark_sent(attachment)
        return ARENA_REF.pack(attachment.offset, attachment.length), ARENA

    def defer_flush(self) -> None:
        """Make the last message, which has no attachment, quiet: it waits for the next flush.

        Do nothing if too many quiet messages already wait. The timer does not flush quiet messages,
        because that would wake the peer unnecessarily. So a quiet message may wait forever.
        """
        assert self.is_due, "a waiting message is in the queue"
        if self._deferred_count < DEFERRED_MAX:
            self._deferred_count += 1
            # If the queue contains only quiet messages, no flush is due.
            self.is_due = len(self.queue) > self._deferred_count

    def _peer_closed_error(self) -> PeerClosed:
        return PeerClosed(f"link {self} is not connected")

    def send_refusal(self, code: int, message: str, about: int) -> None:
        """Queue a refusal of the message with id ``about``. Raises PeerClosed, like ``send``."""
        payload = encode(Refusal(int(code), message, about))
        self.send("", payload, flags=ERROR)

    def reserve(self, length: int) -> ArenaBlock | None:
        """Reserve memory for an attachment.

        Return None if the arena is full or no session is open.
        """
        return self.writer.reserve(length) if self.connected else None

    def flush(self) -> None:
        """Publish the queued messages. Data that does not fit is published as space appears.

        Do nothing if the session has ended, or if all queued messages are quiet.
        """
        if not self.is_due or self._cell[0] != self._session:
            return
        # Take the queue first. A message that is sent while this runs belongs to the next flush.
        queue, length, is_stalled = self.queue, self._queued_bytes, bool(self._unsent)
        self.queue, self._queued_bytes, self._deferred_count, self.is_due = [], 0, 0, False
        # If earlier data waits for space, append to it, so that the order of messages is kept.
        # Most flushes need only one copy and one write.
        if length <= JOIN_BYTES:
            joined = b"".join(queue)
            written = 0 if is_stalled else self.producer.write(joined)
            if written == length:
                return
            self._unsent.append(memoryview(joined)[written:])
            self._unsent_bytes += length - written
        else:
            # Long data is written from the buffers themselves, without joining them.
            self._unsent.extend(map(memoryview, queue))
            self._unsent_bytes += length
        self._write_unsent()
        if self._unsent and not is_stalled:
            self.stalls += 1

    def _write_unsent(self) -> None:
        """Write unsent data, half a ring at a time.

        The consumer can copy one half while the other half is being filled.
        """
        unsent, write = self._unsent, self.producer.write
        while unsent:
            chunk = unsent[0]
            written = write(chunk[: self._half_ring])
            self._unsent_bytes -= written
            if written == len(chunk):
                unsent.popleft()
            elif written:
                unsent[0] = chunk[written:]
            # If no bytes were written, `is_full` marks this end as sleeping before it checks again,
            # so the peer wakes this end when space appears.
            elif self.producer.is_full():
                return

    # --- attachments of the peer ---

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Call ``release`` if a new session waits for the memory of the attachment ``view``."""
        self.reader.on_reclaim(view, release)

    def release(self, message: Message) -> None:
        """Release a message's attachment after its last use. A second call has no effect.

        Do nothing for an inline attachment. The RELEASE message to the peer is sent with the next
        flush. The timer performs one within `RELEASE_DELAY_S`.
        """
        if not message.flags & ARENA:
            return
        assert isinstance(message.attachment, memoryview), "an arena attachment is a view"
        block = self.reader.release(message.attachment)
        # The peer may reuse the block when it gets this message. No message is needed if the
        # session of the block has ended.
        if block is not None and self.connected:
            self.send("", b"", ARENA_REF.pack(*block), flags=RELEASE)
            if self._timer is not None:
                self._timer.schedule_check()

    # --- the session ---

    async def run(
        self, on_open: Callable[[], None], on_messages: OnMessages, on_close: Callable[[], None]
    ) -> None:
        """Transfer messages until cancelled.

        ``on_open`` is called when both ends are in the session. ``on_messages`` is called once per
        pass, with all messages received in the pass. ``on_close`` is called when the session has
        ended, but not when `run` is cancelled. Messages that these functions send are flushed when
        they return. Raises RingDamaged if the peer wrote data that no correct process writes.
        """
        loop, timer = EventLoop.of_this_run(), LinkTimer.of_this_run()
        self._timer = timer
        reading, writing, cells = self._consumer, self.producer.sleep_state, self._consumer.cells

        def ready(_events: int) -> None:
            os.eventfd_read(self._bell)
            self._is_asleep = False
            # This end is awake now, so it must not remain marked as waiting for space.
            if writing.number & 1:
                writing.end_sleep()
            self.run_once(on_open, on_messages, on_close)
            # Do not request wake-ups for new input while this end is not reading.
            if self._unsent_bytes <= self._backlog_max:
                # `decisions/0001` defines the order: announce the sleep, then a full fence,
                # then check again. In any other order, a message that arrives in between would
                # wait for the next event.
                reading.sleep_state.begin_sleep()
            with self._fence:  # a producer that found the ring full is already marked as sleeping
                pass
            # The usual case is checked without a call.
            is_idle = self._open and not self._unsent_bytes and cells[HEAD] <= reading.tail
            self._is_asleep = (is_idle and self._cell[0] == self._session) or not self._has_work()
            if not self._is_asleep:
                os.eventfd_write(self._bell, 1)  # call again after other tasks have run

        timer.links.add(self)
        os.eventfd_write(self._bell, 1)  # the ring may already contain data
        try:
            await loop.serve(self._bell, ready)
        finally:
            timer.links.discard(self)
            self._timer = None
            self._is_asleep = False

    def run_once(
        self, on_open: Callable[[], None], on_messages: OnMessages, on_close: Callable[[], None]
    ) -> None:
        """Do all work that is possible now, without blocking: one pass of ``run``."""
        # If this end is not in the current session, try to enter it. If that fails, no messages can
        # be transferred.
        if not (self._open and self._cell[0] == self._session) and not self._enter(
            on_open, on_close
        ):
            return
        # Write first: the peer may be waiting for this data before it reads more.
        if self._unsent:
            self._write_unsent()
        # Read only while the own backlog is short, so that replies do not pile up.
        if self._unsent_bytes <= self._backlog_max and (data := self._consumer.read()):
            messages = self._assembler.feed(data)
            # If the bytes are not messages, the memory cannot be trusted, and the process must end.
            if self._assembler.damaged:
                raise RingDamaged(f"the ring contains bytes that are not a message ({self})")
            # Most batches have no arena messages, and need no copy of the list.
            for message in messages:
                if message.flags & (ARENA | RELEASE):
                    resolved = map(self._resolve, messages)
                    messages = [message for message in resolved if message is not None]
                    break
            if messages:
                on_messages(messages)
        # Send the replies of the handlers in this pass.
        if self.is_due:
            self.flush()

    def _resolve(self, message: Message) -> Message | None:
        """Return the message with its arena block as attachment.

        Handle a RELEASE and return None.
        """
        if not message.flags & (ARENA | RELEASE):
            return message
        if len(message.attachment) == ARENA_REF.size:
            offset, length = ARENA_REF.unpack(message.attachment)
            if message.flags & RELEASE and self.writer.release(offset):
                if self._timer is not None and self.writer.has_unused:
                    self._timer.schedule_check()
                return None
            if message.flags & ARENA and (view := self.reader.open(offset, length)) is not None:
                return Message(
                    message.message_id, message.flags, message.subject, message.payload, view
                )
        raise RingDamaged(f"message {message.message_id} refers to no arena block ({self})")

    def _enter(self, on_open: Callable[[], None], on_close: Callable[[], None]) -> bool:
        """Leave an ended session, and enter the next one. Return whether both ends are in it."""
        if self._cell[0] != self._session:
            if self._open:
                # The queued messages belong to the ended session, so they are discarded. `on_close`
                # fails the calls that wait for a reply.
                self._open = self.is_due = False
                self.queue.clear()
                self._unsent.clear()
                self._queued_bytes = self._unsent_bytes = self._deferred_count = 0
                on_close()
            self._adopt(int(self._cell[0]))
        # The session opens when the peer has also announced it.
        if self._peer_agrees():
            self._open = True
            on_open()
        return self._open

    def _adopt(self, session: int) -> None:
        """Announce ``session``, unless blocks in its memory are in use. The next pass then retries.

        Request the holders of received blocks to release them. ``on_close`` has already notified
        the code that fills blocks.
        """
        self.reader.reclaim(session)
        if self._is_half_used(session):
            return
        # Clear the fields of this end before it announces the session. The peer must not read old
        # positions under the new number.
        self.producer.clear()
        self._consumer.clear()
        self.reader.begin(session)
        self.writer.begin(session)
        self._assembler = Assembler()  # discard a partially received message
        self.producer.announce(session)
        self._consumer.announce(session)
        self._session = session
        # The peer may be waiting for the announcement.
        os.eventfd_write(self._peer_bell, 1)

    def _is_half_used(self, session: int) -> bool:
        return self.reader.is_used(session) or self.writer.is_used(session)

    def _peer_agrees(self) -> bool:
        session = self._session
        return (
            self._cell[0]
            == session
            == self._consumer.peer_session()
            == self.producer.peer_session()
        )

    # --- waiting ---

    def _has_work(self) -> bool:
        """Return whether `run_once` would do any work."""
        session = self._cell[0]
        if session != self._session:
            return self._open or not self._is_half_used(session)
        if not self._open:
            return self._peer_agrees()
        unsent, consumer = self._unsent_bytes, self._consumer
        if unsent <= self._backlog_max and consumer.cells[HEAD] > consumer.tail:
            return True
        return unsent > 0 and self.producer.free_bytes() > 0

    def check(self) -> None:
        """Flush queued releases, and wake this end if a wake-up was lost.

        Called by the timer.
        """
        self.flush()
        # If the doorbell has already been rung, this end will run without further action.
        if self._is_asleep and self._has_work() and not _is_rung(self._bell):
            # Count a lost wake-up only within a session. Between two sessions, this end may have
            # waited for the release of arena blocks, which does not ring the doorbell.
            self.late_bells += self._cell[0] == self._session
            os.eventfd_write(self._bell, 1)


def _is_rung(bell: int) -> bool:
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    return bool(poll.poll(0))
