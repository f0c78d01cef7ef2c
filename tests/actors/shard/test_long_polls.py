"""Tests of long polls: the events that wake a reader or cancel its wait."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import LIMITS, ShardHarness
from topics.engine import reading
from topics.engine.changes import append
from topics.engine.changes.append import Append
from topics.formats.api.append_body import decode_append
from topics.formats.json_text import json_bytes
from topics.formats.wire.envelope import ErrorCode
from topics.storage.disk import Damaged
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


# Readers


@pytest.mark.parametrize(("durability", "commit"), [("disk", "written"), ("fsync", "synced")])
async def test_a_waiting_reader_is_woken_by_the_commit_and_not_earlier(
    harness: ShardHarness, durability: str, commit: str
) -> None:
    harness.make("a", durability=durability)
    harness.make("b", durability="ephemeral")
    poll = harness.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    append = harness.append("a", "x")
    harness.append("b", "another topic's")
    harness.flush()
    await wait_all_tasks_blocked()
    assert poll not in dict(harness.answers())
    getattr(harness, commit)()
    await wait_all_tasks_blocked()
    answers = dict(harness.bodies())
    assert [record["data"] for record in answers[poll]["records"]] == ["x"]
    assert append in answers


async def test_a_commit_outside_of_an_iteration_wakes_the_reader(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    poll = harness.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    body = decode_append(json_bytes({"records": [{"data": "x"}]}), None, LIMITS)
    change = append.decide(harness.engine.table, "a", body, harness.commits.now())
    assert isinstance(change, Append)
    await harness.commits.submit_and_wait(change)
    await wait_all_tasks_blocked()
    assert (poll, 200) in harness.answers()


async def test_a_commit_right_after_the_first_read_wakes_the_reader(harness: ShardHarness) -> None:
    """Both happen in one iteration of the loop, before the waiting task has started."""
    harness.make("a")
    poll = harness.diff("a", wait_ms=30_000)
    append = harness.append("a", "x")
    harness.written()
    await wait_all_tasks_blocked()
    assert sorted(harness.answers()) == [(poll, 200), (append, 200)]


DAMAGED = Damaged(Path("1.seg"), 4096, "records are damaged")
FAILED = OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.parametrize("failure", [DAMAGED, FAILED])
async def test_a_long_poll_with_unreadable_records_fails_and_the_shard_continues(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    harness.make("a")
    poll = harness.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()

    def fail(*_: object) -> NoReturn:
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr("topics.actors.shard.long_polls.read", fail)
        append = harness.append("a", 1)
        harness.synced()
        await wait_all_tasks_blocked()
    answers = harness.answers()
    assert [number for number, _ in answers] == [append, poll]
    assert answers[1][1] == ("internal" if failure is DAMAGED else ErrorCode.APPLICATION)
    assert harness.seqs("a") == [1]


@pytest.mark.parametrize("wait_ms", [0, 1])
async def test_a_diff_scans_all_records_that_existed_at_its_arrival_with_any_wait_time(
    harness: ShardHarness,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    wait_ms: int,
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    harness.make("a")
    for _ in range(20):
        harness.append("a", 0, node="me")
    harness.written()
    harness.answers()
    diff = harness.diff("a", node="me", wait_ms=wait_ms)
    for _ in range(3):
        assert harness.answers() == [], "it yields to other requests"
        await trio.lowlevel.checkpoint()
    await trio.sleep(0.01)
    ((number, page),) = harness.bodies()
    assert (number, page["next_from_seq"], page["caught_up"]) == (diff, 20, True)


async def test_a_diff_without_a_wait_ends_near_the_head_at_its_arrival(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    harness.make("a")
    for _ in range(8):
        harness.append("a", 0, node="me")
    harness.written()
    harness.diff("a", node="me", wait_ms=0)
    for _ in range(10):
        for _ in range(4):
            harness.append("a", 0, node="me")
        harness.written()
        await trio.lowlevel.checkpoint()
    (page,) = [page for _, page in harness.bodies() if "next_from_seq" in page]
    assert 8 <= page["next_from_seq"] < 16


async def test_all_readers_of_a_topic_are_woken(harness: ShardHarness) -> None:
    harness.make("a", durability="ephemeral")
    polls = [harness.diff("a", wait_ms=30_000) for _ in range(3)]
    await wait_all_tasks_blocked()
    append = harness.append("a", "x")
    await wait_all_tasks_blocked()
    assert sorted(harness.answers()) == sorted([(append, 200), *((poll, 200) for poll in polls)])


async def test_a_failed_write_wakes_no_reader(
    harness: ShardHarness, autojump_clock: trio.testing.MockClock
) -> None:
    harness.make("a")
    poll = harness.diff("a", wait_ms=5_000)
    await wait_all_tasks_blocked()
    harness.append("a", "lost")
    harness.failed(FULL)
    harness.answers()
    await trio.sleep(4.9)
    assert harness.answers() == []
    await trio.sleep(0.2)
    assert [(number, body["records"], body["head_seq"]) for number, body in harness.bodies()] == [
        (poll, [], 0)
    ]


async def test_a_durable_delete_of_a_topic_ends_the_wait_of_its_readers(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    poll = harness.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    deletion = harness.delete("a")
    harness.written()
    await wait_all_tasks_blocked()
    assert harness.answers() == []
    harness.synced()
    await wait_all_tasks_blocked()
    assert sorted(number for number, _ in harness.answers()) == [poll, deletion]


async def test_the_cursor_does_not_pass_records_that_were_deleted_with_their_topic(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.append("a", 1)
    harness.written()
    harness.answers()
    poll = harness.diff("a", from_seq=1, wait_ms=30_000)
    await wait_all_tasks_blocked()
    harness.append("a", 2, 3)
    harness.delete("a")
    harness.written()
    harness.synced()
    await wait_all_tasks_blocked()
    (page,) = [body for number, body in harness.bodies() if number == poll]
    assert (page["records"], page["next_from_seq"], page["head_seq"]) == ([], 1, 1)


@pytest.mark.parametrize("is_in_one_batch", [True, False])
async def test_a_disconnected_reader_stops_waiting(
    harness: ShardHarness, is_in_one_batch: bool
) -> None:
    harness.make("a")
    poll = harness.diff("a", wait_ms=30_000)
    if not is_in_one_batch:
        await wait_all_tasks_blocked()
    harness.cancel(poll)
    await wait_all_tasks_blocked()
    assert [number for number, _ in harness.answers()] == [poll]
    assert harness.loop.services.long_polls._polls == {}


async def test_a_session_that_ends_in_the_same_batch_as_its_long_poll_ends_it(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    harness.diff("a", wait_ms=30_000)
    harness.session.close()
    await wait_all_tasks_blocked()
    assert harness.loop.services.long_polls._polls == {}
