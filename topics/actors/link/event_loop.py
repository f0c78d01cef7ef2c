"""Event loop: calls plain functions for ready descriptors, before trio runs its tasks.

    trio has no task to run --> wait in one epoll for the watched descriptors and for trio's epoll
        watched descriptors are ready --> call their functions, then return to trio
        otherwise --> return to trio, which handles its own descriptors and timers

Each wait of a task for a descriptor costs an `epoll_ctl` call and several scheduler steps. A
watched descriptor stays in the epoll, level-triggered. With watched descriptors, a message between
two processes takes 3.7 us of CPU time instead of 8.5 us, and half the latency. Before trio sleeps,
it queries its clock for the permitted duration. So the loop is implemented as that clock. While
trio has tasks to run, it does not query the clock, and each pass polls in `before_io_wait`. Under
any other clock, as in tests, a system task waits for the epoll.

An exception in a function is raised in the task that waits in `serve` for the descriptor. If no
task waits for the descriptor, the exception ends the process. Code that runs under this clock must
not wait for trio to be idle (`trio.testing.wait_all_tasks_blocked`).
"""

from __future__ import annotations

import contextlib
import math
import select
import time
from collections.abc import Awaitable, Callable
from typing import Final, NoReturn, Protocol, TypeVarTuple

import trio
from trio._core import _run as trio_run  # there is no public API for trio's epoll descriptor

Args = TypeVarTuple("Args")
Ready = Callable[[int], object]  # the argument is the epoll event mask

READY_MAX: Final = 4096  # maximum number of ready descriptors that one pass handles
SLEEP_MAX_S: Final = 86_400.0


class LoopLag:
    """Measures how long an event waits until the loop handles it.

    An event that arrives during a pass of ``d`` seconds waits ``d / 2`` on average. So the mean
    wait over a window is the sum of ``d * d / 2`` divided by the length of the window.
    """

    __slots__ = ("_since", "busy", "pass_started", "squares")

    def __init__(self, now: float) -> None:
        self.pass_started = self._since = now
        self.busy = self.squares = 0.0

    def end_pass(self, now: float) -> None:
        """End a pass, before the loop sleeps.

        The caller sets ``pass_started`` when the next pass begins.
        """
        spent = now - self.pass_started
        self.busy += spent
        self.squares += spent * spent

    def read_mean_ms(self, now: float) -> float:
        """Return the mean wait since the last call, in ms.

        The current pass is included in the result of the next call.
        """
        # The first pass may have begun before the window.
        window = max(now - self._since, self.busy)
        mean_s = self.squares / (2 * window) if window else 0.0
        self._since, self.busy, self.squares = now, 0.0, 0.0
        return mean_s * 1000


class LoopIteration(Protocol):
    """The scope of one pass, in which all ready descriptors are handled.

    ``runs_tasks`` is true after the functions have returned, while trio runs its tasks. The next
    pass then calls `flush`.
    """

    is_open: bool
    runs_tasks: bool

    def end(self) -> None:
        """End the pass. Afterwards ``is_open`` is False."""

    def flush(self) -> None:
        """Send the messages that trio's tasks have queued. Called when all tasks are blocked."""


