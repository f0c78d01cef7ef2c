"""Governor: the control law of pressure for one shard, as a front sees it (decision 0030). Pure.

    delay ms, each tick      how long a write of now waits: in the loop, in the ring, in the shard
    -> steps                 ticks above TARGET_MS, and back
    -> pace, share           0..1: how much streams are paced; part of all writes to be refused

    CALM -> COALESCING -> PACING -> REFUSING, and all of them off soon after the delay is gone

``pace`` and ``share`` follow the lowest delay of the last ticks, as a controller with a
proportional and an integral part does: a burst or a stopped process does not move them. Low bands
are refused first, none of them wholly. Nothing is refused while the queue is short: a few clients
that wait for a slow machine would not get anything sooner.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Final

from topics.engine.priority import BANDS, TOP_BAND

TICK_S: Final = 0.05
TARGET_MS: Final = 10.0
RECENT: Final = 4  # ticks; the lowest delay of them counts
COALESCE_AT: Final = 2  # steps
PACE_AT: Final = 4
REFUSE_AT: Final = 10
STEPS_MAX: Final = 20
STEPS_BACK: Final = 2  # for each tick with less than half of TARGET_MS
SHARE_MAX: Final = 0.95  # of any band: some of each always get through
TOP_EXCESS: Final = 2.0  # times TARGET_MS; below, the top band is not refused
QUEUE_MIN: Final = 16  # writes that wait at once; fewer are no overload
EXCESS_MAX: Final = 4.0  # times TARGET_MS; what lies above says no more
DEBT_MAX: Final = 2.0  # writes that are yet to be refused for others
TICKS_MAX: Final = 4.0  # that one long tick counts for
INTEGRAL: Final = 0.006  # of the excess, for each tick
PROPORTIONAL: Final = 0.1  # of its change
PACE_INTEGRAL: Final = 0.05
FADE: Final = 0.8  # for each tick with less than half of TARGET_MS
FAINT: Final = 0.001  # of ``share``; less is nothing
PACE_FAINT: Final = 0.02  # of ``pace``; COALESCE_S is no less
SMOOTHING: Final = 0.3  # of the rates
COALESCE_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
PAUSE_WEIGHTS: Final = (1.0, 0.75, 0.5, 0.25, 0.0)  # by band
RETRY_MIN_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
RETRY_PART: Final = 0.1  # of what the server can take; the rest is for writes that come anew
RATE_MIN: Final = 20.0  # writes a second, where the server has taken fewer


class Level(IntEnum):
    """What a shard's pressure leads to, in order."""

    CALM = 0
    COALESCING = 1  # pages of feeds are asked for a little later
    PACING = 2  # streams of low bands wait
    REFUSING = 3  # a part of the writes


