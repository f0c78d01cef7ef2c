"""Governor: the overload controller for one shard, as a front sees it (decision 0030).

    delay ms, each tick      expected wait of a new write in the loop, the ring and the shard
    -> late                  increases per tick above TARGET_MS, decreases below TARGET_MS / 2
    -> stream pauses         derived from late; longer for low bands
    -> share                 fraction of all writes to refuse, 0 to 1, from low bands first

A PI controller sets ``share`` from the lowest delay of the last ticks, so that a short burst or a
stopped process does not change it. No write is refused while the queue is short, because refusals
would not help a few clients that wait for a slow machine. The governor uses no clocks and no tasks.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from topics.engine.priority import BANDS, TOP_BAND

TICK_S: Final = 0.05
TARGET_MS: Final = 10.0
RECENT: Final = 4  # number of last ticks of which the controller uses the lowest delay
COALESCE_AT, PACE_AT, REFUSE_AT, LATE_MAX = 2.0, 4.0, 10.0, 20.0  # values of ``late``
LATE_RECOVERY: Final = 2.0  # subtracted per tick whose delay is below TARGET_MS / 2
TICKS_MAX: Final = 4.0  # a long tick counts as at most this number of ticks
SHARE_MAX: Final = 0.95  # maximum refused fraction of a band, so that each band makes progress
TOP_BAND_EXCESS: Final = 2.0  # multiple of TARGET_MS below which the top band is not refused
EXCESS_MAX: Final = 4.0  # multiple of TARGET_MS at which the excess is capped
QUEUE_MIN: Final = 16  # fewer waiting writes are not an overload
INTEGRAL, PROPORTIONAL = 0.006, 0.1  # controller gains for the excess and for its change
SHARE_DECREASE: Final = 0.8  # factor applied per tick whose delay is below TARGET_MS / 2
SHARE_MIN: Final = 0.001  # smaller shares count as 0
SMOOTHING: Final = 0.3  # weight of the newest value in the moving averages of the rates
COALESCE_S: Final = 0.02
PAUSE_MAX_S: Final = 1.0
PAUSE_WEIGHTS: Final = (1.0, 0.75, 0.5, 0.25, 0.0)  # by band


class Governor:
    """The pressure on one shard.

    ``is_unthrottled`` is true if writes are neither late nor refused. The caller need not count
    writes then.
    """

    def __init__(self, now: float) -> None:
        self.is_unthrottled = True
        self.share = self.taken_per_s = 0.0
        self._late = self._excess = 0.0
        self._recent = deque([0.0] * RECENT, RECENT)
        self._ticked = now
        # This tick's writes by band, including refused ones, and the number of refused writes.
        self._arrived, self._refused = [0] * BANDS, 0
        self._rates = [0.0] * BANDS  # writes per second, by band
        self._shares = [0.0] * BANDS  # refused fraction of the writes of each band
        self._debts = [0.0] * BANDS  # accumulated fractions of writes to refuse, by band

    @property
    def writes_per_s(self) -> float:
        """The rate of all counted writes, including refused ones."""
        return sum(self._rates)

    def pause_s(self, band: int) -> float:
        """Return the seconds by which the next page of a stream is delayed."""
        if self._late < COALESCE_AT:
            return 0.0
        pace = (self._late - PACE_AT) / (LATE_MAX - PACE_AT)
        return max(COALESCE_S, PAUSE_MAX_S * pace * PAUSE_WEIGHTS[band])

    def admits(self, band: int) -> bool:
        """Count a write of the band, and return whether it is admitted.

        The caller must call `refuse` if the write is refused.
        """
        self._arrived[band] += 1
        # Spread refusals evenly: each write adds the refused fraction of its band to a debt, and is
        # refused if the debt reaches 1.
        debt = self._debts[band] + self._shares[band]
        self._debts[band] = debt % 1.0
        return debt < 1.0

    def refuse(self) -> None:
        """Count a refused write."""
        self._refused += 1

    def tick(self, now: float, delay_ms: float, others_per_s: float = 0.0) -> None:
        """Update the controller.

        ``delay_ms`` is the time that a new write will wait. ``others_per_s`` is the rate of writes
        to other shards that wait in the same queue.
        """
        elapsed_s, self._ticked = now - self._ticked, now
        ticks = min(elapsed_s / TICK_S, TICKS_MAX)
        self._measure(elapsed_s)
        if delay_ms >= TARGET_MS:
            # A long loop iteration counts as several ticks. If no tick was late before it, it
            # counts as one tick, because the process may only have been stopped.
            self._late = min(self._late + (max(ticks, 1.0) if self._late else 1.0), LATE_MAX)
        elif delay_ms < TARGET_MS / 2:
            self._late = max(self._late - LATE_RECOVERY, 0.0)
        self._recent.append(delay_ms)
        lasting_ms = min(self._recent)
        excess = min(lasting_ms / TARGET_MS, EXCESS_MAX)
        # Little's law: the queue length is the arrival rate times the wait.
        is_short = (self.writes_per_s + others_per_s) * lasting_ms / 1000 < QUEUE_MIN
        self._control(excess, ticks, is_short=is_short)
        self._excess = excess
        self._share_out()
        self.is_unthrottled = not (self._late or self.share)

    def _measure(self, elapsed_s: float) -> None:
        """Update the rates with the writes of this tick."""
        if elapsed_s > 0:
            taken = (sum(self._arrived) - self._refused) / elapsed_s
            self.taken_per_s += SMOOTHING * (taken - self.taken_per_s)
            for band, count in enumerate(self._arrived):
                self._rates[band] += SMOOTHING * (count / elapsed_s - self._rates[band])
        self._arrived, self._refused = [0] * BANDS, 0

    def _control(self, excess: float, ticks: float, *, is_short: bool) -> None:
        """Update ``share`` with the excess and its change, or decrease it."""
        if self.share or self._late >= REFUSE_AT:
            step = INTEGRAL * ticks * (excess - 1.0) + PROPORTIONAL * (excess - self._excess)
            share = self.share * SHARE_DECREASE if excess < 0.5 or is_short else self.share + step
            self.share = min(share, SHARE_MAX) if share >= SHARE_MIN else 0.0

    def _share_out(self) -> None:
        """Distribute ``share`` over the bands, from the lowest band up."""
        self._shares = [0.0] * BANDS
        missing = self.share * self.writes_per_s
        for band, rate in enumerate(self._rates):
            if missing <= 0 or (band == TOP_BAND and self._excess < TOP_BAND_EXCESS):
                break
            self._shares[band] = min(missing / rate, SHARE_MAX) if rate else SHARE_MAX
            missing -= self._shares[band] * rate
