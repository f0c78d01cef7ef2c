"""A ring: a stream of bytes from one producer to one consumer, in memory that both processes map.

The header is one page of u64 words, each alone in its line of 64 bytes, each with one writer. Data
follow at 4096.

    offset  word              writer    meaning
    0x040   HEAD              producer  bytes written since the session began; only grows within it
    0x080   TAIL              consumer  bytes read since the session began; only grows within it
    0x0C0   PRODUCER_SESSION  producer  the session that its words belong to
    0x100   CONSUMER_SESSION  consumer  the session that its words belong to
    0x140   CONSUMER_SLEEP    consumer  sleep number: odd while it waits for data; grows by one with
                                        every change
    0x180   PRODUCER_SLEEP    producer  sleep number: odd while it waits for room
    0x1000  data              producer  ``size`` bytes, a power of two; byte n of the stream stands
                                        at n % size

A word is only ever touched as one element of a view cast to "Q": that is one aligned 8-byte load or
store, whereas ``struct.pack_into`` clears the bytes first and shows the other process a 0 that
never was.

Going to sleep (and its mirror image, the producer that waits for room)

    consumer                          producer
    CONSUMER_SLEEP := odd             data, then HEAD := more
    full fence                        full fence
    HEAD moved? do not sleep          CONSUMER_SLEEP odd, and not rung for this number yet?
    wait for the bell                 ring the bell

Without the fences each side may read before its own store is seen, and both may miss the other:
also on x86.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

from topics.actors.link.fences import Fences
from topics.formats.buffers import Buffer

PAGE_BYTES: Final = 4096
_LINE: Final = 8  # words
HEAD: Final = 1 * _LINE
TAIL: Final = 2 * _LINE
PRODUCER_SESSION: Final = 3 * _LINE
CONSUMER_SESSION: Final = 4 * _LINE
CONSUMER_SLEEP: Final = 5 * _LINE
PRODUCER_SLEEP: Final = 6 * _LINE


class RingDamaged(Exception):
    """The shared words or the stream hold what no correct process writes: the ring is useless."""


class RingMemory:
    """The shared mapping of one direction. Made before the fork; it disappears with the last
    process that maps it.
    """

    def __init__(self, size: int) -> None:
        if size < PAGE_BYTES or size & (size - 1):
            raise ValueError(
                f"ring_bytes must be a power of two of at least {PAGE_BYTES}, not {size}"
            )
        self.size = size
        view = memoryview(mmap.mmap(-1, PAGE_BYTES + size))
        self.words = view[:PAGE_BYTES].cast("Q")
        self.data = view[PAGE_BYTES:]


class Sleeper:
    """One side's own sleep number."""

    __slots__ = ("_word", "_words", "number")

    def __init__(self, words: memoryview, word: int) -> None:
        self._words, self._word = words, word
        # A predecessor may have died asleep. The other side has rung for no number above its own.
        self.number = (words[word] | 1) + 1
        words[word] = self.number

    def fall_asleep(self) -> None:
        """From now on the other side rings. A fence must follow before the last check for data."""
        self.number = self._words[self._word] = (self.number + 1) | 1

    def wake_up(self) -> None:
        """The other side need not ring any more."""
        self.number = self._words[self._word] = self.number + 1 & ~1


