"""Tests of group commit: the time and the order of replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from tests.support.shard import Desk
from topics.actors.shard.service import Service
from topics.engine.changes import put_topic
from topics.engine.changes.put_topic import PutTopic
from topics.formats.api.decoding import decode_config
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def kinds(desk: Desk) -> list[FrameKind]:
    return [frame.kind for frame in desk.log.frames.values()]


# Durability classes


@pytest.mark.parametrize("durability", ["memory", "disk"])
async def test_a_record_is_answered_and_read_once_it_is_written(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    first = desk.append("a", 1)
    desk.flush()
    assert desk.commits.advance() is None
    assert desk.answers() == []
    assert desk.seqs("a") == []
    desk.written()
    assert desk.answers() == [(first, 200)]
    assert desk.seqs("a") == [1]
    assert desk.log.groups[-1][1] is False, "no change requested a sync"


async def test_a_record_of_class_fsync_is_answered_and_read_once_it_is_synced(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    first = desk.append("a", 1)
    desk.written()
    assert (desk.answers(), desk.seqs("a")) == ([], [])
    assert desk.log.groups[-1][1] is True, "the append requested the sync"
    desk.synced()
    ((number, answer),) = desk.bodies()
    assert (number, answer["performance"]["wal_append_ms"], answer["performance"]["fsync_ms"]) == (
        first,
        1.5,
        2.5,
    )
    assert desk.seqs("a") == [1]


async def test_a_record_in_memory_only_is_answered_and_read_at_once_without_the_log(
    desk: Desk,
) -> None:
    desk.make("a", durability="ephemeral")
    frames, groups = len(desk.log.frames), len(desk.log.groups)
    first = desk.append("a", {"x": 1}, "two")
    assert desk.answers() == [(first, 200)]
    desk.flush()
    assert (len(desk.log.frames), len(desk.log.groups)) == (frames, groups)
    desk.diff("a")
    ((_, page),) = desk.bodies()
    assert [record["data"] for record in page["records"]] == [{"x": 1}, "two"]


@pytest.mark.parametrize("durability", CLASSES)
async def test_the_write_that_makes_its_topic_is_synced_whatever_the_class(
    desk: Desk, durability: str
) -> None:
    first = desk.append("a", 1, config={"durability": durability})
    desk.written()
    assert desk.answers() == []
    desk.synced()
    assert desk.answers() == [(first, 201)]
    assert desk.seqs("a") == [1]


async def test_making_configuring_and_deleting_are_synced(desk: Desk) -> None:
    requests: list[tuple[Callable[[], int], int]] = [
        (lambda: desk.put("a"), 201),
        (lambda: desk.put("a", priority=3), 200),
        (lambda: desk.delete("a"), 200),
    ]
    for ask, status in requests:
        number = ask()
        desk.written()
        assert desk.answers() == []
        desk.synced()
        assert desk.answers() == [(number, status)]


async def test_a_put_that_changes_nothing_waits_for_what_was_asked_before_it_and_for_no_more(
    desk: Desk,
) -> None:
    desk.make("a")
    assert desk.answers() == []
    immediate = desk.put("a")
    assert desk.answers() == [(immediate, 200)]
    change = desk.put("a", priority=3)
    same = desk.put("a", priority=3)
    desk.written()
    assert desk.answers() == []
    desk.synced()
    assert desk.answers() == [(change, 200), (same, 200)]
    append = desk.append("a", 1)
    after = desk.put("a")
    assert desk.answers() == []
    desk.written()
    assert desk.answers() == [(append, 200), (after, 200)]


# Order


async def test_answers_come_in_the_order_of_the_log(desk: Desk) -> None:
    desk.make("a")
    desk.make("b")
    numbers = [desk.append(topic, 1) for topic in "abba"]
    desk.written()
    assert desk.answers() == [(number, 200) for number in numbers]


async def test_only_as_much_is_answered_as_the_log_has_reached(desk: Desk) -> None:
    desk.make("a")
    first = desk.append("a", 1)
    desk.flush()
    second = desk.append("a", 2)  # in the group in flight
    desk.log.write()
    desk.commits.advance()
    assert desk.answers() == [(first, 200)]
    assert desk.seqs("a") == [1]
    desk.written()
    assert desk.answers() == [(second, 200)]


async def test_a_write_to_another_topic_does_not_wait_for_a_sync(desk: Desk) -> None:
    desk.make("slow", durability="fsync")
    desk.make("fast", durability="disk")
    slow, fast = desk.append("slow", 1), desk.append("fast", 1)
    desk.written()
    assert desk.answers() == [(fast, 200)]
    desk.synced()
    assert desk.answers() == [(slow, 200)]


async def test_what_is_written_at_once_is_answered_and_read_at_once(desk: Desk) -> None:
    desk.make("a")
    desk.log.immediate = True
    first, second = desk.append("a", 1), desk.append("a", 2, 3)
    assert (desk.answers(), desk.seqs("a")) == ([], []), "decided, and not sent off yet"
    desk.flush()
    assert desk.answers() == [(first, 200), (second, 200)]
    assert desk.seqs("a") == [1, 2, 3]
    assert not len(desk.commits)
    assert desk.commits.advance() is None


async def test_what_is_written_at_once_leaves_what_waits_for_a_sync_waiting(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    desk.make("b")
    desk.append("a", 1)
    desk.written()
    desk.log.immediate = True
    here = desk.append("b", 1)
    desk.flush()
    assert desk.answers() == [(here, 200)]
    assert (desk.seqs("a"), desk.seqs("b")) == ([], [1])
    desk.synced()
    assert len(desk.answers()) == 1
    assert desk.seqs("a") == [1]


async def test_what_is_synced_at_once_is_answered_and_read_at_once(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    desk.make("b")
    desk.log.syncs_immediately = True
    numbers = [desk.append(name, 1) for name in ("a", "b", "a")]
    assert desk.answers() == []
    desk.flush()
    assert sorted(desk.answers()) == [(number, 200) for number in numbers]
    assert (desk.seqs("a"), desk.seqs("b")) == ([1, 2], [1])
    assert not len(desk.commits)
    assert desk.commits.advance() is None


async def test_who_waits_for_the_log_hears_of_a_sync_at_once(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    desk.log.syncs_immediately = True
    synced, lsn = trio.Event(), desk.log.next_lsn + 1

    async def wait() -> None:
        assert await desk.commits.wait_synced(lsn)
        synced.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not synced.is_set()
        desk.append("a", 1)
        desk.flush()
        with trio.fail_after(10):
            await synced.wait()


async def test_what_is_committed_behind_the_services_of_a_turn_has_another_turn(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They see it there: a feed sends the record that a router has brought, for one."""
    desk.make("a", durability="fsync")
    desk.log.syncs_immediately = True
    topic = desk.engine.topic("a")
    seen: list[int] = []

    class Follower(Service):
        def on_due(self) -> None:
            seen.append(topic.head_seq)
            if len(seen) == 1:
                desk.append("a", 1)
                del woken[:]  # the append has also requested an iteration

    follower = Follower()
    follower.is_due = True
    topic.follow(lambda _: setattr(follower, "is_due", True))
    monkeypatch.setattr(desk.loop, "_with_due", [follower])
    woken: list[bool] = []
    monkeypatch.setattr(desk.loop.deadlines, "wake", lambda: woken.append(True))
    desk.loop.end_iteration()
    assert woken == [True]
    del woken[:]
    desk.loop.run_iteration()
    assert (seen, woken) == ([0, 1], [])


