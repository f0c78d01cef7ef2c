"""Timetable: what is due is found, in order, and an entry that is no longer true is dropped."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.engine.queue import timetable as module
from topics.engine.queue.timetable import BUCKET_MS, STALE_MIN, Timetable


def filled(times: dict[int, int]) -> Timetable:
    timetable = Timetable(times.get)
    for seq, at in times.items():
        timetable.add(at, (seq,))
    return timetable


def test_a_seq_is_due_at_its_time_and_not_before() -> None:
    timetable = filled({1: 1000})
    assert timetable.take_due(999) == []
    assert timetable.take_due(1000) == [(1000, 1)]
    assert timetable.take_due(5000) == []


def test_what_is_due_comes_in_the_order_of_its_time_from_one_bucket_and_from_many() -> None:
    times = {1: 30, 2: 20, 3: 5 * BUCKET_MS, 4: 10, 5: 2 * BUCKET_MS}
    expected = sorted((at, seq) for seq, at in times.items())
    assert filled(times).take_due(100 * BUCKET_MS) == expected
    timetable = filled(times)
    timetable.take_due(0)  # the first bucket is near
    assert timetable.take_due(100 * BUCKET_MS) == expected


def test_a_seq_with_another_time_is_due_at_that_alone() -> None:
    times = {1: 100}
    timetable = filled(times)
    times[1] = 700
    timetable.add(700, (1,))
    assert timetable.take_due(699) == []
    times[1] = 650
    timetable.add(650, (1,))
    assert timetable.take_due(699) == [(650, 1)]


def test_what_has_no_time_any_more_is_dropped_and_gives_its_place_back() -> None:
    times = {1: 100, 2: 900}
    timetable = filled(times)
    times.clear()
    assert timetable.take_due(1000) == []
    assert (timetable.count, timetable.next_at) == (0, None)


def test_next_at_is_never_late_and_never_in_the_past() -> None:
    timetable = filled({1: 1000})
    assert timetable.next_at is not None
    assert timetable.next_at <= 1000
    timetable.take_due(timetable.next_at)
    assert timetable.next_at == 1000


def test_entries_that_are_not_true_any_more_are_dropped_when_they_are_most_of_all() -> None:
    times = {1: 50_000_000}
    timetable = filled(times)
    for step in range(2 * STALE_MIN):
        timetable.add(60_000_000 + step, (1,))
        timetable.trim(1, 1)
        assert timetable.count < STALE_MIN * 1.2
    assert timetable.take_due(50_000_000) == [(50_000_000, 1)]


@example(steps=[(1, 256, 156), (2, 356, 56), (2, 0, 300)])  # an earlier time, in another bucket
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 4 * BUCKET_MS), st.integers(0, 300)),
        max_size=30,
    )
)
def test_it_gives_what_a_dict_would(steps: list[tuple[int, int, int]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SWEEP_STEP", 1)
        give_what_a_dict_would(steps)


def give_what_a_dict_would(steps: list[tuple[int, int, int]]) -> None:
    times: dict[int, int] = {}
    timetable, now_ms = Timetable(times.get), 0
    for seq, after_ms, pause_ms in steps:
        times[seq] = now_ms + after_ms
        timetable.add(times[seq], (seq,))
        timetable.trim(-STALE_MIN, 1)
        now_ms += pause_ms
        due = timetable.take_due(now_ms)
        assert due == sorted(due)
        assert {*due} == {(at, seq) for seq, at in times.items() if at <= now_ms}
        for _, seq in due:
            times.pop(seq, None)
        assert timetable.next_at is None or timetable.next_at > now_ms
        assert not times or (timetable.next_at or 0) <= min(times.values())


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 3 * BUCKET_MS)), st.integers(1, 9))
def test_all_that_is_due_comes_in_the_end_however_little_is_looked_at_at_once(
    times: dict[int, int], limit: int
) -> None:
    timetable, now_ms, due = filled(times), 2 * BUCKET_MS, list[tuple[int, int]]()
    while timetable.next_at is not None and timetable.next_at <= now_ms:
        part = timetable.take_due(now_ms, limit)
        assert len(part) <= limit
        due += part
    assert sorted(due) == sorted((at, seq) for seq, at in times.items() if at <= now_ms)
