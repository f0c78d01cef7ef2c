"""How long an event waits for the loop, by its passes."""

from __future__ import annotations

import math

import pytest
import trio

from topics.front.pressure.lag import LoopLag


class Loop:
    """Passes in simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.lag = LoopLag(lambda: self.now)

    def run(self, seconds: float, *, idle: float = 0.0) -> None:
        self.lag.after_io_wait(0.0)
        self.now += seconds
        self.lag.before_io_wait(0.0)
        self.now += idle


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_an_idle_loop_has_none(loop: Loop) -> None:
    assert loop.lag.take_ms() == 0.0
    loop.run(0.0, idle=1.0)
    assert loop.lag.take_ms() == 0.0


def test_of_a_loop_that_never_waits_it_is_half_a_pass(loop: Loop) -> None:
    for _ in range(5):
        loop.run(0.02)
    assert math.isclose(loop.lag.take_ms(), 10.0)


def test_a_long_pass_now_and_then_weighs_as_often_as_an_event_meets_it(loop: Loop) -> None:
    for _ in range(10):
        loop.run(0.01, idle=0.09)
    assert math.isclose(loop.lag.take_ms(), 0.5), "one event in ten waits, 5 ms on average"


def test_a_stopped_process_weighs_in_one_window(loop: Loop) -> None:
    loop.lag.after_io_wait(0.0)
    loop.now = 4.99
    loop.lag.take_ms()
    loop.now = 5.0
    loop.lag.before_io_wait(0.0)
    assert math.isclose(loop.lag.take_ms(), 2500.0), "not more than half of the pass"
    loop.now = 5.05
    assert loop.lag.take_ms() == 0.0


async def test_trio_tells_of_each_pass() -> None:
    lag = LoopLag()
    trio.lowlevel.add_instrument(lag)
    try:
        end = trio.current_time() + 0.02
        while trio.current_time() < end:
            pass
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert lag.take_ms() > 1.0
    finally:
        trio.lowlevel.remove_instrument(lag)
