"""The memory of heads against the rule: what comes again stays, the rest goes, all is bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.front.http.head_memory import HeadMemory

MAX = 4


def digest(number: int) -> bytes:
    return b"%d" % number


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=200))
def test_it_is_bounded_and_what_it_knows_is_what_was_put_last(
    steps: list[tuple[bool, int]],
) -> None:
    memory, put = HeadMemory[int](MAX), dict[int, int]()
    for number, (is_put, key) in enumerate(steps):
        if is_put:
            memory.put(digest(key), number)
            put[key] = number
            assert memory.get(digest(key)) == number
        else:
            assert memory.get(digest(key)) in (None, put.get(key))
        assert len(memory) <= 2 * MAX


def test_what_comes_again_outlives_any_number_of_others() -> None:
    memory = HeadMemory[str](MAX)
    memory.put(b"hot", "hot")
    for number in range(100):
        memory.put(digest(number), "once")
        assert memory.get(b"hot") == "hot"
    assert memory.get(digest(0)) is None


def test_what_does_not_come_again_goes() -> None:
    memory = HeadMemory[str](MAX)
    memory.put(b"cold", "cold")
    for number in range(2 * MAX):
        memory.put(digest(number), "once")
    assert memory.get(b"cold") is None


def test_a_clear_forgets_both_generations() -> None:
    memory = HeadMemory[int](MAX)
    for number in range(MAX + 1):
        memory.put(digest(number), number)
    memory.clear()
    assert memory.entries == {}
