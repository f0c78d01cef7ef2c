"""Turns: long passes let high bands go first, and starve none."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.conftest import Logged
from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import TOP_BAND
from topics.front.pressure.pressure import ACTIVE_S, PASS_S, RELEASE_MIN, Turns


class Desk:
    """Turns with a clock and a pass that tests set."""

    def __init__(self) -> None:
        self.now, self.lag = 100.0, LoopLag(100.0)
        self.turns = Turns(lambda: self.now, self.lag)
        self.went: list[tuple[int, int]] = []

    def long_pass(self) -> None:
        self.now = self.lag.pass_began + 2 * PASS_S

    def append(self, band: int, number: int = 0) -> None:
        if self.turns.may_go(band):
            self.went.append((band, number))
        else:
            self.turns.park(band, lambda _waited_ms: self.went.append((band, number)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_without_a_higher_band_nothing_is_parked(desk: Desk) -> None:
    desk.long_pass()
    assert all(desk.turns.may_go(1) for _ in range(10))
    assert desk.turns.may_go(0) is False, "now band 1 is active"
    assert desk.turns.may_go(1)


def test_a_band_is_active_for_a_while(desk: Desk) -> None:
    assert desk.turns.may_go(3)
    desk.lag.pass_began += ACTIVE_S
    desk.long_pass()
    assert not desk.turns.may_go(2)
    desk.lag.pass_began += 0.001
    desk.long_pass()
    assert desk.turns.may_go(2)


def test_the_top_band_is_never_parked(desk: Desk) -> None:
    desk.long_pass()
    desk.turns.waiting = 1000
    assert desk.turns.may_go(TOP_BAND)


async def test_what_comes_while_others_wait_waits_behind_them(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    desk.turns.may_go(TOP_BAND)
    desk.long_pass()
    desk.append(1, 1)
    desk.now = desk.lag.pass_began  # a short pass again
    desk.append(1, 2)
    assert (desk.went, desk.turns.waiting) == ([], 2)
    nursery.start_soon(desk.turns.run)
    await wait_all_tasks_blocked()
    assert desk.went == [(1, 1), (1, 2)]
    assert desk.turns.waiting == 0


async def test_one_that_fails_takes_no_turn_from_others(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery, logged: Logged
) -> None:
    desk.turns.may_go(TOP_BAND)
    desk.long_pass()
    desk.turns.park(0, lambda _waited_ms: 1 // 0)
    desk.append(0, 7)
    nursery.start_soon(desk.turns.run)
    await wait_all_tasks_blocked()
    assert desk.went == [(0, 7)]
    assert "ZeroDivisionError" in logged[0]["exception"]


async def test_a_pass_gets_few_and_the_next_ones_more_while_they_are_short(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    desk.turns.may_go(TOP_BAND)
    desk.long_pass()
    for number in range(100):
        desk.append(1, number)
    assert desk.turns.waiting == 100
    desk.turns._give(RELEASE_MIN)
    assert len(desk.went) == RELEASE_MIN
    nursery.start_soon(desk.turns.run)
    await wait_all_tasks_blocked()
    assert len(desk.went) == 100


def test_the_longest_wait_is_told(desk: Desk) -> None:
    assert desk.turns.oldest_ms() == 0.0
    desk.turns.may_go(TOP_BAND)
    for band in (3, 1):
        desk.long_pass()
        desk.now += 0.001 * (3 - band)
        desk.append(band)
    desk.now += 0.01
    assert desk.turns.oldest_ms() == pytest.approx(12.0)
