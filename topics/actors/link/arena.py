"""Arena: shared memory of a link for attachments that are too long for its rings.

Each direction has one arena. The producer writes an attachment once, and the consumer reads it in
place.

    reserve ──▶ RESERVED ──send──▶ SENT ──RELEASE from the consumer──▶ free
                   │ grow, shrink    └────end of the session─────────▶ free
                   └──free──▶ free

There are two halves of ``half_bytes``; session n uses half n % 2:

    offset                 size         content
    0                      half_bytes   blocks of even sessions, page-aligned
    half_bytes             half_bytes   blocks of odd sessions

Two halves are needed because, when one side dies, the other side may still use blocks of the ended
session: it may be sending a block to a slow client, or receiving an upload into a block. The next
session must not write to these blocks, and must not wait for their release either. Only the session
after the next session waits for their release. So a producer must send or free each block, and a
consumer must release it, even after the session has ended.

A block can grow while it is being filled. It grows in place if the pages after it are free.
Otherwise it moves, one slice at a time. So the memory that a body uses is proportional to the
number of bytes received.

The system allocates pages when they are first touched. After a large block is freed, each ``trim``
returns some of its pages to the system. The other pages of the block stay allocated until they are
returned or a new block needs them. When the entire arena is free, ``trim`` also returns the pages
of small blocks, until at most `LARGE_PAGES` remain.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

PAGE_BYTES: Final = mmap.PAGESIZE
# The value on Linux for every supported architecture. The mmap module defines it from Python 3.13
# on.
MAP_NORESERVE: Final = 0x4000
# Smaller blocks keep their pages: allocating new pages would cost more than keeping unused ones.
LARGE_PAGES: Final = (4 << 20) // PAGE_BYTES
# Maximum number of pages that one `trim` returns. Returning them takes about a millisecond.
TRIM_PAGES: Final = (2 << 20) // PAGE_BYTES
# Number of bytes that one step copies when a block moves. A step takes about a millisecond, mostly
# to allocate new pages.
SLICE_BYTES: Final = 1 << 20


class ArenaMemory:
    """The shared mapping, created before the fork. An arena with ``half_bytes`` 0 has no space."""

    def __init__(self, half_bytes: int) -> None:
        self.half_bytes = pages_of(half_bytes) * PAGE_BYTES
        self.view = memoryview(b"")
        if self.half_bytes:
            # Most of the mapping is never used, and must not be charged as committed memory.
            flags = mmap.MAP_SHARED | MAP_NORESERVE
            self._map = mmap.mmap(-1, 2 * self.half_bytes, flags=flags)
            self.view = memoryview(self._map)

    def base(self, session: int) -> int:
        """Return the offset of the half of ``session``."""
        return (session & 1) * self.half_bytes

    def release_pages(self, start: int, length: int) -> None:
        """Release the memory pages of a range to the operating system.

        Afterwards every process that shares the mapping reads zeros from the range.
        """
        if length:
            self._map.madvise(mmap.MADV_REMOVE, start, length)


def pages_of(length: int) -> int:
    """Return the number of pages that contain ``length`` bytes."""
    return -(-length // PAGE_BYTES)


class BlockFiller(Protocol):
    """The code that fills a block. It can be aborted to free the space for other requests."""

    def turnover_s(self, now: float) -> float:
        """Return how many seconds it takes to receive the held bytes at the recent rate."""

    def abort(self, failure: Exception) -> None:
        """Free the block soon, and fail with ``failure``."""


class ArenaBlock:
    """Memory for one attachment.

    Fill ``view``, then pass the block to ``Link.send``, which takes ownership, or call ``free``.
    """

    __slots__ = ("filler", "length", "moving_from", "offset", "session", "view", "writer")

    def __init__(
        self, writer: ArenaWriter, session: int, offset: int, length: int, view: memoryview
    ) -> None:
        self.writer: ArenaWriter | None = writer  # None once the block is sent or freed
        self.session = session
        self.offset = offset
        self.length = length
        self.view = view
        """The memory, ``length`` bytes, writable until the block grows, is sent or is freed."""
        self.filler: BlockFiller | None = None
        self.moving_from: int | None = None  # the old offset, while the block moves

    def shrink(self, length: int) -> None:
        """Keep only the first ``length`` bytes, if the body is shorter than the reservation."""
        assert 0 <= length <= self.length, "a block only shrinks"
        assert self.moving_from is None, "a moving block is not complete yet"
        assert self.writer is not None, "the block was not sent or freed"
        self.writer.shrink(self, length)
        self.length = length
        self.view = self.view[:length]

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        """Make the block longer, and keep its first ``keep`` bytes.

        Return an iterator, or None if there is no space or the block's session has ended.

        Each step of the iterator copies a slice, and other tasks may run between steps. The block
        has grown when the iterator is exhausted. Until then the only permitted operation is `free`.
        """
        assert length > self.length >= keep, "a block grows and keeps its bytes"
        assert self.moving_from is None, "a moving block is not moved again"
        assert self.writer is not None, "the block was not sent or freed"
        return self.writer.grow(self, length, keep)

    def free(self) -> None:
        """Free the memory without sending it. Do nothing if it has already been sent or freed."""
        if (writer := self.writer) is not None:
            self.writer = None
            writer.free(self)


class ArenaWriter:
    """The producer's end. Only this end allocates and frees pages."""

    __slots__ = ("_allocator", "_filling", "_memory", "_pages", "_returning", "_sent", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._pages = memory.half_bytes // PAGE_BYTES
        self._allocator = PageAllocator(self._pages)
        # Blocks that are being filled, by half.
        self._filling: tuple[set[ArenaBlock], set[ArenaBlock]] = (set(), set())
        self._sent: set[int] = set()  # offsets of sent blocks of this session
        # Rows of freed blocks, by first page, whose pages are being returned to the system.
        self._returning: list[int] = []
        self.session = 0

    def is_used(self, session: int) -> bool:
        """Return whether a block in the half that ``session`` would use is still being filled."""
        return bool(self._filling[session & 1])

    def begin(self, session: int) -> None:
        """Empty the arena for ``session``. Blocks sent in earlier sessions become invalid.

        Must not be called while ``is_used(session)`` is true.
        """
        assert not self.is_used(session), "no block is being filled in a half that is reused"
        self.session = session
        self._allocator = PageAllocator(self._pages)
        self._sent.clear()
        self._returning.clear()

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that are reserved or sent in this session."""
        return (
            self._allocator.used - sum(map(self._allocator.pages, self._returning))
        ) * PAGE_BYTES

    @property
    def filling(self) -> list[ArenaBlock]:
        """The blocks of this session that are reserved and not sent."""
        return [block for block in self._filling[self.session & 1] if block.session == self.session]

    def reserve(self, length: int) -> ArenaBlock | None:
        """Reserve a block of ``length`` bytes. Return None if there is no contiguous space."""
        offset = self._allocate(length)
        if offset is None:
            return None
        view = self._memory.view[offset : offset + length]
        block = ArenaBlock(self, self.session, offset, length, view)
        self._filling[self.session & 1].add(block)
        return block

    def grow(self, block: ArenaBlock, length: int, keep: int) -> Iterator[None] | None:
        """Lengthen a block's row in place, or allocate a longer row. Return the copying steps.

        Return None if there is no space or the block's session has ended.
        """
        if block.session != self.session:
            return None
        if _row_pages(length) > _row_pages(block.length) and not self._allocator.extend(
            self._page(block.offset), _row_pages(length)
        ):
            offset = self._allocate(length)
            if offset is None:
                return None
            block.moving_from, block.offset = block.offset, offset
        old, block.view = block.view, self._memory.view[block.offset : block.offset + length]
        block.length = length
        return self._move(block, old[:keep])

    def _move(self, block: ArenaBlock, old: memoryview) -> Iterator[None]:
        # If the block has grown in place, no bytes need to be copied.
        if block.moving_from is None:
            return
        for start in range(0, len(old), SLICE_BYTES):
            chunk = old[start : start + SLICE_BYTES]
            block.view[start : start + len(chunk)] = chunk
            yield
        self._free_old_row(block)

    def _free_old_row(self, block: ArenaBlock) -> None:
        left, block.moving_from = block.moving_from, None
        if left is not None and block.session == self.session:
            self._free(left)

    def _allocate(self, length: int) -> int | None:
        """Return the offset of a new row. If needed, reuse a row whose pages are being returned."""
        page = self._allocator.allocate(_row_pages(length))
        while page is None and self._returning:
            self._allocator.free(self._returning.pop())
            page = self._allocator.allocate(_row_pages(length))
        return None if page is None else self._offset(page)

    def shrink(self, block: ArenaBlock, length: int) -> None:
        """Free the pages of a block after its first ``length`` bytes."""
        if block.session == self.session:
            self._allocator.shrink(self._page(block.offset), _row_pages(length))

    def free(self, block: ArenaBlock) -> None:
        """Free the row of an unsent block. If the block is moving, free both of its rows."""
        self._filling[block.session & 1].remove(block)
        if block.session == self.session:
            self._free_old_row(block)
            self._free(block.offset)

    def mark_sent(self, block: ArenaBlock) -> None:
        """Mark the block as sent. Afterwards only a RELEASE message from the consumer frees it.

        Raises ValueError for a block that has already been sent or freed, or that belongs to
        another arena.
        """
        assert block.session == self.session, "a block is sent in the session of its reservation"
        if block.writer is not self:
            raise ValueError("the block was already sent or freed, or belongs to another link")
        block.writer = None
        self._filling[block.session & 1].remove(block)
        self._sent.add(block.offset)

    def release(self, offset: int) -> bool:
        """Free a block that the consumer has released. Return False if no such block was sent."""
        if offset not in self._sent:
            return False
        self._sent.remove(offset)
        self._free(offset)
        return True

    def _free(self, offset: int) -> None:
        page = self._page(offset)
        if self._allocator.pages(page) >= LARGE_PAGES:
            self._returning.append(page)
        else:
            self._allocator.free(page)

    def trim(self) -> bool:
        """Return up to `TRIM_PAGES` unused pages to the system, and return whether more remain.

        Page faults are expensive, so pages touched by small blocks are kept until the entire arena
        is free.
        """
        allocator = self._allocator
        # Return the pages of freed large blocks first. If the arena is empty, return the pages that
        # blocks have touched, from the last page on.
        if self._returning:
            row = self._returning[-1]
            left = max(allocator.pages(row) - TRIM_PAGES, 0)
            self._release_pages(row + left, allocator.pages(row) - left)
            if left:
                allocator.shrink(row, left)
            else:
                allocator.free(self._returning.pop())
        elif not allocator.used and allocator.high_water > LARGE_PAGES:
            left = max(allocator.high_water - TRIM_PAGES, 0)
            self._release_pages(left, allocator.high_water - left)
            allocator.high_water = left
        return self.has_unused

    @property
    def has_unused(self) -> bool:
        """Whether there are pages that `trim` would return to the system."""
        allocator = self._allocator
        return bool(self._returning) or (not allocator.used and allocator.high_water > LARGE_PAGES)

    def _release_pages(self, page: int, pages: int) -> None:
        self._memory.release_pages(self._offset(page), pages * PAGE_BYTES)

    def _offset(self, page: int) -> int:
        return self._memory.base(self.session) + page * PAGE_BYTES

    def _page(self, offset: int) -> int:
        return (offset - self._memory.base(self.session)) // PAGE_BYTES


def _row_pages(length: int) -> int:
    """Return the number of pages for a block of ``length`` bytes. An empty block has one page."""
    return max(1, pages_of(length))


_Held: TypeAlias = tuple[memoryview, int, int]  # view, offset, length


class ArenaReader:
    """The consumer's end: the blocks that have been received but not yet released.

    Code that may hold a block for a long time registers a callback with `on_reclaim`. The callback
    is called when a new session waits for the half that contains the block.
    """

    __slots__ = ("_held", "_memory", "_on_reclaim", "_view", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._view = memory.view.toreadonly()
        # Keyed by half, then by id of the view. The id is unique while the view is stored here.
        self._held: tuple[dict[int, _Held], dict[int, _Held]] = ({}, {})
        self._on_reclaim: dict[int, Callable[[], object]] = {}  # also by id of the view
        self.session = 0

    def is_used(self, session: int) -> bool:
        """Return whether a block in the half that ``session`` would use is still being read."""
        return bool(self._held[session & 1])

    def begin(self, session: int) -> None:
        """Start ``session``. Must not be called while ``is_used(session)`` is true.

        The pages of the ended session's half are returned to the system if none of its blocks is in
        use.
        """
        assert not self.is_used(session), "no reader uses a half that is reused"
        self.session = session
        if not self.is_used(session + 1):
            self._release_half(session + 1)

    @property
    def held(self) -> int:
        """Number of blocks received but not released, including blocks of the previous session."""
        return len(self._held[0]) + len(self._held[1])

    def open(self, offset: int, length: int) -> memoryview | None:
        """Return a read-only view of the block of a received message, held until ``release``.

        Return None if the range is outside the session's half.
        """
        start = self._memory.base(self.session)
        if offset < start or offset + length > start + self._memory.half_bytes:
            return None
        view = self._view[offset : offset + length]
        self._held[self.session & 1][id(view)] = (view, offset, length)
        return view

    def on_reclaim(self, view: memoryview, release: Callable[[], object]) -> None:
        """Call ``release`` once when a new session waits for the memory of ``view``."""
        if any(id(view) in half for half in self._held):
            self._on_reclaim[id(view)] = release

    def reclaim(self, session: int) -> None:
        """Call the registered callbacks of blocks that delay the start of ``session``."""
        for view in [*self._held[session & 1]]:
            if (release := self._on_reclaim.pop(view, None)) is not None:
                release()

    def release(self, view: memoryview) -> tuple[int, int] | None:
        """Release a block that is no longer read.

        Return its offset and length for the RELEASE message. Return None if its session has ended
        or the block has already been released.
        """
        half = self.session & 1
        self._on_reclaim.pop(id(view), None)
        if (block := self._held[half].pop(id(view), None)) is not None:
            return block[1:]
        left = self._held[1 - half]
        if left.pop(id(view), None) is not None and not left:
            self._release_half(half + 1)
        return None

    def _release_half(self, session: int) -> None:
        # The session that used this half has ended, and the next session that will use it has not
        # started. So no process needs the content of the half now.
        self._memory.release_pages(self._memory.base(session), self._memory.half_bytes)


class PageAllocator:
    """First-fit allocator for ``count`` pages, with a sorted list of non-adjacent holes.

    It counts pages from 0 and does not touch memory. An allocation is a row of contiguous pages,
    identified by its first page.
    """

    __slots__ = ("_holes", "_rows", "count", "high_water", "used")

    def __init__(self, count: int) -> None:
        self.count = count
        self.used = 0
        # No page from this one on is backed by memory: it was never allocated, or the arena has
        # returned it to the system and lowered this mark.
        self.high_water = 0
        self._holes: list[tuple[int, int]] = [(0, count)] if count else []  # (first page, pages)
        self._rows: dict[int, int] = {}  # first page -> pages

    def allocate(self, pages: int) -> int | None:
        """Allocate contiguous pages. Return the first page, or None if they do not fit."""
        assert pages > 0, "an allocation has at least one page"
        start = self._first_fit(pages)
        if start is not None:
            self._allocate_at(start, pages)
        return start

    def pages(self, start: int) -> int:
        """Return the number of pages of the row at ``start``. Raises KeyError if it is missing."""
        return self._rows[start]

    def free(self, start: int) -> None:
        """Free the row at ``start``. Raises KeyError if no row is there."""
        self._add_hole(start, self._rows.pop(start))

    def shrink(self, start: int, pages: int) -> None:
        """Keep only the first ``pages`` pages (at least one) of the row at ``start``."""
        before = self._rows[start]
        assert 0 < pages <= before, "a shrunk row is neither empty nor longer"
        if pages < before:
            self._rows[start] = pages
            self._add_hole(start + pages, before - pages)

    def extend(self, start: int, pages: int) -> bool:
        """Extend the row at ``start`` to ``pages`` pages. Return False if they are not free."""
        before = self._rows[start]
        # Find the hole that begins directly after the row.
        hole, length = self._holes[self._hole_around(start + before)] if self._holes else (-1, 0)
        if hole != start + before or before + length < pages:
            return False
        self._allocate_at(hole, pages - before)
        self._rows[start] = pages
        del self._rows[hole]
        return True

    def _first_fit(self, pages: int) -> int | None:
        return next((start for start, length in self._holes if length >= pages), None)

    def _hole_around(self, page: int) -> int:
        return bisect_right(self._holes, (page, self.count)) - 1

    def _allocate_at(self, start: int, pages: int) -> None:
        """Allocate ``pages`` pages at ``start``, and remove them from their hole."""
        index = self._hole_around(start)
        hole, length = self._holes.pop(index)
        rest = [(hole, start - hole), (start + pages, hole + length - start - pages)]
        self._holes[index:index] = [(first, left) for first, left in rest if left]
        self._rows[start] = pages
        self.used += pages
        self.high_water = max(self.high_water, start + pages)

    def _add_hole(self, start: int, pages: int) -> None:
        self.used -= pages
        holes = self._holes
        index = bisect_left(holes, (start, 0))
        # Merge the row with the holes directly after and before it, so that no two holes are
        # adjacent.
        if index < len(holes) and holes[index][0] == start + pages:
            pages += holes.pop(index)[1]
        if index and sum(holes[index - 1]) == start:
            start, before = holes.pop(index - 1)
            pages += before
        insort(holes, (start, pages))
