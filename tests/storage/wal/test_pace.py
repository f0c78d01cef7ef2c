"""The loop syncs while syncs are cheap, and stops for a while after one that was not."""

from __future__ import annotations

import random

from topics.storage.wal.pace import (
    AVERAGE_OVER,
    CHEAP_S,
    PAUSE_MAX_S,
    PAUSE_PER_S,
    SLOW_S,
    STALE_S,
    SyncPace,
)

FAST_S = CHEAP_S / 5


def cheap(now: float = 0.0) -> SyncPace:
    pace = SyncPace()
    pace.note(FAST_S, now, by_loop=False)
    assert pace.is_cheap(now)
    return pace


def test_the_thread_makes_the_first_syncs() -> None:
    pace = SyncPace()
    assert not pace.is_cheap(0.0)
    pace.note(CHEAP_S * 2, 1.0, by_loop=False)
    assert not pace.is_cheap(1.0)
    pace.note(CHEAP_S, 2.0, by_loop=False)
    assert pace.is_cheap(2.0)


def test_after_a_slow_sync_the_loop_makes_none_for_a_time_that_it_sets() -> None:
    pace = cheap()
    pace.note(SLOW_S * 2, 1.0, by_loop=True)
    again_at = 1.0 + SLOW_S * 2 * PAUSE_PER_S
    pace.note(FAST_S, again_at - 0.01, by_loop=False)
    assert not pace.is_cheap(again_at - 0.01)
    assert not pace.is_cheap(again_at), "the thread has to show that the disk is fast again"
    pace.note(CHEAP_S * 2, again_at, by_loop=False)
    assert not pace.is_cheap(again_at)
    pace.note(FAST_S, again_at, by_loop=False)
    assert pace.is_cheap(again_at)


def test_no_sync_costs_a_longer_pause_than_the_longest() -> None:
    pace = cheap()
    pace.note(1000.0, 1001.0, by_loop=True)
    pace.note(FAST_S, 1001.0 + PAUSE_MAX_S, by_loop=False)
    assert pace.is_cheap(1001.0 + PAUSE_MAX_S)


def test_syncs_that_are_dear_on_average_end_it_though_none_is_slow() -> None:
    pace, now = cheap(), 0.0
    for _ in range(AVERAGE_OVER * 4):
        now += SLOW_S
        pace.note(CHEAP_S * 2, now, by_loop=True)
    assert not pace.is_cheap(now)


def test_slow_syncs_of_the_thread_do_not_count() -> None:
    pace = cheap()
    for now in range(5):
        pace.note(1.0, now, by_loop=False)
    assert pace.is_cheap(5.0)


def test_what_a_sync_takes_after_a_long_silence_nobody_knows() -> None:
    pace = cheap()
    assert pace.is_cheap(STALE_S - 0.1)
    assert not pace.is_cheap(STALE_S)
    pace.note(FAST_S, STALE_S + 1, by_loop=False)
    assert pace.is_cheap(STALE_S + 1)


def test_a_disk_of_any_kind_costs_the_loop_a_bounded_share_of_its_time() -> None:
    for share in (0.01, 0.3, 0.9):
        dice, pace, now, lost_s = random.Random(1), SyncPace(), 0.0, 0.0
        while now < 200.0:
            took_s = 0.02 if dice.random() < share else FAST_S
            by_loop = pace.is_cheap(now)
            now += took_s + FAST_S
            lost_s += took_s if by_loop and took_s > SLOW_S else 0.0
            pace.note(took_s, now, by_loop=by_loop)
        assert 0.0 < lost_s <= 200.0 / PAUSE_PER_S * 1.05
