"""The blocks of topics and routers: which rows, in which order, and whether all stand there."""

from __future__ import annotations

import trio
import trio.testing

from tests.support.fake_backend import FakeBackend
from topics.formats.api.metrics_text import MetricKind, text_pieces
from topics.formats.wire.calls import METRICS_READ, RouterMetrics, TopicMetrics
from topics.front.metric_rows import READ_MAX_S, ROUTERS, ROWS_PER_STEP, TOPICS, row_families


def backend(count: int = 6, *, shards: int = 3) -> FakeBackend:
    topics = {f"t{number}": [0] * number for number in range(count)}
    return FakeBackend(shards=shards, topics=topics, routers={"r": {}, "q": {}})


async def lines(
    shards: FakeBackend, most: int = 100, prefixes: list[str] | None = None
) -> list[str]:
    """The lines of both blocks that have a value."""
    reads = trio.CapacityLimiter(1)
    text = "".join(text_pieces(await row_families(shards, prefixes, most, reads)))
    assert reads.borrowed_tokens == 0
    assert shards.replies_out == 0
    return [line for line in text.splitlines() if not line.startswith("#")]


async def test_rows_of_all_shards_are_shown_by_name() -> None:
    found = await lines(backend(3))
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


async def test_at_most_so_many_rows_are_shown_the_first_by_name() -> None:
    found = await lines(backend(6), most=2)
    assert [line for line in found if "head_seq" in line] == [
        'topics_topic_head_seq{topic="t0"} 0',
        'topics_topic_head_seq{topic="t1"} 1',
    ]
    assert "topics_topic_metrics_truncated 1" in found
    assert "topics_router_metrics_truncated 0" in found
    assert "topics_router_metrics_truncated 1" in await lines(backend(1), most=1)
    assert "topics_topic_metrics_truncated 0" in await lines(backend(2), most=2)


async def test_rows_are_cut_when_each_shard_has_few_and_all_together_too_many() -> None:
    shards = backend(64, shards=8)
    counts = [sum(shards.shard_of(name) == shard for name in shards.topics) for shard in range(8)]
    found = await lines(shards, most=max(counts))
    assert sum("head_seq" in line for line in found) == max(counts)
    assert "topics_topic_metrics_truncated 1" in found


async def test_names_outside_the_prefixes_are_not_asked_for() -> None:
    shards = backend()
    found = await lines(shards, prefixes=["t3"])
    assert [line for line in found if "head_seq" in line] == ['topics_topic_head_seq{topic="t3"} 3']
    assert "topics_topic_metrics_truncated 0" in found
    asked = {tuple(params.prefixes) for method, params, _ in shards.calls}
    assert asked == {("t3",)}


async def test_a_shard_that_does_not_answer_in_time_is_left_out(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shards = backend()
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


async def test_shards_that_are_down_are_left_out_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shards = backend()
    shards.ready = False
    began = trio.current_time()
    assert await lines(shards) == [
        "topics_topic_metrics_truncated 1",
        "topics_router_metrics_truncated 1",
    ]
    assert trio.current_time() == began


async def test_a_page_that_does_not_get_its_turn_in_time_has_no_rows(
    autojump_clock: trio.testing.MockClock,
) -> None:
    shards, reads, pages = backend(), trio.CapacityLimiter(2), []
    shards.silent = {shards.shard_of("t3")}

    async def read() -> None:
        families = await row_families(shards, None, 100, reads)
        pages.append("".join(text_pieces(families)))

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(read)
    assert trio.current_time() - began == READ_MAX_S
    assert len(shards.calls) == 2 * shards.shards, "the crowd costs the shards no more"
    assert sorted("topics_topic_head_seq{" in page for page in pages) == [False] * 3 + [True] * 2
    assert all("topics_topic_metrics_truncated 1\n" in page for page in pages)


async def test_without_rows_no_shard_is_asked() -> None:
    shards = backend()
    assert await lines(shards, most=0) == [
        "topics_topic_metrics_truncated 1",
        "topics_router_metrics_truncated 1",
    ]
    assert shards.calls == []


async def test_many_rows_are_merged_in_steps() -> None:
    shards, steps = backend(3 * ROWS_PER_STEP), 0

    async def others() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        found = await lines(shards, most=10_000)
        nursery.cancel_scope.cancel()
    assert sum("head_seq" in line for line in found) == 3 * ROWS_PER_STEP
    assert steps >= 3


def test_every_field_has_its_column() -> None:
    for block, row in ((TOPICS, TopicMetrics), (ROUTERS, RouterMetrics)):
        assert block.fields[0] == block.label
        assert [column.field for column in block.columns] == list(row._fields[1:])
    assert METRICS_READ.method == "metrics.read"


def test_a_queue_has_its_three_numbers() -> None:
    rows = [["jobs", 9, 1, 8, 70, 5, 2, 1], ["log", 9, 1, 8, 70, None, None, None]]
    text = "".join(text_pieces(TOPICS.families(rows, is_truncated=False)))
    assert [line for line in text.splitlines() if line.startswith("topics_topic_queue")] == [
        'topics_topic_queue_ready{topic="jobs"} 5',
        'topics_topic_queue_in_flight{topic="jobs"} 2',
        'topics_topic_queue_delayed{topic="jobs"} 1',
    ]
    kinds = {family.name: family.kind for family in ROUTERS.families([], is_truncated=False)}
    assert kinds["topics_router_forwarded_total"] is MetricKind.COUNTER
