"""Pressure of one front: a governor for each shard, and what they have in common (decision 0030).

    the loop's passes --LoopLag--+
    shards' delays --------------+--> Governor, every TICK_S --> refusals, pauses of streams
    writes, while not calm ------+

``is_calm`` is all that a write looks at while nothing is wrong.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

import trio

from topics.errors import Throttled
from topics.front.pressure.bands import Bands
from topics.front.pressure.governor import RETRY_MAX_S, TICK_S, Governor, Level
from topics.front.pressure.lag import LoopLag
from topics.front.pressure.promises import Promises
from topics.front.pressure.turns import Turns

LOG = logging.getLogger("topics.front")

IDLE_TICK_S = 0.25  # while the loop has little to do
IDLE_LAG_MS = 1.0
PARKED_PART = 0.25  # of the time that appends of low bands are parked counts as lag of the loop
TOLD_EVERY_S = 10.0  # in the log


class Pressure:
    """The governors of a front. ``delay_ms`` tells how long a message to a shard waits there."""

    def __init__(
        self,
        shards: int,
        delay_ms: Callable[[int], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_calm = True
        self.bands = Bands()
        self.promises = Promises()
        self._delay_ms, self._clock = delay_ms, clock
        self._lag = LoopLag(clock)
        self._lag_ms = 0.0
        self.turns = Turns(clock, lambda: self._lag.pass_began)
        self.governors = [Governor(clock()) for _ in range(shards)]
        self._is_told = False  # the log: that writes are refused
        self._told_at = -math.inf

    @property
    def level(self) -> Level:
        """The highest of all shards."""
        return max(governor.level for governor in self.governors)

    @property
    def refused_count(self) -> int:
        """Writes and streams, since the start."""
        return sum(governor.refused_count for governor in self.governors)

    # Each tick

    async def run(self) -> None:
        """Measure and govern the loop that this is called in, until cancelled."""
        trio.lowlevel.add_instrument(self._lag)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.turns.run)
                while True:
                    is_idle = self.is_calm and self._lag_ms < IDLE_LAG_MS
                    await trio.sleep(IDLE_TICK_S if is_idle else TICK_S)
                    self.tick(self._lag.take_ms())
        finally:
            trio.lowlevel.remove_instrument(self._lag)

    def tick(self, lag_ms: float) -> None:
        """``lag_ms``: of the loop. What waits for the loop does not wait for its shard yet."""
        now = self._clock()
        self._lag_ms = lag_ms = max(lag_ms, PARKED_PART * self.turns.oldest_ms())
        rates = [governor.writes_per_s for governor in self.governors]
        for shard, governor in enumerate(self.governors):
            queued = (sum(rates) - rates[shard]) * lag_ms / 1000  # for the loop
            governor.tick(now, max(lag_ms, self._delay_ms(shard)), queued)
        self.is_calm = all(governor.is_calm for governor in self.governors)
        self.promises.expire(now)
        self._tell(now)

    def _tell(self, now: float) -> None:
        level = self.level
        if level is Level.REFUSING and not self._is_told and now - self._told_at >= TOLD_EVERY_S:
            self._is_told, self._told_at = True, now
            share = max(governor.share for governor in self.governors)
            LOG.warning(
                "under pressure: writes are refused, about %d in 100, loop lag %.0f ms",
                math.ceil(100 * share),
                self._lag_ms,
            )
        elif level is Level.CALM and self._is_told:
            self._is_told = False
            LOG.info("pressure is over: %d refused since the start", self.refused_count)

    # While not calm

    def check_write(self, key: bytes, topic: str, shard: int, opts_out: Callable[[], bool]) -> None:
        """Whether a write may go on now. ``key``: digest of its API key. ``opts_out`` is asked only
        if the answer would be a refusal. Raises `Throttled`.
        """
        if not self.is_calm:
            self._check(self.governors[shard], key, topic, self.bands.of(topic), opts_out)

    def check_stream(self, key: bytes, name: str, topics: list[str], shard: int | None) -> None:
        """Whether a stream of these topics may begin, which counts as a write to the one that goes
        first. ``name`` says which stream it is, ``shard`` None: any shard's. Raises `Throttled`.
        """
        if not self.is_calm:
            # What all shards share is the loop's.
            governor = (
                min(self.governors, key=lambda governor: governor.share)
                if shard is None
                else self.governors[shard]
            )
            band = max(map(self.bands.of, topics or [""]))
            self._check(governor, key, f"/{name}", band, lambda: False)

    def _check(
        self, governor: Governor, key: bytes, name: str, band: int, opts_out: Callable[[], bool]
    ) -> None:
        if governor.admits(band):
            return
        now = self._clock()
        # Only now: a write that gets through anyway leaves the promise to those it was made to.
        if self.promises.redeem(key, name, now):
            governor.pass_on(band)
        elif opts_out():
            governor.pass_free()
        else:
            raise self._refused(governor, key, name, band, now)

    def _refused(
        self, governor: Governor, key: bytes, name: str, band: int, now: float
    ) -> Throttled:
        promises = self.promises
        due = governor.refuse(band, now, promises.last(key, name), promises.holders)
        if due < now + RETRY_MAX_S:  # what comes later has no time of its own
            promises.give(key, name, due)
        return Throttled(
            "the server is under pressure: try again later",
            retry_after_ms=math.ceil(round((due - now) * 1000, 3)),  # not 1001 for a second
        )

    def pause_s(self, shard: int, band: int) -> float:
        """How much later than usual the next page of a stream is asked for; 0 while calm."""
        return self.governors[shard].pause_s(band)
