"""A population of writers and one front in simulated time, with loop iterations like those of trio.

A writer sends its next write after the response to the last one. It repeats a refused write after
the requested delay. An impatient writer ignores the delay and sends its next write immediately.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from topics.actors.link.event_loop import LoopLag
from topics.front.pressure.governor import TICK_S, Governor
from topics.front.pressure.pressure import (
    RATE_MIN,
    REFUSAL_HOLD_S,
    RETRY_PART,
    Promises,
)

WRITE_S = 0.0005  # the front can process 2,000 a second
REFUSAL_S = 0.00012
THINK_S = 0.0005


@dataclass(eq=False)
class Writer:
    """One client."""

    band: int = 1
    obeys: bool = True
    whole_seconds: bool = False
    every_s: float = 0.0  # send interval, independent of responses; 0: after each response
    topic: str = "t"
    refusals: int = 0  # of the current write
    stops_at: float = math.inf

    def retry_s(self, due: float, now: float) -> float:
        return math.ceil(due - now) if self.whole_seconds else due - now


@dataclass
class Tally:
    """Counts of accepted and refused writes, and of attempts."""

    taken: Counter[int] = field(default_factory=Counter)  # by band
    refused: Counter[int] = field(default_factory=Counter)
    tries: Counter[int] = field(default_factory=Counter)  # writes by the number of attempts
    lags_ms: list[float] = field(default_factory=list)  # of each tick
    waits_s: list[float] = field(default_factory=list)  # of refused writes that obey

    @property
    def writes(self) -> int:
        return self.taken.total()


class Population:
    """The writers, and the front that serves them. ``tally`` counts from the last `measure` on."""

    def __init__(self, writers: Iterable[Writer], *, governed: bool = True) -> None:
        self.now = 0.0
        self.governor, self.promises = Governor(0.0), Promises()
        self.tally = Tally()
        self._governed = governed
        self._lag = LoopLag(0.0)
        self._ticked = 0.0
        self._number = 0
        self._due: list[tuple[float, int, Writer]] = []
        for number, writer in enumerate(writers):
            self._send(writer, number * 1e-5)

    def measure(self, seconds: float) -> Tally:
        """Run for ``seconds`` and return the tally of this time."""
        self.tally = Tally()
        end = self.now + seconds
        while self.now < end:
            self._pass(end)
        return self.tally

    def _send(self, writer: Writer, at: float) -> None:
        if at < writer.stops_at:
            self._number += 1
            heapq.heappush(self._due, (at, self._number, writer))

    def _pass(self, end: float) -> None:
        if not self._due or self._due[0][0] > self.now:
            until = self._ticked + TICK_S
            self.now = max(self.now, min(until, end, self._due[0][0] if self._due else end))
        self._lag.pass_started = self.now
        ready = []
        while self._due and self._due[0][0] <= self.now:
            ready.append(heapq.heappop(self._due)[2])
        for writer in ready:
            self._serve(writer)
        self.now += 1e-5
        if self.now - self._ticked >= TICK_S:
            self._tick()
        self._lag.end_pass(self.now)

    def _tick(self) -> None:
        self._ticked = self.now
        lag_ms = self._lag.read_mean_ms(self.now)
        self.tally.lags_ms.append(lag_ms)
        self.governor.tick(self.now, lag_ms)
        self.promises.expire(self.now)

    def _serve(self, writer: Writer) -> None:
        sent_at = self.now
        due = self._refused_until(writer) if self._governed else None
        if due is None:
            self.now += WRITE_S
            self.tally.taken[writer.band] += 1
            self.tally.tries[writer.refusals + 1] += 1
            writer.refusals = 0
        else:
            self.now += REFUSAL_S
            self.tally.refused[writer.band] += 1
            writer.refusals += 1
        hold_s = 0.0 if due is None else REFUSAL_HOLD_S
        if writer.every_s:
            self._send(writer, sent_at + writer.every_s)
        elif due is None or not writer.obeys:
            self._send(writer, self.now + hold_s + THINK_S)
        else:
            self.tally.waits_s.append(writer.retry_s(due, sent_at))
            self._send(writer, self.now + hold_s + writer.retry_s(due, sent_at))

    def _refused_until(self, writer: Writer) -> float | None:
        governor, holder = self.governor, (b"", writer.topic)
        if governor.is_unthrottled or governor.admits(writer.band):
            return None
        if self.promises.redeem(holder, self.now):
            return None
        governor.refuse()
        apart_s = 1 / (RETRY_PART * max(governor.taken_per_s, RATE_MIN))
        return self.promises.promise(holder, self.now, apart_s)
