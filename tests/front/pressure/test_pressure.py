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
    PROMISE_LIFETIME_S,
    REFUSAL_HOLD_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Bands,
    Pressure,
    Promises,
    delay_refusal,
)

KEY, OTHER = b"k", b"o"
RECORD = b'{"records":[{"data":1}]}'


class PressureHarness:
    """A front of two shards in simulated time, with constant writes to ``busy``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.delays = [0.0, 0.0]
        self.pressure = Pressure(2, self.delays.__getitem__, lambda: self.now)

    def run(self, seconds: float, *, lag_ms: float = 0.0) -> int:
        """Let time pass, and return the number of refused writes to ``busy``."""
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
        """Repeat a write until it is refused, and return the refusal."""
        for _ in range(1000):
            if failure := self.write(topic, **fields):  # type: ignore[arg-type]
                return failure
        raise AssertionError("nothing was refused")


@pytest.fixture
def harness() -> PressureHarness:
    return PressureHarness()


@pytest.fixture
def pressed(harness: PressureHarness) -> PressureHarness:
    """A front whose loop lag is five times the target."""
    harness.run(4.0, lag_ms=50.0)
    assert harness.pressure.governors[0].share
    return harness


def test_a_calm_front_refuses_nothing_and_counts_nothing(harness: PressureHarness) -> None:
    assert harness.run(1.0) == 0
    assert harness.pressure.is_unthrottled
    assert harness.pressure.governors[0]._arrived == [0] * 5


def test_a_refusal_contains_a_retry_time_that_is_kept_as_a_promise(
    pressed: PressureHarness,
) -> None:
    failure = pressed.refused("t")
    assert (failure.code, set(failure.detail)) == ("throttled", {"retry_after_ms"})
    retry_ms = failure.detail["retry_after_ms"]
    assert 1000 <= retry_ms < 3000
    assert pressed.pressure.promises.redeem((KEY, "t"), pressed.now + retry_ms / 1000)


def test_a_write_at_its_promised_time_is_accepted_under_any_pressure(
    pressed: PressureHarness,
) -> None:
    for number in range(50):
        failure = pressed.refused(f"t{number}")
        pressed.now += failure.detail["retry_after_ms"] / 1000
        assert pressed.write(f"t{number}") is None
        pressed.now += TICK_S


def test_a_write_that_is_accepted_without_its_promise_keeps_it(pressed: PressureHarness) -> None:
    failure = pressed.refused("t")
    pressed.now += failure.detail["retry_after_ms"] / 1000
    pressed.pressure.governors[0]._debts = [0.0] * 5
    assert pressed.write("t") is None
    assert pressed.pressure.promises.redeem((KEY, "t"), pressed.now)


def test_each_holder_gets_its_own_time_after_its_previous_one() -> None:
    promises = Promises()
    dues = [promises.promise((KEY, str(number)), 0.0, 0.1) for number in range(100)]
    assert dues == pytest.approx([RETRY_MIN_S + 0.1 * number for number in range(100)])
    due = [promises.promise((KEY, "0"), 0.0, 0.1) for _ in range(3)]
    assert due == pytest.approx([11.0, 21.0, RETRY_MAX_S])
    assert promises.count == 102, "a time at the bound was promised"
    assert promises.promise((KEY, "new"), 0.0, 0.1) == pytest.approx(11.0), (
        "the time of a new holder depends on others"
    )


def test_loop_lag_affects_all_writes_and_shard_lag_only_its_topics(
    harness: PressureHarness,
) -> None:
    harness.delays[1] = 50.0
    for _ in range(80):
        for _ in range(100):
            harness.write("b", shard=1)
        harness.tick(0.0)
    assert [bool(governor.share) for governor in harness.pressure.governors] == [False, True]
    harness.refused("b", shard=1)
    assert all(harness.write("a") is None for _ in range(1000))
    assert harness.pressure.pause_s(0, 0) == 0.0 < harness.pressure.pause_s(1, 0)


def test_writes_to_all_shards_wait_for_the_loop(harness: PressureHarness) -> None:
    for _ in range(80):
        for number in range(16):  # 320 a second, of which 16 wait in 50 ms
            harness.write("t", shard=number % 2)
        harness.now += TICK_S
        harness.pressure.tick(50.0)
    assert all(governor.share for governor in harness.pressure.governors)


def test_writes_have_the_learned_band_of_their_topic(harness: PressureHarness) -> None:
    harness.pressure.bands.store("top", TOP_BAND)
    refused = 0
    for _ in range(100):
        for _ in range(20):
            refused += harness.write("top") is not None
        harness.tick(50.0 if harness.pressure.governors[0].share < 0.3 else 10.0)
    assert refused == 0
    assert harness.pressure.refused_count > 0


def test_a_stream_has_the_highest_band_of_its_topics(pressed: PressureHarness) -> None:
    assert not all(pressed.opens("wid_1", "t") for _ in range(100))
    pressed.now += RETRY_MAX_S
    assert pressed.opens("wid_1", "t"), "the promise was not kept"
    pressed.pressure.bands.store("top", TOP_BAND)
    pressed.run(TICK_S, lag_ms=10.0)
    assert all(pressed.opens("wid_2", "t", "top") for _ in range(100))


def test_the_promise_of_a_topic_does_not_admit_a_stream_with_its_name(
    pressed: PressureHarness,
) -> None:
    failure = pressed.refused("work")
    pressed.now += failure.detail["retry_after_ms"] / 1000
    assert not all(pressed.opens("work", "t") for _ in range(1000))


def test_the_start_and_the_end_of_pressure_are_logged_once(
    harness: PressureHarness, logged: Logged
) -> None:
    harness.run(5.0, lag_ms=50.0)
    harness.run(3.0)
    begun, ended = logged
    assert 0 < begun.pop("refused_percent") <= 100
    assert begun == {"event": "writes throttled", "log_level": "warning", "loop_lag_ms": 50}
    assert ended == {
        "event": "write throttling ended",
        "log_level": "info",
        "refused_count": harness.pressure.refused_count,
    }


async def test_ticks_are_rare_while_the_loop_is_idle_and_calm(autojump_clock: MockClock) -> None:
    lags: list[float] = []
    pressure = Pressure(1, lambda _: 0.0, lambda: 0.0)  # iterations take no time
    pressure.tick = lags.append  # type: ignore[assignment, method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pressure.run)
        await wait_all_tasks_blocked()
        await trio.sleep(1.01)
        assert lags == [0.0] * 2
        pressure.is_unthrottled = False
        await trio.sleep(1.01)
        assert 9 <= len(lags) - 2 <= 12, "the current idle pause ends first"
        pressure.is_unthrottled = True
        pressure._lag_ms = 5.0
        lags.clear()
        await trio.sleep(1.01)
        nursery.cancel_scope.cancel()
    assert 19 <= len(lags) <= 21, "a busy loop must be checked more often"


# Promises


def test_a_promise_is_redeemed_once_by_its_holder_and_not_before_its_time() -> None:
    promises = Promises()
    due = promises.promise((KEY, "t"), 4.0, 0.1)
    assert due == 4.0 + RETRY_MIN_S
    for holder in ((KEY, "t"), (OTHER, "t"), (KEY, "u")):
        assert not promises.redeem(holder, due - 0.001)
    assert not promises.redeem((OTHER, "t"), due)
    assert promises.redeem((KEY, "t"), due)
    assert not promises.redeem((KEY, "t"), due)
    assert promises.count == 0


@pytest.mark.parametrize("removal", ["redeem", "expire"])
def test_a_promise_expires(removal: str) -> None:
    promises = Promises()
    promises.promise((KEY, "t"), 4.0, 0.0)
    promises.promise((KEY, "t"), 9.0, 0.0)
    if removal == "redeem":
        assert promises.redeem((KEY, "t"), 5.5 + PROMISE_LIFETIME_S), (
            "the second promise was not redeemed"
        )
    else:
        promises.expire(5.5 + PROMISE_LIFETIME_S)
        assert promises.count == 1
        promises.expire(10.5 + PROMISE_LIFETIME_S)
    assert (promises.count, promises._due) == (0, {})


def test_the_number_of_promises_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROMISES_MAX", 3)
    promises = Promises()
    for number in range(4):
        assert promises.promise((KEY, str(number)), 4.0, 0.0) == 5.0
    assert [promises.redeem((KEY, str(number)), 5.0) for number in range(4)] == [True] * 3 + [False]


# Bands, and the lag of the loop


def test_a_bounded_number_of_bands_other_than_the_default_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BANDS_MAX", 3)
    bands = Bands()
    for topic in "abc":
        assert bands.of(topic) == NEW_BAND
        bands.store(topic, TOP_BAND)
    bands.store("c", NEW_BAND)
    bands.store("a", 3)
    bands.store("d", TOP_BAND)
    assert [bands.of(topic) for topic in "abcd"] == [3, TOP_BAND, NEW_BAND, TOP_BAND]
    bands.store("e", 0)
    assert [bands.of(topic) for topic in "abde"] == [3, NEW_BAND, TOP_BAND, 0], (
        "the oldest was not dropped"
    )


@pytest.mark.parametrize(
    ("spent_s", "idle_s", "lag_ms"),
    [(0.0, 1.0, 0.0), (0.02, 0.0, 10.0), (0.01, 0.09, 0.5)],
    ids=["idle", "half a pass", "one event in ten waits, 5 ms on average"],
)
def test_the_lag_is_the_mean_wait_of_an_event(spent_s: float, idle_s: float, lag_ms: float) -> None:
    lag, now = LoopLag(0.0), 0.0
    for _ in range(10):
        lag.pass_started = now
        now += spent_s
        lag.end_pass(now)
        now += idle_s
    assert lag.read_mean_ms(now) == pytest.approx(lag_ms)


def test_a_stop_of_the_process_counts_in_one_window() -> None:
    lag = LoopLag(0.0)
    lag.read_mean_ms(4.99)
    lag.end_pass(5.0)
    assert lag.read_mean_ms(5.0) == pytest.approx(2500.0), "more than half of the iteration"
    assert lag.read_mean_ms(5.05) == 0.0


# Appends


class Block:
    """A body in shared memory."""

    def __init__(self) -> None:
        self.view, self.freed = memoryview(RECORD), 0

    def free(self) -> None:
        self.freed += 1


async def test_a_refusal_is_sent_after_a_delay_and_frees_its_body_immediately(
    pressed: PressureHarness, autojump_clock: MockClock
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
        await delay_refusal(refusal)
    assert trio.current_time() - began == pytest.approx(REFUSAL_HOLD_S)
