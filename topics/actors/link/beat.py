"""Tick: the schedule that all periodic checks of a process share (decision 0073).

All checks run at multiples of `BEAT_S` of the process's clock, so they share one wake-up: an idle
process wakes up twice a second. They also share one timer: one task sleeps and wakes the others.
"""

from __future__ import annotations

from typing import Final

import trio

BEAT_S: Final = 0.5


def next_beat(now: float, seconds: float = 0.0) -> float:
    """Return the time of the first tick after ``now``. ``seconds``: interval; 0 means `BEAT_S`."""
    step_s = seconds or BEAT_S
    beat = (now // step_s + 1) * step_s
    return beat if beat > now else beat + step_s  # the division was rounded down


async def wait_beat(seconds: float = 0.0) -> None:
    """Wait for the next tick. ``seconds``: as for `next_beat`."""
    at = next_beat(trio.current_time(), seconds)
    if seconds not in (0.0, BEAT_S):
        await trio.sleep_until(at)
    while trio.current_time() < at:  # repeat, because the task with the timer may be cancelled
        if (beat := _BEAT.get()) is not None:
            await beat.wait()
            continue
        _BEAT.set(beat := trio.Event())
        try:
            await trio.sleep_until(at)
        finally:
            _BEAT.set(None)
            beat.set()


_BEAT: trio.lowlevel.RunVar[trio.Event | None] = trio.lowlevel.RunVar("topics beat", None)
"""Set at the next tick, while one task sleeps on behalf of all waiting tasks."""
