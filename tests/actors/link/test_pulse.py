"""Who is silent for how long, and that a watcher who stood still blames nobody."""

from __future__ import annotations

from topics.actors.link.pulse import LOOK_MAX_S, STALLED_S, Pulse


def test_silence_grows_until_there_is_a_new_sign() -> None:
    pulse = Pulse()
    assert [
        pulse.look(sign, now)
        for sign, now in [(1, 10.0), (1, 10.5), (1, 11.5), (2, 12.0), (2, 12.5)]
    ] == [0.0, 0.5, 1.5, 0.0, 0.5]


def test_a_watcher_who_has_slept_himself_does_not_count_that() -> None:
    pulse = Pulse()
    pulse.look(1, 10.0)
    pulse.look(1, 10.5)
    assert pulse.look(1, 1000.0) == 0.5 + LOOK_MAX_S < STALLED_S
    assert pulse.look(2, 1000.5) == 0.0
