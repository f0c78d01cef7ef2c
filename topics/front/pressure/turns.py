"""Turns: which appends a long pass of the front's loop does first (decision 0030).

    append --a short pass, or no higher band is active--> goes on
       '--> parked, by band --> pump, once a pass: as many as fit into one --> goes on

Within a pass every task that can run runs, in any order: what comes meanwhile waits for the whole
pass, whatever its priority. So while a higher band is active, appends of lower ones leave a pass
that has become long, and passes stay short. The pump takes bands by weight, so none starves; within
a band it takes what came first. The top band is never parked.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from topics.engine.priority import BANDS, TOP_BAND

PASS_S: Final = 0.004  # a pass that takes longer is long
ACTIVE_S: Final = 1.0  # for so long a band is active after an append
RELEASE_MIN, RELEASE_MAX = 8, 256  # appends of one pass
GROWTH, CUT = 1.1, 0.8  # of what a pass releases, when it was short or long
WEIGHTS: Final = (1, 2, 4, 8, 16)  # by band
_NEVER: Final = float("-inf")


class Parked:
    """An append that waits for its turn."""

    __slots__ = ("since", "task")

    def __init__(self, task: trio.lowlevel.Task, since: float) -> None:
        self.task, self.since = task, since


class Turns:
    """The appends of one front. ``pass_began`` tells when the pass under way began."""

    def __init__(self, clock: Callable[[], float], pass_began: Callable[[], float]) -> None:
        self._clock, self._pass_began = clock, pass_began
        self._seen = [_NEVER] * BANDS  # when each band had its last append
        self._lines: tuple[deque[Parked], ...] = tuple(deque() for _ in range(BANDS))
        self._credits = [*WEIGHTS]
        self._release = float(RELEASE_MIN)
        self._has_parked = trio.Event()
        self.waiting = 0

    def may_go(self, band: int) -> bool:
        """Whether an append of this band goes on in this pass; `park` it otherwise."""
        began = self._pass_began()
        self._seen[band] = began
        if band == TOP_BAND or not (self.waiting or self._clock() - began > PASS_S):
            return True
        return began - max(self._seen[band + 1 :]) > ACTIVE_S

    async def park(self, band: int) -> float:
        """Wait for a turn. Returns the milliseconds of the wait."""
        parked = Parked(trio.lowlevel.current_task(), self._clock())
        self._lines[band].append(parked)
        self.waiting += 1
        self._has_parked.set()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._lines[band].remove(parked)
            self.waiting -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        return (self._clock() - parked.since) * 1000

    def oldest_ms(self) -> float:
        """How long the append that came first has waited; 0 when none waits."""
        since = [line[0].since for line in self._lines if line]
        return (self._clock() - min(since)) * 1000 if since else 0.0

    async def run(self) -> None:
        """Give turns until cancelled."""
        while True:
            if not self.waiting:
                self._has_parked = trio.Event()
                await self._has_parked.wait()
            began = self._clock()
            self._give(int(self._release))
            await trio.lowlevel.checkpoint()  # until the next pass
            factor = CUT if self._clock() - began > PASS_S else GROWTH
            self._release = min(max(self._release * factor, RELEASE_MIN), RELEASE_MAX)

    def _give(self, count: int) -> None:
        for _ in range(count):
            parked = self._next()
            if parked is None:
                return
            self.waiting -= 1
            trio.lowlevel.reschedule(parked.task)

    def _next(self) -> Parked | None:
        """By weight among the bands that have some, the oldest of its band."""
        bands = [band for band in reversed(range(BANDS)) if self._lines[band]]
        if not bands:
            return None
        if not any(self._credits[band] for band in bands):
            self._credits = [*WEIGHTS]
        band = next(band for band in bands if self._credits[band])
        self._credits[band] -= 1
        return self._lines[band].popleft()
