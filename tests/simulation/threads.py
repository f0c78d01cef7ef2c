"""Threads of the simulated processes: greenlets that resume at virtual times, one at a time.

    thread blocks --> its greenlet switches to its driver, a task of trio --> the driver waits
    for the time or the event, and switches back

A thread waits for one of the primitives below, which replace those of ``threading`` and ``queue``,
or for a disk operation that takes time (`sleep`). Code of an event loop is not a thread and must
not wait. If a loop of the server waits for a thread (a short lock, or the end of a thread), the
threads of its process run immediately, in order, until the loop no longer needs to wait.
"""

from __future__ import annotations

import contextvars
import math
import queue
import select
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final, Generic, TypeVar

import outcome
import trio
from greenlet import getcurrent, greenlet  # type: ignore[import-untyped]

from tests.simulation.disk import Died
from tests.simulation.owners import Process, current

T = TypeVar("T")
RUNS_MAX: Final = 100_000
POLL_INTERVAL_S: Final = 0.0002  # poll interval of a thread that waits for a descriptor


class Wait:
    """The reason why a greenlet has switched to its driver: it waits until ``deadline`` or
    ``event``.
    """

    __slots__ = ("deadline", "event")

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline, self.event = deadline, trio.Event()


class Signal:
    """An event that several threads wait for."""

    __slots__ = ("_waits",)

    def __init__(self) -> None:
        self._waits: list[Wait] = []

    def add(self, wait: Wait) -> None:
        """Add a waiting thread."""
        self._waits.append(wait)

    def notify(self) -> None:
        """Let all waiting threads check their conditions."""
        waits, self._waits = self._waits, []
        for wait in waits:
            wait.event.set()


class Thread(Generic[T]):
    """A function that may block. ``start`` behaves as that of ``threading.Thread``."""

    nursery: trio.Nursery  # of the world

    def __init__(
        self,
        *,
        target: Callable[[], T],
        name: str = "",
        daemon: bool = True,
    ) -> None:
        self.name, self.daemon = name, daemon
        self.process: Process | None = current()
        self.result: outcome.Outcome[T] | None = None
        self.ended, self._ended = trio.Event(), Signal()
        self.ends_process = True  # an exception in the thread terminates the process
        self._target, self._wait = target, Wait()
        self._greenlet = greenlet(self._run)
        self._greenlet.gr_context = contextvars.copy_context()

    def start(self) -> None:
        """Start the thread soon."""
        if self.process is not None:
            self.process.threads.append(self)
        self._wait.event.set()
        self.nursery.start_soon(self._drive)

    def join(self, timeout: float | None = None) -> None:
        """Wait until the thread ends."""
        wait_until(lambda: self.result is not None, self._ended, timeout)

    def is_alive(self) -> bool:
        return self.result is None

    @property
    def ident(self) -> int:
        return 1

    def _run(self) -> None:
        self.result = outcome.capture(self._target)

    async def _drive(self) -> None:
        while self.result is None:
            wait = self._wait
            with trio.move_on_at(wait.deadline):
                await wait.event.wait()
            # otherwise `wait_until` has resumed it early, and it waits for something else
            if wait is self._wait:
                self.resume()

    def resume(self) -> None:
        """Run until it blocks again or ends."""
        if self.result is not None:
            return
        before, self._greenlet.parent = self._wait, getcurrent()
        RUNNING.append(self)
        wait = self._greenlet.switch()
        self._after(before, wait)

    def kill(self) -> None:
        """Unwind the thread, because its process has died."""
        if self.result is not None or getcurrent() is self._greenlet:
            return
        if not self._greenlet:  # not started
            self.result = outcome.Error(Died("before it began"))
            self._wait.event.set()
            self._end()
            return
        before, self._greenlet.parent = self._wait, getcurrent()
        RUNNING.append(self)
        wait = self._greenlet.throw(Died("its process has died"))
        self._after(before, wait)

    def _after(self, before: Wait, wait: Any) -> None:
        RUNNING.pop()
        if isinstance(wait, Wait):
            self._wait = wait
        before.event.set()  # the driver checks its condition
        if self.result is not None:
            self._end()

    def _end(self) -> None:
        self.ended.set()
        self._ended.notify()
        if self.process is not None:
            if self in self.process.threads:
                self.process.threads.remove(self)
            if self.ends_process and isinstance(self.result, outcome.Error):
                self.process.thread_failed(self.result.error)


