"""Hops: what is noted of ranges of seqs is known of each of them, and nothing of others."""

from __future__ import annotations

from random import Random

import pytest

from topics.engine.routing.hops import Hops
from topics.formats.api.limits import U64_MAX


def test_seqs_of_which_nothing_is_known_have_no_hop() -> None:
    hops = Hops()
    assert hops.at(7) == (0, U64_MAX)
    hops.note(1, 4, 0)
    assert (hops.at(1), len(hops)) == ((0, U64_MAX), 0)


def test_a_range_tells_its_hop_and_where_it_ends() -> None:
    hops = Hops()
    hops.note(5, 6, 1)
    hops.note(7, 9, 1)
    hops.note(10, 10, 3)
    hops.note(15, 20, 3)
    assert len(hops) == 3, "adjacent ranges of one hop are one"
    assert [hops.at(seq) for seq in (1, 4, 5, 9, 10, 11, 14, 15, 20, 21)] == [
        *((0, 4), (0, 4), (1, 9), (1, 9), (3, 10)),
        *((0, 14), (0, 14), (3, 20), (3, 20), (0, U64_MAX)),
    ]


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
