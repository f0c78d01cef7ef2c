"""Which bodies are dropped when the arena is full, and the errors of uploads when a shard ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.actors.link.link_support import Pair
from topics.actors.link.arena import PAGE_BYTES
from topics.actors.shard_client.shards import TURNOVER_MAX_S, Shards
from topics.errors import NotReady, Throttled


class Filler:
    """A body that needs ``seconds`` to receive the data that its memory is reserved for."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.failures: list[Exception] = []

    def turnover_s(self, now: float) -> float:
        return self.seconds

    def abort(self, failure: Exception) -> None:
        self.failures.append(failure)


class Front:
    """A front's view of one shard, without its loop."""

    def __init__(self) -> None:
        self.pair = Pair()
        self.shards = Shards([self.pair.front.link], self.pair.board)
        self.run_iteration()
        self.pair.shard.run_once()
        self.run_iteration()

    def run_iteration(self) -> None:
        link = self.shards._links[0]
        link.link.run_once(link.opened, link.arrived, link.closed)


@pytest.fixture
def front() -> Iterator[Front]:
    front = Front()
    yield front
    front.pair.close()


def test_only_the_slowest_body_is_dropped_to_free_memory(front: Front) -> None:
    fast, slow, slowest, requester = Filler(1), Filler(20), Filler(500), Filler(3)
    for filler in (fast, slow, slowest):
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert front.shards.abort_slowest(0, requester, 0.0)
    assert [len(filler.failures) for filler in (fast, slow, slowest, requester)] == [0, 0, 1, 0]
    assert isinstance(slowest.failures[0], Throttled)


@pytest.mark.parametrize("others", [[], [1.0, TURNOVER_MAX_S - 1]], ids=["no others", "fast ones"])
def test_a_body_that_fills_a_tenth_of_its_memory_per_second_keeps_it(
    front: Front,
    others: list[float],
) -> None:
    fillers = [Filler(seconds) for seconds in others]
    for filler in fillers:
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert not front.shards.abort_slowest(0, Filler(0.1), 0.0)
    assert all(filler.failures == [] for filler in fillers)


def test_the_slowest_body_cannot_displace_others(front: Front) -> None:
    slow, slower = Filler(20), Filler(30)
    for filler in (slow, slower):
        assert front.shards.reserve(0, PAGE_BYTES, filler) is not None
    assert not front.shards.abort_slowest(0, slower, 0.0)
    assert not front.shards.abort_slowest(0, Filler(40), 0.0)
    assert slow.failures == slower.failures == []


def test_the_end_of_a_shard_fails_the_bodies_in_its_arena_and_new_reservations(
    front: Front,
) -> None:
    filler = Filler(1)
    block = front.shards.reserve(0, PAGE_BYTES, filler)
    assert block is not None
    front.pair.restart_shard()
    with pytest.raises(NotReady):
        front.shards.reserve(0, PAGE_BYTES, filler)
    with pytest.raises(NotReady):
        front.shards.abort_slowest(0, filler, 0.0)
    assert filler.failures == [], "the body is aborted by the next iteration"
    front.run_iteration()
    assert [type(failure) for failure in filler.failures] == [NotReady]
    block.free()
    for _ in range(2):
        front.pair.restart_shard()
        front.run_iteration()
        front.pair.shard.run_once()
        front.run_iteration()
        assert front.pair.front.link.connected
