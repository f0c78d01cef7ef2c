"""Append scheduler: in long iterations high bands are served first, and no band starves."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.conftest import Logged
from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import TOP_BAND
from topics.front.pressure.pressure import ACTIVE_S, LONG_ITERATION_S, RELEASE_MIN, AppendScheduler


class SchedulerHarness:
    """An `AppendScheduler` whose clock and iteration length the tests set."""

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
def harness() -> SchedulerHarness:
    return SchedulerHarness()


def test_without_a_higher_active_band_no_write_is_parked(harness: SchedulerHarness) -> None:
    harness.long_pass()
    assert all(harness.scheduler.may_continue(1) for _ in range(10))
    assert harness.scheduler.may_continue(0) is False, "band 1 is active now"
    assert harness.scheduler.may_continue(1)


def test_a_band_is_active_for_a_while(harness: SchedulerHarness) -> None:
    assert harness.scheduler.may_continue(3)
    harness.lag.pass_started += ACTIVE_S
    harness.long_pass()
    assert not harness.scheduler.may_continue(2)
    harness.lag.pass_started += 0.001
    harness.long_pass()
    assert harness.scheduler.may_continue(2)


def test_the_top_band_is_never_parked(harness: SchedulerHarness) -> None:
    harness.long_pass()
    harness.scheduler.waiting = 1000
    assert harness.scheduler.may_continue(TOP_BAND)


async def test_writes_that_arrive_while_others_wait_are_served_after_them(
    harness: SchedulerHarness, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    harness.scheduler.may_continue(TOP_BAND)
    harness.long_pass()
    harness.append(1, 1)
    harness.now = harness.lag.pass_started  # a short iteration again
    harness.append(1, 2)
    assert (harness.went, harness.scheduler.waiting) == ([], 2)
    nursery.start_soon(harness.scheduler.run)
    await wait_all_tasks_blocked()
    assert harness.went == [(1, 1), (1, 2)]
    assert harness.scheduler.waiting == 0


async def test_an_error_of_a_parked_write_does_not_affect_others(
    harness: SchedulerHarness, autojump_clock: MockClock, nursery: trio.Nursery, logged: Logged
) -> None:
    harness.scheduler.may_continue(TOP_BAND)
    harness.long_pass()
    harness.scheduler.park(0, lambda _waited_ms: 1 // 0)
    harness.append(0, 7)
    nursery.start_soon(harness.scheduler.run)
    await wait_all_tasks_blocked()
    assert harness.went == [(0, 7)]
    assert "ZeroDivisionError" in logged[0]["exception"]


async def test_short_iterations_release_increasing_numbers_of_writes(
    harness: SchedulerHarness, autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    harness.scheduler.may_continue(TOP_BAND)
    harness.long_pass()
    for number in range(100):
        harness.append(1, number)
    assert harness.scheduler.waiting == 100
    harness.scheduler._release(RELEASE_MIN)
    assert len(harness.went) == RELEASE_MIN
    nursery.start_soon(harness.scheduler.run)
    await wait_all_tasks_blocked()
    assert len(harness.went) == 100


def test_the_longest_wait_is_reported(harness: SchedulerHarness) -> None:
    assert harness.scheduler.oldest_ms() == 0.0
    harness.scheduler.may_continue(TOP_BAND)
    for band in (3, 1):
        harness.long_pass()
        harness.now += 0.001 * (3 - band)
        harness.append(band)
    harness.now += 0.01
    assert harness.scheduler.oldest_ms() == pytest.approx(12.0)
