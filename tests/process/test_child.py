"""When a child is started again."""

from __future__ import annotations

import math

import pytest

from topics.actors.link.board import Board, ShardState, ShardWords
from topics.actors.link.process_id import shard_id
from topics.process.family import Child


@pytest.mark.parametrize("lived_s", [0.0, 1.5, 29.0])
def test_delays_double_up_to_five_seconds_however_long_each_life_was(lived_s: float) -> None:
    child = a_child()
    delays, now = [], 100.0
    for _ in range(10):
        now = live(child, now, lived_s)
        delays.append(child.schedule(now))
        assert child.due == now + delays[-1]
    assert delays == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_half_a_minute_of_service_forgives_and_half_a_minute_of_recovery_does_not() -> None:
    child = a_child()
    delays, now = [], 100.0
    for lived_s, state in [
        (0.0, "READY"),
        (0.0, "READY"),
        (60.0, "RECOVERING"),
        (30.0, "READY"),
        (0.0, "READY"),
    ]:
        now = live(child, now, lived_s, ShardState[state])
        delays.append(child.schedule(now))
    assert delays == [0.0, 0.1, 0.2, 0.0, 0.1]


def test_a_shard_whose_loop_hangs_in_the_disk_lives_as_long_as_its_silence_grows() -> None:
    child = a_child()
    live(child, 100.0, 0.0)
    words = child.words
    assert isinstance(words, ShardWords)
    for second in range(1, 61):
        words.disk_silent_ms = second * 1000
        assert child.watch(100.0 + second) == 0.0
    assert child.watch(161.0) == 1.0


def test_a_heart_beats_for_one_process_only() -> None:
    child = a_child()
    for beat_ms in (100, 200):
        child.begin(0.0)
        assert not child.has_beaten
        child.words.heartbeat_ms = beat_ms
        assert child.has_beaten


def a_child() -> Child:
    return Child(shard_id(0), Board(1), lambda: None)


def live(child: Child, now: float, lived_s: float, state: ShardState = ShardState.READY) -> float:
    """One life of a child; when it dies."""
    child.spawned_at, child.up_at = now, math.inf
    assert isinstance(child.words, ShardWords)
    child.words.state = state
    child.watch(now)
    return now + lived_s