class RingProducer:
    """The writing end. One task of one process uses it."""

    __slots__ = (
        "_bell",
        "_data",
        "_fences",
        "_head",
        "_rung",
        "_size",
        "_words",
        "bells",
        "sleeper",
    )

    def __init__(self, memory: RingMemory, consumer_bell: int, fences: Fences) -> None:
        self._words, self._data, self._size = memory.words, memory.data, memory.size
        self._fences = fences
        self._bell = consumer_bell
        self._head = 0
        self._rung = 0  # the consumer's sleep number that we rang for
        self.sleeper = Sleeper(memory.words, PRODUCER_SLEEP)
        self.bells = 0
        """How often this end had to wake the other."""

    def clear(self) -> None:
        """Begin a session: forget what was written. ``announce`` must follow."""
        self._head = self._words[HEAD] = 0

    def announce(self, session: int) -> None:
        """Say that the words belong to ``session``. The consumer believes them from here on."""
        if self._fences.order:
            self._fences.order()
        self._words[PRODUCER_SESSION] = session

    def peer_session(self) -> int:
        """The session that the consumer is in."""
        session = int(self._words[CONSUMER_SESSION])
        if self._fences.order:
            self._fences.order()
        return session

    def room(self) -> int:
        """Bytes that may be written now."""
        return max(0, self._size - self._head + int(self._words[TAIL]))

    @property
    def unread_bytes(self) -> int:
        """Bytes that the consumer has not read yet; 0 while it is a session behind."""
        return max(0, self._size - self.room())

    def is_full(self) -> bool:
        """There is no room, and the consumer rings when it has read."""
        if not self.sleeper.number & 1:
            self.sleeper.fall_asleep()
        with self._fences.full:
            pass
        return self.room() == 0

    def write(self, data: Buffer) -> int:
        """Copy in as much as there is room for, publish it with one store, wake the consumer.
        Returns how much it was.
        """
        words, head, size = self._words, self._head, self._size
        # One look at the tail, which moves. A consumer that is a session ahead has reset it to 0:
        # there is then too little room here, below 0 even, never too much.
        length, room = len(data), size - head + words[TAIL]
        if length > room:
            length = max(0, room)
            data = memoryview(data)[:length]
        if not length:
            return 0
        order = self._fences.order
        if order:
            order()
        at = head & (size - 1)
        if length <= size - at:
            self._data[at : at + length] = data
        else:
            with memoryview(data) as view:
                self._data[at:] = view[: size - at]
                self._data[: length - (size - at)] = view[size - at :]
        if order:
            order()
        self._head = words[HEAD] = head + length
        with self._fences.full:
            pass
        sleep = words[CONSUMER_SLEEP]
        if sleep & 1 and sleep != self._rung:
            self._rung = sleep
            self.bells += 1
            os.eventfd_write(self._bell, 1)
        return length


class RingConsumer:
    """The reading end. One task of one process uses it."""

    __slots__ = (
        "_bell",
        "_data",
        "_fences",
        "_rung",
        "_size",
        "bells",
        "sleeper",
        "tail",
        "words",
    )

    def __init__(self, memory: RingMemory, producer_bell: int, fences: Fences) -> None:
        self.words, self._data, self._size = memory.words, memory.data, memory.size
        self._fences = fences
        self._bell = producer_bell
        self.tail = 0  # below words[HEAD]: there is something to read
        self._rung = 0  # the producer's sleep number that we rang for
        self.sleeper = Sleeper(memory.words, CONSUMER_SLEEP)
        self.bells = 0
        """How often this end had to wake the other."""

    def clear(self) -> None:
        """Begin a session: forget what was read. ``announce`` must follow."""
        self.tail = self.words[TAIL] = 0

    def announce(self, session: int) -> None:
        """Say that the words belong to ``session``. The producer believes them from here on."""
        if self._fences.order:
            self._fences.order()
        self.words[CONSUMER_SESSION] = session

    def peer_session(self) -> int:
        """The session that the producer is in."""
        session = int(self.words[PRODUCER_SESSION])
        if self._fences.order:
            self._fences.order()
        return session

    def read(self) -> bytes:
        """Everything that is there, copied out; the room is given back with one store. From then
        on the producer need not ring. Raises RingDamaged.
        """
        words, tail, size, sleeper = self.words, self.tail, self._size, self.sleeper
        if sleeper.number & 1:
            sleeper.number = words[CONSUMER_SLEEP] = sleeper.number + 1
        length = words[HEAD] - tail
        if length <= 0:  # below 0: a producer that is a session ahead has reset the head
            return b""
        if length > size:
            raise RingDamaged(f"{length} bytes wait in a ring of {size}")
        order = self._fences.order
        if order:
            order()
        at, data = tail & (size - 1), self._data
        taken = (
            bytes(data[at : at + length])
            if length <= size - at
            else b"".join((data[at:], data[: length - (size - at)]))
        )
        if order:
            order()
        self.tail = words[TAIL] = tail + length
        with self._fences.full:
            pass
        sleep = words[PRODUCER_SLEEP]
        if sleep & 1 and sleep != self._rung:
            self._rung = sleep
            self.bells += 1
            os.eventfd_write(self._bell, 1)
        return taken
