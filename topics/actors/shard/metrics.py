"""Metrics of topics and routers: one row for each topic and router on the metrics page (§8.3).

    names, in steps of a few thousand -> the first names in order -> their rows, in small steps

The page is requested often, and a shard may contain very many topics. So the work runs concurrently
with the loop, in steps of about a millisecond. A step returns the current state of its topics,
excluding expired records and expired leases. It does not count as a read from the topics, and never
waits.

Only the encoding of the reply is a single step: 1,000 rows take about a millisecond.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeAlias, TypeVar, TypeVarTuple

import trio

from topics.actors.rpc.message_router import MessageRouter
from topics.actors.rpc.replies import answer_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.context import ShardContext
from topics.actors.shard.routing.workers import RouterWorkers
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

ReadCall: TypeAlias = InboundMessage[MetricsParams, MetricsResult]
Row = TypeVar("Row")
Result = TypeVar("Result")
Args = TypeVarTuple("Args")

NAMES_PER_STEP: Final = 2048
TOPICS_PER_STEP: Final = 256
ROUTERS_PER_STEP: Final = 16


class MetricsReads(Service):
    """Handles `metrics.read`. ``workers``: the routers whose sources are in this shard.

    ``measure`` updates the gauges of the shard, so that the page shows current values.
    """

    def __init__(
        self, context: ShardContext, workers: RouterWorkers, measure: Callable[[], None]
    ) -> None:
        self._context, self._engine, self._workers = context, context.engine, workers
        self._measure = measure

    def register(self, router: MessageRouter) -> None:
        """Register the handlers for all sessions of ``router``."""
        router.serve(METRICS_READ, self._read)

    def _read(self, request: ReadCall) -> None:
        self._context.start(self._answer, request)

    async def _answer(self, request: ReadCall) -> None:
        try:
            found = await self._result(request.params)
        except Exception as error:
            self._in_iteration(answer_error, request, error)
        else:
            self._in_iteration(self._measure)
            self._in_iteration(request.reply, found)

    async def _result(self, params: MetricsParams) -> MetricsResult:
        prefixes, topics_max, routers_max = params
        routers = {row.name: row for row in self._workers.rows()}

        def is_topic(name: str) -> bool:
            return covered(name, prefixes)

        def is_router(name: str) -> bool:
            row = routers[name]
            return all(covered(each, prefixes) for each in (name, row.source, row.dest))

        def router_rows(names: Iterable[str]) -> list[RouterMetrics]:
            return self._router_rows(routers[name] for name in names)

        # Select the names first, so that rows are created only for visible topics and routers.
        names, topics_cut = await _first(self._engine.topics, is_topic, topics_max)
        topics = await self._rows(names, TOPICS_PER_STEP, self._topic_rows)
        names, routers_cut = await _first(routers, is_router, routers_max)
        found = await self._rows(names, ROUTERS_PER_STEP, router_rows)
        routers_cut = routers_cut or len(found) < len(names)
        return MetricsResult(topics, topics_cut, found, routers_cut)

    async def _rows(
        self, names: list[str], per_step: int, rows_of: Callable[[list[str]], list[Row]]
    ) -> list[Row]:
        rows: list[Row] = []
        for start in range(0, len(names), per_step):
            rows += self._in_iteration(rows_of, names[start : start + per_step])
            await trio.lowlevel.checkpoint()
        return rows

    def _in_iteration(self, call: Callable[[*Args], Result], *args: *Args) -> Result:
        """Run ``call`` in a new iteration, so that removals of expired records are logged."""
        with self._context.iteration():
            return call(*args)

    def _topic_rows(self, names: Iterable[str]) -> list[TopicMetrics]:
        """Return rows of the topics that still exist."""
        found = [topic for name in names if (topic := self._engine.topics.get(name)) is not None]
        for topic in found:
            if topic.committed.ttl_ms or topic.floor_due:
                self._context.remove_expired(topic)
        return [_topic_row(topic, self._context.now) for topic in found]

    def _router_rows(self, rows: Iterable[RouterRow]) -> list[RouterMetrics]:
        """Return rows of routers that still exist, and whose dest has reported their cursor."""
        found: list[RouterMetrics] = []
        for row in rows:
            stats = self._workers.stats(row.id)
            if stats is not None:
                _, total, lag_records, lag_ms = stats
                found.append(RouterMetrics(row.name, lag_records, lag_ms, row.base_total + total))
        return found


def _topic_row(topic: Topic, now: Now) -> TopicMetrics:
    ready = in_flight = dead_lettered = delayed = None
    if topic.jobs is not None:
        topic.jobs.advance(now.ms)
        ready, in_flight, dead_lettered, delayed = topic.jobs.counters(topic.count)
    name, start_seq = topic.name, topic.start_seq
    return TopicMetrics(
        *(name, topic.head_seq, start_seq, topic.count, topic.bytes, ready, in_flight, delayed),
        dead_lettered,
    )


async def _first(
    names: Iterable[str], is_visible: Callable[[str], bool], count: int
) -> tuple[list[str], bool]:
    """Return the first ``count`` visible names in order, and whether there are more."""
    all_names, found = list(names), list[str]()
    for start in range(0, len(all_names), NAMES_PER_STEP):
        step = all_names[start : start + NAMES_PER_STEP]
        # When enough names are found, a single comparison rules out most of the other names.
        if len(found) > count:
            last = found[-1]
            step = [name for name in step if name < last]
        found = sorted([*found, *filter(is_visible, step)])[: count + 1]
        await trio.lowlevel.checkpoint()
    return found[:count], len(found) > count
