"""Tests of group commit: the time and the order of replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.shard import ShardHarness
from topics.actors.shard.service import Service
from topics.engine.changes import put_topic
from topics.engine.changes.put_topic import PutTopic
from topics.formats.api.decoding import decode_config
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def kinds(harness: ShardHarness) -> list[FrameKind]:
    return [frame.kind for frame in harness.log.frames.values()]


# Durability classes


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_an_append_is_acknowledged_and_readable_after_its_write(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    first = harness.append("a", 1)
    harness.flush()
    assert harness.commits.advance() is None
    assert harness.answers() == []
    assert harness.seqs("a") == []
    harness.written()
    assert harness.answers() == [(first, 200)]
    assert harness.seqs("a") == [1]
    assert harness.log.groups[-1][1] is False, "no change requested a sync"


async def test_an_append_of_class_fsync_is_acknowledged_and_readable_after_its_sync(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    first = harness.append("a", 1)
    harness.written()
    assert (harness.answers(), harness.seqs("a")) == ([], [])
    assert harness.log.groups[-1][1] is True, "the append requested the sync"
    harness.synced()
    ((number, answer),) = harness.bodies()
    assert (number, answer["performance"]["wal_append_ms"], answer["performance"]["fsync_ms"]) == (
        first,
        1.5,
        2.5,
    )
    assert harness.seqs("a") == [1]


async def test_an_ephemeral_append_is_acknowledged_and_readable_immediately_without_the_log(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="ephemeral")
    frames, groups = len(harness.log.frames), len(harness.log.groups)
    first = harness.append("a", {"x": 1}, "two")
    assert harness.answers() == [(first, 200)]
    harness.flush()
    assert (len(harness.log.frames), len(harness.log.groups)) == (frames, groups)
    harness.diff("a")
    ((_, page),) = harness.bodies()
    assert [record["data"] for record in page["records"]] == [{"x": 1}, "two"]


@pytest.mark.parametrize("durability", CLASSES)
async def test_an_append_that_creates_its_topic_is_synced_in_every_class(
    harness: ShardHarness, durability: str
) -> None:
    first = harness.append("a", 1, config={"durability": durability})
    harness.written()
    assert harness.answers() == []
    harness.synced()
    assert harness.answers() == [(first, 201)]
    assert harness.seqs("a") == [1]


async def test_creating_configuring_and_deleting_a_topic_are_synced(harness: ShardHarness) -> None:
    requests: list[tuple[Callable[[], int], int]] = [
        (lambda: harness.put("a"), 201),
        (lambda: harness.put("a", priority=3), 200),
        (lambda: harness.delete("a"), 200),
    ]
    for request, status in requests:
        number = request()
        harness.written()
        assert harness.answers() == []
        harness.synced()
        assert harness.answers() == [(number, status)]


async def test_a_put_that_changes_nothing_waits_only_for_the_changes_requested_before_it(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    assert harness.answers() == []
    immediate = harness.put("a")
    assert harness.answers() == [(immediate, 200)]
    change = harness.put("a", priority=3)
    same = harness.put("a", priority=3)
    harness.written()
    assert harness.answers() == []
    harness.synced()
    assert harness.answers() == [(change, 200), (same, 200)]
    append = harness.append("a", 1)
    after = harness.put("a")
    assert harness.answers() == []
    harness.written()
    assert harness.answers() == [(append, 200), (after, 200)]


# Order


async def test_replies_are_sent_in_the_order_of_the_log(harness: ShardHarness) -> None:
    harness.make("a")
    harness.make("b")
    numbers = [harness.append(topic, 1) for topic in "abba"]
    harness.written()
    assert harness.answers() == [(number, 200) for number in numbers]


async def test_only_written_appends_are_acknowledged(harness: ShardHarness) -> None:
    harness.make("a")
    first = harness.append("a", 1)
    harness.flush()
    second = harness.append("a", 2)  # the group of the first append is in flight
    harness.log.write()
    harness.commits.advance()
    assert harness.answers() == [(first, 200)]
    assert harness.seqs("a") == [1]
    harness.written()
    assert harness.answers() == [(second, 200)]


async def test_a_write_to_another_topic_does_not_wait_for_a_sync(harness: ShardHarness) -> None:
    harness.make("slow", durability="fsync")
    harness.make("fast", durability="disk")
    slow, fast = harness.append("slow", 1), harness.append("fast", 1)
    harness.written()
    assert harness.answers() == [(fast, 200)]
    harness.synced()
    assert harness.answers() == [(slow, 200)]


async def test_an_immediate_write_is_acknowledged_and_readable_immediately(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.log.immediate = True
    first, second = harness.append("a", 1), harness.append("a", 2, 3)
    assert (harness.answers(), harness.seqs("a")) == ([], []), (
        "the appends are decided and not flushed"
    )
    harness.flush()
    assert harness.answers() == [(first, 200), (second, 200)]
    assert harness.seqs("a") == [1, 2, 3]
    assert not len(harness.commits)
    assert harness.commits.advance() is None


async def test_an_immediate_write_does_not_acknowledge_appends_that_wait_for_a_sync(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    harness.make("b")
    harness.append("a", 1)
    harness.written()
    harness.log.immediate = True
    immediate = harness.append("b", 1)
    harness.flush()
    assert harness.answers() == [(immediate, 200)]
    assert (harness.seqs("a"), harness.seqs("b")) == ([], [1])
    harness.synced()
    assert len(harness.answers()) == 1
    assert harness.seqs("a") == [1]


async def test_appends_synced_immediately_are_acknowledged_and_readable_immediately(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    harness.make("b")
    harness.log.syncs_immediately = True
    numbers = [harness.append(name, 1) for name in ("a", "b", "a")]
    assert harness.answers() == []
    harness.flush()
    assert sorted(harness.answers()) == [(number, 200) for number in numbers]
    assert (harness.seqs("a"), harness.seqs("b")) == ([1, 2], [1])
    assert not len(harness.commits)
    assert harness.commits.advance() is None


async def test_a_task_that_waits_for_a_sync_is_woken_by_an_immediate_sync(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    harness.log.syncs_immediately = True
    synced, lsn = trio.Event(), harness.log.next_lsn + 1

    async def wait() -> None:
        assert await harness.commits.wait_synced(lsn)
        synced.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not synced.is_set()
        harness.append("a", 1)
        harness.flush()
        with trio.fail_after(10):
            await synced.wait()


async def test_a_commit_after_the_services_of_an_iteration_requests_another_iteration(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The services handle the commit there. For example, a feed sends a record that a router has
    copied.
    """
    harness.make("a", durability="fsync")
    harness.log.syncs_immediately = True
    topic = harness.engine.topic("a")
    seen: list[int] = []

    class Follower(Service):
        def on_due(self) -> None:
            seen.append(topic.head_seq)
            if len(seen) == 1:
                harness.append("a", 1)
                del woken[:]  # the append has also requested an iteration

    follower = Follower()
    follower.is_due = True
    topic.follow(lambda _: setattr(follower, "is_due", True))
    monkeypatch.setattr(harness.loop, "_with_due", [follower])
    woken: list[bool] = []
    monkeypatch.setattr(harness.loop.deadlines, "wake", lambda: woken.append(True))
    harness.loop.end_iteration()
    assert woken == [True]
    del woken[:]
    harness.loop.run_iteration()
    assert (seen, woken) == ([0, 1], [])


