"""Beat: the moments at which a process looks at what nobody tells it.

All looks of a process come at multiples of `BEAT_S` of its clock, so that they cost one wake-up: a
process that has nothing to do wakes twice a second.
"""

from __future__ import annotations

from typing import Final

import trio

BEAT_S: Final = 0.5


def next_beat(now: float, seconds: float = 0.0) -> float:
    """The first beat after ``now``. ``seconds``: between two; 0: `BEAT_S`."""
    step_s = seconds or BEAT_S
    return (now // step_s + 1) * step_s


async def wait_beat(seconds: float = 0.0) -> None:
    """Wait for the next beat."""
    await trio.sleep_until(next_beat(trio.current_time(), seconds))
