"""Metrics of topics and routers: a row of each, for the metrics page (§8.3).

    names, some thousand at a time -> the first ones in order -> their rows, some at a time

The page is read often and a shard may hold very many topics, so all of this runs beside the loop,
in steps of about a millisecond. A step shows its topics as they are then: without what is too old,
and with the leases of its time. It does not count as a read of a topic, and waits for nothing.

Only the answer is encoded at once: 1,000 rows take about a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.typed_calls import InboundCall, serve
from topics.actors.shard.context import ShardContext
from topics.actors.shard.routing.workers import Workers
from topics.actors.shard.service import Service
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.names import covered
from topics.formats.wire.calls import (
    METRICS_READ,
    MetricsParams,
    MetricsResult,
    RouterMetrics,
    RouterRow,
    TopicMetrics,
)

ReadCall: TypeAlias = InboundCall[MetricsParams, MetricsResult]
Row = TypeVar("Row")
Args = TypeVarTuple("Args")

NAMES_PER_STEP: Final = 2048
TOPICS_PER_STEP: Final = 64
ROUTERS_PER_STEP: Final = 16


class MetricsReads(Service):
    """Handles `metrics.read`. ``workers``: the routers that have their source in this shard.
    ``measure`` stores the gauges of the shard, so that a page shows them as they are.
    """

    def __init__(
        self, context: ShardContext, workers: Workers, measure: Callable[[], None]
    ) -> None:
        self._context, self._engine, self._workers = context, context.engine, workers
        self._measure = measure

    def register(self, router: MessageRouter) -> None:
        """Serve all sessions of ``router``."""
        serve(router, METRICS_READ, self._read)

    def _read(self, request: ReadCall) -> None:
        self._context.start(self._answer, request)

    async def _answer(self, request: ReadCall) -> None:
        params = request.params
        try:
            found = MetricsResult(*await self._topics(params), *await self._routers(params))
        except Exception as error:
            self._in_turn(answer_error, request, error)
        else:
            self._in_turn(self._measure)
            self._in_turn(request.reply, found)

    def _in_turn(self, call: Callable[[*Args], Row], *args: *Args) -> Row:
        """Work of a turn of its own: floors that it finds out go to the log."""
        self._context.begin_turn()
        result = call(*args)
        self._context.end_turn()
        return result

    # Topics

    async def _topics(self, params: MetricsParams) -> tuple[list[TopicMetrics], bool]:
        visible = _Smallest(params.topics_max)
        for names in _steps(list(self._engine.topics), NAMES_PER_STEP):
            visible.add(name for name in names if covered(name, params.prefixes))
            await trio.lowlevel.checkpoint()
        rows: list[TopicMetrics] = []
        for names in _steps(visible.names, TOPICS_PER_STEP):
            rows += self._in_turn(self._topic_rows, names)
            await trio.lowlevel.checkpoint()
        return rows, visible.is_truncated

    def _topic_rows(self, names: Iterable[str]) -> list[TopicMetrics]:
        """Rows of those that are still there."""
        found = [topic for name in names if (topic := self._engine.topics.get(name)) is not None]
        for topic in found:
            self._context.freshen(topic)
        return [_topic_row(topic, self._context.now) for topic in found]

    # Routers

    async def _routers(self, params: MetricsParams) -> tuple[list[RouterMetrics], bool]:
        visible = _Smallest(params.routers_max)
        rows = {row.name: row for row in self._workers.rows()}
        for names in _steps([*rows], NAMES_PER_STEP):
            visible.add(name for name in names if _is_covered(rows[name], params.prefixes))
            await trio.lowlevel.checkpoint()
        found: list[RouterMetrics] = []
        for names in _steps(visible.names, ROUTERS_PER_STEP):
            found += self._in_turn(self._router_rows, [rows[name] for name in names])
            await trio.lowlevel.checkpoint()
        return found, visible.is_truncated or len(found) < len(visible.names)

    def _router_rows(self, rows: Iterable[RouterRow]) -> list[RouterMetrics]:
        """Rows of those that are still there, and whose dest has told how far they are."""
        found: list[RouterMetrics] = []
        for row in rows:
            stats = self._workers.stats(row.id)
            if stats is not None:
                _, total, lag_records, lag_ms = stats
                found.append(RouterMetrics(row.name, lag_records, lag_ms, row.base_total + total))
        return found


def _topic_row(topic: Topic, now: Now) -> TopicMetrics:
    ready = in_flight = delayed = None
    if topic.jobs is not None:
        topic.jobs.advance(now.ms)
        ready, in_flight, _, delayed = topic.jobs.counters(topic.count)
    return TopicMetrics(
        *(topic.name, topic.head_seq, topic.earliest_seq, topic.count, topic.bytes),
        *(ready, in_flight, delayed),
    )


def _is_covered(row: RouterRow, prefixes: list[str] | None) -> bool:
    return all(covered(name, prefixes) for name in (row.name, row.source, row.dest))


def _steps(names: list[str], length: int) -> Iterator[list[str]]:
    for start in range(0, len(names), length):
        yield names[start : start + length]


class _Smallest:
    """The first ``count`` of all names that are added. Most names are only compared with the last
    of the first ones so far.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._found: list[str] = []
        self._last: str | None = None  # no name behind it is one of the first

    def add(self, names: Iterable[str]) -> None:
        """More names, none of which was added before."""
        last = self._last
        self._found += names if last is None else [name for name in names if name < last]
        if len(self._found) > 2 * self._count:
            self._found = self.names
            self._last = self._found[-1] if self._found else ""

    @property
    def names(self) -> list[str]:
        """They, in order."""
        return sorted(self._found)[: self._count]

    @property
    def is_truncated(self) -> bool:
        """There are others."""
        return self._last is not None or len(self._found) > self._count
