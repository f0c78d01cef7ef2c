"""Delays: rows by seq, whatever is put in, taken and dropped."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.queue import delays as module
from topics.engine.queue.delays import BLOCK_ROWS, Delays
from topics.formats.ranges import SeqRun


class Row(NamedTuple):
    due_ts: int
    until_ms: int


SEQS = st.integers(1, 60)
CALLS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), SEQS, st.integers(0, 3)),
        st.tuples(st.just("take"), SEQS, st.just(0)),
        st.tuples(st.just("note_due"), SEQS, st.just(0)),
        st.tuples(st.just("drop_runs"), SEQS, st.integers(1, 60)),
    ),
    max_size=80,
)


@given(CALLS)
def test_delays_are_what_was_put_in(calls: list[tuple[str, int, int]]) -> None:
    ours, model = Delays(), dict[int, Row]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_ROWS", 4)
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


def test_jobs_that_wait_take_few_bytes_and_a_run_of_them_goes_with_its_blocks() -> None:
    ours, count = Delays(), 50 * BLOCK_ROWS
    for seq in range(1, count + 1):
        ours.put(seq, seq, seq)
    sizes = sum(column.__sizeof__() for block in ours._blocks for column in block)
    assert sizes / count < 32
    ours.drop_runs([SeqRun(2, count - 2)])
    assert (list(ours), len(ours._blocks), ours.waiting) == ([1, count], 2, 2)
