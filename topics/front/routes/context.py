"""What the operations of all routes work with, and the one way in which they ask a shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic_ns
from typing import Generic

import trio

from topics.actors.link.board import Board
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.errors import TopicsError
from topics.formats.api.limits import Limits, limits_of
from topics.formats.wire.calls import NoResult
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer, shard_answer
from topics.front.dispatch import Pending, Then
from topics.front.drain import Drain
from topics.front.live.live import Live
from topics.front.live.watches import Watches
from topics.front.pressure.pressure import Pressure
from topics.front.request import Body, Request
from topics.front.routes.backup_stream import Backups

METRIC_READS_MAX = 4  # at once, by one front


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The parts of one front."""

    shards: Shards
    settings: Settings
    limits: Limits
    drain: Drain
    live: Live
    pressure: Pressure
    watches: Watches
    board: Board
    metric_reads: trio.CapacityLimiter
    backups: Backups
    started_ns: int = field(default_factory=monotonic_ns)

    @classmethod
    def of(
        cls, shards: Shards, settings: Settings, drain: Drain, live: Live, board: Board
    ) -> RouteContext:
        """The context of a front, with what the routes keep themselves."""
        return cls(
            shards=shards,
            settings=settings,
            limits=limits_of(settings),
            drain=drain,
            live=live,
            pressure=live.pressure,
            watches=Watches(live),
            board=board,
            metric_reads=trio.CapacityLimiter(METRIC_READS_MAX),
            backups=Backups(),
        )

    def ask(
        self,
        request: Request,
        call: Call[P, R],
        params: P,
        body: Body,
        then: Then,
        answer: Callable[[Reply[R]], Answer] = shard_answer,
    ) -> Pending | None:
        """Ask the shard of the request's topic; ``answer`` makes an answer of what it says."""

        def answered(reply: Reply[R] | TopicsError) -> None:
            then(reply if isinstance(reply, TopicsError) else answer(reply))

        return self.shards.call(request.shard, call, params, body, answered)

    def ask_all(
        self,
        call: Call[P, R],
        params: P,
        then: Then,
        answer: Callable[[list[Reply[R]]], Answer],
    ) -> Pending:
        """Ask all shards at once; ``answer`` makes an answer of what they say, in their order, and
        keeps none of their memory. The first failure fails all.
        """
        return AskedAll(self.shards, call, params, then, answer)

    async def answer(
        self, request: Request, call: Call[P, NoResult], params: P, body: Body = b""
    ) -> Answer:
        """The answer of the shard of the request's topic, for a coroutine. Raises `TopicsError`."""
        return shard_answer(await self.shards.answer(request.shard, call, params, body))


class AskedAll(Generic[R]):
    """A call to every shard."""

    def __init__(
        self,
        shards: Shards,
        call: Call[P, R],
        params: P,
        then: Then,
        answer: Callable[[list[Reply[R]]], Answer],
    ) -> None:
        self._then, self._answer = then, answer
        self._replies: dict[int, Reply[R]] = {}
        self._left, self._calls = shards.count, list[Pending]()
        for shard in range(shards.count):
            if self._left:
                answered = partial(self._answered, shard)
                self._calls.append(shards.call(shard, call, params, b"", answered))

    def _answered(self, shard: int, reply: Reply[R] | TopicsError) -> None:
        if isinstance(reply, TopicsError):
            self.abandon()
            self._then(reply)
            return
        self._replies[shard] = reply
        self._left -= 1
        if not self._left:
            try:
                answer = self._answer([self._replies[shard] for shard in sorted(self._replies)])
            finally:
                self._release()
            self._then(answer)

    def abandon(self) -> None:
        """Nobody wants the answer."""
        self._left = 0
        for call in self._calls:
            call.abandon()
        self._release()

    def _release(self) -> None:
        for reply in self._replies.values():
            reply.release()
        self._replies.clear()
        self._calls.clear()  # no circle
