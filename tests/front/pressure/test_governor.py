"""The control law, with populations of writers in simulated time and in single steps."""

from __future__ import annotations

import statistics

import pytest

from tests.front.pressure.population import WRITE_S, Population, Writer
from topics.engine.priority import BANDS, TOP_BAND
from topics.front.pressure.governor import (
    COALESCE_S,
    PAUSE_MAX_S,
    SHARE_MAX,
    TARGET_MS,
    TICK_S,
    Governor,
)

PEAK = 1 / WRITE_S  # writes a second
WRITER_COUNT = 120  # three times as many as the target allows


def make_writers(
    size: int = WRITER_COUNT, topic_prefix: str = "t", **fields: object
) -> list[Writer]:
    return [
        Writer(topic=f"{topic_prefix}{number}", **fields)  # type: ignore[arg-type]
        for number in range(size)
    ]


class Ticks:
    """A governor that gets one measured delay per tick, while writes arrive at a rate."""

    def __init__(self, writes_per_s: float = 5000.0, band: int = 1) -> None:
        self.now, self.governor = 0.0, Governor(0.0)
        self.refused = self.arrived = 0
        self._writes, self._band = writes_per_s, band

    def run(self, seconds: float, delay_ms: float) -> None:
        for _ in range(round(seconds / TICK_S)):
            self._write()
            self.now += TICK_S
            self.governor.tick(self.now, delay_ms)

    def _write(self) -> None:
        for _ in range(round(self._writes * TICK_S)):
            if not self.governor.is_unthrottled:
                self.arrived += 1
                if not self.governor.admits(self._band):
                    self.refused += 1
                    self.governor.refuse()


# Populations


@pytest.mark.parametrize("whole_seconds", [False, True])
@pytest.mark.parametrize("size", [WRITER_COUNT, 2 * WRITER_COUNT])
def test_under_overload_the_lag_reaches_its_target_and_throughput_stays_high(
    size: int, whole_seconds: bool
) -> None:
    alone = Population(make_writers(size), governed=False)
    alone.measure(1.0)
    assert statistics.mean(alone.measure(2.0).lags_ms) > size / WRITER_COUNT * 2.5 * TARGET_MS
    governed = Population(make_writers(size, whole_seconds=whole_seconds))
    governed.measure(3.0)
    tally = governed.measure(6.0)
    assert statistics.mean(tally.lags_ms) < (1.6 if size == WRITER_COUNT else 2.0) * TARGET_MS
    assert tally.writes / 6.0 > 0.8 * PEAK
    assert tally.refused


def test_iterations_of_a_second_lead_to_refusals_after_few_of_them() -> None:
    population = Population(make_writers(2000))
    assert population.measure(8.0).refused
    tally = population.measure(8.0)
    assert statistics.median(tally.lags_ms) < 3 * TARGET_MS
    assert tally.writes / 8.0 > 0.8 * PEAK


@pytest.mark.parametrize("whole_seconds", [False, True])
def test_a_writer_that_waits_as_requested_is_accepted_at_the_second_attempt(
    whole_seconds: bool,
) -> None:
    population = Population(make_writers(2 * WRITER_COUNT, whole_seconds=whole_seconds))
    tally = population.measure(8.0)
    assert tally.refused.total() > WRITER_COUNT
    assert set(tally.tries) == {1, 2}


def test_the_top_band_is_not_refused_if_refusing_lower_bands_suffices() -> None:
    writers = [Writer(topic=f"t{number}", band=number % BANDS) for number in range(WRITER_COUNT)]
    tally = Population(writers).measure(8.0)
    assert tally.refused[TOP_BAND] == 0
    assert all(tally.refused[band] for band in range(TOP_BAND))
    taken = [tally.taken[band] for band in range(BANDS)]
    assert taken == sorted(taken), "a lower band had more accepted writes"
    assert min(taken) > 0


def test_the_top_band_is_refused_if_there_is_no_other() -> None:
    population = Population(make_writers(2 * WRITER_COUNT, band=TOP_BAND))
    population.measure(3.0)
    tally = population.measure(6.0)
    assert tally.refused[TOP_BAND]
    assert statistics.mean(tally.lags_ms) < 2.5 * TARGET_MS


def test_writers_that_ignore_refusals_reduce_throughput_by_at_most_a_fifth() -> None:
    population = Population(make_writers(obeys=False))
    population.measure(3.0)
    assert population.measure(6.0).writes / 6.0 > 0.8 * PEAK


def test_obedient_writers_do_not_wait_for_writers_that_ignore_refusals() -> None:
    obeying = make_writers(20)
    population = Population([*obeying, *make_writers(WRITER_COUNT, obeys=False, topic_prefix="i")])
    population.measure(3.0)
    tally = population.measure(8.0)
    assert tally.waits_s
    assert max(tally.waits_s) < 5.0


