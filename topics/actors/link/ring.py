"""Ring: a byte stream from one producer to one consumer, in memory that both processes map.

The header is one page of u64 fields. Each field is alone in its line of 64 bytes, and has one
writer. The data begins at offset 4096.

    offset  field             writer    meaning
    0x040   HEAD              producer  bytes written since the session began; only grows within it
    0x080   TAIL              consumer  bytes read since the session began; only grows within it
    0x0C0   PRODUCER_SESSION  producer  the session to which the producer's fields belong
    0x100   CONSUMER_SESSION  consumer  the session to which the consumer's fields belong
    0x140   CONSUMER_SLEEP    consumer  sleep number: odd while the consumer waits for data; grows
                                        with every change of state
    0x180   PRODUCER_SLEEP    producer  sleep number: odd while the producer waits for space
    0x1000  data              producer  ``size`` bytes, a power of two; byte n of the stream is
                                        at n % size

A field is only accessed as one element of a view cast to "Q", which is one aligned 8-byte load or
store. ``struct.pack_into`` must not be used: it clears the bytes first, so the other process could
read a 0 that was never stored.

How the consumer goes to sleep (a producer that waits for space does the same):

    consumer                          producer
    CONSUMER_SLEEP := odd             data, then HEAD := more
    full fence                        full fence
    HEAD moved? do not sleep          CONSUMER_SLEEP odd, and not rung for this number yet?
    wait for the bell                 ring the bell

Without the fences, each side may read before its own store is visible, and both may miss the
other's store. This also happens on x86.
"""

from __future__ import annotations

import mmap
import os
from typing import Final

from topics.actors.link.fences import Fences
from topics.formats.buffers import Buffer

PAGE_BYTES: Final = 4096
_LINE: Final = 8  # number of u64 fields in a 64-byte line of the header
HEAD: Final = 1 * _LINE
TAIL: Final = 2 * _LINE
PRODUCER_SESSION: Final = 3 * _LINE
CONSUMER_SESSION: Final = 4 * _LINE
CONSUMER_SLEEP: Final = 5 * _LINE
PRODUCER_SLEEP: Final = 6 * _LINE


class RingDamaged(Exception):
    """The shared fields or the stream contain data that no correct process writes."""


class RingMemory:
    """The shared mapping of one direction.

    It is created before the fork, and exists until the last process that maps it ends.
    """

    def __init__(self, size: int) -> None:
        if size < PAGE_BYTES or size & (size - 1):
            raise ValueError(
                f"ring_bytes must be a power of two of at least {PAGE_BYTES}, not {size}"
            )
        self.size = size
        view = memoryview(mmap.mmap(-1, PAGE_BYTES + size))
        self.cells = view[:PAGE_BYTES].cast("Q")
        self.data = view[PAGE_BYTES:]


class SleepState:
    """One side's own sleep number, which grows with every change of state.

    AWAKE (even) --begin_sleep--> ASLEEP (odd: the other side rings)
          ^---------end_sleep--------'
    """

    __slots__ = ("_cell", "_cells", "number")

    def __init__(self, cells: memoryview, cell: int) -> None:
        self._cells, self._cell = cells, cell
        # The previous process may have died while it was asleep. The other side has never rung for
        # this number or a higher one.
        self.number = (cells[cell] | 1) + 1
        cells[cell] = self.number

    def begin_sleep(self) -> None:
        """Make the other side ring the bell when there is data or space.

        The caller must execute a fence before its last check for data or space.
        """
        self.number = self._cells[self._cell] = (self.number + 1) | 1

    def end_sleep(self) -> None:
        """Make the other side stop ringing."""
        self.number = self._cells[self._cell] = self.number + 1 & ~1


