"""Sync pace: whether syncs are cheap enough of late for the loop to make them itself.

While the loop syncs, nobody is served. On a disk that syncs in 0.1 ms that costs less than two
wake-ups; on one that takes 10 ms the thread must do it (``decisions/0040``).

    DEAR --(after the pause, a sync of the thread within CHEAP_S)--> CHEAP: the loop syncs
      ^                                                                |
      '----(one above SLOW_S, or on average above CHEAP_S: pause)------'

The pause is PAUSE_PER_S times as long as the sync that ended the cheap time, so slow syncs take a
bounded share of the loop's time, whatever the disk is like. The thread's times are only believed
when they are short: in a busy process they contain the wait for the interpreter.
"""

from __future__ import annotations

from typing import Final

CHEAP_S: Final = 0.001  # of a sync, on average
SLOW_S: Final = 0.003  # of a sync that the loop should not have made
AVERAGE_OVER: Final = 16  # syncs of the loop, about
PAUSE_PER_S: Final = 200.0  # so the loop loses 0.5 % of its time to slow syncs at most
PAUSE_MAX_S: Final = 60.0
STALE_S: Final = 10.0  # without any sync, nobody knows what the next one takes


class SyncPace:
    """The state above. ``now`` is in seconds of one clock that never goes back."""

    __slots__ = ("_again_at", "_average_s", "_is_cheap", "_noted_at")

    def __init__(self) -> None:
        self._is_cheap = False
        self._average_s = 0.0  # of the loop's syncs, while CHEAP
        self._again_at = 0.0  # the end of the pause
        self._noted_at = 0.0  # when the last sync ended

    def is_cheap(self, now: float) -> bool:
        """Whether the loop may make a short sync at ``now``."""
        return self._is_cheap and now - self._noted_at < STALE_S

    def note(self, took_s: float, now: float, *, by_loop: bool) -> None:
        """A sync that took ``took_s`` has ended at ``now``."""
        self._noted_at = now
        if self._is_cheap and by_loop:
            self._average_s += (took_s - self._average_s) / AVERAGE_OVER
            if took_s > SLOW_S or self._average_s > CHEAP_S:
                self._is_cheap = False
                self._again_at = now + min(took_s * PAUSE_PER_S, PAUSE_MAX_S)
        elif not self._is_cheap and took_s <= CHEAP_S and now >= self._again_at:
            self._is_cheap, self._average_s = True, took_s
