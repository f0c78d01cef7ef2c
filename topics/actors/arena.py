"""Shared memory for what is too long for a ring: the producer writes it once, the consumer reads it where it stands.

One mapping for each direction, two halves of ``arena_bytes``; session n uses half n % 2:

    offset                 size         content
    0                      arena_bytes  blocks of even sessions, each from a page boundary
    arena_bytes            arena_bytes  blocks of odd sessions

Why two: when one side dies, the other may still read (a slow client is being sent the body) or fill (an upload is under
way) blocks of the session that is over. The next session must not write there, and must not wait either. Only the second
next one has to wait until the last of these users is done; ``busy`` says so.

Pages are taken from the system when they are first touched. They go back, a portion with each ``tidy``, when a large block is
freed and when everything is free; and when the last block of a session that is over has been let go by its reader.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, insort
from typing import Final, TypeAlias

PAGE_BYTES: Final = mmap.PAGESIZE
MAP_NORESERVE: Final = 0x4000  # Linux, every architecture we run on; the mmap module names it from 3.13 on
LARGE_PAGES: Final = (4 << 20) // PAGE_BYTES  # below it, new pages would cost more than the old ones hold
PORTION_PAGES: Final = (2 << 20) // PAGE_BYTES  # given back at once, within a millisecond: nobody is served meanwhile

_Held: TypeAlias = tuple[memoryview, int, int]  # view, offset, length


class PageAllocator:
    """Which pages of ``count`` are taken: first fit over a sorted list of holes that never touch one another."""

    __slots__ = ("_holes", "_taken", "count", "high_water", "used")

    def __init__(self, count: int) -> None:
        self.count = count
        self.used = 0
        self.high_water = 0  # first page that was never taken; the owner sets it back when it has given the pages back
        self._holes: list[tuple[int, int]] = [(0, count)] if count else []  # (first page, pages)
        self._taken: dict[int, int] = {}  # first page -> pages

    def allocate(self, pages: int) -> int | None:
        """The first page of ``pages`` free ones in a row; None when there is no such row."""
        assert pages > 0, "an allocation has pages"
        index = next((index for index, (_, length) in enumerate(self._holes) if length >= pages), None)
        if index is None:
            return None
        start, length = self._holes[index]
        if length == pages:
            del self._holes[index]
        else:
            self._holes[index] = (start + pages, length - pages)
        self._taken[start] = pages
        self.used += pages
        self.high_water = max(self.high_water, start + pages)
        return start

    def pages(self, start: int) -> int:
        """How long the row at ``start`` is. KeyError when nothing was allocated there."""
        return self._taken[start]

    def free(self, start: int) -> None:
        """Give the row at ``start`` back. KeyError when nothing was allocated there."""
        self._add_hole(start, self._taken.pop(start))

    def shrink(self, start: int, pages: int) -> None:
        """Keep only the first ``pages`` (at least one) of the row at ``start``."""
        before = self._taken[start]
        assert 0 < pages <= before, "a shrunk row is not empty and not longer"
        if pages < before:
            self._taken[start] = pages
            self._add_hole(start + pages, before - pages)

    def _add_hole(self, start: int, pages: int) -> None:
        self.used -= pages
        holes = self._holes
        index = bisect_left(holes, (start, 0))
        if index < len(holes) and holes[index][0] == start + pages:
            pages += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == start:
            start, before = holes.pop(index - 1)
            pages += before
        insort(holes, (start, pages))


class ArenaMemory:
    """The shared mapping of one direction, made before the fork. Address space only, until pages are touched."""

    def __init__(self, half_bytes: int) -> None:
        self.half_bytes = -(-half_bytes // PAGE_BYTES) * PAGE_BYTES
        # Most of it is never used, and must not count against the machine's memory.
        self._map = mmap.mmap(-1, 2 * self.half_bytes, flags=mmap.MAP_SHARED | MAP_NORESERVE)
        self.view = memoryview(self._map)

    def give_back(self, start: int, length: int) -> None:
        """Hand the pages of a range back to the system, for all processes; they read as zeros from then on."""
        if length:
            self._map.madvise(mmap.MADV_REMOVE, start, length)


class ArenaBlock:
    """Room for one attachment. Fill ``view``, then pass the block to ``send``, which takes it over, or ``free`` it."""

    __slots__ = ("_writer", "length", "offset", "session", "view")

    def __init__(self, writer: ArenaWriter, session: int, offset: int, length: int, view: memoryview) -> None:
        self._writer: ArenaWriter | None = writer
        self.session = session
        self.offset = offset
        self.length = length
        self.view = view
        """The memory, ``length`` bytes, writable until the block is sent or freed."""

    def shrink(self, length: int) -> None:
        """Keep only the first ``length`` bytes: the body came out shorter than was reserved."""
        assert 0 <= length <= self.length, "a block only shrinks"
        assert self._writer is not None, "a block that was sent or freed is no longer ours"
        self._writer.shrink(self, length)
        self.length = length
        self.view = self.view[:length]

    def free(self) -> None:
        """Give the room back unsent. Nothing happens when the block was sent or freed already."""
        if (writer := self._writer) is not None:
            self._writer = None
            writer.free(self)

    def detach_from(self, writer: ArenaWriter) -> None:
        """The block is no longer the holder's. Raises ValueError when it was not, or is of another arena."""
        if self._writer is not writer:
            raise ValueError("this block was sent or freed before, or is another link's")
        self._writer = None


