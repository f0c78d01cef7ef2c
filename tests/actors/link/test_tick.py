"""The tick that all periodic checks of a process share."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from topics.actors.link.tick import TICK_INTERVAL_S, next_tick, wait_tick


@pytest.mark.parametrize("step_s", [0.0, 0.01, 0.1, 1.0, 10.0])
def test_the_next_tick_is_in_the_future_and_at_most_one_step_away(step_s: float) -> None:
    step = step_s or TICK_INTERVAL_S
    for number in range(2000):
        for now in (number * step, number * step + step / 3):
            assert now < next_tick(now, step_s) <= now + step * 1.001


async def test_checks_with_the_same_interval_wake_together(autojump_clock: MockClock) -> None:
    woke: list[float] = []

    async def check(begin_s: float) -> None:
        await trio.sleep(begin_s)
        await wait_tick()
        woke.append(trio.current_time())

    began = next_tick(trio.current_time())
    async with trio.open_nursery() as nursery:
        for begin_s in (0.01, 0.1, 0.4):
            nursery.start_soon(check, began - trio.current_time() + begin_s)
    assert len({*woke}) == 1


async def test_checks_continue_when_the_task_that_sleeps_for_all_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    woke: list[float] = []
    sleeps_for_all = trio.CancelScope()

    async def check(scope: trio.CancelScope) -> None:
        with scope:
            await wait_tick()
            woke.append(trio.current_time())

    at = next_tick(trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(check, sleeps_for_all)
        await wait_all_tasks_blocked()
        for _ in range(3):
            nursery.start_soon(check, trio.CancelScope())
        await wait_all_tasks_blocked()
        sleeps_for_all.cancel()
    assert woke == [at] * 3
