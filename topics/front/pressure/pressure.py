"""Pressure of one front: how late it and its shards are, and what follows for writes and streams
(decision 0030).

``is_calm`` is all that a write looks at while nothing is wrong. A refused write is told a time of
its own, as far from the next as the server needs, and is let in then:

    refused --promise--> due at its time --a write of the same key to the same topic--> let in
                                    '--LIFE_S later-------------------------------> lapsed

A promise belongs to a key and a topic; whichever write of theirs would be refused from its time on
is let in. The next one for the same stands behind the last: clients that do not wait delay
themselves. The answer to a refusal is held back a moment, so that who comes back at once cannot
spend on refusals what they save.
"""

from __future__ import annotations

import heapq
import logging
import math
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, TypeAlias

import msgspec
import trio

from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import NEW_BAND
from topics.errors import Throttled
from topics.formats.buffers import Buffer
from topics.front.answers import Answer
from topics.front.pressure.governor import TICK_S, Governor
from topics.front.pressure.turns import Turns
from topics.front.request import Body, Request

LOG = logging.getLogger("topics.front")

IDLE_TICK_S: Final = 0.25  # while the loop has little to do
IDLE_LAG_MS: Final = 1.0
PARKED_PART: Final = 0.25  # of the time that appends are parked counts as lag of the loop
TOLD_EVERY_S: Final = 10.0  # in the log
BANDS_MAX: Final = 65_536  # topics whose bands are known
PROMISES_MAX: Final = 100_000
LIFE_S: Final = 30.0  # of a promise after it was due
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0
RETRY_PART: Final = 0.1  # of what the server can take; the rest is for writes that come anew
RATE_MIN: Final = 20.0  # writes a second, where the server has taken fewer
REFUSAL_HOLD_S: Final = 0.1
# A longer body has cost what a refusal could save, and its opt-out takes long to find.
REFUSABLE_MAX_BYTES: Final = 4 << 20

Holder: TypeAlias = tuple[bytes, str]  # digest of the key, and the topic


class Bands:
    """The bands of topics, as shards tell them with each append. Most topics are in the band of new
    ones: only the others are ``known``, the latest `BANDS_MAX` of them.
    """

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def of(self, topic: str) -> int:
        """The topic's band, as last heard."""
        return self.known.get(topic, NEW_BAND)

    def learn(self, topic: str, band: int) -> None:
        """A shard has told the topic's band."""
        if self.known.get(topic, NEW_BAND) != band:
            self.known.pop(topic, None)
            if band != NEW_BAND:
                if len(self.known) >= BANDS_MAX:
                    del self.known[next(iter(self.known))]
                self.known[topic] = band


class Promises:
    """Times at which writes are let in; `PROMISES_MAX` in all, so that who collects them gets no
    more.
    """

    def __init__(self) -> None:
        self.count = 0
        self._due: dict[Holder, deque[float]] = {}  # rising
        self._lapsing: list[tuple[float, Holder]] = []  # a heap
        self._slot = 0.0  # the last time that was told to a new holder

    def give(self, holder: Holder, now: float, apart_s: float) -> float:
        """When the holder may come again, ``apart_s`` behind the last new holder. It is promised
        unless that is too far ahead, or there are too many promises.
        """
        dues = self._due.get(holder)
        if dues:  # a line of its own, one of so many
            due = max(now + RETRY_MIN_S, dues[-1] + apart_s * len(self._due))
        else:
            due = self._slot = max(now + RETRY_MIN_S, self._slot + apart_s)
        if due >= now + RETRY_MAX_S:
            return now + RETRY_MAX_S
        if self.count < PROMISES_MAX:
            self._due.setdefault(holder, deque()).append(due)
            heapq.heappush(self._lapsing, (due + LIFE_S, holder))
            self.count += 1
        return due

    def redeem(self, holder: Holder, now: float) -> bool:
        """Use up a promise that is due; False when there is none."""
        dues = self._due.get(holder)
        if dues is None:
            return False
        self._lapse(holder, dues, now)
        if not dues or dues[0] > now:
            return False
        self._pop(holder, dues)
        return True

    def expire(self, now: float) -> None:
        """Forget promises that have lapsed. Call it now and then."""
        while self._lapsing and self._lapsing[0][0] < now:
            _, holder = heapq.heappop(self._lapsing)
            if (dues := self._due.get(holder)) is not None:
                self._lapse(holder, dues, now)

    def _lapse(self, holder: Holder, dues: deque[float], now: float) -> None:
        while dues and dues[0] + LIFE_S < now:
            self._pop(holder, dues)

    def _pop(self, holder: Holder, dues: deque[float]) -> None:
        dues.popleft()
        self.count -= 1
        if not dues:
            del self._due[holder]


