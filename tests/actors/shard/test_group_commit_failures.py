"""Tests of group commit: reservations, and the pending changes when the log fails."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import Desk
from topics.engine.changes import append, put_topic
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.put_topic import PutTopic
from topics.engine.topic import RESERVE_MIN
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


def kinds(desk: Desk) -> list[FrameKind]:
    return [frame.kind for frame in desk.log.frames.values()]


# Reservations


async def test_a_record_that_is_not_synced_waits_for_the_sync_of_the_reservation_that_it_passes(
    desk: Desk,
) -> None:
    desk.make("a", durability="memory")
    within = desk.append("a", *range(RESERVE_MIN))
    beyond = desk.append("a", "more")
    desk.written()
    assert desk.answers() == [(within, 200)]
    assert kinds(desk).count(FrameKind.SEQS_RESERVED) >= 1
    desk.synced()
    assert desk.answers() == [(beyond, 200)]
    assert desk.engine.topics["a"].reserved_seq > RESERVE_MIN + 1


async def test_a_reservation_ahead_of_need_holds_nobody_up(desk: Desk) -> None:
    desk.make("a", durability="disk")
    first = desk.append("a", *range(RESERVE_MIN // 2 + 1))
    second = desk.append("a", 1)
    assert kinds(desk).count(FrameKind.SEQS_RESERVED) == 1
    desk.written()
    assert desk.answers() == [(first, 200), (second, 200)]
    assert desk.engine.topics["a"].reserved_seq == RESERVE_MIN, "written is not promised"
    desk.synced()
    assert desk.engine.topics["a"].reserved_seq > RESERVE_MIN


async def test_records_in_memory_only_never_pass_what_is_reserved(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    within, beyond = desk.append("a", *range(RESERVE_MIN)), desk.append("a", 1)
    assert desk.answers() == [(within, 200)]
    desk.written()
    assert desk.answers() == []
    desk.synced()
    assert desk.answers() == [(beyond, 200)]


async def test_a_reservation_that_failed_is_asked_for_again(desk: Desk) -> None:
    desk.make("a", durability="disk")
    desk.append("a", *range(RESERVE_MIN // 2 + 1))
    desk.failed(FULL)
    topic = desk.engine.topics["a"]
    assert (topic.reserving_seq, topic.reserved_seq) == (RESERVE_MIN, RESERVE_MIN)
    desk.append("a", *range(RESERVE_MIN // 2 + 1))
    desk.synced()
    assert topic.reserved_seq > RESERVE_MIN


# The log fails


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
async def test_without_room_everybody_is_refused_and_the_log_goes_on(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    kept = desk.append("a", "kept")
    desk.synced()
    position = desk.log.next_lsn
    lost = [
        desk.append("a", "lost", key="k"),
        desk.append("a", "lost"),
        desk.put("a", priority=9),
        desk.append("new", 1),
    ]
    assert desk.failed(FULL) is None
    assert desk.answers() == [(kept, 200), *((number, "not_ready") for number in lost)]
    assert (desk.log.next_lsn, len(desk.commits)) == (position, 0)
    assert desk.seqs("a") == [1]
    assert desk.engine.topics["a"].config.priority is None
    assert "new" not in desk.engine.topics
    again = desk.append("a", "next", key="k")
    desk.synced()
    assert [(number, body["first_seq"], body["deduped"]) for number, body in desk.bodies()] == [
        (again, 2, False)
    ]


async def test_what_was_written_before_the_failure_is_answered_before_it(desk: Desk) -> None:
    desk.make("a")
    good = desk.append("a", 1)
    desk.flush()
    desk.log.write()
    bad = desk.append("a", 2)
    assert desk.failed(FULL) is None
    assert desk.answers() == [(good, 200), (bad, "not_ready")]
    assert desk.seqs("a") == [1]


async def test_an_error_that_leaves_the_file_in_doubt_ends_all_writing_and_no_reading(
    desk: Desk,
) -> None:
    desk.make("a", durability="fsync")
    desk.append("a", "kept")
    desk.synced()
    desk.answers()
    lost = [desk.append("a", "lost"), desk.put("b")]
    assert desk.failed(BROKEN) is BROKEN
    refused = [desk.append("a", "later"), desk.put("a", priority=1), desk.delete("a")]
    assert desk.answers() == [(number, "not_ready") for number in (*lost, *refused)]
    assert desk.seqs("a") == [1]


async def test_a_change_that_meets_a_broken_log_ends_at_once(desk: Desk) -> None:
    """The writer reports nothing after a failure, so the change would never complete."""
    desk.make("a")
    desk.failed(BROKEN)
    body = decode_append(b'{"records":[{"data":1}]}', None, desk.loop.context.limits)
    change = append.decide(desk.engine.table, "a", body, desk.loop.context.now)
    assert isinstance(change, Append)
    with trio.fail_after(10):
        assert await desk.commits.submit_and_wait(change) is BROKEN
    assert (desk.engine.topics["a"].next_seq, desk.engine.topics["a"].pending) == (1, 0)


def put(desk: Desk, name: str, **config: Any) -> PutTopic:
    return put_topic.decide(
        desk.engine.table, name, decode_config(json_bytes(config)), desk.loop.context.now
    )


async def test_a_change_can_be_awaited(desk: Desk, nursery: trio.Nursery) -> None:
    results: list[LogProgress | OSError] = []

    async def wait(change: Change) -> None:
        results.append(await desk.commits.submit_and_wait(change))

    nursery.start_soon(wait, put(desk, "a"))
    await wait_all_tasks_blocked()
    assert (results, desk.log.groups[-1][1]) == ([], True)
    desk.synced()
    await wait_all_tasks_blocked()
    assert isinstance(results[0], LogProgress)
    nursery.start_soon(wait, put(desk, "a", priority=1))
    await wait_all_tasks_blocked()
    desk.failed(FULL)
    await wait_all_tasks_blocked()
    assert results[1] is FULL


@pytest.mark.parametrize("end", ["synced", "failed"])
async def test_a_topic_is_idle_when_its_last_change_has_ended(
    desk: Desk, nursery: trio.Nursery, end: str
) -> None:
    desk.make("a", durability="disk")
    topic = desk.engine.topics["a"]
    await desk.commits.wait_idle(topic)
    done = trio.Event()

    async def wait() -> None:
        await desk.commits.wait_idle(topic)
        done.set()

    desk.append("a", 1)
    desk.put("a", priority=1)
    nursery.start_soon(wait)
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    desk.written()
    await wait_all_tasks_blocked()
    assert not done.is_set(), "the put waits for its sync"
    desk.synced() if end == "synced" else desk.failed(FULL)
    await wait_all_tasks_blocked()
    assert done.is_set()
