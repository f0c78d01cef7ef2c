"""The event loop: it serves watched descriptors without starving trio."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Awaitable, Callable, Iterator
from functools import partial

import pytest
import trio
import trio.lowlevel

from topics.actors.link.event_loop import EventLoop

Main = Callable[[EventLoop], Awaitable[None]]


@pytest.fixture(params=["clock of the run", "beside another clock"])
def run(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    async def bounded(main: Main) -> None:
        with trio.fail_after(10):
            await main(EventLoop.of_this_run())

    if request.param == "clock of the run":
        return lambda main: EventLoop().run(bounded, main)
    return lambda main: trio.run(bounded, main)


@pytest.fixture
def bell() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


class CountedIterations:
    """Count the iterations, and the calls of tasks that were not flushed."""

    def __init__(self) -> None:
        self.is_open, self.count = False, 0
        self.runs_tasks, self.unflushed_calls = False, 0

    def end(self) -> None:
        self.is_open = False
        self.count += 1

    def flush(self) -> None:
        self.unflushed_calls = 0


def test_a_ready_descriptor_is_served_in_an_iteration_until_it_is_unwatched(
    run: Callable[[Main], None], bell: int
) -> None:
    async def main(loop: EventLoop) -> None:
        loop.iteration = iterations = CountedIterations()
        served = trio.Event()

        def ready(events: int) -> None:
            assert events == select.EPOLLIN
            assert iterations.is_open
            os.eventfd_read(bell)
            served.set()

        loop.watch(bell, select.EPOLLIN, ready)
        for _ in range(3):
            os.eventfd_write(bell, 1)
            await served.wait()
            served = trio.Event()
        assert iterations.count >= 3
        assert not iterations.is_open
        loop.unwatch(bell)
        os.eventfd_write(bell, 1)
        await trio.lowlevel.checkpoint()
        assert not served.is_set()

    run(main)


def test_calls_of_tasks_are_flushed_in_the_same_iteration(run: Callable[[Main], None]) -> None:
    """If trio uses another clock, the loop does not flush the calls of tasks."""

    async def main(loop: EventLoop) -> None:
        loop.iteration = iterations = CountedIterations()
        is_clock = trio.lowlevel.current_clock() is loop
        for wait in (trio.lowlevel.checkpoint, partial(trio.sleep, 0.001)):
            await trio.lowlevel.checkpoint()
            assert iterations.runs_tasks is is_clock
            iterations.unflushed_calls = int(iterations.runs_tasks)
            await wait()
            assert not iterations.unflushed_calls

    run(main)


def test_a_descriptor_that_is_unwatched_in_an_iteration_is_not_served_in_it(
    run: Callable[[Main], None], bell: int
) -> None:
    other = os.eventfd(1, os.EFD_NONBLOCK)

    async def main(loop: EventLoop) -> None:
        served: list[int] = []

        def ready(_events: int) -> None:
            served.append(1)
            for fd in (bell, other):
                loop.unwatch(fd)

        for fd in (bell, other):
            loop.watch(fd, select.EPOLLIN, ready)
        os.eventfd_write(bell, 1)
        loop.poll()
        assert served == [1]

    run(main)
    os.close(other)


def test_tasks_that_never_pause_do_not_delay_descriptors(
    run: Callable[[Main], None], bell: int
) -> None:
    async def main(loop: EventLoop) -> None:
        served: list[int] = []
        loop.watch(bell, select.EPOLLIN, lambda _: served.append(os.eventfd_read(bell)))
        os.eventfd_write(bell, 7)
        while not served:
            await trio.lowlevel.checkpoint()
        loop.unwatch(bell)

    run(main)


def test_timeouts_threads_descriptors_and_signals_of_trio_work_in_the_loop(
    run: Callable[[Main], None],
) -> None:
    async def main(loop: EventLoop) -> None:
        began = trio.current_time()
        await trio.sleep(0.02)
        assert trio.current_time() - began >= 0.02
        assert await trio.to_thread.run_sync(lambda: 1) == 1
        pipe, end = os.pipe()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.lowlevel.wait_readable, pipe)
            await trio.lowlevel.checkpoint()
            os.write(end, b"x")
        os.close(pipe)
        os.close(end)
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
            async for number in signals:
                assert number == signal.SIGUSR1
                break

    run(main)


def test_a_served_function_can_set_a_deadline_for_a_sleeping_task(
    run: Callable[[Main], None], bell: int
) -> None:
    async def main(loop: EventLoop) -> None:
        with trio.CancelScope() as scope:

            def ready(_events: int) -> None:
                os.eventfd_read(bell)
                scope.deadline = trio.current_time() + 0.01

            loop.watch(bell, select.EPOLLIN, ready)
            os.eventfd_write(bell, 1)
            await trio.sleep_forever()
        assert scope.cancelled_caught
        loop.unwatch(bell)

    run(main)


def test_an_exception_of_a_served_function_ends_the_task_that_serves_it(
    run: Callable[[Main], None], bell: int
) -> None:
    async def main(loop: EventLoop) -> None:
        def ready(_events: int) -> None:
            raise RuntimeError("served")

        os.eventfd_write(bell, 1)
        with pytest.raises(RuntimeError, match="served"):
            await loop.serve(bell, ready)

    run(main)
