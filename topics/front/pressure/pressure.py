"""Pressure of one front: measures the delays of the front and its shards, and controls writes and
streams (decision 0030).

    delays of the loop and the shards --> a `Governor` for each shard --> refusals, pauses
    appends in a loop iteration that has become long --> `AppendScheduler` --> released by band

While there is no pressure, a write checks only ``is_unthrottled``. The response to a refused write
contains a time that is reserved for this client. These times are spaced according to the server's
capacity, and a retry at its reserved time is accepted:

    refused --promise--> due at its time --a write of the same key to the same topic--> accepted
                                    '--PROMISE_LIFETIME_S later--------------------> expired

A promise belongs to a key and a topic. When it is due, it admits the next write of this key to this
topic that would otherwise be refused. The next promise for the same key and topic is later than the
last one, so clients that do not wait delay only themselves. The response to a refused write is
delayed by `REFUSAL_HOLD_S`. Without this delay, refusing the writes of a client that retries
immediately could cost as much CPU time as executing them.
"""

from __future__ import annotations

import heapq
import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import msgspec
import structlog
import trio

from topics.actors.link.event_loop import LoopLag
from topics.actors.link.tick import wait_tick
from topics.engine.priority import BANDS, NEW_BAND, TOP_BAND, WeightedQueues
from topics.errors import Throttled
from topics.formats.buffers import Buffer
from topics.front.answers import Answer
from topics.front.pressure.governor import TICK_S, Governor
from topics.front.request import Body, Request

log = structlog.get_logger()

IDLE_LAG_MS: Final = 1.0
# The fraction of the longest parking time of an append that counts as lag of the loop.
PARKED_PART: Final = 0.25
NOTICE_INTERVAL_S: Final = 10.0  # minimum interval between two log messages
BANDS_MAX: Final = 65_536  # maximum number of topics whose bands are stored
PROMISES_MAX: Final = 100_000
PROMISE_LIFETIME_S: Final = 30.0  # lifetime of a promise after it is due
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
RETRY_PART: Final = 0.1  # share of the capacity for retries; the rest is for new writes
RATE_MIN: Final = 20.0  # lower bound of the measured capacity, in writes per second
REFUSAL_HOLD_S: Final = 0.1
# A longer body is never refused: it was already received, so a refusal would save little, and a
# search for the opt-out would take long.
REFUSABLE_MAX_BYTES: Final = 4 << 20

LONG_ITERATION_S: Final = 0.004  # a longer loop iteration counts as long
ACTIVE_S: Final = 1.0  # time for which a band is active after an append
RELEASE_MIN, RELEASE_MAX = 8, 256  # appends that one loop iteration may release
# Factors by which the number of released appends changes after a short and a long iteration.
RELEASE_INCREASE, RELEASE_DECREASE = 1.1, 0.8

Holder: TypeAlias = tuple[bytes, str]  # digest of the key, and the topic
# The function to call, and the time since which it has been waiting.
Parked: TypeAlias = tuple[Callable[[float], object], float]


class Bands:
    """The bands of topics, which shards report with each append.

    Most topics are in the band of new topics. Only topics in a different band are stored in
    ``known``. If there are more than `BANDS_MAX` of them, the oldest entry is evicted.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, topic: str) -> int:
        """Return the topic's band according to the last report."""
        return self.known.get(topic, NEW_BAND)

    def store(self, topic: str, band: int) -> None:
        """Store the band that a shard has reported for the topic."""
        if self.known.get(topic, NEW_BAND) != band:
            self.known.pop(topic, None)
            if band != NEW_BAND:
                if len(self.known) >= BANDS_MAX:
                    del self.known[next(iter(self.known))]
                self.known[topic] = band


class Promises:
    """Times at which refused writes are accepted.

    There are at most `PROMISES_MAX` promises, so that clients cannot use unlimited memory.
    """

    def __init__(self) -> None:
        self.count = 0
        self._due: dict[Holder, deque[float]] = {}  # in ascending order
        self._expirations: list[tuple[float, Holder]] = []  # a heap
        self._slot = 0.0  # the last time that was promised to a new holder

    def promise(self, holder: Holder, now: float, apart_s: float) -> float:
        """Return the time at which the holder may retry.

        For a new holder, it is ``apart_s`` later than the last time that was promised to a new
        holder. The time is not promised if it is too far in the future or if there are too many
        promises.
        """
        dues = self._due.get(holder)
        if dues:  # the holder has its own sequence, with its share of the capacity
            due = max(now + RETRY_MIN_S, dues[-1] + apart_s * len(self._due))
        else:
            due = self._slot = max(now + RETRY_MIN_S, self._slot + apart_s)
        if due >= now + RETRY_MAX_S:
            return now + RETRY_MAX_S
        if self.count < PROMISES_MAX:
            self._due.setdefault(holder, deque()).append(due)
            heapq.heappush(self._expirations, (due + PROMISE_LIFETIME_S, holder))
            self.count += 1
        return due

    def redeem(self, holder: Holder, now: float) -> bool:
        """Use a promise that is due. Return False if the holder has none."""
        dues = self._due.get(holder)
        if dues is None:
            return False
        self._expire_promises(holder, dues, now)
        if not dues or dues[0] > now:
            return False
        self._pop(holder, dues)
        return True

    def expire(self, now: float) -> None:
        """Remove expired promises. Call this periodically."""
        while self._expirations and self._expirations[0][0] < now:
            _, holder = heapq.heappop(self._expirations)
            if (dues := self._due.get(holder)) is not None:
                self._expire_promises(holder, dues, now)

    def _expire_promises(self, holder: Holder, dues: deque[float], now: float) -> None:
        """Remove the promises of a holder that have expired."""
        while dues and dues[0] + PROMISE_LIFETIME_S < now:
            self._pop(holder, dues)

    def _pop(self, holder: Holder, dues: deque[float]) -> None:
        """Remove the oldest promise of a holder."""
        dues.popleft()
        self.count -= 1
        if not dues:
            del self._due[holder]