async def test_a_floor_that_comes_of_a_commit_goes_to_the_log_with_it(desk: Desk) -> None:
    desk.make("a", cap_records=4)
    desk.append("a", 1, 2, 3)
    desk.synced()
    desk.make("a", durability="ephemeral")
    desk.append("a", 4)
    desk.make("a", durability="disk")
    desk.answers()
    desk.log.immediate = True
    desk.append("a", 5)
    desk.flush()
    assert len(desk.answers()) == 1
    assert desk.seqs("a") == [2, 3, 4, 5]
    assert kinds(desk)[-2:] == [FrameKind.APPEND, FrameKind.FLOOR]
    assert desk.log.written == desk.log.next_lsn, "the group in flight is empty"
    assert not len(desk.commits)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
async def test_a_write_does_not_overtake_one_of_its_topic_that_waits_for_a_sync(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability="fsync")
    first = desk.append("a", 1)
    put = desk.put("a", durability=durability)
    second = desk.append("a", 2)
    desk.written()
    assert (desk.answers(), desk.seqs("a")) == ([], [])
    desk.synced()
    assert desk.answers() == [(first, 200), (put, 200), (second, 200)]
    assert desk.seqs("a") == [1, 2]


async def test_one_sync_is_asked_for_a_batch_and_none_for_the_next(desk: Desk) -> None:
    desk.make("f", durability="fsync")
    desk.make("d", durability="disk")
    del desk.log.groups[:]
    desk.append("f", 1)
    desk.append("f", 2)
    desk.append("d", 1)
    desk.flush()
    desk.append("d", 2)
    desk.flush()
    desk.flush()
    assert [sync for _, sync in desk.log.groups] == [True, False]


def put(desk: Desk, name: str, **config: Any) -> PutTopic:
    return put_topic.decide(
        desk.engine.table, name, decode_config(json_bytes(config)), desk.loop.context.now
    )
