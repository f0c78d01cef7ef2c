"""Deadline queue: all timed calls of a shard, in one heap.

    call_at --> queued --at its time--> called
                   '-- cancel --> dropped

`run_due` gets the time as an argument and reads no clock. `run` is the single task that sleeps
until the earliest deadline, and `wake` ends its sleep immediately. A cancelled entry stays in the
heap until its time, or until more than half of the heap is cancelled. Calls must never block or
raise.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import trio

from topics.actors.link.tick import next_tick

SWEEP_MIN = 64  # minimum length of a heap whose cancelled entries are removed early


class Deadline:
    """One queued call. `cancel` revokes it."""

    __slots__ = ("_queue", "at", "call")

    def __init__(self, queue: Deadlines, at: float, call: Callable[[], object]) -> None:
        self._queue, self.at = queue, at
        self.call: Callable[[], object] | None = call

    def cancel(self) -> None:
        """Revoke the call. Do nothing if it has already been cancelled or made."""
        if self.call is not None:
            self.call = None
            self._queue.count_cancelled()


class Deadlines:
    """Runs calls at times of trio's clock, earliest first.

    Calls with equal times run in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline]] = []
        self._serial = 0
        self._cancelled = 0
        self._woken = trio.Event()
        self._sleep: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    @property
    def next_at(self) -> float:
        """Time of the next `run_due`; infinity if the queue is empty."""
        return self._heap[0][0] if self._heap else math.inf

    def call_at(self, at: float, call: Callable[[], object]) -> Deadline:
        """Schedule ``call`` to be called once, at the time ``at`` or shortly after.

        If ``at`` is -infinity, `run` is woken and makes the call immediately.
        """
        deadline = Deadline(self, at, call)
        self._serial += 1
        heapq.heappush(self._heap, (at, self._serial, deadline))
        if at == -math.inf:
            self.wake()
        elif self._sleep is not None and at < self._sleep.deadline:
            self._sleep.deadline = at
        return deadline

    def call_each_tick(self, call: Callable[[], object]) -> None:
        """Call ``call`` now, and again with each tick."""
        call()
        self.call_at(next_tick(trio.current_time()), partial(self.call_each_tick, call))

    def count_cancelled(self) -> None:
        """Count a cancelled entry. Remove all of them if they are more than half of the heap."""
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap) >= SWEEP_MIN:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def run_due(self, now: float) -> None:
        """Run the calls that are due.

        Calls that are scheduled during this run wait for the next run, even if they are due.
        """
        newest = self._serial
        while self._heap and self._heap[0][0] <= now and self._heap[0][1] <= newest:
            deadline = heapq.heappop(self._heap)[2]
            call, deadline.call = deadline.call, None
            if call is None:
                self._cancelled -= 1
            else:
                call()

    def wake(self) -> None:
        """Make `run` call ``on_wake`` as soon as the tasks that are ready now have run."""
        self._woken.set()

    async def run(self, on_wake: Callable[[], None]) -> NoReturn:
        """Call ``on_wake``, which calls `run_due`, at each deadline and after each `wake`."""
        while True:
            with trio.CancelScope() as self._sleep:
                while True:
                    if not self._woken.is_set():
                        self._sleep.deadline = self.next_at
                    await self._woken.wait()
                    self._woken = trio.Event()
                    on_wake()
            on_wake()  # a deadline has been reached