class AppendScheduler:
    """Defers appends to topics in low bands if a loop iteration becomes long.

        append --a short iteration, or no higher band is active--> continues
           '--> parked, by band --> released, as many per iteration as fit --> continues

    An iteration of the event loop runs all tasks that are ready, in any order. New events wait for
    the end of the iteration, regardless of their priority. So while a higher band is active,
    appends of lower bands leave an iteration that has become long, and iterations stay short. The
    top band is never parked. ``lag`` has the start of the current iteration.
    """

    def __init__(self, clock: Callable[[], float], lag: LoopLag) -> None:
        self._clock, self._lag = clock, lag
        self._seen = [-math.inf] * BANDS  # time of the last append of each band
        self._parked: WeightedQueues[Parked] = WeightedQueues()
        self._has_parked = trio.Event()
        self.waiting = 0
        # Entered around the appends that one iteration releases.
        self.batch: AbstractContextManager[object] = nullcontext()

    def may_continue(self, band: int) -> bool:
        """Return whether an append of this band continues in this iteration.

        Otherwise the caller must call `park`.
        """
        began = self._lag.pass_started
        self._seen[band] = began
        if band == TOP_BAND or not (self.waiting or self._clock() - began > LONG_ITERATION_S):
            return True
        # In a long iteration, continue only if no higher band had an append within `ACTIVE_S`.
        return began - max(self._seen[band + 1 :]) > ACTIVE_S

    def park(self, band: int, resume: Callable[[float], object]) -> None:
        """Call ``resume`` in a later iteration, with the milliseconds of the wait."""
        self._parked.queues[band].append((resume, self._clock()))
        self.waiting += 1
        self._has_parked.set()

    def oldest_ms(self) -> float:
        """Return the milliseconds that the oldest parked append has waited, or 0."""
        now = self._clock()
        return max((now - queue[0][1] for queue in self._parked.queues if queue), default=0.0) * 1e3

    async def run(self) -> None:
        """Release parked appends until cancelled."""
        release = float(RELEASE_MIN)
        while True:
            if not self.waiting:
                self._has_parked = trio.Event()
                await self._has_parked.wait()
            began = self._clock()
            with self.batch:
                self._release(int(release))
            await trio.lowlevel.checkpoint()  # wait for the next iteration
            factor = (
                RELEASE_DECREASE if self._clock() - began > LONG_ITERATION_S else RELEASE_INCREASE
            )
            release = min(max(release * factor, RELEASE_MIN), RELEASE_MAX)

    def _release(self, count: int) -> None:
        """Release up to ``count`` appends in the order of priorities."""
        for _ in range(min(count, self.waiting)):
            band = self._parked.next()
            assert band is not None, "an append waits"
            self._parked.charge(band)
            resume, since = self._parked.queues[band].popleft()
            self.waiting -= 1
            try:
                resume((self._clock() - since) * 1000)
            except Exception:  # the error concerns one append only
                log.exception("request failed", route="append")


