"""Arena reader: what it lets nobody write over while it is read, and whom it tells."""

from __future__ import annotations

from functools import partial

import pytest

from tests.actors.link.link_support import arena_ends
from topics.actors.link.arena import PAGE_BYTES


def test_a_slow_reader_is_told_once_when_a_session_waits_for_what_it_reads() -> None:
    _, writer, reader = arena_ends(pages=4)
    told: list[str] = []
    views = []
    for name in ("slow", "done", "next session"):
        if name == "next session":
            writer.begin(2)
            reader.begin(2)
        block = writer.reserve(1)
        assert block is not None
        writer.take_over(block)
        view = reader.open(block.offset, block.length)
        assert view is not None
        reader.on_lost(view, partial(told.append, name))
        views.append(view)
    reader.release(views[1])
    reader.reclaim(3)
    reader.reclaim(3)
    assert told == ["slow"]
    assert reader.is_used(3), "until it has released the block"
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


def test_the_next_session_leaves_alone_what_is_still_being_read() -> None:
    _, writer, reader = arena_ends(pages=2)
    block = writer.reserve(2 * PAGE_BYTES)
    assert block is not None
    block.view[:4] = b"slow"
    writer.take_over(block)
    view = reader.open(block.offset, block.length)
    assert view is not None
    writer.begin(2)
    reader.begin(2)
    fresh = writer.reserve(2 * PAGE_BYTES)
    assert fresh is not None
    fresh.view[:] = b"x" * len(fresh.view)
    assert bytes(view[:4]) == b"slow"
    assert reader.is_used(3)
    assert reader.release(view) is None, (
        "the session of that block is over: nobody waits for a RELEASE"
    )
    assert not reader.is_used(3)
    assert bytes(view[:4]) == bytes(4), "its pages went back"