def test_all_measures_end_within_two_seconds_after_the_overload() -> None:
    writers = make_writers()
    for writer in writers[20:]:
        writer.stops_at = 4.0
    population = Population(writers)
    population.measure(4.0)
    assert population.governor.share
    population.measure(2.0)
    assert population.governor.is_unthrottled
    assert not population.measure(5.0).refused


@pytest.mark.parametrize("size", [1, 16, 36])
def test_a_load_within_the_capacity_is_never_refused(size: int) -> None:
    tally = Population(make_writers(size)).measure(5.0)
    assert not tally.refused
    assert tally.writes / 5.0 > 0.8 * min(PEAK, size / 0.001)


# Without pressure


@pytest.mark.parametrize(
    "delays",
    [
        pytest.param([200.0], id="a hiccup"),
        pytest.param([2500.0], id="a stopped process"),
        pytest.param([1e9], id="a jump of the clock"),
        pytest.param([2500.0, 80.0, 20.0], id="a stop and its backlog"),
        pytest.param([50.0] * 9, id="half a second"),
        pytest.param([200.0, 0.0, 0.0] * 50, id="a hiccup now and then"),
        pytest.param([0.9 * TARGET_MS] * 500, id="all that is allowed"),
    ],
)
def test_a_short_delay_causes_no_refusals(delays: list[float]) -> None:
    ticks = Ticks()
    for delay_ms in delays:
        ticks.run(TICK_S, delay_ms)
    assert not ticks.governor.share
    ticks.run(1.0, 0.0)
    assert ticks.governor.is_unthrottled
    assert ticks.refused == 0


def test_a_clock_that_moves_back_does_no_harm() -> None:
    ticks = Ticks()
    ticks.run(2.0, 50.0)
    ticks.now -= 10.0
    ticks.run(1.0, 50.0)
    assert 0.0 < ticks.governor.share <= SHARE_MAX
    ticks.run(2.0, 0.0)
    assert ticks.governor.is_unthrottled


def test_a_few_writers_of_a_slow_machine_are_not_refused() -> None:
    ticks = Ticks(writes_per_s=60.0)
    ticks.run(20.0, 100.0)
    assert (ticks.governor.share, ticks.governor.pause_s(0)) == (0.0, PAUSE_MAX_S)
    assert ticks.refused == 0


# Steps


def test_a_lasting_delay_first_coalesces_then_paces_then_refuses() -> None:
    ticks, seen = Ticks(), []
    for _ in range(40):
        ticks.run(TICK_S, 3 * TARGET_MS)
        governor = ticks.governor
        state = (governor.pause_s(0) > 0, governor.pause_s(0) > COALESCE_S, governor.share > 0)
        if state not in seen:
            seen.append(state)
    assert seen == [
        (False, False, False),
        (True, False, False),
        (True, True, False),
        (True, True, True),
    ]


def test_no_band_is_ever_refused_completely() -> None:
    ticks = Ticks(writes_per_s=800.0, band=TOP_BAND)
    ticks.run(60.0, 1000.0)
    assert ticks.governor.share == SHARE_MAX
    before = ticks.arrived, ticks.refused
    ticks.run(10.0, 1000.0)
    arrived, refused = ticks.arrived - before[0], ticks.refused - before[1]
    assert 0.9 * SHARE_MAX < refused / arrived <= SHARE_MAX + 0.001


def test_a_small_delay_causes_no_refusals_of_the_top_band() -> None:
    ticks = Ticks(band=TOP_BAND)
    ticks.run(20.0, 1.5 * TARGET_MS)
    assert (ticks.governor.share > 0, ticks.refused) == (True, 0)


def test_a_band_without_writes_still_has_the_highest_refused_share() -> None:
    ticks = Ticks()
    ticks.run(5.0, 50.0)
    assert ticks.governor._shares[0] == SHARE_MAX
    assert 0 < ticks.governor._shares[1] < 1


def test_low_bands_pause_longest_and_the_top_band_is_only_coalesced() -> None:
    ticks = Ticks(writes_per_s=0.0)
    assert [ticks.governor.pause_s(band) for band in range(BANDS)] == [0.0] * BANDS
    ticks.run(2 * TICK_S, 3 * TARGET_MS)
    assert [ticks.governor.pause_s(band) for band in range(BANDS)] == [COALESCE_S] * BANDS
    ticks.run(5.0, 3 * TARGET_MS)
    pauses = [ticks.governor.pause_s(band) for band in range(BANDS)]
    assert pauses == [PAUSE_MAX_S, 0.75, 0.5, 0.25, COALESCE_S]
