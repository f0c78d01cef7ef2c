"""Shared memory for what is too long for a ring: the producer writes it once, the consumer reads it
where it stands.

One mapping for each direction, two halves of ``arena_bytes``; session n uses half n % 2:

    offset                 size         content
    0                      arena_bytes  blocks of even sessions, each from a page boundary
    arena_bytes            arena_bytes  blocks of odd sessions

Why two: when one side dies, the other may still read (a slow client is being sent the body) or fill
(an upload is under way) blocks of the session that is over. The next session must not write there,
and must not wait either. Only the second next one has to wait until the last of these users is
done; ``busy`` says so. Users that may take long leave a callback, by which they are told to let go.

A block grows while it is filled: where it stands if the pages behind it are free, else it moves, a
slice at a time. So what a body holds follows what has arrived of it, and a body that is alone finds
room up to the whole half.

Pages are taken from the system when they are first touched. They go back, a portion with each
``tidy``, when a large block is freed and when everything is free; and when the last block of a
session that is over has been let go by its reader.
"""

from __future__ import annotations

import mmap
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypeAlias

PAGE_BYTES: Final = mmap.PAGESIZE
MAP_NORESERVE: Final = (
    0x4000  # Linux, every architecture we run on; the mmap module names it from 3.13 on
)
LARGE_PAGES: Final = (
    4 << 20
) // PAGE_BYTES  # below it, new pages would cost more than the old ones hold
PORTION_PAGES: Final = (
    2 << 20
) // PAGE_BYTES  # given back at once, within a millisecond: nobody is served meanwhile
# Of a block that moves, copied at once: about a millisecond, most of it for new pages.
SLICE_BYTES: Final = 1 << 20

_Held: TypeAlias = tuple[memoryview, int, int]  # view, offset, length


class Holder(Protocol):
    """Who fills a block, for the one who must find room for others."""

    def turnover_s(self, now: float) -> float:
        """How long it takes to bring as many bytes as it holds, at the rate of the last seconds."""

    def give_up(self, failure: Exception) -> None:
        """Let go of the block soon, and fail with ``failure``."""


class PageAllocator:
    """Which pages of ``count`` are taken: first fit over a sorted list of holes that never touch
    one another.
    """

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

    def extend(self, start: int, pages: int) -> int | None:
        """Find ``pages`` in a row for what stands at ``start``: there if they are free.

        Else at the first place. Returns where the longer row begins. It may overlap the old one;
        then it reaches to the end of that until it is shrunk. Otherwise the old row stays taken.
        None, and nothing has changed, when there is no such row.
        """
        before = self._taken[start]
        assert pages > before, "an extended row is longer"
        self.free(start)
        place = start if self._is_free(start, pages) else self._first_fit(pages)
        if place is None or not place <= start < place + pages:
            self._take(start, before)
        if place is not None:
            end = start + before if place <= start < place + pages else 0
            self._take(place, max(pages, end - place))
        return place

    def _first_fit(self, pages: int) -> int | None:
        return next((start for start, length in self._holes if length >= pages), None)

    def _is_free(self, start: int, pages: int) -> bool:
        hole, length = self._holes[self._hole_around(start)]
        return start + pages <= hole + length

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


