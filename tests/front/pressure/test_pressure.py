"""The pressure of a front: its effect on writes and streams, and its log events."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.front.conftest import Logged
from topics.actors.link.event_loop import LoopLag
from topics.engine.access import ANYONE
from topics.engine.priority import NEW_BAND, TOP_BAND
from topics.errors import Throttled
from topics.front.pressure import pressure as module
from topics.front.pressure.governor import TICK_S
from topics.front.pressure.pressure import (
    LIFE_S,
    REFUSAL_HOLD_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Bands,
    Pressure,
    Promises,
    hold_back,
)

KEY, OTHER = b"k", b"o"
RECORD = b'{"records":[{"data":1}]}'


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
        self, topic: str, *, key: bytes = KEY, shard: int = 0, body: bytes = RECORD
    ) -> Throttled | None:
        try:
            self.pressure.check_write(key, topic, shard, body)
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
    assert desk.pressure.governors[0].share
    return desk


def test_a_calm_front_refuses_nothing_and_counts_nothing(desk: Desk) -> None:
    assert desk.run(1.0) == 0
    assert desk.pressure.is_calm
    assert desk.pressure.governors[0]._came == [0] * 5


def test_a_refusal_tells_when_to_come_again_and_that_is_kept(pressed: Desk) -> None:
    failure = pressed.refused("t")
    assert (failure.code, set(failure.detail)) == ("throttled", {"retry_after_ms"})
    retry_ms = failure.detail["retry_after_ms"]
    assert 1000 <= retry_ms < 3000
    assert pressed.pressure.promises.redeem((KEY, "t"), pressed.now + retry_ms / 1000)


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
    assert pressed.pressure.promises.redeem((KEY, "t"), pressed.now)


def test_each_holder_is_told_a_time_of_its_own_and_waits_behind_its_last_one() -> None:
    promises = Promises()
    dues = [promises.give((KEY, str(number)), 0.0, 0.1) for number in range(100)]
    assert dues == pytest.approx([RETRY_MIN_S + 0.1 * number for number in range(100)])
    due = [promises.give((KEY, "0"), 0.0, 0.1) for _ in range(3)]
    assert due == pytest.approx([11.0, 21.0, RETRY_MAX_S])
    assert promises.count == 102, "a time at the bound is no promise"
    assert promises.give((KEY, "new"), 0.0, 0.1) == pytest.approx(11.0), "not behind those"


def test_a_late_loop_is_everybodys_and_a_late_shard_its_topics(desk: Desk) -> None:
    desk.delays[1] = 50.0
    for _ in range(80):
        for _ in range(100):
            desk.write("b", shard=1)
        desk.tick(0.0)
    assert [bool(governor.share) for governor in desk.pressure.governors] == [False, True]
    desk.refused("b", shard=1)
    assert all(desk.write("a") is None for _ in range(1000))
    assert desk.pressure.pause_s(0, 0) == 0.0 < desk.pressure.pause_s(1, 0)


def test_writes_to_all_shards_wait_for_the_loop(desk: Desk) -> None:
    for _ in range(80):
        for number in range(16):  # 320 a second: 16 wait in 50 ms
            desk.write("t", shard=number % 2)
        desk.now += TICK_S
        desk.pressure.tick(50.0)
    assert all(governor.share for governor in desk.pressure.governors)


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


def test_the_log_tells_once_of_a_pressure_and_of_its_end(desk: Desk, logged: Logged) -> None:
    desk.run(5.0, lag_ms=50.0)
    desk.run(3.0)
    begun, ended = logged
    assert 0 < begun.pop("refused_percent") <= 100
    assert begun == {"event": "writes throttled", "log_level": "warning", "loop_lag_ms": 50}
    assert ended == {
        "event": "write throttling ended",
        "log_level": "info",
        "refused_count": desk.pressure.refused_count,
    }


async def test_it_ticks_seldom_while_the_loop_is_idle_and_calm(autojump_clock: MockClock) -> None:
    lags: list[float] = []
    pressure = Pressure(1, lambda _: 0.0, lambda: 0.0)  # passes take no time
    pressure.tick = lags.append  # type: ignore[assignment, method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pressure.run)
        await wait_all_tasks_blocked()
        await trio.sleep(1.01)
        assert lags == [0.0] * 2
        pressure.is_calm = False
        await trio.sleep(1.01)
        assert 9 <= len(lags) - 2 <= 12, "the last idle pause ends first"
        pressure.is_calm = True
        pressure._lag_ms = 5.0
        lags.clear()
        await trio.sleep(1.01)
        nursery.cancel_scope.cancel()
    assert 19 <= len(lags) <= 21, "a busy loop is looked at more often"


# Promises


def test_a_promise_is_redeemed_once_by_its_key_and_topic_and_not_before_its_time() -> None:
    promises = Promises()
    due = promises.give((KEY, "t"), 4.0, 0.1)
    assert due == 4.0 + RETRY_MIN_S
    for holder in ((KEY, "t"), (OTHER, "t"), (KEY, "u")):
        assert not promises.redeem(holder, due - 0.001)
    assert not promises.redeem((OTHER, "t"), due)
    assert promises.redeem((KEY, "t"), due)
    assert not promises.redeem((KEY, "t"), due)
    assert promises.count == 0


@pytest.mark.parametrize("forget", ["redeem", "expire"])
def test_a_promise_lapses(forget: str) -> None:
    promises = Promises()
    promises.give((KEY, "t"), 4.0, 0.0)
    promises.give((KEY, "t"), 9.0, 0.0)
    if forget == "redeem":
        assert promises.redeem((KEY, "t"), 5.5 + LIFE_S), "the second one"
    else:
        promises.expire(5.5 + LIFE_S)
        assert promises.count == 1
        promises.expire(10.5 + LIFE_S)
    assert (promises.count, promises._due) == (0, {})


def test_promises_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMISES_MAX", 3)
    promises = Promises()
    for number in range(4):
        assert promises.give((KEY, str(number)), 4.0, 0.0) == 5.0
    assert [promises.redeem((KEY, str(number)), 5.0) for number in range(4)] == [True] * 3 + [False]


# Bands, and the lag of the loop


def test_only_topics_whose_band_is_not_that_of_new_ones_are_kept_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BANDS_MAX", 3)
    bands = Bands()
    for topic in "abc":
        assert bands.of(topic) == NEW_BAND
        bands.learn(topic, TOP_BAND)
    bands.learn("c", NEW_BAND)
    bands.learn("a", 3)
    bands.learn("d", TOP_BAND)
    assert [bands.of(topic) for topic in "abcd"] == [3, TOP_BAND, NEW_BAND, TOP_BAND]
    bands.learn("e", 0)
    assert [bands.of(topic) for topic in "abde"] == [3, NEW_BAND, TOP_BAND, 0], "the oldest goes"


@pytest.mark.parametrize(
    ("spent_s", "idle_s", "lag_ms"),
    [(0.0, 1.0, 0.0), (0.02, 0.0, 10.0), (0.01, 0.09, 0.5)],
    ids=["idle", "half a pass", "one event in ten waits, 5 ms on average"],
)
def test_the_lag_is_what_an_event_waits(spent_s: float, idle_s: float, lag_ms: float) -> None:
    lag, now = LoopLag(0.0), 0.0
    for _ in range(10):
        lag.pass_began = now
        now += spent_s
        lag.end_pass(now)
        now += idle_s
    assert lag.take_ms(now) == pytest.approx(lag_ms)


def test_a_stopped_process_weighs_in_one_window() -> None:
    lag = LoopLag(0.0)
    lag.take_ms(4.99)
    lag.end_pass(5.0)
    assert lag.take_ms(5.0) == pytest.approx(2500.0), "not more than half of the pass"
    assert lag.take_ms(5.05) == 0.0


# Appends


class Block:
    """A body in shared memory."""

    def __init__(self) -> None:
        self.view, self.freed = memoryview(RECORD), 0

    def free(self) -> None:
        self.freed += 1


async def test_a_refusal_is_held_back_a_moment_and_gives_its_body_back(
    pressed: Desk, autojump_clock: MockClock
) -> None:
    request: Any = SimpleNamespace(topic="t", shard=0, principal=ANYONE)
    began, refusal = trio.current_time(), None
    for _ in range(100):
        block: Any = Block()
        refusal = pressed.pressure.refusal_of(request, block)
        assert block.freed == (refusal is not None)
        if refusal is not None:
            break
    assert refusal is not None
    with pytest.raises(Throttled):
        await hold_back(refusal)
    assert trio.current_time() - began == pytest.approx(REFUSAL_HOLD_S)
