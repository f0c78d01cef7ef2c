"""Metric rows: what the shards tell of single topics and routers, as families (§8.3).

All shards are asked at once. One that has not answered within `READ_MAX_S`, or is down, is left
out, and the block says so: ``topics_topic_metrics_truncated`` is 1 whenever a topic may be missing.
A shard looks at all its names for one answer, so a few pages are read at once: in a crowd of
requests many have no rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from typing import Any, Final, NamedTuple

import trio

from topics.errors import TopicsError
from topics.formats.api.metrics_text import Family, MetricKind, Series
from topics.formats.wire.calls import (
    METRICS_READ,
    MetricsParams,
    MetricsResult,
    RouterMetrics,
    TopicMetrics,
)
from topics.front.backend import Backend

READ_MAX_S: Final = 1.0
ROWS_PER_STEP: Final = 1000  # about a millisecond
TRUNCATED_HELP: Final = (
    "1: some {}s have no row, because of TOPICS_METRICS_TOPICS or of a shard that does not answer."
)

Row = Sequence[Any]  # the fields of a `TopicMetrics` or of a `RouterMetrics`


class Column(NamedTuple):
    """One family of a block: the field that it shows."""

    field: str
    name: str
    help: str
    kind: MetricKind = MetricKind.GAUGE


@dataclass(frozen=True, slots=True)
class Block:
    """The rows of one kind, in the order of their names, which stand in the first field."""

    label: str
    fields: Sequence[str]
    columns: Sequence[Column]

    def families(self, rows: Sequence[Row], *, is_truncated: bool) -> Iterator[Family]:
        """A family for each column; a field that is None has no series."""
        for field, name, text, kind in self.columns:
            yield Family(name, kind, text, self._series(rows, self.fields.index(field)))
        name = f"topics_{self.label}_metrics_truncated"
        text = TRUNCATED_HELP.format(self.label)
        yield Family(name, MetricKind.GAUGE, text, [Series((), int(is_truncated))])

    def _series(self, rows: Sequence[Row], at: int) -> Iterator[Series]:
        for row in rows:
            if row[at] is not None:
                yield Series(((self.label, row[0]),), row[at])


TOPICS: Final = Block(
    "topic",
    TopicMetrics._fields,
    (
        Column("head_seq", "topics_topic_head_seq", "Highest assigned seq per topic."),
        Column("earliest_seq", "topics_topic_earliest_seq", "Lowest seq that readers can get."),
        Column("records", "topics_topic_records_live", "Records that readers can get."),
        Column("bytes", "topics_topic_bytes_live", "Bytes of these records, as caps count them."),
        Column("queue_ready", "topics_topic_queue_ready", "Jobs that can be claimed now."),
        Column("queue_in_flight", "topics_topic_queue_in_flight", "Jobs that are leased."),
        Column("queue_delayed", "topics_topic_queue_delayed", "Jobs whose time has not come."),
    ),
)
ROUTERS: Final = Block(
    "router",
    RouterMetrics._fields,
    (
        Column("lag_records", "topics_router_lag_records", "Records that it has yet to forward."),
        Column("lag_ms", "topics_router_lag_ms", "Age of the oldest of these records."),
        Column(
            "forwarded_total",
            "topics_router_forwarded_total",
            "Records that it has forwarded.",
            MetricKind.COUNTER,
        ),
    ),
)


async def row_families(
    backend: Backend, prefixes: list[str] | None, most: int, reads: trio.CapacityLimiter
) -> list[Family]:
    """Both blocks, each of at most ``most`` rows. With 0 no shard is asked. ``reads`` bounds how
    many of these calls ask at once.
    """
    found = await _ask_all(backend, MetricsParams(prefixes, most, most), reads) if most else []
    is_whole = len(found) == backend.shards
    topics = await _merged([one.topics for one in found], most)
    routers = await _merged([one.routers for one in found], most)
    topics_cut = topics.is_cut or any(one.topics_truncated for one in found)
    routers_cut = routers.is_cut or any(one.routers_truncated for one in found)
    return [
        *TOPICS.families(topics.rows, is_truncated=topics_cut or not is_whole),
        *ROUTERS.families(routers.rows, is_truncated=routers_cut or not is_whole),
    ]


async def _ask_all(
    backend: Backend, params: MetricsParams, reads: trio.CapacityLimiter
) -> list[MetricsResult]:
    """The results of those shards that answer in time."""
    found: list[MetricsResult] = []
    with trio.move_on_after(READ_MAX_S):
        async with reads, trio.open_nursery() as nursery:
            for shard in range(backend.shards):
                nursery.start_soon(partial(_ask, backend, shard, params, found))
    return found


async def _ask(
    backend: Backend, shard: int, params: MetricsParams, found: list[MetricsResult]
) -> None:
    try:
        reply = await backend.answer(shard, METRICS_READ, params)
    except TopicsError:  # it is down, and the others count
        return
    found.append(reply.result)
    reply.release()


class _Merged(NamedTuple):
    rows: list[Row]
    is_cut: bool


async def _merged(lists: Sequence[Sequence[Row]], most: int) -> _Merged:
    """The first ``most`` rows of all."""
    rows: list[Row] = []
    merged = heapq.merge(*lists, key=itemgetter(0))
    while part := list(islice(merged, min(ROWS_PER_STEP, most + 1 - len(rows)))):
        rows += part
        await trio.lowlevel.checkpoint()
    return _Merged(rows[:most], len(rows) > most)
