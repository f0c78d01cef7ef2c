"""Arena blocks from reservation to release, and the return of memory to the system."""

from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.actors.link.link_support import arena_ends
from topics.actors.link import arena
from topics.actors.link.arena import (
    LARGE_PAGES,
    PAGE_BYTES,
    ArenaBlock,
    ArenaMemory,
    ArenaWriter,
    PageAllocator,
)


def resident_kib(memory: ArenaMemory) -> int:
    """Return how much of the mapping is in memory, found by its address in the kernel's list of
    mappings.
    """
    import ctypes
    from pathlib import Path

    address = ctypes.addressof(ctypes.c_char.from_buffer(memory.view))
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        start, dash, end = line.split(" ")[0].partition("-")
        if dash and int(start, 16) <= address < int(end, 16):
            return next(int(field.split()[1]) for field in lines if field.startswith("Rss:"))
    raise AssertionError("the list does not contain the mapping")


def test_a_block_is_free_only_after_its_release() -> None:
    _, writer, reader = arena_ends(pages=4)
    block = writer.reserve(4 * PAGE_BYTES)
    assert block is not None
    writer.mark_sent(block)
    block.free()  # Has no effect, because the block was sent
    assert writer.reserve(1) is None
    view = reader.open(block.offset, block.length)
    assert view is not None
    assert reader.release(view) == (block.offset, block.length)
    assert reader.release(view) is None, "only the first release has an effect"
    assert writer.release(block.offset)
    assert not writer.release(block.offset)
    assert writer.used_bytes == 0
    assert writer.reserve(4 * PAGE_BYTES) is not None


def test_a_shrunk_block_frees_its_last_pages() -> None:
    _, writer, _ = arena_ends(pages=4)
    block = writer.reserve(4 * PAGE_BYTES)
    assert block is not None
    block.shrink(PAGE_BYTES + 1)
    assert (block.length, len(block.view), writer.used_bytes) == (
        PAGE_BYTES + 1,
        PAGE_BYTES + 1,
        2 * PAGE_BYTES,
    )
    block.shrink(0)
    assert (len(block.view), writer.used_bytes) == (0, PAGE_BYTES)
    block.free()
    block.free()
    assert writer.used_bytes == 0


def filled(writer: ArenaWriter, pages: int, mark: bytes) -> ArenaBlock:
    block = writer.reserve(pages * PAGE_BYTES)
    assert block is not None
    block.view[:] = mark * block.length
    return block


def grown(block: ArenaBlock, pages: int, keep: int) -> int:
    """Grow a block and return the number of copied slices."""
    steps = block.grow(pages * PAGE_BYTES, keep)
    assert steps is not None
    return sum(1 for _ in steps)


def test_a_block_grows_in_place_if_the_following_pages_are_free() -> None:
    _, writer, _ = arena_ends(pages=4)
    block = filled(writer, 1, b"a")
    offset = block.offset
    assert grown(block, 4, PAGE_BYTES) == 0
    assert block.offset == offset
    assert block.length == writer.used_bytes == 4 * PAGE_BYTES
    assert bytes(block.view[:PAGE_BYTES]) == b"a" * PAGE_BYTES
    block.free()
    assert writer.used_bytes == 0


def test_a_block_that_cannot_grow_in_place_moves_with_its_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "SLICE_BYTES", 1000)
    _, writer, _ = arena_ends(pages=12)
    before, block = filled(writer, 2, b"b"), filled(writer, 3, b"x")
    free, after = filled(writer, 1, b"-"), filled(writer, 1, b"y")
    free.free()
    block.view[:] = body = random.Random(1).randbytes(block.length)
    assert grown(block, 5, len(body) - 7) > 3
    assert bytes(block.view[: len(body) - 7]) == body[:-7]
    assert bytes(after.view) == b"y" * PAGE_BYTES
    assert writer.used_bytes == (2 + 5 + 1) * PAGE_BYTES
    for one in (before, block, after):
        one.free()
    assert writer.used_bytes == 0
    assert writer.reserve(12 * PAGE_BYTES) is not None, "no page is lost"


def test_a_block_that_is_freed_while_it_moves_frees_both_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "SLICE_BYTES", 1000)
    _, writer, _ = arena_ends(pages=12)
    first, block, last = filled(writer, 2, b"a"), filled(writer, 3, b"b"), filled(writer, 1, b"c")
    steps = block.grow(5 * PAGE_BYTES, block.length)
    assert steps is not None
    next(iter(steps))
    block.free()
    first.free()
    last.free()
    assert writer.used_bytes == 0
    assert writer.reserve(12 * PAGE_BYTES) is not None


def test_a_block_without_space_to_grow_is_unchanged() -> None:
    _, writer, _ = arena_ends(pages=8)
    first, block, last = filled(writer, 3, b"a"), filled(writer, 2, b"b"), filled(writer, 3, b"c")
    assert block.grow(3 * PAGE_BYTES, block.length) is None
    assert bytes(block.view) == b"b" * block.length
    assert {bytes(first.view[:1]), bytes(last.view[:1])} == {b"a", b"c"}
    assert writer.used_bytes == 8 * PAGE_BYTES


