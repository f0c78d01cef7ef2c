"""Hops: what is noted of ranges of seqs is known of each of them, and nothing of others."""

from __future__ import annotations

from random import Random

import pytest

from topics.engine.routing.hops import Hops


def test_seqs_are_noted_in_their_order() -> None:
    hops = Hops()
    hops.note(5, 6, 1)
    with pytest.raises(AssertionError, match="seqs rise"):
        hops.note(6, 7, 1)


@pytest.mark.parametrize("seed", range(20))
def test_any_ranges_are_known_as_a_list_knows_them(seed: int) -> None:
    rng, hops, known, seq = Random(seed), Hops(), dict.fromkeys(range(200), 0), 0
    for _ in range(rng.randrange(20)):
        first = seq + rng.choice([1, 1, 2, 5])
        seq, hop = first + rng.randrange(4), rng.randrange(3)
        hops.note(first, seq, hop)
        known.update(dict.fromkeys(range(first, seq + 1), hop))
        if rng.random() < 0.2:
            floor = rng.randrange(seq + 3)
            hops.drop_to(floor)
            known.update(dict.fromkeys(range(floor + 1), 0))
            seq = max(seq, floor)
    for asked in range(150):
        hop, last = hops.at(asked)
        assert hop == known[asked]
        assert {known[each] for each in range(asked, min(last, 199) + 1)} == {hop}
        assert last >= 199 or known[last + 1] != hop
