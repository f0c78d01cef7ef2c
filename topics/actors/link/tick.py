"""Tick: the schedule that all periodic checks of a process share (decision 0073).

All checks run when the process's clock reaches a multiple of `TICK_INTERVAL_S`. So they share one
wake-up, and an idle process wakes up twice a second. They also share one timer: one task sleeps and
wakes the others.
"""

from __future__ import annotations

from typing import Final

import trio

TICK_INTERVAL_S: Final = 0.5


def next_tick(now: float, seconds: float = 0.0) -> float:
    """Return the time of the first tick after ``now``.

    ``seconds`` is the interval between two ticks; 0 means `TICK_INTERVAL_S`.
    """
    step_s = seconds or TICK_INTERVAL_S
    tick = (now // step_s + 1) * step_s
    return tick if tick > now else tick + step_s  # rounding may give a time that is not later


async def wait_tick(seconds: float = 0.0) -> None:
    """Wait for the next tick. ``seconds`` has the same meaning as in `next_tick`."""
    at = next_tick(trio.current_time(), seconds)
    if seconds not in (0.0, TICK_INTERVAL_S):
        await trio.sleep_until(at)
    while trio.current_time() < at:  # repeat, because the task with the timer may be cancelled
        if (tick := _TICK.get()) is not None:
            await tick.wait()
            continue
        _TICK.set(tick := trio.Event())
        try:
            await trio.sleep_until(at)
        finally:
            _TICK.set(None)
            tick.set()


_TICK: trio.lowlevel.RunVar[trio.Event | None] = trio.lowlevel.RunVar("topics tick", None)
"""Set at the next tick by the one task that sleeps for all waiting tasks; None if no task waits."""
