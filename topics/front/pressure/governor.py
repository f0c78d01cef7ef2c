"""Governor: the control law of pressure for one shard, as a front sees it (decision 0030). Pure.

    delay ms, each tick      how long a write of now waits: in the loop, in the ring, in the shard
    -> late                  ticks above TARGET_MS, and back
    -> pauses of streams, of low bands longer ones
    -> share                 0..1: the part of all writes that is refused, low bands first

``share`` follows the lowest delay of the last ticks by a proportional and an integral part: a burst
or a stopped process does not move it. Nothing is refused while the queue is short: a few clients
that wait for a slow machine would not get anything sooner.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from topics.engine.priority import BANDS, TOP_BAND

TICK_S: Final = 0.05
TARGET_MS: Final = 10.0
RECENT: Final = 4  # ticks; the lowest delay of them counts
COALESCE_AT, PACE_AT, REFUSE_AT, LATE_MAX = 2.0, 4.0, 10.0, 20.0  # ticks
LATE_BACK: Final = 2.0  # for each tick with less than half of TARGET_MS
TICKS_MAX: Final = 4.0  # that one long tick counts for
SHARE_MAX: Final = 0.95  # of any band: some of each always get through
TOP_EXCESS: Final = 2.0  # times TARGET_MS; below, the top band is not refused
EXCESS_MAX: Final = 4.0  # times TARGET_MS; what lies above says no more
QUEUE_MIN: Final = 16  # writes that wait at once; fewer are no overload
INTEGRAL, PROPORTIONAL = 0.006, 0.1  # of the excess, and of its change
FADE: Final = 0.8  # for each tick with less than half of TARGET_MS
SHARE_MIN: Final = 0.001  # less is nothing
SMOOTHING: Final = 0.3  # of the rates
COALESCE_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
PAUSE_WEIGHTS: Final = (1.0, 0.75, 0.5, 0.25, 0.0)  # by band


class Governor:
    """Pressure on one shard. ``is_calm``: nothing is late, and no write need be counted."""

    def __init__(self, now: float) -> None:
        self.is_calm = True
        self.share = self.taken_per_s = 0.0
        self._late = self._excess = 0.0
        self._recent = deque([0.0] * RECENT, RECENT)
        self._ticked = now
        self._came, self._refused = [0] * BANDS, 0  # in this tick
        self._rates = [0.0] * BANDS  # a second
        self._shares = [0.0] * BANDS  # of each band, to be refused
        self._debts = [0.0] * BANDS

    @property
    def writes_per_s(self) -> float:
        """All that come, whatever becomes of them; counted while not calm."""
        return sum(self._rates)

    def pause_s(self, band: int) -> float:
        """How much later than usual the next page of a stream is asked for."""
        if self._late < COALESCE_AT:
            return 0.0
        pace = (self._late - PACE_AT) / (LATE_MAX - PACE_AT)
        return max(COALESCE_S, PAUSE_MAX_S * pace * PAUSE_WEIGHTS[band])

    def admits(self, band: int) -> bool:
        """Whether a write of this band may go on; each is counted. `refuse` follows if it ends."""
        self._came[band] += 1
        debt = self._debts[band] + self._shares[band]
        self._debts[band] = debt % 1.0
        return debt < 1.0

    def refuse(self) -> None:
        """A write was refused."""
        self._refused += 1

    def tick(self, now: float, delay_ms: float, others_per_s: float = 0.0) -> None:
        """``delay_ms``: how long what comes now will wait, and ``others_per_s`` writes to other
        shards with it.
        """
        elapsed_s, self._ticked = now - self._ticked, now
        ticks = min(elapsed_s / TICK_S, TICKS_MAX)
        self._measure(elapsed_s)
        if delay_ms >= TARGET_MS:
            # Passes may be longer than a tick. A process that was stopped counts once.
            self._late = min(self._late + (max(ticks, 1.0) if self._late else 1.0), LATE_MAX)
        elif delay_ms < TARGET_MS / 2:
            self._late = max(self._late - LATE_BACK, 0.0)
        self._recent.append(delay_ms)
        lasting_ms = min(self._recent)
        excess = min(lasting_ms / TARGET_MS, EXCESS_MAX)
        # As many wait as come in the time that each waits.
        is_short = (self.writes_per_s + others_per_s) * lasting_ms / 1000 < QUEUE_MIN
        self._control(excess, ticks, is_short=is_short)
        self._excess = excess
        self._share_out()
        self.is_calm = not (self._late or self.share)

    def _measure(self, elapsed_s: float) -> None:
        if elapsed_s > 0:
            taken = (sum(self._came) - self._refused) / elapsed_s
            self.taken_per_s += SMOOTHING * (taken - self.taken_per_s)
            for band, came in enumerate(self._came):
                self._rates[band] += SMOOTHING * (came / elapsed_s - self._rates[band])
        self._came, self._refused = [0] * BANDS, 0

    def _control(self, excess: float, ticks: float, *, is_short: bool) -> None:
        if self.share or self._late >= REFUSE_AT:
            step = INTEGRAL * ticks * (excess - 1.0) + PROPORTIONAL * (excess - self._excess)
            share = self.share * FADE if excess < 0.5 or is_short else self.share + step
            self.share = min(share, SHARE_MAX) if share >= SHARE_MIN else 0.0

    def _share_out(self) -> None:
        """From the lowest band up, until ``share`` of all that comes is refused."""
        self._shares = [0.0] * BANDS
        missing = self.share * self.writes_per_s
        for band, rate in enumerate(self._rates):
            if missing <= 0 or (band == TOP_BAND and self._excess < TOP_EXCESS):
                break
            self._shares[band] = min(missing / rate, SHARE_MAX) if rate else SHARE_MAX
            missing -= self._shares[band] * rate
