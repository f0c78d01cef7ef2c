"""Families of the whole server: what the board, the ledger and the settings say of it (§8.3).

No shard is asked, so they are there while shards recover or are down. What processes count
themselves stands in their registry (`topics.actors.link.counters`).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator, Sequence
from typing import Final

from topics import __version__
from topics.actors.link.board import Board, FrontState, ShardState
from topics.actors.shard_client.readiness import Readiness
from topics.config import Settings
from topics.formats.api.metrics_text import Family, MetricKind, Series, Value
from topics.front.limits import FrontSlots

CAPS: Final = (
    *("max_topics", "max_routers", "max_total_bytes", "max_watch_sessions"),
    *("max_sse_connections", "max_sse_connections_per_key", "max_inflight_per_key"),
)


def server_families(
    board: Board, readiness: Readiness, slots: FrontSlots, settings: Settings, *, draining: bool
) -> Iterator[Family]:
    """All of them. ``draining``: the front is."""
    is_ready = readiness.ready and not (readiness.draining or draining)
    uptime_ms = time.monotonic_ns() // 1_000_000 - board.started_monotonic_ms
    yield _gauge("topics_ready", "1 while /v0/ready answers 200.", int(is_ready))
    yield _gauge(
        "topics_recovery_progress",
        "Share of the logs that is replayed, 0 to 1.",
        round(readiness.progress, 6),
    )
    yield _gauge("topics_uptime_ms", "Since the start of the server.", uptime_ms)
    yield _gauge(
        "topics_sse_connections", "Event streams and WebSockets that are open.", slots.streams.used
    )
    yield _gauge("topics_watch_sessions", "Watch sessions.", slots.watch_sessions.used)
    yield Family(
        "topics_keys_reload_failed_total",
        MetricKind.COUNTER,
        "How often a file of keys was refused, and the keys before it were kept.",
        [Series((), board.keys_reload_failed)],
    )
    yield _build_info()
    yield _caps(settings)
    yield _restarts(board)
    yield from _states(board)


def _build_info() -> Family:
    labels = (("version", __version__), ("python", platform.python_version()))
    text = "1, with the versions of the program and of Python."
    return Family("topics_build_info", MetricKind.GAUGE, text, [Series(labels, 1)])


def _caps(settings: Settings) -> Family:
    text = "The caps of the settings, by the name that a 429 tells; 0: no cap."
    rows = [Series((("limit", name),), getattr(settings, name)) for name in CAPS]
    return Family("topics_limit_max", MetricKind.GAUGE, text, rows)


def _restarts(board: Board) -> Family:
    rows = [
        Series((("process", str(process)),), max(0, board.process(process).spawns - 1))
        for process in board.processes
    ]
    text = "How often a process was started again."
    return Family("topics_process_restarts_total", MetricKind.COUNTER, text, rows)


def _states(board: Board) -> Iterator[Family]:
    shards = [board.shard(index) for index in range(board.shards)]
    yield _by_index("front", "topics_front_state", _states_text(FrontState), [board.front.state])
    yield _by_index(
        "shard", "topics_shard_state", _states_text(ShardState), [shard.state for shard in shards]
    )
    yield _by_index(
        "shard",
        "topics_shard_delay_ms",
        "How long a message that comes now will wait.",
        [shard.delay_ms for shard in shards],
    )
    yield _by_index(
        "shard",
        "topics_shard_disk_silent_ms",
        "How long writes have waited for the disk without any progress.",
        [shard.disk_silent_ms for shard in shards],
    )


def _states_text(states: type[FrontState] | type[ShardState]) -> str:
    return ", ".join(f"{state.value}: {state.name.lower()}" for state in states) + "."


def _by_index(label: str, name: str, text: str, values: Sequence[int]) -> Family:
    rows = [Series(((label, str(index)),), int(value)) for index, value in enumerate(values)]
    return Family(name, MetricKind.GAUGE, text, rows)


def _gauge(name: str, text: str, value: Value) -> Family:
    return Family(name, MetricKind.GAUGE, text, [Series((), value)])
