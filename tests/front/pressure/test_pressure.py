"""The pressure of a front: what writes and streams are told, and what its log says."""

from __future__ import annotations

import logging

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from topics.engine.priority import TOP_BAND
from topics.errors import Throttled
from topics.front.pressure.governor import RETRY_MAX_S, TICK_S, Level
from topics.front.pressure.pressure import Pressure

KEY = b"k"


class Desk:
    """A front of two shards in simulated time. Writes to ``busy`` come all the time."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.delays = [0.0, 0.0]
        self.pressure = Pressure(2, self.delays.__getitem__, lambda: self.now)

    def run(self, seconds: float, *, lag_ms: float = 0.0) -> int:
        """How many writes to ``busy`` were refused."""
        return sum(self.tick(lag_ms) for _ in range(round(seconds / TICK_S)))

    def tick(self, lag_ms: float) -> int:
        refused = sum(self.write("busy", key=b"busy") is not None for _ in range(100))
        self.now += TICK_S
        self.pressure.tick(lag_ms)
        return refused

    def write(
        self, topic: str, *, key: bytes = KEY, shard: int = 0, opts_out: bool = False
    ) -> Throttled | None:
        try:
            self.pressure.check_write(key, topic, shard, lambda: opts_out)
        except Throttled as failure:
            return failure
        return None

    def opens(self, name: str, *topics: str) -> bool:
        try:
            self.pressure.check_stream(KEY, name, [*topics], None)
        except Throttled:
            return False
        return True

    def refused(self, topic: str, **fields: object) -> Throttled:
        """The first refusal of such a write."""
        for _ in range(1000):
            if failure := self.write(topic, **fields):  # type: ignore[arg-type]
                return failure
        raise AssertionError("nothing was refused")


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def pressed(desk: Desk) -> Desk:
    """Its loop is late by five times what it ought to be."""
    desk.run(4.0, lag_ms=50.0)
    assert desk.pressure.level is Level.REFUSING
    return desk


def test_a_calm_front_refuses_nothing_and_counts_nothing(desk: Desk) -> None:
    assert desk.run(1.0) == 0
    assert desk.pressure.is_calm
    assert desk.pressure.governors[0]._came == [0] * 5


def test_a_refusal_tells_when_to_come_again_and_that_is_kept(pressed: Desk) -> None:
    failure = pressed.refused("t")
    assert (failure.code, set(failure.detail)) == ("throttled", {"retry_after_ms"})
    retry_ms = failure.detail["retry_after_ms"]
    assert 1000 <= retry_ms < 2000
    kept = [pressed.pressure.promises.redeem(KEY, "t", pressed.now + retry_ms / 1000)]
    assert kept == [True]


def test_who_comes_when_told_is_let_in_whatever_the_pressure(pressed: Desk) -> None:
    for number in range(50):
        failure = pressed.refused(f"t{number}")
        pressed.now += failure.detail["retry_after_ms"] / 1000
        assert pressed.write(f"t{number}") is None
        pressed.now += TICK_S


def test_a_write_that_gets_through_anyway_leaves_the_promise(pressed: Desk) -> None:
    failure = pressed.refused("t")
    pressed.now += failure.detail["retry_after_ms"] / 1000
    pressed.pressure.governors[0]._debts = [0.0] * 5
    assert pressed.write("t") is None
    assert pressed.pressure.promises.last(KEY, "t")


def test_a_first_refusal_is_for_a_whole_second_exactly(pressed: Desk) -> None:
    pressed.now += 100.0
    pressed.pressure.promises.expire(pressed.now)
    assert pressed.refused("t").detail["retry_after_ms"] == 1000


def test_a_time_at_the_bound_is_no_promise(pressed: Desk) -> None:
    for number in range(20_000):
        pressed.refused(f"t{number % 1000}")
        if len(pressed.pressure.promises) > 2000:
            break
    horizon = max(pressed.refused("u").detail["retry_after_ms"] for _ in range(20_000))
    assert horizon == RETRY_MAX_S * 1000
    before = len(pressed.pressure.promises)
    pressed.refused("u")
    assert len(pressed.pressure.promises) == before


def test_whoever_opts_out_is_never_refused_and_is_asked_only_then(pressed: Desk) -> None:
    asked = 0

    def opts_out() -> bool:
        nonlocal asked
        asked += 1
        return True

    for _ in range(1000):
        pressed.pressure.check_write(KEY, "t", 0, opts_out)
    assert 0 < asked < 1000


def test_a_late_loop_is_everybodys_and_a_late_shard_its_topics(desk: Desk) -> None:
    desk.delays[1] = 50.0
    for _ in range(80):
        for _ in range(100):
            desk.write("b", shard=1)
        desk.tick(0.0)
    assert [governor.level for governor in desk.pressure.governors] == [
        Level.CALM,
        Level.REFUSING,
    ]
    desk.refused("b", shard=1)
    assert all(desk.write("a") is None for _ in range(1000))
    assert desk.pressure.pause_s(0, 0) == 0.0 < desk.pressure.pause_s(1, 0)


def test_writes_to_all_shards_wait_for_the_loop(desk: Desk) -> None:
    for _ in range(80):
        for number in range(16):  # 320 a second: 16 wait in 50 ms
            desk.write("t", shard=number % 2)
        desk.now += TICK_S
        desk.pressure.tick(50.0)
    assert [governor.level for governor in desk.pressure.governors] == [Level.REFUSING] * 2


def test_topics_go_by_the_band_that_was_learned(desk: Desk) -> None:
    desk.pressure.bands.learn("top", TOP_BAND)
    refused = 0
    for _ in range(100):
        for _ in range(20):
            refused += desk.write("top") is not None
        desk.tick(50.0 if desk.pressure.governors[0].share < 0.3 else 10.0)
    assert refused == 0
    assert desk.pressure.refused_count > 0


def test_a_stream_is_weighed_like_a_write_to_its_first_topic(pressed: Desk) -> None:
    assert not all(pressed.opens("wid_1", "t") for _ in range(100))
    pressed.now += RETRY_MAX_S
    assert pressed.opens("wid_1", "t"), "as it was promised"
    pressed.pressure.bands.learn("top", TOP_BAND)
    pressed.run(TICK_S, lag_ms=10.0)
    assert all(pressed.opens("wid_2", "t", "top") for _ in range(100))


def test_a_stream_and_a_topic_of_one_name_are_two_things(pressed: Desk) -> None:
    failure = pressed.refused("work")
    pressed.now += failure.detail["retry_after_ms"] / 1000
    assert not all(pressed.opens("work", "t") for _ in range(1000))


def test_the_log_tells_once_of_a_pressure_and_of_its_end(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "topics.front")
    desk.run(5.0, lag_ms=50.0)
    desk.run(3.0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert told[0].startswith("under pressure: writes are refused, about ")
    assert told[0].endswith("loop lag 50 ms")
    assert told[1] == f"pressure is over: {desk.pressure.refused_count} refused since the start"


async def test_it_ticks_seldom_while_the_loop_is_idle_and_calm(autojump_clock: MockClock) -> None:
    lags: list[float] = []
    pressure = Pressure(1, lambda _: 0.0, lambda: 0.0)  # passes take no time
    pressure.tick = lags.append  # type: ignore[assignment, method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pressure.run)
        await wait_all_tasks_blocked()
        await trio.sleep(1.01)
        assert lags == [0.0] * 4
        pressure.is_calm = False
        await trio.sleep(1.01)
        assert 15 <= len(lags) - 4 <= 21, "the last idle pause ends first"
        pressure.is_calm = True
        pressure._lag_ms = 5.0
        lags.clear()
        await trio.sleep(1.01)
        nursery.cancel_scope.cancel()
    assert 19 <= len(lags) <= 21, "a busy loop is looked at more often"
