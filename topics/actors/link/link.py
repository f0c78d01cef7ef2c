"""A link: messages both ways between one front and one shard, over two rings, two arenas and a
doorbell on each side.

            adopt: clear and announce             the peer's words say the same session
    CLOSED --------------------------> WAITING ------------------------------------------> OPEN
       ^                                  |                                                  |
       '----------------------------------'--------------- the board has moved on -----------'
                                                              (on_close if OPEN)

No side resets what another owns. A side that starts, or sees the board's number change, sets its
own head and tail to 0 and then says in its session words which session they belong to; data flow
only while all four session words of the two rings equal the number on the board. So nothing of an
old session is ever read, in whatever order the two sides notice.

Only the shard's side stops reading when its own messages do not get through. If both did, each
could wait for the other.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

import cbor2
import trio

from topics.actors.link.arena import ArenaBlock, ArenaMemory, ArenaReader, ArenaWriter
from topics.actors.link.board import Board
from topics.actors.link.ring import RingConsumer, RingDamaged, RingMemory, RingProducer, load_fences
from topics.config import Settings
from topics.formats.buffers import Buffer
from topics.formats.wire.message import (
    ARENA,
    ARENA_REF,
    ERROR,
    RELEASE,
    Assembler,
    MessageFrame,
    PeerGone,
    encode_head,
)

GUARD_S: Final = 0.050
JOIN_BYTES: Final = (
    1 << 20
)  # more than this is written piece by piece: joining would copy it once more

OnMessages: TypeAlias = Callable[[list[MessageFrame]], None]


class Side(Enum):
    """Which end of a link a process is."""

    FRONT = "front"
    SHARD = "shard"


class LinkMemory:
    """Everything that the two ends of a link share. Made by the supervisor before any fork."""

    def __init__(self, front: int, shard: int, settings: Settings) -> None:
        self.front = front
        self.shard = shard
        self.request = RingMemory(settings.ring_bytes)
        self.reply = RingMemory(settings.ring_bytes)
        self.request_arena = ArenaMemory(settings.arena_bytes)
        self.reply_arena = ArenaMemory(settings.arena_bytes)
        self.front_bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.shard_bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    @classmethod
    def create(cls, front: int, shard: int, settings: Settings) -> LinkMemory:
        """The link of one pair. Raises ValueError for a wrong ring_bytes, RuntimeError on a machine
        without fences.
        """
        load_fences()  # here, so that a server that could not run does not start
        return cls(front, shard, settings)

    def ring_doorbells(self) -> None:
        """Wake both sides, so that a sleeping one looks at the board: after ``Board.bump_session``."""
        os.eventfd_write(self.front_bell, 1)
        os.eventfd_write(self.shard_bell, 1)


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """What a link has done since its process started, and what it holds now."""

    sleeps: int  # times it waited for its doorbell
    bells: int  # times it had to wake the peer
    late_bells: int  # data found by the guard timer: wake-ups that were lost. Ought to be 0
    backlog_bytes: int  # queued here, not yet in the ring
    arena_used_bytes: int  # ours: reserved, or sent and not yet released
    arena_held: int  # the peer's: blocks that we have not released


class Link:
    """One end. All of it belongs to the one thread that runs ``run``; only ``run`` may wait."""

    def __init__(self, memory: LinkMemory, board: Board, side: Side, settings: Settings) -> None:
        fences = load_fences()
        inward, outward = (
            (memory.reply, memory.request) if side is Side.FRONT else (memory.request, memory.reply)
        )
        own_bell, peer_bell = memory.front_bell, memory.shard_bell
        arena_in, arena_out = memory.reply_arena, memory.request_arena
        if side is Side.SHARD:
            own_bell, peer_bell = peer_bell, own_bell
            arena_in, arena_out = arena_out, arena_in
        self.pair = (memory.front, memory.shard)
        self._cell = board.session_cell(memory.front, memory.shard)
        self._fence = fences.full
        self._bell, self._peer_bell = own_bell, peer_bell
        self._consumer = RingConsumer(inward, peer_bell, fences)
        self._producer = RingProducer(outward, peer_bell, fences)
        self._reader, self._writer = ArenaReader(arena_in), ArenaWriter(arena_out)
        self._inline_bytes = settings.inline_bytes
        self._half_ring = settings.ring_bytes // 2
        self._backlog_max = settings.ring_bytes if side is Side.SHARD else None
        self._session = 0  # the one that our words announce; 0: none yet
        self._open = False
        self._frame_id = 0
        self._assembler = Assembler()
        self._queue: list[bytes] = []  # sent since the last flush
        self._queued = 0  # bytes in _queue
        self._unsent: deque[memoryview] = deque()  # flushed, and the ring was full
        self._unsent_bytes = 0
        self._asleep = False
        self._sleeps = self._late = 0

    # --- sending ---

    @property
    def connected(self) -> bool:
        """Both sides are in the session that the board names."""
        return self._open and self._cell[0] == self._session

    @property
    def backlog_bytes(self) -> int:
        """Bytes that were sent here and are not in the ring yet."""
        return self._queued + self._unsent_bytes

    def next_frame_id(self) -> int:
        """A fresh frame id, for a message that must name itself in its payload."""
        self._frame_id += 1
        return self._frame_id

    def send(
        self,
        subject: str,
        payload: bytes,
        attachment: Buffer | ArenaBlock = b"",
        *,
        frame_id: int | None = None,
    ) -> int:
        """Queue one message; ``flush`` publishes it. Never blocks. Returns its frame id.

        A long attachment goes through the arena, or through the ring piece by piece when the arena
        is full. An ArenaBlock is taken over, also when this raises PeerGone: the session is over,
        or has not begun.
        """
        if frame_id is None:
            self._frame_id = frame_id = self._frame_id + 1
        if type(attachment) is bytes and len(attachment) <= self._inline_bytes:
            self._put(frame_id, subject, payload, attachment)
        else:
            self._send_long(frame_id, subject, payload, attachment)
        return frame_id

    def _put(
        self, frame_id: int, subject: str, payload: bytes, attachment: bytes, flags: int = 0
    ) -> None:
        if not self._open or self._cell[0] != self._session:
            raise self._peer_gone()
        head = encode_head(frame_id, subject, payload, len(attachment), flags)
        self._queue.append(head)
        if attachment:
            self._queue.append(attachment)
        self._queued += len(head) + len(attachment)

    def _send_long(
        self, frame_id: int, subject: str, payload: bytes, attachment: Buffer | ArenaBlock
    ) -> None:
        if not isinstance(attachment, ArenaBlock):
            view = memoryview(attachment).cast("B")
            if len(view) <= self._inline_bytes or (block := self.reserve(len(view))) is None:
                # A copy, because the caller may change what is behind a view before it is written.
                self._put(frame_id, subject, payload, bytes(view))
                return
            block.view[:] = view
            attachment = block
        if not self.connected or attachment.session != self._session:
            attachment.free()
            raise self._peer_gone()
        self._writer.take_over(attachment)
        self._put(
            frame_id, subject, payload, ARENA_REF.pack(attachment.offset, attachment.length), ARENA
        )

    def _peer_gone(self) -> PeerGone:
        return PeerGone(f"front {self.pair[0]} and shard {self.pair[1]} are not connected")

    def send_error(self, code: int, message: str, about: int) -> None:
        """Queue an ErrorFrame about the message with frame id ``about``. Raises PeerGone as
        ``send`` does.
        """
        payload = cbor2.dumps({"code": code, "message": message, "about": about})
        self._put(self.next_frame_id(), "", payload, b"", ERROR)

    def reserve(self, length: int) -> ArenaBlock | None:
        """Shared memory for an attachment; None when the arena is full or the peer is not there."""
        return self._writer.reserve(length) if self.connected else None

    @property
    def filling(self) -> list[ArenaBlock]:
        """The blocks of this session that were reserved and not sent yet."""
        return self._writer.filling

    def on_lost(self, view: memoryview, let_go: Callable[[], object]) -> None:
        """``let_go`` is called if a session waits for the memory of the attachment ``view``."""
        self._reader.on_lost(view, let_go)

    def release(self, frame: MessageFrame) -> None:
        """The receiver is done with the frame's attachment. Nothing happens for an inline one, nor
        the second time.

        The message that says so goes with the next flush, at the latest with the guard timer's.
        """
        if not frame.flags & ARENA:
            return
        assert isinstance(frame.attachment, memoryview), "an arena attachment is a view"
        block = self._reader.done(frame.attachment)
        if block is not None and self.connected:
            self._put(self.next_frame_id(), "", b"", ARENA_REF.pack(*block), RELEASE)

    def flush(self) -> None:
        """Publish what was sent: one copy, one store, at most one wake-up. What finds no room is
        published as room appears.
        """
        if not self._queue or self._cell[0] != self._session:
            return
        queue, length = self._queue, self._queued
        self._queue, self._queued = [], 0
        if length <= JOIN_BYTES:
            blob = b"".join(queue)
            written = 0 if self._unsent else self._producer.write(blob)
            if written == length:
                return
            self._unsent.append(memoryview(blob)[written:])
            self._unsent_bytes += length - written
        else:
            self._unsent.extend(map(memoryview, queue))
            self._unsent_bytes += length
        self._pump()

    def _pump(self) -> None:
        """Write what waits, half a ring at a time, so that the consumer copies one half while we
        fill the other.
        """
        unsent, write = self._unsent, self._producer.write
        while unsent:
            piece = unsent[0]
            written = write(piece[: self._half_ring])
            self._unsent_bytes -= written
            if written == len(piece):
                unsent.popleft()
            elif written:
                unsent[0] = piece[written:]
            elif self._wait_for_room():
                return

    def _wait_for_room(self) -> bool:
        """Ask the consumer to ring when it has read; False when it has just done so."""
        self._producer.sleeper.lie_down()
        self._fence()
        return self._producer.room() == 0

    # --- receiving ---

    async def run(
        self, on_open: Callable[[], None], on_messages: OnMessages, on_close: Callable[[], None]
    ) -> None:
        """Carry messages until cancelled.

        ``on_open`` is called when both sides are in the session, ``on_messages`` once each time
        with everything that has arrived, ``on_close`` when the session is over (not when this is
        cancelled). What they send is flushed when they return. Raises RingDamaged when the peer
        wrote what no process of ours writes.
        """
        guard = Guard.of_this_run()
        guard.links.add(self)
        try:
            while True:
                self.turn(on_open, on_messages, on_close)
                await self._pause()
        finally:
            guard.links.discard(self)

    def turn(
        self, on_open: Callable[[], None], on_messages: OnMessages, on_close: Callable[[], None]
    ) -> None:
        """Everything that can be done now, without waiting: one round of ``run``."""
        if self._cell[0] != self._session:
            self._leave(on_close)
            self._adopt(int(self._cell[0]))
        if not self._open and self._peer_agrees():
            self._open = True
            on_open()
        if self._open:
            self._pump()
            if not self._held_off() and (frames := self._receive()):
                on_messages(frames)
            self.flush()

    def _leave(self, on_close: Callable[[], None]) -> None:
        if self._open:
            self._open = False
            self._queue.clear()
            self._unsent.clear()
            self._queued = self._unsent_bytes = 0
            on_close()

    def _adopt(self, session: int) -> None:
        """Enter ``session``, or try again next turn if blocks that it would overwrite are in use.

        Who reads such a block is told to let go. Who fills one was told when its session closed.
        """
        self._reader.reclaim(session)
        if self._reader.busy(session) or self._writer.busy(session):
            return
        self._producer.clear()
        self._consumer.clear()
        self._reader.begin(session)
        self._writer.begin(session)
        self._assembler = Assembler()
        self._producer.announce(session)
        self._consumer.announce(session)
        self._session = session
        os.eventfd_write(self._peer_bell, 1)

    def _peer_agrees(self) -> bool:
        session = self._session
        return (
            self._cell[0]
            == session
            == self._consumer.peer_session()
            == self._producer.peer_session()
        )

    def _held_off(self) -> bool:
        return self._backlog_max is not None and self._unsent_bytes > self._backlog_max

    def _receive(self) -> list[MessageFrame]:
        data = self._consumer.read()
        if not data:
            return []
        frames = self._assembler.feed(data)
        if self._assembler.damaged:
            raise RingDamaged(
                f"bytes from the peer are no message (front {self.pair[0]}, shard {self.pair[1]})"
            )
        for frame in frames:
            if frame.flags & (ARENA | RELEASE):
                return [kept for frame in frames if (kept := self._resolve(frame)) is not None]
        return frames

    def _resolve(self, frame: MessageFrame) -> MessageFrame | None:
        """The frame with its arena block as attachment; None when it was a RELEASE, which is done
        here.
        """
        if not frame.flags & (ARENA | RELEASE):
            return frame
        if len(frame.attachment) == ARENA_REF.size:
            offset, length = ARENA_REF.unpack(frame.attachment)
            if frame.flags & RELEASE and self._writer.release(offset):
                return None
            if frame.flags & ARENA and (view := self._reader.open(offset, length)) is not None:
                return MessageFrame(frame.frame_id, frame.flags, frame.subject, frame.payload, view)
        raise RingDamaged(
            f"message {frame.frame_id} names no arena block (front {self.pair[0]}, shard {self.pair[1]})"
        )

    # --- waiting ---

    def _ready(self) -> bool:
        """A turn would do something."""
        session = self._cell[0]
        if session != self._session:
            return self._open or not (self._reader.busy(session) or self._writer.busy(session))
        if not self._open:
            return self._peer_agrees()
        if self._consumer.waiting() and not self._held_off():
            return True
        return bool(self._unsent) and self._producer.room() > 0

    async def _pause(self) -> None:
        """Return when there may be something to do; the other tasks run meanwhile, they are what
        the messages were for.
        """
        consumer, producer = self._consumer.sleeper, self._producer.sleeper
        if not self._held_off():
            consumer.lie_down()
        self._fence()  # the producer has lain down already, when it found the ring full
        try:
            if self._ready():
                await trio.lowlevel.checkpoint()
            else:
                self._asleep = True
                self._sleeps += 1
                await trio.lowlevel.wait_readable(self._bell)
                os.eventfd_read(self._bell)
        finally:
            self._asleep = False
            consumer.get_up()
            producer.get_up()

    def look_after(self) -> None:
        """The guard timer's visit: flush what nobody flushed (releases), wake a sleeper whose bell
        was lost.
        """
        self.flush()
        if self._asleep and self._ready() and not _rung(self._bell):
            if (
                self._cell[0] == self._session
            ):  # else it waited for arena blocks to be let go; nobody rings for that
                self._late += 1
            os.eventfd_write(self._bell, 1)

    def tidy(self) -> bool:
        """Give some unused memory back to the system; whether there is more."""
        return self._writer.tidy()

    def statistics(self) -> LinkStatistics:
        """For the metrics."""
        return LinkStatistics(
            sleeps=self._sleeps,
            bells=self._consumer.bells + self._producer.bells,
            late_bells=self._late,
            backlog_bytes=self.backlog_bytes,
            arena_used_bytes=self._writer.used_bytes,
            arena_held=self._reader.held,
        )


class Guard:
    """One timer for all links of a process. The fences make lost wake-ups impossible; this proves
    it, or mends it.
    """

    def __init__(self) -> None:
        self.links: set[Link] = set()

    @classmethod
    def of_this_run(cls) -> Guard:
        """The guard of the running trio loop; started with its first link."""
        try:
            return _GUARD.get()
        except LookupError:
            guard = cls()
            _GUARD.set(guard)
            trio.lowlevel.spawn_system_task(guard.run)
            return guard

    async def run(self) -> None:
        """Visit every link each GUARD_S. Others run between two portions of what is tidied up."""
        while True:
            await trio.sleep(GUARD_S)
            for link in tuple(self.links):
                link.look_after()
                while link.tidy():
                    await trio.lowlevel.checkpoint()


_GUARD: trio.lowlevel.RunVar[Guard] = trio.lowlevel.RunVar("topics link guard")


def _rung(bell: int) -> bool:
    poll = select.poll()
    poll.register(bell, select.POLLIN)
    return bool(poll.poll(0))
