"""Tests of group commit: reservations, and the pending changes when the log fails."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import ShardHarness
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


def kinds(harness: ShardHarness) -> list[FrameKind]:
    return [frame.kind for frame in harness.log.frames.values()]


# Reservations


async def test_an_append_beyond_the_reserved_seqs_waits_for_the_sync_of_a_reservation(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="memory")
    within = harness.append("a", *range(RESERVE_MIN))
    beyond = harness.append("a", "more")
    harness.written()
    assert harness.answers() == [(within, 200)]
    assert kinds(harness).count(FrameKind.SEQS_RESERVED) >= 1
    harness.synced()
    assert harness.answers() == [(beyond, 200)]
    assert harness.engine.topics["a"].reserved_seq > RESERVE_MIN + 1


async def test_a_seq_reservation_in_advance_delays_no_append(harness: ShardHarness) -> None:
    harness.make("a", durability="disk")
    first = harness.append("a", *range(RESERVE_MIN // 2 + 1))
    second = harness.append("a", 1)
    assert kinds(harness).count(FrameKind.SEQS_RESERVED) == 1
    harness.written()
    assert harness.answers() == [(first, 200), (second, 200)]
    assert harness.engine.topics["a"].reserved_seq == RESERVE_MIN, (
        "the reservation is written but not synced"
    )
    harness.synced()
    assert harness.engine.topics["a"].reserved_seq > RESERVE_MIN


async def test_an_ephemeral_append_never_exceeds_the_reserved_seqs(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    within, beyond = harness.append("a", *range(RESERVE_MIN)), harness.append("a", 1)
    assert harness.answers() == [(within, 200)]
    harness.written()
    assert harness.answers() == []
    harness.synced()
    assert harness.answers() == [(beyond, 200)]


async def test_a_failed_seq_reservation_is_requested_again(harness: ShardHarness) -> None:
    harness.make("a", durability="disk")
    harness.append("a", *range(RESERVE_MIN // 2 + 1))
    harness.failed(FULL)
    topic = harness.engine.topics["a"]
    assert (topic.reserving_seq, topic.reserved_seq) == (RESERVE_MIN, RESERVE_MIN)
    harness.append("a", *range(RESERVE_MIN // 2 + 1))
    harness.synced()
    assert topic.reserved_seq > RESERVE_MIN


# The log fails


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
async def test_on_a_full_disk_all_pending_changes_are_rejected_and_the_log_continues(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    kept = harness.append("a", "kept")
    harness.synced()
    position = harness.log.next_lsn
    lost = [
        harness.append("a", "lost", key="k"),
        harness.append("a", "lost"),
        harness.put("a", priority=9),
        harness.append("new", 1),
    ]
    assert harness.failed(FULL) is None
    assert harness.answers() == [(kept, 200), *((number, "not_ready") for number in lost)]
    assert (harness.log.next_lsn, len(harness.commits)) == (position, 0)
    assert harness.seqs("a") == [1]
    assert harness.engine.topics["a"].config.priority is None
    assert "new" not in harness.engine.topics
    again = harness.append("a", "next", key="k")
    harness.synced()
    assert [(number, body["first_seq"], body["deduped"]) for number, body in harness.bodies()] == [
        (again, 2, False)
    ]


async def test_an_append_written_before_a_log_failure_is_acknowledged_before_the_refusals(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    good = harness.append("a", 1)
    harness.flush()
    harness.log.write()
    bad = harness.append("a", 2)
    assert harness.failed(FULL) is None
    assert harness.answers() == [(good, 200), (bad, "not_ready")]
    assert harness.seqs("a") == [1]


async def test_after_a_log_error_with_an_unknown_outcome_writes_are_rejected_and_reads_served(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="fsync")
    harness.append("a", "kept")
    harness.synced()
    harness.answers()
    lost = [harness.append("a", "lost"), harness.put("b")]
    assert harness.failed(BROKEN) is BROKEN
    refused = [harness.append("a", "later"), harness.put("a", priority=1), harness.delete("a")]
    assert harness.answers() == [(number, "not_ready") for number in (*lost, *refused)]
    assert harness.seqs("a") == [1]


async def test_a_change_submitted_to_a_broken_log_fails_immediately(harness: ShardHarness) -> None:
    """The writer reports nothing after a failure, so the change would never complete."""
    harness.make("a")
    harness.failed(BROKEN)
    body = decode_append(b'{"records":[{"data":1}]}', None, harness.loop.context.limits)
    change = append.decide(harness.engine.table, "a", body, harness.loop.context.now)
    assert isinstance(change, Append)
    with trio.fail_after(10):
        assert await harness.commits.submit_and_wait(change) is BROKEN
    assert (harness.engine.topics["a"].next_seq, harness.engine.topics["a"].pending) == (1, 0)


def put(harness: ShardHarness, name: str, **config: Any) -> PutTopic:
    return put_topic.decide(
        harness.engine.table, name, decode_config(json_bytes(config)), harness.loop.context.now
    )


async def test_a_change_can_be_awaited(harness: ShardHarness, nursery: trio.Nursery) -> None:
    results: list[LogProgress | OSError] = []

    async def wait(change: Change) -> None:
        results.append(await harness.commits.submit_and_wait(change))

    nursery.start_soon(wait, put(harness, "a"))
    await wait_all_tasks_blocked()
    assert (results, harness.log.groups[-1][1]) == ([], True)
    harness.synced()
    await wait_all_tasks_blocked()
    assert isinstance(results[0], LogProgress)
    nursery.start_soon(wait, put(harness, "a", priority=1))
    await wait_all_tasks_blocked()
    harness.failed(FULL)
    await wait_all_tasks_blocked()
    assert results[1] is FULL


@pytest.mark.parametrize("end", ["synced", "failed"])
async def test_a_topic_is_idle_when_its_last_change_has_ended(
    harness: ShardHarness, nursery: trio.Nursery, end: str
) -> None:
    harness.make("a", durability="disk")
    topic = harness.engine.topics["a"]
    await harness.commits.wait_idle(topic)
    done = trio.Event()

    async def wait() -> None:
        await harness.commits.wait_idle(topic)
        done.set()

    harness.append("a", 1)
    harness.put("a", priority=1)
    nursery.start_soon(wait)
    nursery.start_soon(wait)
    await wait_all_tasks_blocked()
    harness.written()
    await wait_all_tasks_blocked()
    assert not done.is_set(), "the put waits for its sync"
    harness.synced() if end == "synced" else harness.failed(FULL)
    await wait_all_tasks_blocked()
    assert done.is_set()
