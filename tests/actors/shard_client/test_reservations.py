"""Who makes room when the arena is full, and what a front's uploads hear when a shard goes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actors.link.link_support import Pair
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.shard_client.shards import TURNOVER_MAX_S, Shards
from topics.errors import NotReady, Throttled


class Filler:
    """A body that needs ``seconds`` to bring what it holds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.failures: list[Exception] = []

    def turnover_s(self, now: float) -> float:
        return self.seconds

    def give_up(self, failure: Exception) -> None:
        self.failures.append(failure)


class Front:
    """A front's view of one shard, without its loop."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.shards = Shards([self.pair.front.link], self.pair.board)
        self.turn()
        self.pair.shard.turn()
        self.turn()

    def turn(self) -> None:
        link = self.shards._links[0]
        link.link.turn(link.opened, link.arrived, link.closed)


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    yield front
    front.pair.close()


def test_the_slowest_body_makes_room_and_only_that(front: Front) -> None:
    fast, slow, slowest, asks = Filler(1), Filler(20), Filler(500), Filler(3)
    for filler in (fast, slow, slowest):
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert front.shards.make_room(0, asks, 0.0)
    assert [len(filler.failures) for filler in (fast, slow, slowest, asks)] == [0, 0, 1, 0]
    assert isinstance(slowest.failures[0], Throttled)


@pytest.mark.parametrize("others", [[], [1.0, TURNOVER_MAX_S - 1]], ids=["nobody", "fast ones"])
def test_a_body_that_brings_a_tenth_of_its_memory_a_second_keeps_it(
    front: Front,
    others: list[float],
) -> None:
    fillers = [Filler(seconds) for seconds in others]
    for filler in fillers:
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert not front.shards.make_room(0, Filler(0.1), 0.0)
    assert all(filler.failures == [] for filler in fillers)


def test_the_slowest_of_all_cannot_ask_others_to_go(front: Front) -> None:
    slow, slower = Filler(20), Filler(30)
    for filler in (slow, slower):
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert not front.shards.make_room(0, slower, 0.0)
    assert not front.shards.make_room(0, Filler(40), 0.0)
    assert slow.failures == slower.failures == []


def test_when_a_shard_goes_what_fills_its_arena_ends_and_no_successor_waits(front: Front) -> None:
    filler = Filler(1)
    block = front.shards.reserve(0, PAGE_BYTES, filler)
    assert block is not None
    front.pair.restart_shard()
    with pytest.raises(NotReady):
        front.shards.reserve(0, PAGE_BYTES, filler)
    with pytest.raises(NotReady):
        front.shards.make_room(0, filler, 0.0)
    assert filler.failures == [], "nobody is told twice"
    front.turn()
    assert [type(failure) for failure in filler.failures] == [NotReady]
    block.free()
    for _ in range(2):
        front.pair.restart_shard()
        front.turn()
        front.pair.shard.turn()
        front.turn()
        assert front.pair.front.link.connected