class RingProducer:
    """The writing end. One task of one process uses it."""

    __slots__ = (
        "_bell",
        "_cells",
        "_data",
        "_fences",
        "_head",
        "_rung",
        "_size",
        "bells",
        "sleep_state",
    )

    def __init__(self, memory: RingMemory, consumer_bell: int, fences: Fences) -> None:
        self._cells, self._data, self._size = memory.cells, memory.data, memory.size
        self._fences = fences
        self._bell = consumer_bell
        self._head = 0
        self._rung = 0  # the consumer's last sleep number for which this end rang the bell
        self.sleep_state = SleepState(memory.cells, PRODUCER_SLEEP)
        self.bells = 0
        """Number of times that this end woke the other."""

    def clear(self) -> None:
        """Start a new session and discard unread data.

        The caller must call `announce` afterwards.
        """
        self._head = self._cells[HEAD] = 0

    def announce(self, session: int) -> None:
        """Publish that the fields belong to ``session``. Afterwards the consumer uses them."""
        if self._fences.order:
            self._fences.order()
        self._cells[PRODUCER_SESSION] = session

    def peer_session(self) -> int:
        """Return the session of the consumer."""
        session = int(self._cells[CONSUMER_SESSION])
        if self._fences.order:
            self._fences.order()
        return session

    def free_bytes(self) -> int:
        """Return the number of bytes that can be written now."""
        return max(0, self._size - self._head + int(self._cells[TAIL]))

    @property
    def unread_bytes(self) -> int:
        """Bytes that the consumer has not read yet; 0 while it is in an older session."""
        return max(0, self._size - self.free_bytes())

    def is_full(self) -> bool:
        """Return whether the ring is full. If it is, the consumer rings after it has read data."""
        if not self.sleep_state.number & 1:
            self.sleep_state.begin_sleep()
        with self._fences.full:
            pass
        return self.free_bytes() == 0

    def write(self, data: Buffer) -> int:
        """Copy as many bytes as fit, publish them with one store, and wake the consumer.

        Return the number of bytes.
        """
        cells, head, size = self._cells, self._head, self._size
        # Read the tail once, because it may change at any time. A consumer that is in a newer
        # session has reset the tail to 0. In that case the computed space is too small, or even
        # negative, but never too large.
        length, free = len(data), size - head + cells[TAIL]
        if length > free:
            length = max(0, free)
            data = memoryview(data)[:length]
        if not length:
            return 0
        # The data must not be written before the load of the tail, which shows that the memory is
        # free.
        order = self._fences.order
        if order:
            order()
        at = head & (size - 1)
        # Write the data in two parts if it extends beyond the end of the ring.
        if length <= size - at:
            self._data[at : at + length] = data
        else:
            with memoryview(data) as view:
                self._data[at:] = view[: size - at]
                self._data[: length - (size - at)] = view[size - at :]
        # Store the head only after the data.
        if order:
            order()
        self._head = cells[HEAD] = head + length
        with self._fences.full:
            pass
        # Ring once for each sleep of the consumer.
        sleep = cells[CONSUMER_SLEEP]
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
        "cells",
        "sleep_state",
        "tail",
    )

    def __init__(self, memory: RingMemory, producer_bell: int, fences: Fences) -> None:
        self.cells, self._data, self._size = memory.cells, memory.data, memory.size
        self._fences = fences
        self._bell = producer_bell
        self.tail = 0  # data is available if this is below cells[HEAD]
        self._rung = 0  # the producer's last sleep number for which this end rang the bell
        self.sleep_state = SleepState(memory.cells, CONSUMER_SLEEP)
        self.bells = 0
        """Number of times that this end woke the other."""

    def clear(self) -> None:
        """Start a new session and discard the read position.

        The caller must call `announce` afterwards.
        """
        self.tail = self.cells[TAIL] = 0

    def announce(self, session: int) -> None:
        """Publish that the fields belong to ``session``. Afterwards the producer uses them."""
        if self._fences.order:
            self._fences.order()
        self.cells[CONSUMER_SESSION] = session

    def peer_session(self) -> int:
        """Return the session of the producer."""
        session = int(self.cells[PRODUCER_SESSION])
        if self._fences.order:
            self._fences.order()
        return session

    def read(self) -> bytes:
        """Return a copy of all available bytes, and free their space with one store.

        Afterwards the producer does not ring. Raises RingDamaged.
        """
        cells, tail, size, sleep_state = self.cells, self.tail, self._size, self.sleep_state
        if sleep_state.number & 1:
            sleep_state.number = cells[CONSUMER_SLEEP] = sleep_state.number + 1
        length = cells[HEAD] - tail
        if length <= 0:  # negative if a producer in a newer session has reset the head
            return b""
        if length > size:
            raise RingDamaged(f"{length} bytes wait in a ring of {size}")
        # The data must not be read before the load of the head, which published it.
        order = self._fences.order
        if order:
            order()
        at, data = tail & (size - 1), self._data
        taken = (
            bytes(data[at : at + length])
            if length <= size - at
            else b"".join((data[at:], data[: length - (size - at)]))
        )
        # Free the memory only after the data is copied.
        if order:
            order()
        self.tail = cells[TAIL] = tail + length
        with self._fences.full:
            pass
        # Ring once for each sleep of the producer.
        sleep = cells[PRODUCER_SLEEP]
        if sleep & 1 and sleep != self._rung:
            self._rung = sleep
            self.bells += 1
            os.eventfd_write(self._bell, 1)
        return taken
