"""The families of the metrics page: metrics of the server, and rows of topics and routers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.fake_shards import FakeShards
from topics.actors.link.board import Board, FrontState, ShardState
from topics.actors.shard_client.readiness import Readiness
from topics.config import Settings
from topics.formats.api.metrics_text import MetricFamily, MetricKind, Value, text_chunks
from topics.formats.wire.calls import MetricsParams, MetricsResult, RouterMetrics, TopicMetrics
from topics.front.admin import metrics
from topics.front.admin.metrics import READ_MAX_S
from topics.front.limits import FrontSlots, make_slots

READY = Readiness(ready=True, progress=1.0, topics=3, draining=False)
SETTINGS = Settings()


def shown(
    board: Board,
    readiness: Readiness = READY,
    *,
    draining: bool = False,
    slots: FrontSlots | None = None,
) -> dict[str, MetricFamily]:
    context: Any = SimpleNamespace(
        board=board,
        shards=SimpleNamespace(readiness=lambda: readiness),
        drain=SimpleNamespace(is_draining=draining),
        live=SimpleNamespace(slots=slots or make_slots(SETTINGS, connections_max=10)),
        settings=SETTINGS,
    )
    found = [*metrics.server_families(context)]
    assert len({family.name for family in found}) == len(found)
    return {family.name: family for family in found}


def values(family: MetricFamily) -> dict[str, Value]:
    return {labels[0][1] if labels else "": value for labels, value in family.series}


@pytest.mark.parametrize(
    ("ready", "server_drains", "front_drains", "expected"),
    [
        (True, False, False, 1),
        (False, False, False, 0),
        (True, True, False, 0),
        (True, False, True, 0),
    ],
)
def test_ready_equals_the_result_of_the_probe(
    ready: bool, server_drains: bool, front_drains: bool, expected: int
) -> None:
    readiness = Readiness(ready, 0.123456789, 0, server_drains)
    found = shown(Board(1), readiness, draining=front_drains)
    assert values(found["topics_ready"]) == {"": expected}
    assert values(found["topics_recovery_progress"]) == {"": 0.123457}


def test_every_fork_except_the_first_counts_as_a_restart() -> None:
    board = Board(2)
    board.front.spawns, board.shard(1).spawns = 1, 4
    family = shown(board)["topics_process_restarts_total"]
    assert family.kind is MetricKind.COUNTER
    assert values(family) == {"front 0": 0, "shard 0": 0, "shard 1": 3}


def test_states_are_numbers_that_the_help_text_explains() -> None:
    board = Board(2)
    board.front.state, board.shard(1).state = FrontState.SERVING, ShardState.DAMAGED
    board.shard(0).delay_ms, board.shard(1).disk_silent_ms = 40, 50
    found = shown(board)
    assert values(found["topics_front_state"]) == {"0": 2}
    assert values(found["topics_shard_state"]) == {"0": 0, "1": 7}
    assert "7: damaged" in found["topics_shard_state"].help
    assert values(found["topics_shard_delay_ms"]) == {"0": 40, "1": 0}
    assert values(found["topics_shard_disk_silent_ms"]) == {"0": 0, "1": 50}


def test_every_cap_has_the_name_that_its_429_contains() -> None:
    found = values(shown(Board(1))["topics_limit_max"])
    assert found["max_connections"] == 10
    assert found["max_sse_connections"] == SETTINGS.max_sse_connections
    assert "max_total_bytes" in found


# Rows


def fake_shards(count: int = 6, *, shards: int = 3) -> FakeShards:
    topics = {f"t{number}": [0] * number for number in range(count)}
    return FakeShards(count=shards, topics=topics, routers={"r": {}, "q": {}})


def context_of(
    shards: FakeShards, most: int = 100, reads: trio.CapacityLimiter | None = None
) -> SimpleNamespace:
    settings = SimpleNamespace(metrics_topics=most)
    return SimpleNamespace(shards=shards, settings=settings, metric_reads=reads)


async def lines(
    shards: FakeShards,
    most: int = 100,
    prefixes: list[str] | None = None,
    reads: trio.CapacityLimiter | None = None,
) -> list[str]:
    """Return the lines with values of both blocks."""
    context: Any = context_of(shards, most, reads or trio.CapacityLimiter(1))
    params = MetricsParams(prefixes, most, most)
    found = await metrics._call_all(context, params) if most else []
    text = b"".join(text_chunks(metrics.row_families(context, found))).decode()
    assert shards.replies_out == 0
    return [line for line in text.splitlines() if not line.startswith("#")]


async def test_rows_of_all_shards_are_sorted_by_name() -> None:
    found = await lines(fake_shards(3))
    assert found == [
        *[f'topics_topic_head_seq{{topic="t{n}"}} {n}' for n in range(3)],
        *[f'topics_topic_earliest_seq{{topic="t{n}"}} 1' for n in range(3)],
        *[f'topics_topic_records_live{{topic="t{n}"}} {n}' for n in range(3)],
        *[f'topics_topic_bytes_live{{topic="t{n}"}} 10' for n in range(3)],
        "topics_topic_metrics_truncated 0",
        *[f'topics_router_lag_records{{router="{name}"}} 7' for name in "qr"],
        *[f'topics_router_lag_ms{{router="{name}"}} 900' for name in "qr"],
        *[f'topics_router_forwarded_total{{router="{name}"}} 12' for name in "qr"],
        "topics_router_metrics_truncated 0",
    ]


async def test_rows_are_truncated_if_all_shards_together_exceed_the_limit() -> None:
    shards = fake_shards(64, shards=8)
    counts = [sum(shards.shard_of(name) == shard for name in shards.topics) for shard in range(8)]
    found = await lines(shards, most=max(counts))
    assert sum("head_seq" in line for line in found) == max(counts)
    assert "topics_topic_metrics_truncated 1" in found


async def test_names_outside_the_prefixes_are_not_requested() -> None:
    shards = fake_shards()
    found = await lines(shards, prefixes=["t3"])
    assert [line for line in found if "head_seq" in line] == ['topics_topic_head_seq{topic="t3"} 3']
    assert "topics_topic_metrics_truncated 0" in found
    requested_prefixes = {tuple(params.prefixes) for method, params, _ in shards.calls}
    assert requested_prefixes == {("t3",)}


async def test_a_shard_that_does_not_reply_in_time_is_omitted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shards = fake_shards()
    shards.silent = {shards.shard_of("t3")}
    began = trio.current_time()
    found = await lines(shards)
    assert trio.current_time() - began == READ_MAX_S
    missing = {name for name in shards.topics if shards.shard_of(name) in shards.silent}
    assert {line.split('"')[1] for line in found if "head_seq" in line} == {
        *shards.topics
    } - missing
    assert "topics_topic_metrics_truncated 1" in found
    assert "topics_router_metrics_truncated 1" in found


async def test_a_page_that_waits_too_long_for_other_pages_has_no_rows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shards, reads, pages = fake_shards(), trio.CapacityLimiter(2), list[list[str]]()
    shards.silent = {shards.shard_of("t3")}

    async def read() -> None:
        pages.append(await lines(shards, reads=reads))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
    assert trio.current_time() - began == READ_MAX_S
    assert len(shards.calls) == 2 * shards.count, "more than two pages were read from the shards"
    assert sorted(len(page) > 2 for page in pages) == [False] * 3 + [True] * 2
    assert all("topics_topic_metrics_truncated 1" in page for page in pages)


def test_every_field_has_its_column() -> None:
    assert ("topic", *metrics.TOPICS) == TopicMetrics._fields
    assert ("router", *metrics.ROUTERS) == RouterMetrics._fields


def test_a_queue_has_four_additional_metrics() -> None:
    rows = [
        TopicMetrics("jobs", 9, 1, 8, 70, 5, 2, 1, 3),
        TopicMetrics("log", 9, 1, 8, 70, None, None, None, None),
    ]
    context: Any = context_of(fake_shards(shards=1))
    found = [*metrics.row_families(context, [MetricsResult(rows, False, [], False)])]
    text = b"".join(text_chunks(found)).decode()
    assert [
        line for line in text.splitlines() if "_queue_" in line.split("{")[0] and "{" in line
    ] == [
        'topics_topic_queue_ready{topic="jobs"} 5',
        'topics_topic_queue_in_flight{topic="jobs"} 2',
        'topics_topic_queue_delayed{topic="jobs"} 1',
        'topics_queue_dead_lettered_total{topic="jobs"} 3',
    ]
    kinds = {family.name: family.kind for family in found}
    assert kinds["topics_router_forwarded_total"] is MetricKind.COUNTER
    assert kinds["topics_queue_dead_lettered_total"] is MetricKind.COUNTER
