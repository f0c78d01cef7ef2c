"""Live streams of a front: limits, ticks, drain and deferred writes (decision 0010).

    shards --jobs--> work streams (work_subscriptions.py, work_stream.py)
    shards --> Feeds (feeds.py) --page--> every stream that stands where it
                   |                 begins (topic_streams.py)
                   '-> the newest pages are kept for those a little below (pages.py)

One task ticks all streams: heartbeats, slow readers, readers that wait for their shard. Another one
runs deferred writes, so that what one batch of messages causes for a client is one write. No call
of a stream may end another stream: streams are called with `Isolated.attempt` only.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from typing import Protocol

import trio

from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.engine.access import Principal
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    FeedEndedParams,
    FeedPageParams,
    WorkEndedParams,
    WorkJobsParams,
)
from topics.front.errors import status_of
from topics.front.held_memory import HeldMemory
from topics.front.keys import Keys
from topics.front.limits import FrontSlots
from topics.front.live.feeds import Feeds
from topics.front.live.later import Later
from topics.front.live.message_budget import MessageBudget
from topics.front.live.subscriptions import Isolated
from topics.front.live.work_subscriptions import WorkSubscriptions
from topics.front.pressure.pressure import Pressure

LARGEST_MESSAGES_MAX = 2  # held for all WebSockets together, counted in the longest allowed
TURNS_MAX = 16  # long writes and ends of streams in a pass of the loop: some milliseconds
TICK_S = 0.25  # the grain of heartbeats and timeouts


class StreamKind(IntEnum):
    """Indexes of the row of each kind in ``topics_streams``."""

    WATCH = 0
    WORK = 1
    WEB_SOCKET = 2


class LiveStream(Isolated, Protocol):
    """What the front needs of a stream."""

    principal: Principal
    has_own_slot: bool  # which it took before it began, and gives back itself
    kind: StreamKind

    def tick(self, now: float) -> None:
        """Send a heartbeat, or end a stream whose client is too slow."""

    def drain(self) -> None:
        """Tell the client that the server shuts down."""

    def fail(self, code: int, error: str) -> None:
        """Tell why, if the socket takes it, and end."""


class Live:
    """All live streams of a front, and what they share."""

    def __init__(
        self,
        shards: Shards,
        settings: Settings,
        slots: FrontSlots,
        pressure: Pressure,
        keys: Keys | None = None,
        held: HeldMemory | None = None,
    ) -> None:
        self.held = HeldMemory() if held is None else held
        self.shards, self.slots, self.pressure = shards, slots, pressure
        self.keys = Keys() if keys is None else keys
        self.now = time.monotonic()  # of the last tick
        self.later = Later()
        self.feeds = Feeds(shards, pressure, self.later, self.now)
        self.work = WorkSubscriptions(shards, slots.streams, pressure, self.later)
        self.messages = MessageBudget(LARGEST_MESSAGES_MAX * settings.max_body_bytes)
        self.streams: set[LiveStream] = set()
        self.stream_counts = [0] * len(StreamKind)
        self.draining = False
        self.nursery: trio.Nursery
        self._deferred: list[tuple[LiveStream, Callable[[], None]]] = []
        self._has_deferred = trio.Event()
        self._turns = trio.CapacityLimiter(TURNS_MAX)
        shards.listen(self)

    async def run(self) -> None:
        """Tick until cancelled."""
        async with trio.open_nursery() as self.nursery:
            self.nursery.start_soon(self._run_deferred)
            self.nursery.start_soon(self.later.run)
            while True:
                await trio.sleep(TICK_S)
                self._tick()

    # Not in the loops of the tasks, whose variables would hold a stream that has ended.

    def _tick(self) -> None:
        self.now = now = time.monotonic()
        for stream in list(self.streams):
            stream.attempt(stream.tick, now)
        self.feeds.tick(now)

    def _make_deferred(self) -> None:
        deferred, self._deferred = self._deferred, []
        for stream, call in deferred:
            stream.attempt(call)

    def check_room(self, principal: Principal, leaving: LiveStream | None = None) -> None:
        """Check the limits for one more stream; `hold_slot` follows before its task waits for
        anything. ``leaving`` is a stream that it replaces. Raises `Throttled` (§11).
        """
        replaced = 0 if leaving is None or leaving.ended else 1
        self.slots.streams.check(principal, leaving=replaced)

    def hold_slot(self, principal: Principal) -> Callable[[], None]:
        """Take the slot that `check_room` has found: a slow client may take the head of its stream
        late. What is returned gives it back; call it when the stream begins, or if it never will.
        """
        self.slots.streams.add(principal)
        return partial(self.slots.streams.release, principal)

    def add(self, stream: LiveStream) -> None:
        """A stream begins. One that begins during the drain, or whose key has changed since its
        request was admitted, is told so at once.
        """
        self.streams.add(stream)
        self.stream_counts[stream.kind] += 1
        if not stream.has_own_slot:
            self.slots.streams.add(stream.principal)
        if self.draining:
            stream.drain()
        elif (failure := self.keys.refusal(stream.principal)) is not None:
            stream.fail(status_of(failure), failure.message)

    def remove(self, stream: LiveStream) -> None:
        """A stream has ended."""
        if stream in self.streams:
            self.streams.remove(stream)
            self.stream_counts[stream.kind] -= 1
            if not stream.has_own_slot:
                self.slots.streams.release(stream.principal)

    def drain(self) -> None:
        """The server shuts down: tell all streams, and those that still begin."""
        self.draining = True
        for stream in list(self.streams):
            stream.attempt(stream.drain)

    def end_refused(self) -> None:
        """The keys have changed: end the streams whose keys are gone or have other rights."""
        for stream in list(self.streams):
            if (failure := self.keys.refusal(stream.principal)) is not None:
                stream.attempt(stream.fail, status_of(failure), failure.message)

    async def turn(self) -> None:
        """Wait for a pass of the loop in which few streams do what takes long."""
        async with self._turns:
            pass

    def defer(self, stream: LiveStream, call: Callable[[], None]) -> None:
        """Call it when the loop has handled what it is handling: one write for one batch."""
        self._deferred.append((stream, call))
        self._has_deferred.set()

    # What shards say: as `Listener`

    def opened(self, shard: int) -> None:
        """As `Listener.opened`."""
        self.feeds.opened(shard)

    def closed(self, shard: int) -> None:
        """As `Listener.closed`."""
        self.feeds.closed(shard)
        self.work.closed(shard)

    def page(self, shard: int, params: FeedPageParams, records: Buffer) -> None:
        """As `Listener.page`."""
        self.feeds.page(shard, params, records)

    def feed_ended(self, shard: int, params: FeedEndedParams) -> None:
        """As `Listener.feed_ended`."""
        self.feeds.feed_ended(shard, params)

    def jobs(self, shard: int, params: WorkJobsParams, jobs: Buffer) -> None:
        """As `Listener.jobs`."""
        self.work.jobs(shard, params, jobs)

    def work_ended(self, shard: int, params: WorkEndedParams) -> None:
        """As `Listener.work_ended`."""
        self.work.work_ended(shard, params)

    async def _run_deferred(self) -> None:
        while True:
            await self._has_deferred.wait()
            self._has_deferred = trio.Event()
            self._make_deferred()