class EventLoop(trio.abc.Clock, trio.abc.Instrument):
    """The event loop of a trio run.

    ``iteration`` is opened before the functions of a pass are called, and ended after them.
    """

    current_time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.lag = LoopLag(time.monotonic())
        self.iteration: LoopIteration | None = None
        self._epoll = select.epoll()
        self._ready: dict[int, Ready] = {}
        self._serving: dict[int, tuple[trio.Event, list[Exception]]] = {}
        self._has_polled = self._is_clock = False

    def run(self, main: Callable[[*Args], Awaitable[None]], *args: *Args) -> None:
        """Run ``main`` in trio with this loop."""
        trio.run(main, *args, clock=self, instruments=[self])

    @classmethod
    def of_this_run(cls) -> EventLoop:
        """Return the loop of the current trio run.

        If the run has another clock, start a loop in a system task.
        """
        clock = trio.lowlevel.current_clock()
        if isinstance(clock, cls):
            return clock
        try:
            return _TASK_LOOP.get()
        except LookupError:
            loop = cls()
            _TASK_LOOP.set(loop)
            trio.lowlevel.spawn_system_task(loop._run_in_task)
            return loop

    def watch(self, fd: int, events: int, ready: Ready) -> None:
        """Call ``ready`` whenever one of the epoll ``events`` occurs. Raises OSError."""
        self._epoll.register(fd, events)
        self._ready[fd] = ready

    def change(self, fd: int, events: int) -> None:
        """Change the watched events. Raises OSError."""
        self._epoll.modify(fd, events)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor.

        The descriptor may be closed already, because the kernel removes closed descriptors from
        the epoll.
        """
        del self._ready[fd]
        with contextlib.suppress(OSError):
            self._epoll.unregister(fd)

    async def serve(self, fd: int, ready: Ready) -> NoReturn:
        """Call ``ready`` whenever there is input, until cancelled. Raises errors of ``ready``."""
        ended, errors = self._serving[fd] = trio.Event(), []
        self.watch(fd, select.EPOLLIN, ready)
        try:
            await ended.wait()
            raise errors[0]
        finally:
            del self._serving[fd]
            self.unwatch(fd)

    def poll(self) -> None:
        """Handle the descriptors that are ready now."""
        self.deadline_to_sleep_time(-math.inf)

    # Trio's clock and instrument

    def start_clock(self) -> None:
        """Add trio's epoll to this one. Trio calls this before its first task runs."""
        self._is_clock = True
        epoll = trio_run.GLOBAL_RUN_CONTEXT.runner.io_manager._epoll  # noqa: SLF001
        self._epoll.register(epoll.fileno(), select.EPOLLIN)

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Wait until the deadline at the latest, and handle ready descriptors.

        Return 0, because trio need not sleep afterwards.

        Trio calls this at the end of a pass, when it has no task to run.
        """
        lag, ready, iteration = self.lag, self._ready, self.iteration
        if iteration is not None and iteration.runs_tasks:
            iteration.runs_tasks = False
            iteration.flush()
        now = time.monotonic()
        # The same as `end_pass`, inlined to avoid the cost of a call.
        lag.busy += (spent := now - lag.pass_started)
        lag.squares += spent * spent
        # Sleep here instead of in trio. Trio then finds only its own ready descriptors and timers.
        events = self._epoll.poll(min(max(deadline - now, 0.0), SLEEP_MAX_S), READY_MAX)
        lag.pass_started = time.monotonic()
        self._has_polled = True
        if iteration is not None:
            iteration.is_open = True
        fd = -1
        try:
            for fd, which in events:
                function = ready.get(fd)
                # Trio's epoll has no function, and neither has a descriptor that was removed during
                # this pass.
                if function is not None:
                    function(which)
        except Exception as error:
            self._end_serving(fd, error)
        if iteration is not None:
            iteration.end()
            iteration.runs_tasks = self._is_clock
        return 0.0

    def _end_serving(self, fd: int, error: Exception) -> None:
        if fd not in self._serving:
            raise error
        ended, errors = self._serving[fd]
        errors.append(error)
        self._epoll.modify(fd, 0)
        ended.set()

    def before_io_wait(self, timeout: float) -> None:  # noqa: ARG002 - the instrument's signature
        """Poll, unless this pass has already polled because trio queried the clock."""
        if not self._has_polled:
            self.poll()
        self._has_polled = False

    async def _run_in_task(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._epoll.fileno())
            self.lag.pass_started = time.monotonic()
            self.poll()
            self.lag.end_pass(time.monotonic())


_TASK_LOOP: trio.lowlevel.RunVar[EventLoop] = trio.lowlevel.RunVar("topics event loop")