def test_a_block_of_a_closed_session_does_not_grow() -> None:
    _, writer, _ = arena_ends(pages=8)
    block = filled(writer, 1, b"a")
    assert writer.filling == [block]
    writer.begin(2)
    assert block.grow(2 * PAGE_BYTES, 1) is None
    assert writer.filling == []
    assert writer.is_used(3)
    block.free()
    assert not writer.is_used(3)


def test_freed_large_blocks_and_a_trimmed_empty_arena_use_no_memory() -> None:
    memory, writer, _ = arena_ends(pages=4 * LARGE_PAGES)
    large = writer.reserve(LARGE_PAGES * PAGE_BYTES)
    assert large is not None
    small = [writer.reserve(LARGE_PAGES * PAGE_BYTES // 2) for _ in range(3)]
    for block in (large, *small):
        assert block is not None
        block.view[:] = b"x" * block.length
    before = resident_kib(memory)
    assert before >= 10 * 1024
    large.free()
    assert resident_kib(memory) == before
    assert writer.used_bytes == 3 * LARGE_PAGES * PAGE_BYTES // 2
    assert writer.trim()
    assert resident_kib(memory) == before - 2 * 1024
    assert not writer.trim()
    assert resident_kib(memory) == before - 4 * 1024
    for block in small:
        assert block is not None
        block.free()
    assert resident_kib(memory) > 4 * 1024
    while writer.trim():
        pass
    assert resident_kib(memory) <= 4 * 1024


def test_pages_that_are_not_yet_returned_to_the_system_can_be_reserved_again() -> None:
    _, writer, _ = arena_ends(pages=2 * LARGE_PAGES)
    large = writer.reserve(2 * LARGE_PAGES * PAGE_BYTES)
    assert large is not None
    large.view[:] = b"x" * large.length
    large.free()
    again = writer.reserve((LARGE_PAGES + 1) * PAGE_BYTES)
    assert again is not None
    again.view[:] = b"y" * again.length
    while writer.trim():
        pass
    assert bytes(again.view) == b"y" * again.length


# Blocks that must not be overwritten while they are read, and the notification of their readers


def test_a_slow_reader_is_notified_once_when_a_session_waits_for_its_block() -> None:
    _, writer, reader = arena_ends(pages=4)
    notified: list[str] = []
    views = []
    for name in ("slow", "done", "next session"):
        if name == "next session":
            writer.begin(2)
            reader.begin(2)
        block = writer.reserve(1)
        assert block is not None
        writer.mark_sent(block)
        view = reader.open(block.offset, block.length)
        assert view is not None
        reader.on_reclaim(view, partial(notified.append, name))
        views.append(view)
    reader.release(views[1])
    reader.reclaim(3)
    reader.reclaim(3)
    assert notified == ["slow"]
    assert reader.is_used(3), "the slow reader has not released its block yet"
    reader.release(views[0])
    assert not reader.is_used(3)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1), (15 * PAGE_BYTES, 2), (2**63, 1), (17 * PAGE_BYTES, 2**63)]
)
def test_a_reader_refuses_a_block_outside_the_half_of_its_session(offset: int, length: int) -> None:
    memory, _, reader = arena_ends(pages=16)
    assert reader.session == 1
    assert reader.open(offset, length) is None
    assert reader.open(memory.half_bytes, 1) is not None


def test_the_next_session_does_not_reuse_blocks_that_are_still_read() -> None:
    _, writer, reader = arena_ends(pages=2)
    views = []
    for _ in range(2):
        block = filled(writer, 1, b"s")
        writer.mark_sent(block)
        view = reader.open(block.offset, block.length)
        assert view is not None
        views.append(view)
    writer.begin(2)
    reader.begin(2)
    filled(writer, 2, b"x")
    for view in views:
        assert bytes(view[:4]) == b"ssss"
        assert reader.is_used(3)
        assert reader.release(view) is None, "the writer of a closed session needs no RELEASE"
    assert not reader.is_used(3)
    assert bytes(views[0][:4]) == bytes(4), "its pages were returned to the system"


# One mapping with two halves, which alternate between sessions


def test_pages_returned_to_the_system_are_zeros_and_their_neighbours_are_kept() -> None:
    memory = ArenaMemory(2 * PAGE_BYTES)
    memory.view[:] = b"x" * len(memory.view)
    memory.release_pages(PAGE_BYTES, 2 * PAGE_BYTES)
    kept = b"x" * PAGE_BYTES
    assert bytes(memory.view) == kept + bytes(2 * PAGE_BYTES) + kept
    memory.release_pages(0, 0)
    assert memory.view[0] == ord("x")


# Allocated pages, compared with a set of pages


PAGES = 24


@settings(max_examples=60, stateful_step_count=30)
class AllocatorAgainstASet(RuleBasedStateMachine):
    """A simple model: the set of free pages."""

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
