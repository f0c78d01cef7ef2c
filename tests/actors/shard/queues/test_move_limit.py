"""Move limit: so many moves to a shard are under way at once, and others wait in their order."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from topics.actors.shard.deadlines import Deadlines
from topics.actors.shard.queues import dead_letters
from topics.actors.shard.queues.dead_letters import MoveLimit


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "MOVES_MAX", 2)


class Bench:
    """A limit, and which moves were started."""

    def __init__(self) -> None:
        self.deadlines = Deadlines()
        self.limit = MoveLimit(self.deadlines)
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
        bench.limit.enter(1, bench.starting(name))
    bench.limit.enter(2, bench.starting("d"))
    assert bench.next_turn() == ["a", "b", "d"]


def test_who_waits_is_started_in_order_as_others_leave_in_a_turn_of_its_own() -> None:
    bench = Bench()
    for name in ("a", "b", "c", "d"):
        bench.limit.enter(1, bench.starting(name))
    assert bench.next_turn() == ["a", "b"]
    bench.limit.leave(1)
    assert bench.started == []
    assert bench.next_turn() == ["c"]
    bench.limit.leave(1)
    bench.limit.leave(1)
    assert bench.next_turn() == ["d"]
    assert bench.deadlines.next_at == math.inf


def test_a_lane_has_room_again_when_all_have_left() -> None:
    bench = Bench()
    for _ in range(3):
        bench.limit.enter(1, bench.starting("a"))
        bench.limit.leave(1)
    assert bench.next_turn() == ["a", "a", "a"]