class Governor:
    """Pressure on one shard. ``is_calm``: nothing is late, and no write need be counted."""

    def __init__(self, now: float) -> None:
        self.is_calm = True
        self.share = 0.0  # of all writes that ought to be refused
        self.pace = 0.0
        self.refused_count = 0
        self._steps = 0
        self._recent = deque([0.0] * RECENT, RECENT)
        self._excess = 0.0  # times TARGET_MS
        self._ticked = now
        self._came = [0] * BANDS  # in this tick, and may be refused
        self._passed = self._refused = 0  # in this tick; passed: come, and may not be refused
        self._rates = [0.0] * BANDS  # a second
        self._passed_rate = self._taken_rate = 0.0
        self._shares = [0.0] * BANDS  # of each band
        self._debts = [0.0] * BANDS
        self._slot = 0.0  # the last time that was told to a new holder

    @property
    def level(self) -> Level:
        """What is done now."""
        if self.share:
            return Level.REFUSING
        if self.pace:
            return Level.PACING
        return Level.COALESCING if self._steps >= COALESCE_AT else Level.CALM

    def pause_s(self, band: int) -> float:
        """How much later than usual the next page of a stream is asked for."""
        if self.is_calm or (self._steps < COALESCE_AT and not self.pace):
            return 0.0
        return max(COALESCE_S, PAUSE_MAX_S * self.pace * PAUSE_WEIGHTS[band])

    # Each write, unless it is calm

    def pass_free(self) -> None:
        """A write that `admits` would not let in opts out."""
        self._passed += 1

    def pass_on(self, band: int) -> None:
        """A write that `admits` would not let in was promised: the next one is refused for it."""
        self._passed += 1
        self._debts[band] = min(self._debts[band] + 1.0, DEBT_MAX)

    def admits(self, band: int) -> bool:
        """Whether a write of this band may go on; `refuse`, `pass_free` or `pass_on`
        follows if not."""
        share = self._shares[band]
        if share:
            debt = self._debts[band] + share
            if debt >= 1.0:
                self._debts[band] = debt - 1.0
                return False
            self._debts[band] = debt
        self._came[band] += 1
        return True

    def refuse(self, band: int, now: float, earlier: float = 0.0, holders: int = 1) -> float:
        """Refuse it: when it is to come again, RETRY_MAX_S ahead at most. Each refused write gets a
        time of its own, as far from the next as the server needs.

        Who holds promises already, the last one for ``earlier``, waits behind that in a line of its
        own, one of ``holders``: clients that do not wait delay themselves, not those that do.
        """
        self._came[band] += 1
        self._refused += 1
        self.refused_count += 1
        apart = 1.0 / (RETRY_PART * max(self._taken_rate, RATE_MIN))
        if earlier:
            slot = max(now + RETRY_MIN_S, earlier + apart * holders)
        else:
            slot = self._slot = max(now + RETRY_MIN_S, self._slot + apart)
        return min(slot, now + RETRY_MAX_S)

    # Each tick

    @property
    def writes_per_s(self) -> float:
        """All that come, whatever becomes of them; counted while not calm."""
        return sum(self._rates) + self._passed_rate

    def tick(self, now: float, delay_ms: float, queued: float = 0.0) -> None:
        """``delay_ms``: how long what comes now will wait. ``queued``: how many writes to other
        shards wait before it.
        """
        ticks = (now - self._ticked) / TICK_S
        self._ticked = now
        self._count(ticks * TICK_S)
        self._step(delay_ms, ticks)
        self._recent.append(delay_ms)
        lasting_ms = min(self._recent)
        # As many wait as come in the time that each waits.
        queued += self.writes_per_s * lasting_ms / 1000
        excess = min(lasting_ms / TARGET_MS, EXCESS_MAX)
        self._control(excess, min(ticks, TICKS_MAX), is_short=queued < QUEUE_MIN)
        self._excess = excess
        self._share_out()
        self.is_calm = not (self._steps or self.share or self.pace)

    def _count(self, elapsed_s: float) -> None:
        """The rates, from what has come since the last tick."""
        if elapsed_s <= 0:
            return
        taken = sum(self._came) + self._passed - self._refused
        self._taken_rate = _smooth(self._taken_rate, taken / elapsed_s)
        self._passed_rate = _smooth(self._passed_rate, self._passed / elapsed_s)
        self._rates = [
            _smooth(rate, came / elapsed_s)
            for rate, came in zip(self._rates, self._came, strict=True)
        ]
        self._came = [0] * BANDS
        self._passed = self._refused = 0

    def _step(self, delay_ms: float, ticks: float) -> None:
        if delay_ms >= TARGET_MS:
            # Passes may be longer than a tick. A process that was stopped makes one step.
            step = max(1, int(min(ticks, TICKS_MAX))) if self._steps else 1
            self._steps = min(self._steps + step, STEPS_MAX)
        elif delay_ms < TARGET_MS / 2:
            self._steps = max(self._steps - STEPS_BACK, 0)

    def _control(self, excess: float, ticks: float, *, is_short: bool) -> None:
        fades = excess < 0.5
        if self.pace or self._steps >= PACE_AT:
            step = PACE_INTEGRAL * ticks * (excess - 1.0)
            faded = self.pace * FADE if fades else self.pace + step
            self.pace = _bounded(faded, PACE_FAINT, 1.0)
        if self.share or self._steps >= REFUSE_AT:
            step = INTEGRAL * ticks * (excess - 1.0) + PROPORTIONAL * (excess - self._excess)
            faded = self.share * FADE if fades or is_short else self.share + step
            self.share = _bounded(faded, FAINT, SHARE_MAX)

    def _share_out(self) -> None:
        """From the lowest band up, until ``share`` of all that comes is refused."""
        self._shares = [0.0] * BANDS
        missing = self.share * self.writes_per_s
        for band, rate in enumerate(self._rates):
            if missing <= 0:
                break
            if band == TOP_BAND and self._excess < TOP_EXCESS:
                break
            self._shares[band] = min(missing / rate, SHARE_MAX) if rate else SHARE_MAX
            missing -= self._shares[band] * rate


def _smooth(before: float, now: float) -> float:
    return before + SMOOTHING * (now - before)


def _bounded(value: float, faint: float, most: float) -> float:
    return 0.0 if value < faint else min(value, most)
