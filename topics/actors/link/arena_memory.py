"""Arena memory: the shared mapping for attachments that are too long for a ring, one for each
direction of a link.

The producer writes an attachment once, the consumer reads it in place. There are two halves
of ``half_bytes``; session n uses half n % 2:

    offset                 size         content
    0                      half_bytes   blocks of even sessions, each from a page boundary
    half_bytes             half_bytes   blocks of odd sessions

Why two: when one side dies, the other may still read blocks of the session that is over (a slow
client is being sent one) or fill them (an upload is under way). The next session must not write
there, and must not wait either. Only the session after the next one waits for these users.

Pages are taken from the system when they are first touched, and given back in portions.
"""

from __future__ import annotations

import mmap
from typing import Final

PAGE_BYTES: Final = mmap.PAGESIZE
# Linux, every architecture that we run on; the mmap module names it from Python 3.13 on.
MAP_NORESERVE: Final = 0x4000


class ArenaMemory:
    """The mapping, made before the fork. ``half_bytes`` 0 makes an arena in which nothing fits."""

    def __init__(self, half_bytes: int) -> None:
        self.half_bytes = pages_of(half_bytes) * PAGE_BYTES
        self.view = memoryview(b"")
        if self.half_bytes:
            # Most of it is never used, and must not count against the machine's memory.
            flags = mmap.MAP_SHARED | MAP_NORESERVE
            self._map = mmap.mmap(-1, 2 * self.half_bytes, flags=flags)
            self.view = memoryview(self._map)

    def base(self, session: int) -> int:
        """Where the half of ``session`` begins."""
        return (session & 1) * self.half_bytes

    def give_back(self, start: int, length: int) -> None:
        """Give the pages of a range back to the system, for all processes; they read as zeros from
        then on.
        """
        if length:
            self._map.madvise(mmap.MADV_REMOVE, start, length)


def pages_of(length: int) -> int:
    """How many pages ``length`` bytes take."""
    return -(-length // PAGE_BYTES)