class Pressure:
    """The governors of a front.

    ``delay_ms`` returns the time that a new message to a shard will wait there. ``lag`` measures
    the delay of the event loop.
    """

    def __init__(
        self,
        shards: int,
        delay_ms: Callable[[int], float],
        clock: Callable[[], float] = time.monotonic,
        lag: LoopLag | None = None,
    ) -> None:
        self.is_unthrottled = True
        self.bands, self.promises = Bands(), Promises()
        self.refused_count = 0  # refused writes and streams since startup
        self._delay_ms, self._clock = delay_ms, clock
        self._lag = LoopLag(clock()) if lag is None else lag
        self._lag_ms = 0.0
        self.scheduler = AppendScheduler(clock, self._lag)
        self.governors = [Governor(clock()) for _ in range(shards)]
        self._is_reported = False  # true after a log message has reported that writes are refused
        self._reported_at = -math.inf

    async def run(self) -> None:
        """Measure the delays and update the governors at each tick, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.scheduler.run)
            while True:
                # While there is no pressure, the usual ticks suffice.
                is_idle = self.is_unthrottled and self._lag_ms < IDLE_LAG_MS
                if is_idle:
                    await wait_tick()
                else:
                    await trio.sleep(TICK_S)
                self.tick(self._lag.read_mean_ms(self._clock()))

    def tick(self, lag_ms: float) -> None:
        """Update all governors. ``lag_ms`` is the delay of the loop.

        Writes that are waiting for the loop are not in their shard's queue yet. So if the loop is
        the larger delay, the writes to all shards count as one queue.
        """
        now = self._clock()
        self._lag_ms = lag_ms = max(lag_ms, PARKED_PART * self.scheduler.oldest_ms())
        rates = [governor.writes_per_s for governor in self.governors]
        for shard, governor in enumerate(self.governors):
            delay_ms = self._delay_ms(shard)
            others = sum(rates) - rates[shard] if lag_ms > delay_ms else 0.0
            governor.tick(now, max(lag_ms, delay_ms), others)
        self.is_unthrottled = all(governor.is_unthrottled for governor in self.governors)
        self.promises.expire(now)
        self._log_pressure(now)

    def _log_pressure(self, now: float) -> None:
        """Log the start of refusals, and the end of the pressure."""
        share = max(governor.share for governor in self.governors)
        if share and not self._is_reported and now - self._reported_at >= NOTICE_INTERVAL_S:
            self._is_reported, self._reported_at = True, now
            log.warning(
                "writes throttled",
                refused_percent=math.ceil(100 * share),
                loop_lag_ms=round(self._lag_ms),
            )
        elif self.is_unthrottled and self._is_reported:
            self._is_reported = False
            log.info("write throttling ended", refused_count=self.refused_count)

    # The following functions act only under pressure.

    def refusal_of(self, request: Request, body: Body) -> Throttled | None:
        """Return the error if an append is refused, otherwise None.

        The body of a refused append is freed.
        """
        view = body if isinstance(body, Buffer) else body.view
        try:
            self.check_write(request.principal.digest, request.topic, request.shard, view)
        except Throttled as refusal:
            if not isinstance(body, Buffer):
                body.free()
            return refusal
        return None

    def check_write(self, key: bytes, topic: str, shard: int, body: Buffer) -> None:
        """Raise `Throttled` if a write is refused now.

        ``key`` is the digest of the API key. ``body`` is only searched for an opt-out if the write
        would be refused.
        """
        if not self.is_unthrottled:
            self._check(self.governors[shard], (key, topic), self.bands.of(topic), body)

    def check_stream(self, key: bytes, name: str, topics: list[str], shard: int | None) -> None:
        """Raise `Throttled` if a stream of these topics is refused now.

        The start of a stream counts as a write to the topic with the highest priority. ``name``
        identifies the stream. If ``shard`` is None, the topics may belong to any shard.
        """
        if not self.is_unthrottled:
            # The lowest share is caused only by the pressure that all shards have in common: the
            # lag of the event loop.
            least = min(self.governors, key=lambda governor: governor.share)
            governor = least if shard is None else self.governors[shard]
            band = max(map(self.bands.of, topics or [""]))
            self._check(governor, (key, f"/{name}"), band, b"")

    def _check(self, governor: Governor, holder: Holder, band: int, body: Buffer) -> None:
        """Raise `Throttled` with a reserved time, unless the write is admitted or has opted out."""
        if governor.admits(band):
            return
        now = self._clock()
        # Redeem a promise only now: a write that is admitted anyway must not use the promise.
        if self.promises.redeem(holder, now) or len(body) > REFUSABLE_MAX_BYTES or opts_out(body):
            return
        governor.refuse()
        self.refused_count += 1
        # Retries get a fixed part of the measured capacity.
        apart_s = 1.0 / (RETRY_PART * max(governor.taken_per_s, RATE_MIN))
        due = self.promises.promise(holder, now, apart_s)
        raise Throttled(
            "the server is under pressure: try again later",
            # Round first, so that one second is not 1001 ms.
            retry_after_ms=math.ceil(round((due - now) * 1000, 3)),
        )

    def pause_s(self, shard: int, band: int) -> float:
        """Return the seconds by which the next page of a stream is delayed."""
        return 0.0 if self.is_unthrottled else self.governors[shard].pause_s(band)


async def delay_refusal(refusal: Throttled) -> Answer:
    """Raise the refusal after `REFUSAL_HOLD_S`."""
    await trio.sleep(REFUSAL_HOLD_S)
    raise refusal


class _OptOut(msgspec.Struct):
    disable_backpressure: bool = False


_opt_out = msgspec.json.Decoder(_OptOut)


def opts_out(body: Buffer) -> bool:
    """Return whether the write has opted out of refusals under pressure.

    A malformed body does not opt out, because it is refused in any case.
    """
    text = bytes(body)
    # This covers every spelling of the name, because its letters can only be escaped as \\uXXXX.
    if b"backpressure" not in text and b"\\u" not in text:
        return False
    try:
        return _opt_out.decode(text).disable_backpressure
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
