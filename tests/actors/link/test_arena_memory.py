"""Arena memory: one mapping, a half for every other session, pages that go back to the system."""

from __future__ import annotations

import pytest

from topics.actors.link.arena import PAGE_BYTES, ArenaMemory, pages_of


@pytest.mark.parametrize(
    ("length", "pages"),
    [(0, 0), (1, 1), (PAGE_BYTES, 1), (PAGE_BYTES + 1, 2), (7 * PAGE_BYTES, 7)],
)
def test_a_length_takes_whole_pages(length: int, pages: int) -> None:
    assert pages_of(length) == pages


def test_sessions_take_the_two_halves_in_turns() -> None:
    memory = ArenaMemory(3 * PAGE_BYTES - 1)
    assert memory.half_bytes == 3 * PAGE_BYTES
    assert len(memory.view) == 2 * memory.half_bytes
    assert [memory.base(session) for session in range(4)] == [0, 3 * PAGE_BYTES] * 2


def test_pages_that_were_given_back_are_zeros_and_their_neighbours_stay() -> None:
    memory = ArenaMemory(2 * PAGE_BYTES)
    memory.view[:] = b"x" * len(memory.view)
    memory.give_back(PAGE_BYTES, 2 * PAGE_BYTES)
    kept = b"x" * PAGE_BYTES
    assert bytes(memory.view) == kept + bytes(2 * PAGE_BYTES) + kept
    memory.give_back(0, 0)
    assert memory.view[0] == ord("x")


def test_nothing_fits_into_an_arena_of_no_bytes() -> None:
    memory = ArenaMemory(0)
    assert (memory.half_bytes, len(memory.view), memory.base(1)) == (0, 0, 0)
    memory.give_back(0, 0)
