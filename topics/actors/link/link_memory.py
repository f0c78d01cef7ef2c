"""Link memory: the shared memory of a link, created by the supervisor before any fork.

A link connects two processes, identified by their ids. The process with the lower id is the first
end (the front comes before shards). Each end writes one ring and one arena, and waits for one
doorbell (eventfd):

    field         item 0                 item 1
    rings         first end writes       second end writes
    arenas        first end writes       second end writes
    bells         wakes the first end    wakes the second end

The memory is only address space until a page is touched, so an unused link uses only two file
descriptors. A process closes the doorbells of the links that connect two other processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from topics.actors.link.arena import ArenaMemory
from topics.actors.link.fences import load_fences
from topics.actors.link.process_id import ProcessId
from topics.actors.link.ring import RingMemory
from topics.config import Settings


@dataclass(frozen=True, slots=True)
class LinkSizes:
    """The bounds of one link, for each direction."""

    ring_bytes: int  # a power of two
    inline_bytes: int  # upper bound for attachments in the ring; at most a quarter of the ring
    arena_bytes: int  # 0: no arena, long attachments are sent through the ring in parts

    @classmethod
    def of(cls, settings: Settings) -> LinkSizes:
        """Return the configured sizes, for links between a front and a shard."""
        return cls(settings.ring_bytes, settings.inline_bytes, settings.arena_bytes)


class LinkMemory:
    """The shared memory of one link."""

    def __init__(self, one: ProcessId, other: ProcessId, sizes: LinkSizes) -> None:
        """Create the shared memory.

        Raises ValueError for an invalid ring_bytes, RuntimeError on a machine without fences.
        """
        load_fences()  # fail here, so that a server that cannot work does not start
        assert one != other, "a link has two ends"
        self.ends = (min(one, other), max(one, other))
        self.sizes = sizes
        self.rings = (RingMemory(sizes.ring_bytes), RingMemory(sizes.ring_bytes))
        self.arenas = (ArenaMemory(sizes.arena_bytes), ArenaMemory(sizes.arena_bytes))
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self.bells = (os.eventfd(0, flags), os.eventfd(0, flags))

    def ring_doorbells(self) -> None:
        """Wake both ends after ``Board.bump_session``, so that a sleeping end reads the board."""
        for bell in self.bells:
            os.eventfd_write(bell, 1)

    def close(self) -> None:
        """Close the doorbells, in a process that is not an end of the link."""
        for bell in self.bells:
            os.close(bell)
