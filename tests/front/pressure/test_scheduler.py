"""Turns: during long iterations high bands are served first, and no band starves."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.conftest import Logged
from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import TOP_BAND
from topics.front.pressure.pressure import ACTIVE_S, LONG_ITERATION_S, RELEASE_MIN, AppendScheduler


class Desk:
    """Turns with a clock and an iteration length that tests set."""

    def __init__(self) -> None:
        self.now, self.lag = 100.0, LoopLag(100.0)
        self.scheduler = AppendScheduler(lambda: self.now, self.lag)
        self.went: list[tuple[int, int]] = []

    def long_pass(self) -> None:
        self.now = self.lag.pass_started + 2 * LONG_ITERATION_S

    def append(self, band: int, number: int = 0) -> None:
        if self.scheduler.may_continue(band):
            self.went.append((band, number))
        else:
            self.scheduler.park(band, lambda _waited_ms: self.went.append((band, number)))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_without_a_higher_active_band_no_write_is_parked(desk: Desk) -> None:
    desk.long_pass()
    assert all(desk.scheduler.may_continue(1) for _ in range(10))
    assert desk.scheduler.may_continue(0) is False, "band 1 is active now"
    assert desk.scheduler.may_continue(1)


def test_a_band_is_active_for_a_while(desk: Desk) -> None:
    assert desk.scheduler.may_continue(3)
    desk.lag.pass_started += ACTIVE_S
    desk.long_pass()
    assert not desk.scheduler.may_continue(2)
    desk.lag.pass_started += 0.001
    desk.long_pass()
    assert desk.scheduler.may_continue(2)


def test_the_top_band_is_never_parked(desk: Desk) -> None:
    desk.long_pass()
    desk.scheduler.waiting = 1000
    assert desk.scheduler.may_continue(TOP_BAND)


async def test_writes_that_arrive_while_others_wait_are_served_after_them(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    desk.scheduler.may_continue(TOP_BAND)
    desk.long_pass()
    desk.append(1, 1)
    desk.now = desk.lag.pass_started  # a short iteration again
    desk.append(1, 2)
    assert (desk.went, desk.scheduler.waiting) == ([], 2)
    nursery.start_soon(desk.scheduler.run)
    await wait_all_tasks_blocked()
    assert desk.went == [(1, 1), (1, 2)]
    assert desk.scheduler.waiting == 0


async def test_an_error_of_a_parked_write_does_not_affect_others(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery, logged: Logged
) -> None:
    desk.scheduler.may_continue(TOP_BAND)
    desk.long_pass()
    desk.scheduler.park(0, lambda _waited_ms: 1 // 0)
    desk.append(0, 7)
    nursery.start_soon(desk.scheduler.run)
    await wait_all_tasks_blocked()
    assert desk.went == [(0, 7)]
    assert "ZeroDivisionError" in logged[0]["exception"]


async def test_short_iterations_release_increasing_numbers_of_writes(
    desk: Desk, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    desk.scheduler.may_continue(TOP_BAND)
    desk.long_pass()
    for number in range(100):
        desk.append(1, number)
    assert desk.scheduler.waiting == 100
    desk.scheduler._release(RELEASE_MIN)
    assert len(desk.went) == RELEASE_MIN
    nursery.start_soon(desk.scheduler.run)
    await wait_all_tasks_blocked()
    assert len(desk.went) == 100


def test_the_longest_wait_is_reported(desk: Desk) -> None:
    assert desk.scheduler.oldest_ms() == 0.0
    desk.scheduler.may_continue(TOP_BAND)
    for band in (3, 1):
        desk.long_pass()
        desk.now += 0.001 * (3 - band)
        desk.append(band)
    desk.now += 0.01
    assert desk.scheduler.oldest_ms() == pytest.approx(12.0)
