"""Ranges of seqs: unions and runs, compared with sets of single seqs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.formats.ranges import SeqRange, SeqRun, joined, runs_of_seqs, seq_ranges, union

SEQS = st.sets(st.integers(1, 60))


def ranges_of(seqs: set[int]) -> tuple[SeqRange, ...]:
    return tuple(
        SeqRange(first, first + length - 1) for first, length in runs_of_seqs(sorted(seqs))
    )


@given(SEQS)
def test_runs_contain_each_seq_once_and_are_not_adjacent(seqs: set[int]) -> None:
    runs = runs_of_seqs(sorted(seqs))
    assert [seq for run in runs for seq in range(run.first, run.first + run.length)] == sorted(seqs)
    ends = [run.first + run.length for run in runs]
    assert all(end < after.first for end, after in zip(ends, runs[1:], strict=False))


@given(SEQS, SEQS)
def test_a_union_contains_the_seqs_of_both(one: set[int], other: set[int]) -> None:
    assert union(ranges_of(one), ranges_of(other)) == ranges_of(one | other)


def test_a_range_is_joined_with_an_adjacent_last_range() -> None:
    assert joined((), SeqRange(3, 4)) == (SeqRange(3, 4),)
    assert joined((SeqRange(1, 4),), SeqRange(5, 6)) == (SeqRange(1, 6),)
    assert joined((SeqRange(1, 9),), SeqRange(5, 6)) == (SeqRange(1, 9),)
    assert joined((SeqRange(1, 4),), SeqRange(6, 6)) == (SeqRange(1, 4), SeqRange(6, 6))


def test_the_pairs_of_a_checkpoint_become_ranges() -> None:
    assert seq_ranges([[1, 2], (5, 5)]) == (SeqRange(1, 2), SeqRange(5, 5))
    assert runs_of_seqs([]) == []
    assert runs_of_seqs([4]) == [SeqRun(4, 1)]
