"""Seq set: what is in it, and how runs of it are passed over."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.queue.seq_set import BLOCK, SeqSet

SEQS = st.one_of(st.integers(1, 40), st.integers(BLOCK - 3, BLOCK + 3), st.integers(1, 2**64 - 1))
CALLS = st.lists(st.tuples(st.sampled_from(("add", "discard", "discard_below")), SEQS))


@given(CALLS, SEQS, st.integers(0, 2 * BLOCK))
def test_a_seq_set_is_a_set_but_for_what_is_dropped_by_blocks(
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


def test_a_million_seqs_are_passed_over_at_once_and_take_little_memory() -> None:
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
