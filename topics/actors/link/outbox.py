"""Outbox: the messages of one end of a link on their way into the ring.

    put ──▶ queue ──flush──▶ ring           one copy, one store, at most one wake-up
                      └────▶ unsent ──pump──▶ ring      what found no room, as room appears

A message may be quiet: it does not cause a flush, and goes with the next one that is caused by
another message. So it costs no wake-up of the peer.

The order of messages is the order of ``put``. The outbox never waits.
"""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager
from typing import Any, Final

from topics.actors.link.ring import RingProducer

JOIN_BYTES: Final = 1 << 20  # a longer queue is written in pieces: joining would copy it once more
QUIET_MAX: Final = 64  # quiet messages that wait for others
MANY: Final = 16  # pieces: the peer should begin with them, though more will follow


class Outbox:
    """The queue in front of a ring's producer."""

    __slots__ = (
        "_fence",
        "_half_ring",
        "_producer",
        "_quiet",
        "_unsent",
        "is_due",
        "queue",
        "queued_bytes",
        "stalls",
        "unsent_bytes",
    )

    def __init__(
        self, producer: RingProducer, ring_bytes: int, fence: AbstractContextManager[Any]
    ) -> None:
        self._producer = producer
        self._half_ring = ring_bytes // 2
        self._fence = fence
        # `Link.send` puts the pieces of a message into the queue, and says so.
        self.queue: list[bytes] = []  # since the last flush
        self.queued_bytes = 0
        self.is_due = False
        """There is something to flush that does not wait for others."""
        self._quiet = 0  # messages in queue that wait for others
        self._unsent: deque[memoryview] = deque()  # flushed, and the ring was full
        self.unsent_bytes = 0
        self.stalls = 0
        """How often a message found no room in the ring, and none waited for room before it."""

    @property
    def backlog_bytes(self) -> int:
        """Bytes that were put and are not in the ring yet."""
        return self.queued_bytes + self.unsent_bytes

    def quieten(self) -> None:
        """Let the message that was put last wait for others, unless too many do. It has no
        attachment.
        """
        assert self.is_due, "a message that waits is in the queue"
        if self._quiet < QUIET_MAX:
            self._quiet += 1
            self.is_due = len(self.queue) > self._quiet

    def flush(self) -> None:
        """Publish what was put. What finds no room is published by ``pump`` as room appears."""
        queue, length, is_stalled = self.queue, self.queued_bytes, bool(self._unsent)
        self.queue, self.queued_bytes, self._quiet, self.is_due = [], 0, 0, False
        if length <= JOIN_BYTES:
            joined = b"".join(queue)
            written = 0 if self._unsent else self._producer.write(joined)
            if written == length:
                return
            self._unsent.append(memoryview(joined)[written:])
            self.unsent_bytes += length - written
        else:
            self._unsent.extend(map(memoryview, queue))
            self.unsent_bytes += length
        self.pump()
        if self._unsent and not is_stalled:
            self.stalls += 1

    def pump(self) -> None:
        """Write what is unsent, half a ring at a time: the consumer copies one half while the
        other is filled.
        """
        unsent, write = self._unsent, self._producer.write
        while unsent:
            piece = unsent[0]
            written = write(piece[: self._half_ring])
            self.unsent_bytes -= written
            if written == len(piece):
                unsent.popleft()
            elif written:
                unsent[0] = piece[written:]
            elif self._is_full():
                return

    def clear(self) -> None:
        """Forget everything: the session is over."""
        self.queue.clear()
        self._unsent.clear()
        self.queued_bytes = self._quiet = self.unsent_bytes = 0
        self.is_due = False

    def _is_full(self) -> bool:
        """Ask the consumer to ring when it has read; False when it has just read."""
        self._producer.sleeper.fall_asleep()
        with self._fence:
            pass
        return self._producer.room() == 0
