"""Deadline queue: calls are made at their time, in order, and not after they were cancelled."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from topics.actors.link.tick import TICK_INTERVAL_S
from topics.actors.shard.deadlines import SWEEP_MIN, Deadlines


def test_calls_are_made_in_the_order_of_their_times_and_not_before() -> None:
    deadlines, made = Deadlines(), list[str]()
    for at, name in ((3.0, "c"), (1.0, "a"), (2.0, "b"), (2.0, "b again")):
        deadlines.call_at(at, partial(made.append, name))
    deadlines.run_due(0.9)
    assert (made, deadlines.next_at) == ([], 1.0)
    deadlines.run_due(2.0)
    assert (made, len(deadlines)) == (["a", "b", "b again"], 1)
    deadlines.run_due(10.0)
    assert (made[-1], len(deadlines), deadlines.next_at) == ("c", 0, float("inf"))


def test_a_cancelled_call_is_not_made_and_cancelling_again_does_nothing() -> None:
    deadlines, made = Deadlines(), list[str]()
    first = deadlines.call_at(1.0, lambda: made.append("a"))
    deadlines.call_at(1.0, lambda: made.append("b"))
    first.cancel()
    first.cancel()
    assert len(deadlines) == 1
    deadlines.run_due(1.0)
    first.cancel()
    assert (made, len(deadlines)) == (["b"], 0)


def test_a_call_may_cancel_one_that_is_due_with_it() -> None:
    deadlines, made = Deadlines(), list[str]()
    deadlines.call_at(1.0, lambda: later.cancel())
    later = deadlines.call_at(1.0, lambda: made.append("cancelled"))
    deadlines.run_due(1.0)
    assert (made, len(deadlines)) == ([], 0)


def test_a_call_that_another_call_schedules_for_now_waits_for_the_next_run() -> None:
    deadlines, made = Deadlines(), list[int]()

    def reschedule() -> None:
        made.append(len(made))
        deadlines.call_at(0.0, reschedule)

    deadlines.call_at(1.0, reschedule)
    for _ in range(3):
        deadlines.run_due(1.0)
    assert made == [0, 1, 2]


def test_cancelled_entries_do_not_accumulate() -> None:
    deadlines = Deadlines()
    for number in range(100 * SWEEP_MIN):
        deadlines.call_at(1000.0 + number, lambda: None).cancel()
    assert (len(deadlines), len(deadlines._heap) <= SWEEP_MIN) == (0, True)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["add", "cancel", "run"]))))
def test_any_order_of_calls_agrees_with_a_sorted_list(steps: list[tuple[int, str]]) -> None:
    deadlines, made = Deadlines(), list[int]()
    entries: list[tuple[int, int, Any]] = []
    expected: list[int] = []
    for number, (at, what) in enumerate(steps):
        if what == "add":
            entry = deadlines.call_at(at, partial(made.append, number))
            entries.append((at, number, entry))
        elif what == "cancel" and entries:
            entries.pop(at % len(entries))[2].cancel()
        elif what == "run":
            due = sorted(entry for entry in entries if entry[0] <= at)
            expected += [number for _, number, _ in due]
            entries = [entry for entry in entries if entry[0] > at]
            deadlines.run_due(at)
        assert (made, len(deadlines)) == (expected, len(entries))


@pytest.fixture
def deadlines(nursery: trio.Nursery) -> Deadlines:
    queue = Deadlines()
    nursery.start_soon(queue.run, lambda: queue.run_due(trio.current_time()))
    return queue


async def test_the_task_sleeps_until_the_earliest_call(
    deadlines: Deadlines, autojump_clock: MockClock
) -> None:
    made: list[float] = []
    for after in (5.0, 1.0, 3.0):
        deadlines.call_at(
            trio.current_time() + after, lambda: made.append(round(trio.current_time()))
        )
    await trio.sleep(2.0)
    assert made == [1]
    deadlines.call_at(trio.current_time() + 0.5, lambda: made.append(-1))
    await trio.sleep(4.0)
    assert made == [1, -1, 3, 5]


async def test_a_repeated_call_is_made_immediately_and_then_at_each_tick(
    deadlines: Deadlines, autojump_clock: MockClock
) -> None:
    made: list[float] = []
    deadlines.call_each_tick(lambda: made.append(trio.current_time()))
    assert len(made) == 1
    await trio.sleep(3.5 * TICK_INTERVAL_S)
    assert len(made) == 4


async def test_a_wake_is_not_lost_before_the_task_sleeps_nor_while_it_runs(
    nursery: trio.Nursery,
) -> None:
    queue, iterations = Deadlines(), list[int]()

    def run_iteration() -> None:
        iterations.append(len(iterations))
        if len(iterations) < 3:
            queue.wake()

    queue.wake()
    nursery.start_soon(queue.run, run_iteration)
    await wait_all_tasks_blocked()
    assert iterations == [0, 1, 2]
    queue.wake()
    await wait_all_tasks_blocked()
    assert iterations == [0, 1, 2, 3]
