"""Later: calls that are made at a time, by one task. Used for what pressure puts off: nothing waits
here on a calm front.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import trio


class Later:
    """Calls and their times. What is called must not wait, nor raise."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0  # of the last call: equal times keep their order
        self._next = math.inf  # when `run` looks again
        self._is_sooner = trio.Event()

    def __len__(self) -> int:
        return len(self._due)

    def call_in(self, seconds: float, call: Callable[[], None]) -> None:
        """Make the call so much later."""
        self._number += 1
        due = trio.current_time() + seconds
        heapq.heappush(self._due, (due, self._number, call))
        if due < self._next:
            self._is_sooner.set()

    async def run(self) -> None:
        """Make the calls until cancelled."""
        while True:
            self._next = self._due[0][0] if self._due else math.inf
            with trio.move_on_at(self._next):
                await self._is_sooner.wait()
            self._is_sooner = trio.Event()
            self._call_due()

    def _call_due(self) -> None:
        now = trio.current_time()
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()