async def test_a_floor_that_a_commit_moves_is_written_to_the_log_with_the_commit(
    harness: ShardHarness,
) -> None:
    harness.make("a", cap_records=4)
    harness.append("a", 1, 2, 3)
    harness.synced()
    harness.make("a", durability="ephemeral")
    harness.append("a", 4)
    harness.make("a", durability="disk")
    harness.answers()
    harness.log.immediate = True
    harness.append("a", 5)
    harness.flush()
    assert len(harness.answers()) == 1
    assert harness.seqs("a") == [2, 3, 4, 5]
    assert kinds(harness)[-2:] == [FrameKind.APPEND, FrameKind.FLOOR]
    assert harness.log.written == harness.log.next_lsn, "the group in flight is empty"
    assert not len(harness.commits)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
async def test_a_write_waits_for_an_earlier_write_of_its_topic_that_waits_for_a_sync(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability="fsync")
    first = harness.append("a", 1)
    put = harness.put("a", durability=durability)
    second = harness.append("a", 2)
    harness.written()
    assert (harness.answers(), harness.seqs("a")) == ([], [])
    harness.synced()
    assert harness.answers() == [(first, 200), (put, 200), (second, 200)]
    assert harness.seqs("a") == [1, 2]


async def test_one_sync_is_requested_for_a_batch_and_none_for_the_next_batch(
    harness: ShardHarness,
) -> None:
    harness.make("f", durability="fsync")
    harness.make("d", durability="disk")
    del harness.log.groups[:]
    harness.append("f", 1)
    harness.append("f", 2)
    harness.append("d", 1)
    harness.flush()
    harness.append("d", 2)
    harness.flush()
    harness.flush()
    assert [sync for _, sync in harness.log.groups] == [True, False]


def put(harness: ShardHarness, name: str, **config: Any) -> PutTopic:
    return put_topic.decide(
        harness.engine.table, name, decode_config(json_bytes(config)), harness.loop.context.now
    )
