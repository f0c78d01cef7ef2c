"""Pressure of one front: how late it and its shards are, and what follows for writes and streams
(decision 0030).

    the loop's passes, the shards' delays --> a `Governor` for each shard --> refusals, pauses
    appends of a pass that has become long --> `Turns` --> by band

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
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeAlias

import msgspec
import trio

from topics.actors.link.beat import wait_beat
from topics.actors.link.event_loop import LoopLag
from topics.engine.priority import BANDS, NEW_BAND, TOP_BAND, Queues
from topics.errors import Throttled
from topics.formats.buffers import Buffer
from topics.front.answers import Answer
from topics.front.pressure.governor import TICK_S, Governor
from topics.front.request import Body, Request

LOG = logging.getLogger("topics.front")

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

PASS_S: Final = 0.004  # a pass that takes longer is long
ACTIVE_S: Final = 1.0  # for so long a band is active after an append
RELEASE_MIN, RELEASE_MAX = 8, 256  # appends of one pass
GROWTH, CUT = 1.1, 0.8  # of what a pass releases, when it was short or long

Holder: TypeAlias = tuple[bytes, str]  # digest of the key, and the topic
Parked: TypeAlias = tuple[Callable[[float], object], float]  # and since when


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


class Turns:
    """Which appends a long pass of the loop does first.

        append --a short pass, or no higher band is active--> goes on
           '--> parked, by band --> run, once a pass: as many as fit into one --> goes on

    Within a pass every task that can run runs, in any order: what comes meanwhile waits for the
    whole pass, whatever its priority. So while a higher band is active, appends of lower ones leave
    a pass that has become long, and passes stay short. The top band is never parked.
    ``lag`` knows when the pass under way began.
    """

    def __init__(self, clock: Callable[[], float], lag: LoopLag) -> None:
        self._clock, self._lag = clock, lag
        self._seen = [-math.inf] * BANDS  # when each band had its last append
        self._parked: Queues[Parked] = Queues()
        self._has_parked = trio.Event()
        self.waiting = 0
        self.batch: AbstractContextManager[object] = nullcontext()  # around what goes in one pass

    def may_go(self, band: int) -> bool:
        """Whether an append of this band goes on in this pass; `park` it otherwise."""
        began = self._lag.pass_began
        self._seen[band] = began
        if band == TOP_BAND or not (self.waiting or self._clock() - began > PASS_S):
            return True
        return began - max(self._seen[band + 1 :]) > ACTIVE_S

    def park(self, band: int, go: Callable[[float], object]) -> None:
        """Call ``go`` in a later pass, with the milliseconds of the wait."""
        self._parked.queues[band].append((go, self._clock()))
        self.waiting += 1
        self._has_parked.set()

    def oldest_ms(self) -> float:
        """How long the append that came first has waited; 0 when none waits."""
        now = self._clock()
        return max((now - queue[0][1] for queue in self._parked.queues if queue), default=0.0) * 1e3

    async def run(self) -> None:
        """Give turns until cancelled."""
        release = float(RELEASE_MIN)
        while True:
            if not self.waiting:
                self._has_parked = trio.Event()
                await self._has_parked.wait()
            began = self._clock()
            with self.batch:
                self._give(int(release))
            await trio.lowlevel.checkpoint()  # until the next pass
            factor = CUT if self._clock() - began > PASS_S else GROWTH
            release = min(max(release * factor, RELEASE_MIN), RELEASE_MAX)

    def _give(self, count: int) -> None:
        for _ in range(min(count, self.waiting)):
            band = self._parked.next()
            assert band is not None, "an append waits"
            self._parked.spend(band)
            go, since = self._parked.queues[band].popleft()
            self.waiting -= 1
            try:
                go((self._clock() - since) * 1000)
            except Exception:  # of one append
                LOG.exception("unexpected server error: append")


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
                if is_idle:
                    await wait_beat()
                else:
                    await trio.sleep(TICK_S)
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
            self._check(self.governors[shard], (key, topic), self.bands.of(topic), body)

    def check_stream(self, key: bytes, name: str, topics: list[str], shard: int | None) -> None:
        """Whether a stream of these topics may begin, which counts as a write to the one that goes
        first. ``name`` says which stream it is, ``shard`` None: any shard's. Raises `Throttled`.
        """
        if not self.is_calm:
            # What all shards share is the loop's.
            least = min(self.governors, key=lambda governor: governor.share)
            governor = least if shard is None else self.governors[shard]
            band = max(map(self.bands.of, topics or [""]))
            self._check(governor, (key, f"/{name}"), band, b"")

    def _check(self, governor: Governor, holder: Holder, band: int, body: Buffer) -> None:
        if governor.admits(band):
            return
        now = self._clock()
        # Only now: a write that gets through anyway leaves the promise to those it was made to.
        if self.promises.redeem(holder, now) or len(body) > REFUSABLE_MAX_BYTES or opts_out(body):
            return
        governor.refuse()
        self.refused_count += 1
        apart_s = 1.0 / (RETRY_PART * max(governor.taken_per_s, RATE_MIN))
        due = self.promises.give(holder, now, apart_s)
        raise Throttled(
            "the server is under pressure: try again later",
            retry_after_ms=math.ceil(round((due - now) * 1000, 3)),  # not 1001 for a second
        )

    def pause_s(self, shard: int, band: int) -> float:
        """How much later than usual the next page of a stream is asked for."""
        return 0.0 if self.is_calm else self.governors[shard].pause_s(band)


async def hold_back(refusal: Throttled) -> Answer:
    """Refuse, a moment later."""
    await trio.sleep(REFUSAL_HOLD_S)
    raise refusal


class _OptOut(msgspec.Struct):
    disable_backpressure: bool = False


_opt_out = msgspec.json.Decoder(_OptOut)


def opts_out(body: Buffer) -> bool:
    """Whether the write may not be refused under pressure. A body that cannot be read does not opt
    out: it is refused in one way or the other.
    """
    text = bytes(body)
    # However the name is spelled: its letters can be escaped as \\uXXXX only.
    if b"backpressure" not in text and b"\\u" not in text:
        return False
    try:
        return _opt_out.decode(text).disable_backpressure
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return False
