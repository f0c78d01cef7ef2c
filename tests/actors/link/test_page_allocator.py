"""Which pages are taken, against a set of pages."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from topics.actors.link.page_allocator import PageAllocator

PAGES = 24


@settings(max_examples=60, stateful_step_count=30)
class AllocatorAgainstASet(RuleBasedStateMachine):
    """The obvious model: the set of free pages."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = PageAllocator(PAGES)
        self.free = set(range(PAGES))
        self.rows: dict[int, int] = {}

    @rule(pages=st.integers(1, PAGES + 1))
    def allocate(self, pages: int) -> None:
        start = self.allocator.allocate(pages)
        fits = [at for at in range(PAGES) if self.free.issuperset(range(at, at + pages))]
        assert start == (min(fits) if fits else None)
        if start is not None:
            self.free -= set(range(start, start + pages))
            self.rows[start] = pages

    @rule(data=st.data())
    def free_one(self, data: st.DataObject) -> None:
        if self.rows:
            start = data.draw(st.sampled_from(sorted(self.rows)))
            pages = self.rows.pop(start)
            assert self.allocator.pages(start) == pages
            self.allocator.free(start)
            self.free |= set(range(start, start + pages))

    @rule(data=st.data())
    def shrink_one(self, data: st.DataObject) -> None:
        if self.rows:
            start = data.draw(st.sampled_from(sorted(self.rows)))
            pages = data.draw(st.integers(1, self.rows[start]))
            self.allocator.shrink(start, pages)
            self.free |= set(range(start + pages, start + self.rows[start]))
            self.rows[start] = pages

    @rule(data=st.data())
    def extend_one(self, data: st.DataObject) -> None:
        if not (growing := [start for start, pages in self.rows.items() if pages < PAGES]):
            return
        start = data.draw(st.sampled_from(sorted(growing)))
        before = self.rows[start]
        pages = data.draw(st.integers(before + 1, PAGES))
        fits = self.free.issuperset(range(start + before, start + pages))
        assert self.allocator.extend(start, pages) == fits
        if fits:
            self.rows[start] = pages
            self.free -= set(range(start + before, start + pages))

    @invariant()
    def holes_are_the_free_pages_and_never_touch(self) -> None:
        holes = self.allocator._holes
        assert {page for start, pages in holes for page in range(start, start + pages)} == self.free
        assert all(sum(left) < right[0] for left, right in pairwise(holes))
        assert self.allocator.used == PAGES - len(self.free)


TestAllocator = pytest.mark.slow(AllocatorAgainstASet.TestCase)
