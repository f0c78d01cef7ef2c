"""Lanes: so many moves to a shard are under way at once, and others wait in their order."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from topics.actors.shard.deadlines import Deadlines
from topics.actors.shard.queues import lanes
from topics.actors.shard.queues.lanes import Lanes


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "LANE_MOVES", 2)


class Bench:
    """Lanes, and which moves were started."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.lanes = Lanes(self.deadlines)
        self.started: list[str] = []

    def starting(self, name: str) -> Callable[[], None]:
        return lambda: self.started.append(name)

    def next_turn(self) -> list[str]:
        self.deadlines.run_due(0.0)
        started, self.started = self.started, []
        return started


def test_each_shard_has_a_lane_of_its_own() -> None:
    bench = Bench()
    for name in ("a", "b", "c"):
        bench.lanes.enter(1, bench.starting(name))
    bench.lanes.enter(2, bench.starting("d"))
    assert bench.next_turn() == ["a", "b", "d"]


def test_who_waits_is_started_in_order_as_others_leave_in_a_turn_of_its_own() -> None:
    bench = Bench()
    for name in ("a", "b", "c", "d"):
        bench.lanes.enter(1, bench.starting(name))
    assert bench.next_turn() == ["a", "b"]
    bench.lanes.leave(1)
    assert bench.started == []
    assert bench.next_turn() == ["c"]
    bench.lanes.leave(1)
    bench.lanes.leave(1)
    assert bench.next_turn() == ["d"]
    assert bench.deadlines.next_at == math.inf


def test_a_lane_has_room_again_when_all_have_left() -> None:
    bench = Bench()
    for _ in range(3):
        bench.lanes.enter(1, bench.starting("a"))
        bench.lanes.leave(1)
    assert bench.next_turn() == ["a", "a", "a"]