class Pressure:
    """The governors of a front. ``delay_ms`` tells how long a message to a shard waits there,
    ``lag`` what the loop takes.
    """

    def __init__(
        self,
        shards: int,
        delay_ms: Callable[[int], float],
        clock: Callable[[], float] = time.monotonic,
        lag: LoopLag | None = None,
    ) -> None:
        self.is_calm = True
        self.bands, self.promises = Bands(), Promises()
        self.refused_count = 0  # writes and streams, since the start
        self._delay_ms, self._clock = delay_ms, clock
        self._lag = LoopLag(clock()) if lag is None else lag
        self._lag_ms = 0.0
        self.turns = Turns(clock, self._lag)
        self.governors = [Governor(clock()) for _ in range(shards)]
        self._is_told = False  # the log: that writes are refused
        self._told_at = -math.inf

    async def run(self) -> None:
        """Measure and govern the loop that this is called in, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.turns.run)
            while True:
                is_idle = self.is_calm and self._lag_ms < IDLE_LAG_MS
                await trio.sleep(IDLE_TICK_S if is_idle else TICK_S)
                self.tick(self._lag.take_ms(self._clock()))

    def tick(self, lag_ms: float) -> None:
        """``lag_ms``: of the loop. What waits for the loop does not wait for its shard yet."""
        now = self._clock()
        self._lag_ms = lag_ms = max(lag_ms, PARKED_PART * self.turns.oldest_ms())
        rates = [governor.writes_per_s for governor in self.governors]
        for shard, governor in enumerate(self.governors):
            delay_ms = self._delay_ms(shard)
            others = sum(rates) - rates[shard] if lag_ms > delay_ms else 0.0
            governor.tick(now, max(lag_ms, delay_ms), others)
        self.is_calm = all(governor.is_calm for governor in self.governors)
        self.promises.expire(now)
        self._tell(now)

    def _tell(self, now: float) -> None:
        share = max(governor.share for governor in self.governors)
        if share and not self._is_told and now - self._told_at >= TOLD_EVERY_S:
            self._is_told, self._told_at = True, now
            LOG.warning(
                "under pressure: writes are refused, about %d in 100, loop lag %.0f ms",
                math.ceil(100 * share),
                self._lag_ms,
            )
        elif self.is_calm and self._is_told:
            self._is_told = False
            LOG.info("pressure is over: %d refused since the start", self.refused_count)

    # While not calm

    def refusal_of(self, request: Request, body: Body) -> Throttled | None:
        """Why an append is refused, if it is; its body is freed then."""
        view = body if isinstance(body, Buffer) else body.view
        try:
            self.check_write(request.principal.digest, request.topic, request.shard, view)
        except Throttled as refusal:
            if not isinstance(body, Buffer):
                body.free()
            return refusal
        return None

    def check_write(self, key: bytes, topic: str, shard: int, body: Buffer) -> None:
        """Whether a write may go on now. ``key``: digest of its API key. The body is looked at only
        if the answer would be a refusal. Raises `Throttled`.
        """
        if not self.is_calm:
            may_not = partial(may_not_be_refused, body)
            self._check(self.governors[shard], (key, topic), self.bands.of(topic), may_not)

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
            self._check(governor, (key, f"/{name}"), band, lambda: False)

    def _check(
        self, governor: Governor, holder: Holder, band: int, may_not: Callable[[], bool]
    ) -> None:
        if governor.admits(band):
            return
        now = self._clock()
        # Only now: a write that gets through anyway leaves the promise to those it was made to.
        if self.promises.redeem(holder, now) or may_not():
            return
        governor.refuse()
        self.refused_count += 1
        apart_s = 1.0 / (RETRY_PART * max(governor.taken_per_s, RATE_MIN))
        due = self.promises.give(holder, now, apart_s)
        raise Throttled(
            "the server is under pressure: try again later",
            retry_after_ms=math.ceil(round((due - now) * 1000, 3)),  # not 1001 for a second
        )

    async def park_append(self, band: int, body: Body) -> float:
        """Wait while appends of higher bands go first. Returns the milliseconds of the wait."""
        try:
            return await self.turns.park(band)
        except BaseException:  # the client is gone
            if not isinstance(body, Buffer):
                body.free()
            raise

    def pause_s(self, shard: int, band: int) -> float:
        """How much later than usual the next page of a stream is asked for; 0 while calm."""
        return self.governors[shard].pause_s(band)


async def hold_back(refusal: Throttled) -> Answer:
    """Refuse, a moment later."""
    await trio.sleep(REFUSAL_HOLD_S)
    raise refusal


def may_not_be_refused(body: Buffer) -> bool:
    """Whether an append of this body is let in whatever the pressure."""
    return len(body) > REFUSABLE_MAX_BYTES or opts_out(body)


# One of them is there, however the name is spelled: its letters can be escaped as \uXXXX only.
_SIGNS = (b"backpressure", b"\\u")


class _OptOut(msgspec.Struct):
    disable_backpressure: bool = False


_opt_out = msgspec.json.Decoder(_OptOut)


def opts_out(body: Buffer) -> bool:
    """Whether the write may not be refused under pressure. A body that cannot be read does not opt
    out: it is refused in one way or the other.
    """
    text = bytes(body)
    if not any(sign in text for sign in _SIGNS):
        return False
    try:
        return _opt_out.decode(text).disable_backpressure
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