class ArenaWriter:
    """The producer's end: it alone decides which pages are whose.

    A block is *reserved* while it is filled, *sent* from then until the consumer's RELEASE message or the session's end. The row of
    a large one stays taken after that, until all its pages have been given back to the system.
    """

    __slots__ = ("_allocator", "_leaving", "_memory", "_pages", "_reserved", "_sent", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._pages = memory.half_bytes // PAGE_BYTES
        self._allocator = PageAllocator(self._pages)
        self._reserved = [0, 0]  # blocks being filled, by half
        self._sent: set[int] = set()  # offsets of this session
        self._leaving: list[int] = []  # rows of freed blocks, by first page, whose pages go back to the system
        self.session = 0

    def busy(self, session: int) -> bool:
        """Somebody here still fills a block in the half that ``session`` would use."""
        return self._reserved[session & 1] > 0

    def begin(self, session: int) -> None:
        """Empty the arena for ``session``: what was sent before is void. Not while ``busy(session)``."""
        assert not self.busy(session), "nobody fills a block in a half that is given out anew"
        self.session = session
        self._allocator = PageAllocator(self._pages)
        self._sent.clear()
        self._leaving.clear()

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that are reserved or sent in this session."""
        return (self._allocator.used - sum(map(self._allocator.pages, self._leaving))) * PAGE_BYTES

    def reserve(self, length: int) -> ArenaBlock | None:
        """A block of ``length`` bytes; None when there is no room in one piece."""
        page = self._allocator.allocate(_pages(length))
        while page is None and self._leaving:
            self.tidy()
            page = self._allocator.allocate(_pages(length))
        if page is None:
            return None
        half = self.session & 1
        self._reserved[half] += 1
        offset = half * self._memory.half_bytes + page * PAGE_BYTES
        return ArenaBlock(self, self.session, offset, length, self._memory.view[offset : offset + length])

    def shrink(self, block: ArenaBlock, length: int) -> None:
        """Part of ``ArenaBlock.shrink``."""
        if block.session == self.session:
            self._allocator.shrink(self._page(block.offset), _pages(length))

    def free(self, block: ArenaBlock) -> None:
        """Part of ``ArenaBlock.free``."""
        self._reserved[block.session & 1] -= 1
        if block.session == self.session:
            self._free(block.offset)

    def take_over(self, block: ArenaBlock) -> None:
        """The block is on its way: from now on only a RELEASE of the consumer frees it.

        Raises ValueError for a block that is not the holder's any more, or of another arena.
        """
        assert block.session == self.session, "a block is sent in the session it was reserved in"
        block.detach_from(self)
        self._reserved[block.session & 1] -= 1
        self._sent.add(block.offset)

    def release(self, offset: int) -> bool:
        """The consumer is done with the block at ``offset``. False when it never had one there."""
        if offset not in self._sent:
            return False
        self._sent.remove(offset)
        self._free(offset)
        return True

    def _free(self, offset: int) -> None:
        page = self._page(offset)
        if self._allocator.pages(page) >= LARGE_PAGES:
            self._leaving.append(page)
        else:
            self._allocator.free(page)

    def tidy(self) -> bool:
        """Give the next portion of unused pages back to the system; whether there is more. Touching pages anew is dear, so what
        small blocks have touched stays until everything is free.
        """
        allocator = self._allocator
        if self._leaving:
            row = self._leaving[-1]
            left = max(allocator.pages(row) - PORTION_PAGES, 0)
            self._give_back(row + left, allocator.pages(row) - left)
            if left:
                allocator.shrink(row, left)
            else:
                allocator.free(self._leaving.pop())
        elif not allocator.used and allocator.high_water > LARGE_PAGES:
            left = max(allocator.high_water - PORTION_PAGES, 0)
            self._give_back(left, allocator.high_water - left)
            allocator.high_water = left
        return bool(self._leaving) or (not allocator.used and allocator.high_water > LARGE_PAGES)

    def _give_back(self, page: int, pages: int) -> None:
        start = (self.session & 1) * self._memory.half_bytes + page * PAGE_BYTES
        self._memory.give_back(start, pages * PAGE_BYTES)

    def _page(self, offset: int) -> int:
        return (offset - (self.session & 1) * self._memory.half_bytes) // PAGE_BYTES


class ArenaReader:
    """The consumer's end: the views that it still reads from."""

    __slots__ = ("_held", "_memory", "_view", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._view = memory.view.toreadonly()
        # By half, then by id of the view, which cannot be another's while it is kept here.
        self._held: tuple[dict[int, _Held], dict[int, _Held]] = ({}, {})
        self.session = 0

    def busy(self, session: int) -> bool:
        """Somebody here still reads a block in the half that ``session`` would use."""
        return bool(self._held[session & 1])

    def begin(self, session: int) -> None:
        """Go on with ``session``. Not while ``busy(session)``. The pages of the half it leaves go back when it is unread."""
        assert not self.busy(session), "nobody reads in a half that is written anew"
        self.session = session
        if not self.busy(session + 1):
            self._give_back(session + 1)

    @property
    def held(self) -> int:
        """Blocks that were received and not yet released, of the session before too."""
        return len(self._held[0]) + len(self._held[1])

    def open(self, offset: int, length: int) -> memoryview | None:
        """The block of a received message, read-only; it is held until ``done``. None when it lies outside the session's half."""
        half = self.session & 1
        start = half * self._memory.half_bytes
        if offset < start or offset + length > start + self._memory.half_bytes:
            return None
        view = self._view[offset : offset + length]
        self._held[half][id(view)] = (view, offset, length)
        return view

    def done(self, view: memoryview) -> tuple[int, int] | None:
        """Nobody here reads from ``view`` any more.

        Returns its offset and length for the RELEASE message; None when its session is over, or it was done before.
        """
        half = self.session & 1
        if (block := self._held[half].pop(id(view), None)) is not None:
            return block[1:]
        left = self._held[1 - half]
        if left.pop(id(view), None) is not None and not left:
            self._give_back(half + 1)
        return None

    def _give_back(self, session: int) -> None:
        # The session of that half is over and its successor there waits for us: nobody writes in it now.
        self._memory.give_back((session & 1) * self._memory.half_bytes, self._memory.half_bytes)


def _pages(length: int) -> int:
    return max(1, -(-length // PAGE_BYTES))
