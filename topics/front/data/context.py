"""Route context: the parts of a front that operations use, and the method that calls a shard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns

import trio

from topics.actors.link.board import Board
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.config import Settings
from topics.errors import TopicsError
from topics.formats.api.limits import Limits, limits_of
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer, shard_answer
from topics.front.data.backup_stream import BackupSlots
from topics.front.dispatch import OnResult, Pending
from topics.front.drain import Drain
from topics.front.live.live import Live
from topics.front.live.watches import Watches
from topics.front.pressure.pressure import Pressure
from topics.front.request import Body, Request

METRIC_READS_MAX = 4  # maximum number of metrics pages that one front reads concurrently


@dataclass(frozen=True, slots=True)
class RouteContext:
    """The parts of one front, as operations and views use them.

    ``started_ns`` is the start of the front in monotonic ns.
    """

    shards: Shards
    settings: Settings
    limits: Limits
    drain: Drain
    live: Live
    pressure: Pressure
    watches: Watches
    board: Board
    metric_reads: trio.CapacityLimiter
    backups: BackupSlots
    started_ns: int = field(default_factory=monotonic_ns)

    @classmethod
    def of(
        cls, shards: Shards, settings: Settings, drain: Drain, live: Live, board: Board
    ) -> RouteContext:
        """Return the context of a front, with the objects that only routes use."""
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
            backups=BackupSlots(),
        )

    def call(
        self,
        request: Request,
        call: Call[P, R],
        params: P,
        body: Body,
        then: OnResult,
        answer: Callable[[Reply[R]], Answer] = shard_answer,
    ) -> Pending | None:
        """Call the shard of the request's topic. ``answer`` converts its reply to a response."""

        def answered(reply: Reply[R] | TopicsError) -> None:
            then(reply if isinstance(reply, TopicsError) else answer(reply))

        return self.shards.call(request.shard, call, params, body, answered)
