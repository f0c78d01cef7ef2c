"""Progress of a long start is told again and again, also while it does not grow."""

from __future__ import annotations

from topics.storage.pulse import Pulse


def test_the_share_is_told_again_after_so_many_items() -> None:
    told: list[float] = []
    pulse = Pulse(told.append)
    pulse.tell(0.5)
    assert list(pulse.over(range(7), every=3)) == list(range(7))
    assert told == [0.5, 0.5, 0.5]
    pulse.tell(1.0)
    pulse.beat()
    assert told[3:] == [1.0, 1.0]