class ArenaMemory:
    """The shared mapping of one direction, made before the fork. Address space only, until pages
    are touched.
    """

    def __init__(self, half_bytes: int) -> None:
        self.half_bytes = -(-half_bytes // PAGE_BYTES) * PAGE_BYTES
        # Most of it is never used, and must not count against the machine's memory.
        self._map = mmap.mmap(-1, 2 * self.half_bytes, flags=mmap.MAP_SHARED | MAP_NORESERVE)
        self.view = memoryview(self._map)

    def give_back(self, start: int, length: int) -> None:
        """Hand the pages of a range back to the system, for all processes; they read as zeros from
        then on.
        """
        if length:
            self._map.madvise(mmap.MADV_REMOVE, start, length)


class ArenaBlock:
    """Room for one attachment. Fill ``view``, then pass the block to ``send``, which takes it over,
    or ``free`` it.
    """

    __slots__ = ("_writer", "holder", "left", "length", "offset", "session", "view")

    def __init__(
        self, writer: ArenaWriter, session: int, offset: int, length: int, view: memoryview
    ) -> None:
        self._writer: ArenaWriter | None = writer
        self.session = session
        self.offset = offset
        self.length = length
        self.view = view
        """The memory, ``length`` bytes, writable until the block grows, is sent or is freed."""
        self.holder: Holder | None = None
        self.left: int | None = None  # the offset that it moves away from, while it does

    def shrink(self, length: int) -> None:
        """Keep only the first ``length`` bytes: the body came out shorter than was reserved."""
        assert 0 <= length <= self.length, "a block only shrinks"
        assert self.left is None, "a block that moves is not whole yet"
        self._owner().shrink(self, length)
        self.length = length
        self.view = self.view[:length]

    def grow(self, length: int, keep: int) -> Iterator[None] | None:
        """Make it longer; the first ``keep`` bytes stay. None when there is no room.

        It has grown when the iterator is exhausted: each step copies a slice, in between others may
        run. Until then only `free`.
        """
        assert length > self.length >= keep, "a block grows and keeps what it has"
        assert self.left is None, "a block that moves does not move again"
        return self._owner().grow(self, length, keep)

    def free(self) -> None:
        """Give the room back unsent. Nothing happens when the block was sent or freed already."""
        if (writer := self._writer) is not None:
            self._writer = None
            writer.free(self)

    def detach_from(self, writer: ArenaWriter) -> None:
        """The block is no longer the holder's. Raises ValueError when it was not, or is of another
        arena.
        """
        if self._writer is not writer:
            raise ValueError("this block was sent or freed before, or is another link's")
        self._writer = None

    def _owner(self) -> ArenaWriter:
        assert self._writer is not None, "a block that was sent or freed is no longer ours"
        return self._writer


class ArenaWriter:
    """The producer's end: it alone decides which pages are whose.

    A block is *reserved* while it is filled, *sent* from then until the consumer's RELEASE message
    or the session's end. The row of a large one stays taken after that, until all its pages have
    been given back to the system.
    """

    __slots__ = ("_allocator", "_filling", "_leaving", "_memory", "_pages", "_sent", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._pages = memory.half_bytes // PAGE_BYTES
        self._allocator = PageAllocator(self._pages)
        self._filling: tuple[set[ArenaBlock], set[ArenaBlock]] = (set(), set())  # by half
        self._sent: set[int] = set()  # offsets of this session
        self._leaving: list[
            int
        ] = []  # rows of freed blocks, by first page, whose pages go back to the system
        self.session = 0

    def busy(self, session: int) -> bool:
        """Somebody here still fills a block in the half that ``session`` would use."""
        return bool(self._filling[session & 1])

    def begin(self, session: int) -> None:
        """Empty the arena for ``session``: what was sent before is void. Not while
        ``busy(session)``.
        """
        assert not self.busy(session), "nobody fills a block in a half that is given out anew"
        self.session = session
        self._allocator = PageAllocator(self._pages)
        self._sent.clear()
        self._leaving.clear()

    @property
    def used_bytes(self) -> int:
        """Bytes of pages that are reserved or sent in this session."""
        return (self._allocator.used - sum(map(self._allocator.pages, self._leaving))) * PAGE_BYTES

    @property
    def filling(self) -> list[ArenaBlock]:
        """The blocks of this session that are reserved and not sent."""
        return [block for block in self._filling[self.session & 1] if block.session == self.session]

    def reserve(self, length: int) -> ArenaBlock | None:
        """A block of ``length`` bytes; None when there is no room in one piece."""
        page = self._find(lambda: self._allocator.allocate(_pages(length)))
        if page is None:
            return None
        offset = self._offset(page)
        view = self._memory.view[offset : offset + length]
        block = ArenaBlock(self, self.session, offset, length, view)
        self._filling[self.session & 1].add(block)
        return block

    def grow(self, block: ArenaBlock, length: int, keep: int) -> Iterator[None] | None:
        """Part of ``ArenaBlock.grow``."""
        if block.session != self.session:
            return None
        if _pages(length) == _pages(block.length):
            offset = block.offset
        else:
            start, pages = self._page(block.offset), _pages(length)
            page = self._find(lambda: self._allocator.extend(start, pages))
            if page is None:
                return None
            offset = self._offset(page)
        old, block.view = block.view, self._memory.view[offset : offset + length]
        if offset != block.offset:
            block.left, block.offset = block.offset, offset
        block.length = length
        return self._move(block, old[:keep])

    def _move(self, block: ArenaBlock, old: memoryview) -> Iterator[None]:
        if block.left is None:
            return
        # Upwards: the new place, where it overlaps the old one, lies below it.
        for start in range(0, len(old), SLICE_BYTES):
            piece = old[start : start + SLICE_BYTES]
            block.view[start : start + len(piece)] = piece
            yield
        self._leave(block)

    def _leave(self, block: ArenaBlock) -> None:
        """The block needs its old place no more."""
        left, block.left = block.left, None
        if left is None or block.session != self.session:
            return
        page = self._page(block.offset)
        if block.offset <= left < block.offset + block.length:
            self._allocator.shrink(page, _pages(block.length))
        else:
            self._free(left)

    def _find(self, attempt: Callable[[], int | None]) -> int | None:
        """A page, if need be among rows whose pages were to go back to the system."""
        page = attempt()
        while page is None and self._leaving:
            self._allocator.free(self._leaving.pop())
            page = attempt()
        return page

    def shrink(self, block: ArenaBlock, length: int) -> None:
        """Part of ``ArenaBlock.shrink``."""
        if block.session == self.session:
            self._allocator.shrink(self._page(block.offset), _pages(length))

    def free(self, block: ArenaBlock) -> None:
        """Part of ``ArenaBlock.free``."""
        self._filling[block.session & 1].remove(block)
        if block.session == self.session:
            self._leave(block)
            self._free(block.offset)

    def take_over(self, block: ArenaBlock) -> None:
        """The block is on its way: from now on only a RELEASE of the consumer frees it.

        Raises ValueError for a block that is not the holder's any more, or of another arena.
        """
        assert block.session == self.session, "a block is sent in the session it was reserved in"
        block.detach_from(self)
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
            self._leaving.append(page)
        else:
            self._allocator.free(page)

    def tidy(self) -> bool:
        """Give the next portion of unused pages back to the system; whether there is more. Touching
        pages anew is dear, so what small blocks have touched stays until everything is free.
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
        self._memory.give_back(self._offset(page), pages * PAGE_BYTES)

    def _offset(self, page: int) -> int:
        return (self.session & 1) * self._memory.half_bytes + page * PAGE_BYTES

    def _page(self, offset: int) -> int:
        return (offset - (self.session & 1) * self._memory.half_bytes) // PAGE_BYTES


class ArenaReader:
    """The consumer's end: the views that it still reads from."""

    __slots__ = ("_held", "_memory", "_on_lost", "_view", "session")

    def __init__(self, memory: ArenaMemory) -> None:
        self._memory = memory
        self._view = memory.view.toreadonly()
        # By half, then by id of the view, which cannot be another's while it is kept here.
        self._held: tuple[dict[int, _Held], dict[int, _Held]] = ({}, {})
        self._on_lost: dict[int, Callable[[], object]] = {}  # by id of the view, too
        self.session = 0

    def busy(self, session: int) -> bool:
        """Somebody here still reads a block in the half that ``session`` would use."""
        return bool(self._held[session & 1])

    def begin(self, session: int) -> None:
        """Go on with ``session``. Not while ``busy(session)``. The pages of the half it leaves go
        back when it is unread.
        """
        assert not self.busy(session), "nobody reads in a half that is written anew"
        self.session = session
        if not self.busy(session + 1):
            self._give_back(session + 1)

    @property
    def held(self) -> int:
        """Blocks that were received and not yet released, of the session before too."""
        return len(self._held[0]) + len(self._held[1])

    def open(self, offset: int, length: int) -> memoryview | None:
        """The block of a received message, read-only; it is held until ``done``. None when it lies
        outside the session's half.
        """
        half = self.session & 1
        start = half * self._memory.half_bytes
        if offset < start or offset + length > start + self._memory.half_bytes:
            return None
        view = self._view[offset : offset + length]
        self._held[half][id(view)] = (view, offset, length)
        return view

    def on_lost(self, view: memoryview, let_go: Callable[[], object]) -> None:
        """``let_go`` is called, once, when a session waits for the memory of ``view``."""
        if any(id(view) in half for half in self._held):
            self._on_lost[id(view)] = let_go

    def reclaim(self, session: int) -> None:
        """Tell those who hold up ``session`` and can be told."""
        for view in [*self._held[session & 1]]:
            if (let_go := self._on_lost.pop(view, None)) is not None:
                let_go()

    def done(self, view: memoryview) -> tuple[int, int] | None:
        """Nobody here reads from ``view`` any more.

        Returns its offset and length for the RELEASE message; None when its session is over, or it
        was done before.
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
        # The session of that half is over and its successor there waits for us: nobody writes in it
        # now.
        self._memory.give_back((session & 1) * self._memory.half_bytes, self._memory.half_bytes)


def _pages(length: int) -> int:
    return max(1, -(-length // PAGE_BYTES))
