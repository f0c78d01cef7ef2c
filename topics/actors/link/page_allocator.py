"""Page allocator: first fit over a sorted list of holes that never touch one another.

It counts pages from 0 and knows no memory. Rows of pages are allocated, extended, shrunk and freed;
a row is named by its first page.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort


class PageAllocator:
    """Which pages of ``count`` are taken."""

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
