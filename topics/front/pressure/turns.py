"""Turns: which appends a long pass of the front's loop does first (decision 0030).

    append --a short pass, or no higher band is active--> goes on
       '--> parked, by band --> pump, once a pass: as many as fit into one --> goes on

Within a pass every task that can run runs, in any order: what comes meanwhile waits for the whole
pass, whatever its priority. So while a higher band is active, appends of lower ones leave a pass
that has become long, and passes stay short. The top band is never parked.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, TypeAlias

import trio

from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import BANDS, TOP_BAND, Queues

PASS_S: Final = 0.004  # a pass that takes longer is long
ACTIVE_S: Final = 1.0  # for so long a band is active after an append
RELEASE_MIN, RELEASE_MAX = 8, 256  # appends of one pass
GROWTH, CUT = 1.1, 0.8  # of what a pass releases, when it was short or long

Parked: TypeAlias = tuple[trio.lowlevel.Task, float]  # and since when


class Turns:
    """The appends of one front. ``lag`` tells when the pass under way began."""

    def __init__(self, clock: Callable[[], float], lag: LoopLag) -> None:
        self._clock, self._lag = clock, lag
        self._seen = [-math.inf] * BANDS  # when each band had its last append
        self._parked: Queues[Parked] = Queues()
        self._has_parked = trio.Event()
        self.waiting = 0

    def may_go(self, band: int) -> bool:
        """Whether an append of this band goes on in this pass; `park` it otherwise."""
        began = self._lag.pass_began
        self._seen[band] = began
        if band == TOP_BAND or not (self.waiting or self._clock() - began > PASS_S):
            return True
        return began - max(self._seen[band + 1 :]) > ACTIVE_S

    async def park(self, band: int) -> float:
        """Wait for a turn. Returns the milliseconds of the wait."""
        parked = trio.lowlevel.current_task(), self._clock()
        self._parked.queues[band].append(parked)
        self.waiting += 1
        self._has_parked.set()

        def give_up(_: object) -> trio.lowlevel.Abort:
            self._parked.queues[band].remove(parked)
            self.waiting -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        return (self._clock() - parked[1]) * 1000

    def oldest_ms(self) -> float:
        """How long the append that came first has waited; 0 when none waits."""
        now = self._clock()
        return max((now - queue[0][1] for queue in self._parked.queues if queue), default=0.0) * 1e3

    async def run(self) -> None:
        """Give turns until cancelled."""
        release = float(RELEASE_MIN)
        while True:
            if not self.waiting:
                self._has_parked = trio.Event()
                await self._has_parked.wait()
            began = self._clock()
            self._give(int(release))
            await trio.lowlevel.checkpoint()  # until the next pass
            factor = CUT if self._clock() - began > PASS_S else GROWTH
            release = min(max(release * factor, RELEASE_MIN), RELEASE_MAX)

    def _give(self, count: int) -> None:
        for _ in range(min(count, self.waiting)):
            band = self._parked.next()
            assert band is not None, "an append waits"
            self._parked.spend(band)
            task, _since = self._parked.queues[band].popleft()
            self.waiting -= 1
            trio.lowlevel.reschedule(task)
