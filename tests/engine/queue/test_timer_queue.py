"""The timetable, the seq set and the delays, each compared with a plain dict or set."""

from __future__ import annotations

import time
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.engine.queue import delays
from topics.engine.queue import timer_queue as module
from topics.engine.queue.delays import BLOCK_ROWS, Delays
from topics.engine.queue.seq_set import BLOCK, SeqSet
from topics.engine.queue.timer_queue import BUCKET_MS, STALE_MIN, TimerQueue
from topics.formats.ranges import SeqRun


def filled(times: dict[int, int]) -> TimerQueue:
    timetable = TimerQueue(times.get)
    for seq, at in times.items():
        timetable.add(at, (seq,))
    return timetable


def test_stale_entries_are_dropped_when_they_are_the_majority() -> None:
    times = {1: 50_000_000}
    timetable = filled(times)
    for step in range(2 * STALE_MIN):
        timetable.add(60_000_000 + step, (1,))
        timetable.trim(1, 1)
        assert timetable.count < STALE_MIN * 1.2
    assert timetable.take_due(50_000_000) == [(50_000_000, 1)]


@example(steps=[(1, 256, 156), (2, 356, 56), (2, 0, 300)])  # An earlier time, in another bucket
@given(
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(0, 4 * BUCKET_MS), st.integers(0, 300)),
        max_size=30,
    )
)
def test_the_timetable_returns_the_same_due_entries_as_a_dict(
    steps: list[tuple[int, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SWEEP_STEP", 1)
        check_against_a_dict(steps)


def check_against_a_dict(steps: list[tuple[int, int, int]]) -> None:
    times: dict[int, int] = {}
    timetable, now_ms = TimerQueue(times.get), 0
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
        assert timetable.next_at > now_ms
        assert not times or timetable.next_at <= min(times.values())


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 3 * BUCKET_MS)), st.integers(1, 9))
def test_all_due_entries_are_returned_with_any_limit_per_call(
    times: dict[int, int], limit: int
) -> None:
    timetable, now_ms, due = filled(times), 2 * BUCKET_MS, list[tuple[int, int]]()
    while timetable.next_at <= now_ms:
        part = timetable.take_due(now_ms, limit)
        assert len(part) <= limit
        due += part
    assert sorted(due) == sorted((at, seq) for seq, at in times.items() if at <= now_ms)


# Seq set: its members, and how a scan skips runs of them


SEQS = st.one_of(st.integers(1, 40), st.integers(BLOCK - 3, BLOCK + 3), st.integers(1, 2**64 - 1))
CALLS = st.lists(st.tuples(st.sampled_from(("add", "discard", "discard_below")), SEQS))


@given(CALLS, SEQS, st.integers(0, 2 * BLOCK))
def test_a_seq_set_equals_a_set_from_the_lowest_kept_seq_on(
    calls: list[tuple[str, int]], seq: int, length: int
) -> None:
    ours, model, low = SeqSet(), set[int](), 0
    for name, given_seq in calls:
        getattr(ours, name)(given_seq)
        if name == "discard_below":
            low = max(low, given_seq)
        elif name == "add":
            model.add(given_seq)
        else:
            model.discard(given_seq)
    seq = max(seq, low)
    out = seq
    while out in model:
        out += 1
    assert ours.next_out(seq) == out
    inside = [each for each in model if seq <= each < seq + length]
    assert ours.next_in(seq, seq + length) == min(inside, default=seq + length)


@pytest.mark.slow
def test_a_run_of_a_million_seqs_is_skipped_fast_and_takes_little_memory() -> None:
    ours = SeqSet()
    for seq in range(1, 1_000_001):
        ours.add(seq)
    assert len(ours.blocks) == 1 + 1_000_000 // BLOCK
    assert len({id(bits) for bits in ours.blocks.values()}) <= 3, "full blocks are one integer"
    began = time.process_time()
    assert ours.next_out(1) == 1_000_001
    assert time.process_time() - began < 0.02
    ours.discard_below(999_999_999)
    assert not ours.blocks


# Delays: rows by seq


class Row(NamedTuple):
    due_ts: int
    until_ms: int


JOBS = st.integers(1, 60)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), JOBS, st.integers(0, 3)),
        st.tuples(st.just("take"), JOBS, st.just(0)),
        st.tuples(st.just("note_due"), JOBS, st.just(0)),
        st.tuples(st.just("drop_runs"), JOBS, st.integers(1, 60)),
    ),
    max_size=80,
)


@given(STEPS)
def test_delays_contain_exactly_the_rows_that_were_put(calls: list[tuple[str, int, int]]) -> None:
    ours, model = Delays(), dict[int, Row]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delays, "BLOCK_ROWS", 4)
        for at, (name, seq, number) in enumerate(calls):
            row = model.get(seq)
            if name == "put":
                ours.put(seq, at, number)
                model[seq] = Row(at, number)
            elif name == "take":
                assert ours.take(seq) == (row and (row.due_ts, not row.until_ms))
                model.pop(seq, None)
            elif name == "note_due":
                assert ours.note_due(seq) == (row.due_ts if row and row.until_ms else None)
                if row:
                    model[seq] = row._replace(until_ms=0)
            else:
                ours.drop_runs([SeqRun(seq, number)])
                model = {each: row for each, row in model.items() if not 0 <= each - seq < number}
            waits = {seq: row.until_ms for seq, row in model.items() if row.until_ms}
            assert dict(ours) == {seq: row.due_ts for seq, row in model.items()}
            assert list(ours) == sorted(model)
            assert (len(ours), ours.waiting) == (len(model), len(waits))
            assert {seq: until_ms for until_ms, seq in ours.times()} == waits
            assert {seq: ours.until_ms(seq) for seq in waits} == waits
            assert (
                list(ours.rows(seq, 3))
                == [(each, model[each].due_ts) for each in sorted(model) if each > seq][:3]
            )


def test_delayed_jobs_take_few_bytes_and_a_dropped_run_frees_its_blocks() -> None:
    ours, count = Delays(), 50 * BLOCK_ROWS
    for seq in range(1, count + 1):
        ours.put(seq, seq, seq)
    sizes = sum(column.__sizeof__() for block in ours._blocks for column in block)
    assert sizes / count < 32
    ours.drop_runs([SeqRun(2, count - 2)])
    assert (list(ours), len(ours._blocks), ours.waiting) == ([1, count], 2, 2)
