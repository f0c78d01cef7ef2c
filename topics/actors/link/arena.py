"""Arena: shared memory for attachments that are too long for a ring, one for each direction of a
link. The producer writes an attachment once, the consumer reads it in place.

    reserve ──▶ RESERVED ──send──▶ SENT ──RELEASE of the consumer──▶ free
                   │ grow, shrink    └────end of the session───────▶ free
                   └──free──▶ free

There are two halves of ``half_bytes``; session n uses half n % 2:

    offset                 size         content
    0                      half_bytes   blocks of even sessions, each from a page boundary
    half_bytes             half_bytes   blocks of odd sessions

Why two: when one side dies, the other may still read blocks of the session that is over (a slow
client is being sent one) or fill them (an upload is under way). The next session must not write
there, and must not wait either. Only the session after the next one waits for these users. So a
holder must send or free every block, also after the end of its session.

A block grows while it is filled: in place if the pages after it are free, else it moves, a slice at
a time. So what a body holds follows what has arrived of it.

Pages are taken from the system when they are first touched. Those of a large block go back when it
is freed, a portion with each ``trim``; its row stays taken until then. All pages go back when
everything is free.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

PAGE_BYTES: Final = mmap.PAGESIZE
# Linux, every architecture that we run on; the mmap module names it from Python 3.13 on.
MAP_NORESERVE: Final = 0x4000
LARGE_PAGES: Final = (4 << 20) // PAGE_BYTES  # below it, new pages cost more than old ones hold
PORTION_PAGES: Final = (2 << 20) // PAGE_BYTES  # given back at once: a millisecond without service
# Of a block that moves, copied at once: about a millisecond, most of it for new pages.
SLICE_BYTES: Final = 1 << 20


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


class Holder(Protocol):
    """Who fills a block, for the one who must find room for others."""

    def turnover_s(self, now: float) -> float:
        """How long it takes to bring as many bytes as it holds, at the rate of the last seconds."""

    def give_up(self, failure: Exception) -> None:
        """Free the block soon, and fail with ``failure``."""


class ArenaBlock:
    """Room for one attachment. Fill ``view``, then pass the block to ``Link.send``, which takes it
    over, or ``free`` it.
    """

    __slots__ = ("holder", "length", "moving_from", "offset", "session", "view", "writer")

    def __init__(
        self, writer: ArenaWriter, session: int, offset: int, length: int, view: memoryview
    ) -> None:
        self.writer: ArenaWriter | None = writer  # None: no longer the holder's
        self.session = session
        self.offset = offset
        self.length = length
        self.view = view
        """The memory, ``length`` bytes, writable until the block grows, is sent or is freed."""
        self.holder: Holder | None = None
        self.moving_from: int | None = None  # the offset that it moves away from, while it does

    def shrink(self, length: int) -> None:
        """Keep only the first ``length`` bytes: the body came out shorter than was reserved."""
        assert 0 <= length <= self.length, "a block only shrinks"
        assert self.moving_from is None, "a block that moves is not whole yet"
        assert self.writer is not None, "a block that was sent or freed is no longer ours"
        self.writer.shrink(self, length)
        self.length = length
        self.view = self.view[:length]

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        """Make it longer; the first ``keep`` bytes stay. None when there is no room.

        It has grown when the iterator is exhausted: each step copies a slice, and others may run in
        between. Until then the block may only be freed.
        """
        assert length > self.length >= keep, "a block grows and keeps what it has"
        assert self.moving_from is None, "a block that moves does not move again"
        assert self.writer is not None, "a block that was sent or freed is no longer ours"
        return self.writer.grow(self, length, keep)

    def free(self) -> None:
        """Give the room back unsent. Nothing happens when the block was sent or freed already."""
        if (writer := self.writer) is not None:
            self.writer = None
            writer.free(self)


class ArenaWriter:
    """The producer's end: it alone decides which pages are whose."""

    __slots__ = ("_allocator", "_filling", "_memory", "_pages", "_returning", "_sent", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._pages = memory.half_bytes // PAGE_BYTES
        self._allocator = PageAllocator(self._pages)
        self._filling: tuple[set[ArenaBlock], set[ArenaBlock]] = (set(), set())  # by half
        self._sent: set[int] = set()  # offsets of this session
        # Rows of freed blocks, by first page, whose pages are on their way to the system.
        self._returning: list[int] = []
        self.session = 0

    def is_used(self, session: int) -> bool:
        """Somebody here still fills a block in the half that ``session`` would use."""
        return bool(self._filling[session & 1])

    def begin(self, session: int) -> None:
        """Empty the arena for ``session``: what was sent before is void. Not while
        ``is_used(session)``.
        """
        assert not self.is_used(session), "nobody fills a block in a half that is given out anew"
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
        """A block of ``length`` bytes; None when there is no room in one piece."""
        offset = self._allocate(length)
        if offset is None:
            return None
        view = self._memory.view[offset : offset + length]
        block = ArenaBlock(self, self.session, offset, length, view)
        self._filling[self.session & 1].add(block)
        return block

    def grow(self, block: ArenaBlock, length: int, keep: int) -> Iterator[None] | None:
        """Find a longer row for a block: where it stands if the pages behind it are free."""
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
        if block.moving_from is None:
            return
        for start in range(0, len(old), SLICE_BYTES):
            piece = old[start : start + SLICE_BYTES]
            block.view[start : start + len(piece)] = piece
            yield
        self._leave_old_row(block)

    def _leave_old_row(self, block: ArenaBlock) -> None:
        left, block.moving_from = block.moving_from, None
        if left is not None and block.session == self.session:
            self._free(left)

    def _allocate(self, length: int) -> int | None:
        """The offset of a new row, if need be of one whose pages were to return to the system."""
        page = self._allocator.allocate(_row_pages(length))
        while page is None and self._returning:
            self._allocator.free(self._returning.pop())
            page = self._allocator.allocate(_row_pages(length))
        return None if page is None else self._offset(page)

    def shrink(self, block: ArenaBlock, length: int) -> None:
        """Give the pages back that the first ``length`` bytes of a block do not need."""
        if block.session == self.session:
            self._allocator.shrink(self._page(block.offset), _row_pages(length))

    def free(self, block: ArenaBlock) -> None:
        """Give the rows of an unsent block back, both while it moves."""
        self._filling[block.session & 1].remove(block)
        if block.session == self.session:
            self._leave_old_row(block)
            self._free(block.offset)

    def take_over(self, block: ArenaBlock) -> None:
        """The block is sent: from now on only a RELEASE of the consumer frees it.

        Raises ValueError for a block that was sent or freed before, or is of another arena.
        """
        assert block.session == self.session, "a block is sent in the session it was reserved in"
        if block.writer is not self:
            raise ValueError("this block was sent or freed before, or is another link's")
        block.writer = None
        self._filling[block.session & 1].remove(block)
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
            self._returning.append(page)
        else:
            self._allocator.free(page)

    def trim(self) -> bool:
        """Give the next portion of unused pages back to the system; whether there is more.

        Touching pages anew is dear: what small blocks have touched stays until everything is free.
        """
        allocator = self._allocator
        if self._returning:
            row = self._returning[-1]
            left = max(allocator.pages(row) - PORTION_PAGES, 0)
            self._give_back(row + left, allocator.pages(row) - left)
            if left:
                allocator.shrink(row, left)
            else:
                allocator.free(self._returning.pop())
        elif not allocator.used and allocator.high_water > LARGE_PAGES:
            left = max(allocator.high_water - PORTION_PAGES, 0)
            self._give_back(left, allocator.high_water - left)
            allocator.high_water = left
        return self.has_unused

    @property
    def has_unused(self) -> bool:
        """There are pages that `trim` would give back."""
        allocator = self._allocator
        return bool(self._returning) or (not allocator.used and allocator.high_water > LARGE_PAGES)

    def _give_back(self, page: int, pages: int) -> None:
        self._memory.give_back(self._offset(page), pages * PAGE_BYTES)

    def _offset(self, page: int) -> int:
        return self._memory.base(self.session) + page * PAGE_BYTES

    def _page(self, offset: int) -> int:
        return (offset - self._memory.base(self.session)) // PAGE_BYTES


def _row_pages(length: int) -> int:
    """How many pages the row of a block takes; an empty block has one."""
    return max(1, pages_of(length))


_Held: TypeAlias = tuple[memoryview, int, int]  # view, offset, length


class ArenaReader:
    """The consumer's end: the blocks that were received and not yet released.

    A holder that may take long leaves a callback, which is called when a session waits for the half
    of its block.
    """

    __slots__ = ("_held", "_memory", "_on_lost", "_view", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._view = memory.view.toreadonly()
        # By half, then by id of the view, which cannot be another's while it is kept here.
        self._held: tuple[dict[int, _Held], dict[int, _Held]] = ({}, {})
        self._on_lost: dict[int, Callable[[], object]] = {}  # by id of the view, too
        self.session = 0

    def is_used(self, session: int) -> bool:
        """Somebody here still reads a block in the half that ``session`` would use."""
        return bool(self._held[session & 1])

    def begin(self, session: int) -> None:
        """Go on with ``session``. Not while ``is_used(session)``. The half of the session that is
        over goes back to the system if nobody reads it.
        """
        assert not self.is_used(session), "nobody reads in a half that is written anew"
        self.session = session
        if not self.is_used(session + 1):
            self._give_back(session + 1)

    @property
    def held(self) -> int:
        """Blocks that were received and not yet released, of the session before too."""
        return len(self._held[0]) + len(self._held[1])

    def open(self, offset: int, length: int) -> memoryview | None:
        """The block of a received message, read-only; held until ``release``. None when it lies
        outside the session's half.
        """
        start = self._memory.base(self.session)
        if offset < start or offset + length > start + self._memory.half_bytes:
            return None
        view = self._view[offset : offset + length]
        self._held[self.session & 1][id(view)] = (view, offset, length)
        return view

    def on_lost(self, view: memoryview, release: Callable[[], object]) -> None:
        """``release`` is called, once, when a session waits for the memory of ``view``."""
        if any(id(view) in half for half in self._held):
            self._on_lost[id(view)] = release

    def reclaim(self, session: int) -> None:
        """Ask those who hold up ``session`` and can be asked to release their blocks."""
        for view in [*self._held[session & 1]]:
            if (release := self._on_lost.pop(view, None)) is not None:
                release()

    def release(self, view: memoryview) -> tuple[int, int] | None:
        """Nobody here reads from ``view`` any more.

        Returns its offset and length for the RELEASE message; None when its session is over, or it
        was released before.
        """
        half = self.session & 1
        self._on_lost.pop(id(view), None)
        if (block := self._held[half].pop(id(view), None)) is not None:
            return block[1:]
        left = self._held[1 - half]
        if left.pop(id(view), None) is not None and not left:
            self._give_back(half + 1)
        return None

    def _give_back(self, session: int) -> None:
        # The session of that half is over, and the next one there waits for this end: no process
        # writes in it now.
        self._memory.give_back(self._memory.base(session), self._memory.half_bytes)


class PageAllocator:
    """Which pages of ``count`` are taken: first fit over a sorted list of holes that never touch.
    It counts pages from 0 and knows no memory. A row of pages is named by its first page.
    """

    __slots__ = ("_holes", "_taken", "count", "high_water", "used")

    def __init__(self, count: int) -> None:
        self.count = count
        self.used = 0
        # First page that was never taken; the owner lowers it when it has given pages back.
        self.high_water = 0
        self._holes: list[tuple[int, int]] = [(0, count)] if count else []  # (first page, pages)
        self._taken: dict[int, int] = {}  # first page -> pages

    def allocate(self, pages: int) -> int | None:
        """The first page of ``pages`` free ones in a row; None when there is no such row."""
        assert pages > 0, "an allocation has pages"
        start = self._first_fit(pages)
        if start is not None:
            self._take(start, pages)
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

    def extend(self, start: int, pages: int) -> bool:
        """Make the row at ``start`` longer, if the pages behind it are free; whether they are."""
        before = self._taken[start]
        hole, length = self._holes[self._hole_around(start + before)] if self._holes else (-1, 0)
        if hole != start + before or before + length < pages:
            return False
        self._take(hole, pages - before)
        self._taken[start] = pages
        del self._taken[hole]
        return True

    def _first_fit(self, pages: int) -> int | None:
        return next((start for start, length in self._holes if length >= pages), None)

    def _hole_around(self, page: int) -> int:
        return bisect_right(self._holes, (page, self.count)) - 1

    def _take(self, start: int, pages: int) -> None:
        """Take a row out of the hole that it lies in."""
        index = self._hole_around(start)
        hole, length = self._holes.pop(index)
        rest = [(hole, start - hole), (start + pages, hole + length - start - pages)]
        self._holes[index:index] = [(first, left) for first, left in rest if left]
        self._taken[start] = pages
        self.used += pages
        self.high_water = max(self.high_water, start + pages)

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
