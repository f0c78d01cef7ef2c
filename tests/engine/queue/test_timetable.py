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
