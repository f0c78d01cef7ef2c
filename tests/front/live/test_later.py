"""Calls come at their times, in their order, from one task."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from topics.front.live.later import Later


class Desk:
    def __init__(self) -> None:
        self.later = Later()
        self.calls: list[tuple[str, float]] = []
        self._began = trio.current_time()

    def call_in(self, seconds: float, name: str) -> None:
        self.later.call_in(seconds, partial(self.called, name))

    def called(self, name: str) -> None:
        self.calls.append((name, round(trio.current_time() - self._began, 6)))


@pytest.fixture
async def desk() -> AsyncIterator[Desk]:
    async with trio.open_nursery() as nursery:
        made = Desk()
        nursery.start_soon(made.later.run)
        await wait_all_tasks_blocked()
        yield made
        nursery.cancel_scope.cancel()


async def test_calls_are_made_by_their_times(desk: Desk, autojump_clock: MockClock) -> None:
    for seconds, name in ((1.0, "late"), (0.02, "soon"), (0.5, "then"), (0.02, "soon too")):
        desk.call_in(seconds, name)
    await trio.sleep(2.0)
    assert desk.calls == [("soon", 0.02), ("soon too", 0.02), ("then", 0.5), ("late", 1.0)]
    assert len(desk.later) == 0


async def test_a_call_may_come_before_those_that_wait_already(
    desk: Desk, autojump_clock: MockClock
) -> None:
    desk.call_in(1.0, "late")
    await trio.sleep(0.1)
    desk.call_in(0.1, "soon")
    await trio.sleep(2.0)
    assert desk.calls == [("soon", 0.2), ("late", 1.0)]


async def test_a_call_may_ask_for_another(desk: Desk, autojump_clock: MockClock) -> None:
    desk.later.call_in(0.1, lambda: desk.call_in(0.1, "second"))
    await trio.sleep(1.0)
    assert desk.calls == [("second", 0.2)]
