"""Metrics (§8.3), in the Prometheus text format or as JSON.

    GET   /v0/metrics, /metrics    Accept: application/json

The counters of all processes are stored on the board, and their states and settings are also
available while the shards are down. So a page can be served in any state of the shards, and during
the drain.

The rows for individual topics and routers are requested from all shards concurrently. A shard that
is down or has not responded within `READ_MAX_S` is omitted. The gauge
``topics_topic_metrics_truncated`` is 1 if any topic may be missing. A shard scans all its names for
one page, so only a few pages are read concurrently. If there are many concurrent requests, many of
the responses contain no rows.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final

import msgspec
import trio
from quart import Response

from topics import __version__
from topics.actors.link import counters
from topics.actors.link.board import FrontState, ShardState
from topics.actors.link.counters import COUNTER, GAUGE
from topics.errors import TopicsError
from topics.formats.api.metrics_text import (
    MEDIA_TYPE,
    Column,
    MetricFamily,
    Series,
    json_chunks,
    text_chunks,
)
from topics.formats.wire.calls import (
    METRICS_READ,
    MetricsParams,
    MetricsResult,
)
from topics.front.admin import rows
from topics.front.admin.views import View, admitted, context, response
from topics.front.answers import Answer, elapsed_ms
from topics.front.data.context import RouteContext
from topics.front.media import prefers_json
from topics.front.request import listed
from topics.front.route import Route

STEP_NS: Final = 1_000_000  # other tasks run after each such interval
# Maximum time that a page waits for the shards, in seconds.
READ_MAX_S: Final = 1.0
# The settings that the metric ``topics_limit_max`` reports.
CAPS: Final = (
    *("max_topics", "max_routers", "max_total_bytes", "max_watch_sessions"),
    *("max_sse_connections", "max_sse_connections_per_key", "max_inflight_per_key"),
)
# The fields that follow the name in a row, in order.
TOPICS: Final = {
    "head_seq": ("topic_head_seq", GAUGE, "Highest assigned seq."),
    "earliest_seq": ("topic_earliest_seq", GAUGE, "Lowest readable seq."),
    "records": ("topic_records_live", GAUGE, "Readable records."),
    "bytes": ("topic_bytes_live", GAUGE, "Bytes of the readable records, as counted by caps."),
    "queue_ready": ("topic_queue_ready", GAUGE, "Jobs that can be claimed now."),
    "queue_in_flight": ("topic_queue_in_flight", GAUGE, "Leased jobs."),
    "queue_delayed": ("topic_queue_delayed", GAUGE, "Delayed jobs."),
    "queue_dead_lettered": (
        *("queue_dead_lettered_total", COUNTER),
        "Jobs moved to the dead-letter topic.",
    ),
}
ROUTERS: Final = {
    "lag_records": (
        "router_lag_records",
        GAUGE,
        "Records of the source that are not forwarded yet.",
    ),
    "lag_ms": ("router_lag_ms", GAUGE, "Age of the oldest record that is not forwarded yet."),
    "forwarded_total": ("router_forwarded_total", COUNTER, "Forwarded records."),
}


async def metrics() -> Response:
    """Return all metrics that the key may read: aggregates of the server, and rows within its
    prefixes.

    Raise `Unauthorized`.
    """
    call, parts = admitted(), context()
    request = call.request
    assert request.head is not None, "the route keeps the request head"
    prefixes, most = listed(request.principal.prefixes), parts.settings.metrics_topics
    found = await _call_all(parts, MetricsParams(prefixes, most, most)) if most else []
    parts.live.keys.check(request.principal)  # the keys may have changed during the wait
    families = chain(
        server_families(parts), counters.families(parts.board), row_families(parts, found)
    )
    if prefers_json(request.head.joined(b"accept")):
        tail = msgspec.json.encode({"performance": {"server_total_ms": elapsed_ms(call.at)}})[1:]
        return response(Answer(200, await _joined(json_chunks(families, tail))))
    return response(Answer(200, await _joined(text_chunks(families)), media_type=MEDIA_TYPE))


async def _joined(pieces: Iterator[bytes]) -> bytes:
    """Join all chunks. Other tasks run after each millisecond."""
    made, until = [], time.monotonic_ns() + STEP_NS
    for piece in pieces:
        made.append(piece)
        if time.monotonic_ns() >= until:
            await trio.lowlevel.checkpoint()
            until = time.monotonic_ns() + STEP_NS
    return b"".join(made)


# Server metrics


def server_families(context: RouteContext) -> Iterator[MetricFamily]:
    """Yield the metrics of the board, the limits and the settings."""
    board, slots, readiness = context.board, context.live.slots, context.shards.readiness()
    is_ready = readiness.ready and not (readiness.draining or context.drain.is_draining)
    versions = (("version", __version__), ("python", platform.python_version()))
    shards = [board.shard(index) for index in range(board.shards)]
    spawns = [(str(process), board.process(process).spawns) for process in board.processes]
    one, label = _single, _labelled
    # fmt: off
    families = (
        ("topics_ready", "1 while /v0/ready returns 200.", one(int(is_ready))),
        ("topics_recovery_progress", "Replayed fraction of the logs, 0 to 1.",
         one(round(readiness.progress, 6))),
        ("topics_uptime_ms", "Time since the start of the server.",
         one(time.monotonic_ns() // 1_000_000 - board.started_monotonic_ms)),
        ("topics_sse_connections", "Open event streams and WebSockets.",
         one(slots.streams.used)),
        ("topics_watch_sessions", "Watch sessions.", one(slots.watch_sessions.used)),
        ("topics_keys_reload_failed_total",
         "Reloads of the key files that failed. The previous keys remain valid.",
         one(board.keys_reload_failed)),
        ("topics_build_info", "Always 1. The labels are the versions of the program and of Python.",
         [(versions, 1)]),
        ("topics_limit_max", "Limits by their name in 429 responses; 0: no limit.",
         label("limit", [*((name, getattr(context.settings, name)) for name in CAPS),
                         *filter(None, [slots.connections.in_all])])),
        ("topics_process_restarts_total", "Restarts of a process.",
         label("process", ((name, max(0, count - 1)) for name, count in spawns))),
        ("topics_front_state", _states_text(FrontState), label("front", [(0, board.front.state)])),
        ("topics_shard_state", _states_text(ShardState),
         label("shard", enumerate(shard.state for shard in shards))),
        ("topics_shard_delay_ms", "Expected wait of a new message.",
         label("shard", enumerate(shard.delay_ms for shard in shards))),
        ("topics_shard_disk_silent_ms",
         "Time since the last progress of writes that wait for the disk.",
         label("shard", enumerate(shard.disk_silent_ms for shard in shards))),
    )
    # fmt: on
    for name, text, series in families:
        yield MetricFamily(name, COUNTER if name.endswith("_total") else GAUGE, text, series)


def _single(value: float) -> list[Series]:
    """Return the single series of a metric without labels."""
    return [((), value)]


def _labelled(label: str, values: Iterable[tuple[object, int]]) -> list[Series]:
    """Return one series for each value of a label."""
    return [(((label, str(name)),), int(value)) for name, value in values]


def _states_text(states: type[FrontState] | type[ShardState]) -> str:
    """Return the help text of a metric whose values are states."""
    return ", ".join(f"{state.value}: {state.name.lower()}" for state in states) + "."


# Metrics for individual topics and routers


async def _call_all(context: RouteContext, params: MetricsParams) -> list[MetricsResult]:
    """Return the results of the shards that respond in time."""
    found: list[MetricsResult] = []

    async def call_one(shard: int) -> None:
        try:
            reply = await context.shards.answer(shard, METRICS_READ, params)
        except TopicsError:  # the shard is down; use the results of the other shards
            return
        found.append(reply.result)
        reply.release()

    # The limit includes the wait for a free slot of `metric_reads`.
    with trio.move_on_after(READ_MAX_S):
        async with context.metric_reads, trio.open_nursery() as nursery:
            for shard in range(context.shards.count):
                nursery.start_soon(call_one, shard)
    return found


def row_families(context: RouteContext, found: Sequence[MetricsResult]) -> Iterator[MetricFamily]:
    """Yield the rows from the shards, ordered by name, up to a bound."""
    is_truncated = len(found) < context.shards.count
    most = context.settings.metrics_topics
    yield from _families(
        "topic", TOPICS, [one[:2] for one in found], most, is_truncated=is_truncated
    )
    yield from _families(
        "router", ROUTERS, [one[2:] for one in found], most, is_truncated=is_truncated
    )


def _families(
    label: str,
    columns: Mapping[str, tuple[str, Any, str]],
    parts: Sequence[tuple[Sequence[Sequence[Any]], bool]],
    most: int,
    *,
    is_truncated: bool,
) -> Iterator[MetricFamily]:
    """Yield a family for each column of the rows, and a gauge that reports whether rows are
    missing.

    A field that is None has no series.
    """
    # Each shard returns its first names in order, so the first ``most`` names overall are complete.
    rows = sorted(chain.from_iterable(rows for rows, _ in parts), key=itemgetter(0))
    is_truncated = is_truncated or len(rows) > most or any(truncated for _, truncated in parts)
    names, *values = zip(*rows[:most], strict=True) if rows else [()] * (1 + len(columns))
    first = Column(label, names, ())
    for (name, kind, text), column in zip(columns.values(), values, strict=True):
        yield MetricFamily(f"topics_{name}", kind, text, first.with_values(column))
    text = (
        f"1 if some {label}s are missing, because of TOPICS_METRICS_TOPICS or because a shard does"
        " not respond."
    )
    yield MetricFamily(f"topics_{label}_metrics_truncated", GAUGE, text, _single(int(is_truncated)))


VIEWS: dict[Route, View] = {rows.METRICS: metrics, rows.METRICS_AT_ROOT: metrics}