RUNNING: list[Thread[Any]] = []  # greenlets that have been switched to; the last one runs


def in_thread() -> bool:
    """Return whether a simulated thread runs, and not an event loop."""
    return bool(RUNNING) and RUNNING[-1]._greenlet is getcurrent()


def pause(wait: Wait) -> None:
    """Suspend the running thread. Raise `Died` if its process has died."""
    process = current()
    if process is not None and process.is_dead:
        raise Died("its process has died")
    getcurrent().parent.switch(wait)


def sleep(seconds: float) -> None:
    """Suspend the running thread for that time. In an event loop, return immediately."""
    if in_thread():
        pause(Wait(trio.current_time() + seconds))


def wait_until(condition: Callable[[], bool], signal: Signal, timeout: float | None = None) -> bool:
    """In a thread, wait for a condition. In an event loop, run the threads of its process. Return
    whether the condition was met in time.
    """
    deadline = math.inf if timeout is None or timeout < 0 else trio.current_time() + timeout
    runs = 0
    while not condition():
        if in_thread():
            if trio.current_time() >= deadline:
                return False
            wait = Wait(deadline)
            signal.add(wait)
            pause(wait)
            continue
        process = current()
        assert process is not None, "only a process waits for threads"
        for thread in [*process.threads]:
            thread.resume()
        runs += 1
        assert runs < RUNS_MAX, f"{process.name} waits forever for one of its threads"
    return True


class Lock:
    """A replacement for ``threading.Lock``."""

    def __init__(self) -> None:
        self._is_held, self._released = False, Signal()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held and not (
            blocking and wait_until(lambda: not self._is_held, self._released, timeout)
        ):
            return False
        self._is_held = True
        return True

    def release(self) -> None:
        self._is_held = False
        self._released.notify()

    def locked(self) -> bool:
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Event:
    """A replacement for ``threading.Event``."""

    def __init__(self) -> None:
        self._is_set, self._changed = False, Signal()

    def set(self) -> None:
        self._is_set = True
        self._changed.notify()

    def clear(self) -> None:
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        return wait_until(self.is_set, self._changed, timeout)


class SimpleQueue(Generic[T]):
    """A replacement for ``queue.SimpleQueue``."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._added = Signal()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._added.notify()

    def get(self, block: bool = True, timeout: float | None = None) -> T:
        if not self._items and block:
            wait_until(lambda: bool(self._items), self._added, timeout)
        if not self._items:
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> T:
        return self.get(block=False)


class Poll:
    """A replacement for ``select.poll`` in a thread."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self.register = self._poll.register

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        deadline = math.inf if timeout is None else trio.current_time() + timeout / 1000
        while not (found := self._poll.poll(0)) and trio.current_time() < deadline:
            sleep(POLL_INTERVAL_S)
        return found


@asynccontextmanager
async def reading(chunks: Iterator[bytes]) -> AsyncIterator[AsyncIterator[bytes]]:
    """Replace the function of `topics.front.data.backup_stream`. Threads read the chunks."""

    async def found() -> AsyncIterator[bytes]:
        while (chunk := await run_sync(next, chunks, None)) is not None:
            yield chunk

    yield found()


async def run_sync(
    function: Callable[..., T], *args: Any, abandon_on_cancel: bool = False, **_: Any
) -> T:
    """Replace `trio.to_thread.run_sync`."""
    await trio.lowlevel.checkpoint_if_cancelled()
    thread: Thread[T] = Thread(target=lambda: function(*args))
    thread.ends_process = False
    thread.start()
    with trio.CancelScope(shield=not abandon_on_cancel):
        await thread.ended.wait()
    if thread.result is None:
        await trio.lowlevel.checkpoint_if_cancelled()
    assert thread.result is not None
    return thread.result.unwrap()
