"""Event loop: descriptors that are served by plain functions, before trio looks at its tasks.

    trio has nothing to run --> one epoll: watched descriptors, and in it the epoll of trio
        watched ones are ready --> their functions; then trio, which looks at its own and at times
        only trio's, or a deadline --> trio

A task that waits for a descriptor costs an `epoll_ctl` and steps of two schedulers each time. A
watched one stays in the epoll, level-triggered: a message between two processes takes 3.7 us of CPU
instead of 8.5, and half of the time. Trio asks the clock of its run how long it may sleep, so the
loop is that clock. While tasks keep trio busy nobody asks: then each pass looks here
(`before_io_wait`). Under any other clock, as in tests, a system task waits for the epoll.

What a function raises goes to the task that waits for its end (`serve`), or ends the process.
Nobody may wait here for trio to be idle (`trio.testing.wait_all_tasks_blocked`).
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol, TypeVarTuple

import trio
from trio._core import _run as trio_run  # for the descriptor of its epoll, which nothing tells

Args = TypeVarTuple("Args")
Ready = Callable[[int], object]  # given the events of epoll

READY_MAX: Final = 4096  # descriptors of one turn
SLEEP_MAX_S: Final = 86_400.0


class LoopLag:
    """How long an event waits until the loop looks at it. What comes during a pass of ``d`` seconds
    waits ``d / 2`` on average: over a window, the sum of ``d * d / 2`` divided by its length.
    """

    __slots__ = ("_since", "busy", "pass_began", "squares")

    def __init__(self, now: float) -> None:
        self.pass_began = self._since = now
        self.busy = self.squares = 0.0

    def end_pass(self, now: float) -> None:
        """A pass ends, and the loop may sleep; who begins the next one sets ``pass_began``."""
        spent = now - self.pass_began
        self.busy += spent
        self.squares += spent * spent

    def take_ms(self, now: float) -> float:
        """The mean wait since the last call, in milliseconds; the pass under way counts later."""
        # The first of the passes may have begun before the window.
        window = max(now - self._since, self.busy)
        mean_s = self.squares / (2 * window) if window else 0.0
        self._since, self.busy, self.squares = now, 0.0, 0.0
        return mean_s * 1000


class Turn(Protocol):
    """What belongs together of one turn: all that is ready at once. ``runs_tasks``: behind it,
    until the loop looks for the next one and calls `flush`.
    """

    is_open: bool
    runs_tasks: bool

    def end(self) -> None:
        """The turn is over; ``is_open`` is False by then."""

    def flush(self) -> None:
        """Its tasks have run, too, as far as they can."""


class EventLoop(trio.abc.Clock, trio.abc.Instrument):
    """One of a trio run. ``turn`` is opened and ended around the functions of one pass."""

    current_time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.lag = LoopLag(time.monotonic())
        self.turn: Turn | None = None
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._serving: dict[int, tuple[trio.Event, list[Exception]]] = {}
        self._has_polled = self._is_clock = False

    def run(self, main: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        """Run ``main`` in trio, in this loop."""
        trio.run(main, *args, clock=self, instruments=[self])

    @classmethod
    def of_this_run(cls) -> EventLoop:
        """The loop of the running trio; made beside it if another clock runs."""
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, cls):
            return clock
        try:
            return _BESIDE.get()
        except LookupError:
            loop = cls()
            _BESIDE.set(loop)
            trio.lowlevel.spawn_system_task(loop._run_beside)
            return loop

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """Call ``ready`` whenever one of the ``events`` of epoll is there. Raises OSError."""
        self._epoll.register(fd, events)
        self._ready[fd] = ready

    def change(self, fd: int, events: int) -> None:
        """Watch for other events. Raises OSError."""
        self._epoll.modify(fd, events)

    def leave(self, fd: int) -> None:
        """Watch the descriptor no more. One that is closed has left the epoll by itself."""
        del self._ready[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    async def serve(self, fd: int, ready: Ready) -> NoReturn:
        """Watch for input until cancelled. Raises what ``ready`` raises."""
        ended, errors = self._serving[fd] = trio.Event(), []
        self.watch(fd, select.EPOLLIN, ready)
        try:
            await ended.wait()
            raise errors[0]
        finally:
            del self._serving[fd]
            self.leave(fd)

    def poll(self) -> None:
        """Serve what is ready now."""
        self.deadline_to_sleep_time(-math.inf)

    # Trio's clock and instrument

    def start_clock(self) -> None:
        """Trio has its epoll, and no task yet."""
        self._is_clock = True
        epoll = trio_run.GLOBAL_RUN_CONTEXT.runner.io_manager._epoll  # noqa: SLF001
        self._epoll.register(epoll.fileno(), select.EPOLLIN)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """A pass is over, and trio has nothing to run: wait until the deadline at most, and serve
        what is ready. Trio need not sleep.
        """
        lag, ready, turn = self.lag, self._ready, self.turn
        if turn is not None and turn.runs_tasks:
            turn.runs_tasks = False
            turn.flush()
        now = time.monotonic()
        lag.busy += (spent := now - lag.pass_began)  # as `end_pass`, without a call
        lag.squares += spent * spent
        events = self._epoll.poll(min(max(deadline - now, 0.0), SLEEP_MAX_S), READY_MAX)
        lag.pass_began = time.monotonic()
        self._has_polled = True
        if turn is not None:
            turn.is_open = True
        fd = -1
        try:
            for fd, which in events:
                function = ready.get(fd)
                if function is not None:  # else it is trio's, or was left in this turn
                    function(which)
        except Exception as error:
            self._end_serving(fd, error)
        if turn is not None:
            turn.end()
            turn.runs_tasks = self._is_clock
        return 0.0

    def _end_serving(self, fd: int, error: Exception) -> None:
        if fd not in self._serving:
            raise error
        ended, errors = self._serving[fd]
        errors.append(error)
        self._epoll.modify(fd, 0)
        ended.set()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - the instrument's signature
        """Trio looks at its own descriptors; while it has tasks to run it has not asked before."""
        if not self._has_polled:
            self.poll()
        self._has_polled = False

    async def _run_beside(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.lag.pass_began = time.monotonic()
            self.poll()
            self.lag.end_pass(time.monotonic())


_BESIDE: trio.lowlevel.RunVar[EventLoop] = trio.lowlevel.RunVar("topics event loop")
