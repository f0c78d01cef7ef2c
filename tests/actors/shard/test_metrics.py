"""Tests of the metrics of topics and routers: the rows of a page, their order and their values."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from topics.actors.shard import metrics
from topics.engine.now import Now
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.wire.calls import (
    METRICS_READ,
    MetricsParams,
    MetricsResult,
    RouterMetrics,
    TopicMetrics,
)
from topics.formats.wire.envelope import Success, decode

NO_QUEUE = [None] * 4  # the fields of a log that only a queue has


async def read(
    harness: ShardHarness, prefixes: list[str] | None = None, topics_max: int = 100
) -> MetricsResult:
    """Return the rows of a shard as structs."""
    harness.wire.take()
    cid = harness.request(METRICS_READ, MetricsParams(prefixes, topics_max, 100))
    await wait_all_tasks_blocked()
    (answer,) = (decode(frame.payload) for frame in harness.wire.take())
    assert isinstance(answer, Success)
    assert answer.cid == cid
    return as_structs(METRICS_READ.result._make(answer.result))


def as_structs(found: MetricsResult) -> MetricsResult:
    return found._replace(
        topics=[TopicMetrics._make(row) for row in found.topics],
        routers=[RouterMetrics._make(row) for row in found.routers],
    )


async def names(harness: ShardHarness, *args: Any) -> tuple[list[str], bool]:
    found = await read(harness, *args)
    return [row.topic for row in found.topics], found.topics_truncated


async def test_the_first_topics_are_listed_in_order_and_a_truncation_is_reported(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "NAMES_PER_STEP", 2)
    monkeypatch.setattr(metrics, "TOPICS_PER_STEP", 2)
    for name in "ecadb":
        harness.make(name)
    assert await names(harness) == (["a", "b", "c", "d", "e"], False)
    assert await names(harness, None, 5) == (["a", "b", "c", "d", "e"], False)
    assert await names(harness, None, 3) == (["a", "b", "c"], True)
    assert await names(harness, None, 0) == ([], True)


@pytest.mark.parametrize("count", [0, 1, 7, 50, 200, 500])
async def test_exactly_the_first_of_many_topics_are_listed(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(metrics, "NAMES_PER_STEP", 16)
    made = [f"{number * 7919 % 997:03d}" for number in range(200)]
    for number, name in enumerate(made, start=1):
        harness.engine.table.add(Topic(number, name, 1, TopicConfig()))
    assert await names(harness, None, count) == (sorted(made)[:count], count < 200)


async def test_a_row_contains_committed_values(harness: ShardHarness) -> None:
    harness.make("a", cap_records=2)
    harness.append("a", 1, 2, 3)
    assert (await read(harness)).topics == [TopicMetrics("a", 0, 1, 0, 0, *NO_QUEUE)]
    harness.synced()
    topic = harness.engine.topic("a")
    assert topic.bytes > 0
    assert (await read(harness)).topics == [TopicMetrics("a", 3, 2, 2, topic.bytes, *NO_QUEUE)]


async def test_expired_records_are_not_counted_and_their_removal_is_logged(
    harness: ShardHarness,
) -> None:
    harness.make("a", ttl_ms=1000)
    harness.append("a", 1, 2)
    harness.synced()
    now = harness.commits.now()
    harness.loop.context.clock = lambda: Now(now.ts + 5000, now.ms + 5000)
    groups = len(harness.log.groups)
    assert (await read(harness)).topics == [TopicMetrics("a", 2, 3, 0, 0, *NO_QUEUE)]
    assert len(harness.log.groups) == groups + 1


async def test_a_held_topic_is_shown_immediately(harness: ShardHarness) -> None:
    harness.make("a")
    harness.loop.context.held.hold("a")
    assert await names(harness) == (["a"], False)


async def test_a_metrics_row_does_not_count_as_a_read_of_its_topic(harness: ShardHarness) -> None:
    harness.make("a")
    await read(harness)
    assert harness.engine.topic("a").last_read_ts is None


async def test_a_topic_deleted_between_two_steps_has_no_row(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "TOPICS_PER_STEP", 1)
    harness.make("a", ttl_ms=60_000)
    harness.make("b")
    remove_expired = harness.loop.context.remove_expired

    def remove(topic: Any) -> None:
        remove_expired(topic)
        if topic.name == "a":
            harness.engine.table.remove(harness.engine.topic("b"))

    monkeypatch.setattr(harness.loop.context, "remove_expired", remove)
    assert await names(harness) == (["a"], False)
