"""Beat: the schedule that all periodic checks of a process share (decision 0073).

All of them run at multiples of `BEAT_S` of the process's clock, so they cost one wake-up: an idle
process wakes twice a second. They have one timer, too: one task sleeps, and wakes the others.
"""

from __future__ import annotations

from typing import Final

import trio

BEAT_S: Final = 0.5


def next_beat(now: float, seconds: float = 0.0) -> float:
    """The first beat after ``now``. ``seconds``: between two beats; 0: `BEAT_S`."""
    step_s = seconds or BEAT_S
    beat = (now // step_s + 1) * step_s
    return beat if beat > now else beat + step_s  # rounded down


async def wait_beat(seconds: float = 0.0) -> None:
    """Wait for the next beat. ``seconds``: as of `next_beat`."""
    at = next_beat(trio.current_time(), seconds)
    if seconds not in (0.0, BEAT_S):
        await trio.sleep_until(at)
    while trio.current_time() < at:  # who sleeps for all may be cancelled
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
"""Set at the next beat, while a task sleeps for all that wait for it."""
