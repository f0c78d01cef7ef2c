"""Tests of failed streamed appends, and of callers whose requests have timed out."""

from __future__ import annotations

import errno
import os

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from tests.support.streamed import (
    BROKEN,
    FULL,
    LONG,
    PADDING,
    Held,
    body,
    datas,
    files,
    held_up,
    until,
)
from topics.actors.shard import appends
from topics.actors.shard.loop import RPC_TIMEOUT_MS
from topics.engine.now import Now
from topics.formats.disk.frames import FrameKind
from topics.formats.wire.calls import AppendParams
from topics.formats.wire.envelope import ErrorCode, decode

pytestmark = pytest.mark.usefixtures("small_chunks")


# Requests that have timed out


async def test_a_streamed_append_whose_file_write_hangs_is_reported_as_a_stalled_disk(
    harness: ShardHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A streamed append has no other time limit."""
    held = Held(monkeypatch)
    harness.make("a")
    number = harness.append_raw("a", body(PADDING))
    await held_up(harness, held)
    for now in range(12):
        harness.loop.context.disk.check(now)
    assert harness.cells.disk_silent_ms == 11_000
    refused = harness.append("b", 1)
    assert harness.answers() == [(refused, "not_ready")]
    held.open()
    await held_up(harness, held, 2)
    harness.loop.context.disk.check(12)
    assert harness.cells.disk_silent_ms == 0
    assert (await until(harness, number))[number]["first_seq"] == 1


async def later(harness: ShardHarness, clock: MockClock) -> list[tuple[int, int | str]]:
    """Wait longer than the timeout of a request. Return the replies sent until then."""
    clock.jump(RPC_TIMEOUT_MS / 1000 + 1)
    harness.loop.router._expire_until(trio.current_time())
    return harness.answers()


async def test_requests_that_time_out_while_they_wait_for_a_streamed_append_are_not_executed(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    number = harness.append_raw("a", body(PADDING))
    await held_up(harness, held)
    waiting = [
        harness.append("a", "small"),
        harness.append_many("a", {"records": [{"data": 1}]}),
        harness.append_raw("a", body(["b" * 100] * 50)),
        harness.put("a", priority=5),
        harness.delete("a"),
        harness.delete_records("a", before_seq=10),
    ]
    assert sorted(await later(harness, mock_clock)) == [
        (each, ErrorCode.TIMEOUT) for each in waiting
    ]
    last = harness.append("a", "in time")
    held.open()
    answers = await until(harness, number, last)
    assert (answers[number]["first_seq"], answers[last]["first_seq"]) == (1, 61)
    assert answers.keys() == {number, last}
    assert datas(harness, "a") == [*PADDING, "in time"]
    assert harness.engine.topics["a"].config.priority is None


async def test_a_waiting_request_of_a_disconnected_front_is_not_executed(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    harness.append_raw("a", body(PADDING))
    await held_up(harness, held)
    harness.append("a", "small")
    harness.session.close()
    harness.session = harness.loop.open_session("front-0", harness.wire)
    last = harness.append("a", "of the next one")
    held.open()
    assert (await until(harness, last))[last]["first_seq"] == 61


async def test_a_delete_that_times_out_while_it_waits_for_its_topic_is_not_executed(
    harness: ShardHarness, mock_clock: MockClock
) -> None:
    harness.make("a", cap_records=10)
    await until(harness, harness.append("a", 1))
    harness.append("a", 2)
    number = harness.delete_records("a", match=["tag", "Glob", "*"])
    assert await later(harness, mock_clock) == [(number, ErrorCode.TIMEOUT)]
    position = harness.log.next_lsn
    last = harness.append("a", 3)
    await until(harness, last)
    kinds = [frame.kind for lsn, frame in harness.log.frames.items() if lsn >= position]
    assert FrameKind.DELETE not in kinds


async def test_decided_changes_get_the_result_of_the_log_even_after_the_request_timeout(
    harness: ShardHarness, mock_clock: MockClock
) -> None:
    """The disk hangs for a minute. Decided changes cannot be undone."""
    harness.make("a", durability="fsync")
    numbers = [
        harness.append("a", 1),
        harness.append_many("a", {"records": [{"data": 1}]}),
        harness.put("a", priority=5),
        harness.delete_records("a", before_seq=1),
        harness.delete("a"),
    ]
    assert await later(harness, mock_clock) == []
    harness.synced()
    answered = [decode(frame.payload).cid for frame in harness.wire.take()]
    assert sorted(answered) == numbers


MALFORMED = {
    "truncated": body(PADDING)[:-2],
    "data after the end": body(PADDING) + b"{}",
    "an invalid last member": body(PADDING)[:-1] + b',"create":"yes"}',
    "a last record without data": body(PADDING)[:-2] + b',{"tag":"t"}]}',
    "a truncated character in the last record": body(PADDING)[:-2] + b',{"data":"\xf0\x9f\x98"}]}',
    "a partial character after the end": body(PADDING) + b"\xf0",
    "a surrogate in the middle": body(PADDING).replace(b"x" * 100, b"x" * 97 + b"\xed\xa0\x80", 1),
    "a long tag in the last record": body(PADDING)[:-2]
    + b',{"data":1,"tag":"%b"}]}' % (b"t" * 300),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
async def test_a_malformed_streamed_body_is_rejected_and_nothing_is_stored(
    harness: ShardHarness, raw: bytes
) -> None:
    assert len(raw) > LONG
    number, small = harness.append_raw("a", raw), harness.append("a", 1, create=False)
    answers = await until(harness, number, small)
    assert [answers[n]["code"] for n in (number, small)] == ["invalid_request", "topic_not_found"]
    assert (harness.log.frames, files(harness), harness.loop.context.held.waiting) == ({}, [], {})
    harness.make("a")
    again, next_one = harness.append_raw("a", raw), harness.append("a", "next")
    answers = await until(harness, again, next_one)
    assert (answers[again]["code"], answers[next_one]["first_seq"]) == ("invalid_request", 1)
    assert files(harness) == []


@pytest.mark.parametrize("write", [1, 2, 4])
async def test_a_streamed_append_that_fills_the_disk_is_rejected_and_leaves_no_file(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    held = Held(monkeypatch)
    held.open()
    held.after[write] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    harness.make("a")
    number, small = (
        harness.append_raw("a", body(PADDING), key="k"),
        harness.append("a", "small", key="k"),
    )
    answers = await until(harness, number, small)
    assert answers[number]["code"] == "not_ready"
    assert (answers[small]["first_seq"], answers[small]["deduped"]) == (1, False)
    assert files(harness) == []
    again = harness.append_raw("a", body(PADDING))
    assert (await until(harness, again))[again]["first_seq"] == 2


async def test_a_streamed_append_that_is_cancelled_leaves_no_file(
    harness: ShardHarness, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    harness.make("a")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as appends_nursery:
            params = AppendParams("a", None, True, None, 0)
            appends_nursery.start_soon(
                harness.loop.services.streamed_appends.append, params, body(PADDING)
            )
            await held_up(harness, held)
            assert len(files(harness)) == 1
            held.open()
            scope.cancel()
    assert scope.cancelled_caught
    assert files(harness) == []
    assert harness.seqs("a") == []


async def test_a_blob_is_deleted_if_the_log_has_no_space_for_its_frame(
    harness: ShardHarness,
) -> None:
    """Otherwise 64 MiB that no record uses would remain on the full disk until the next start."""
    harness.make("a")
    number = harness.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(harness.commits):
            await trio.lowlevel.checkpoint()
    assert len(files(harness)) == 1
    harness.failed(FULL)
    await wait_all_tasks_blocked()
    assert harness.answers() == [(number, "not_ready")]
    assert (files(harness), harness.log.blobs.added()) == ([], [])
    small = harness.append("a", 1)
    harness.written()
    assert harness.answers() == [(small, 200)]
    assert datas(harness, "a") == [1]


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
async def test_a_floor_frame_that_fails_during_a_streamed_append_does_not_affect_the_append(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """A read removes expired records while the streamed records arrive. The frame that logs the
    removal fails, because the disk is full.
    """
    held = Held(monkeypatch)
    harness.make("a", ttl_ms=60_000)
    old = harness.append("a", "old")
    await until(harness, old)
    harness.make("a", durability=durability)
    number = harness.append_raw("a", body(PADDING), key="k")
    await held_up(harness, held)
    now = harness.loop.context.now
    harness.loop.context.now = Now(now.ts + 120_000, now.ms + 120_000)
    assert harness.seqs("a") == []
    topic = harness.engine.topics["a"]
    harness.failed(FULL)
    assert (topic.next_seq, topic.pending, topic.floor_due) == (62, 1, True)
    assert topic.pending_keys.keys() == {"k"}
    small = harness.append("a", "small")
    held.open()
    answers = await until(harness, number, small)
    assert (
        answers[number]["first_seq"],
        answers[number]["count"],
        answers[small]["first_seq"],
    ) == (2, 60, 62)
    assert (topic.pending, topic.pending_sync, topic.pending_bytes, topic.pending_keys) == (
        0,
        0,
        0,
        {},
    )
    assert topic.reserved_seq <= topic.reserving_seq


@pytest.mark.slow
async def test_the_seqs_of_a_streamed_append_are_reserved_again_if_their_reservation_fails(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the seqs of records in memory must not be assigned again."""
    harness.make("a", durability="ephemeral")
    with monkeypatch.context() as patch:
        patch.setattr(appends, "STREAMED_MIN_BYTES", 1 << 20)
        harness.append("a", *[0] * 2100)
    harness.flush()
    topic = harness.engine.topics["a"]
    assert (topic.reserved_seq, topic.reserving_seq) == (4096, 2100 + 4096)
    number = harness.append_raw("a", body([0] * 2100))
    with trio.fail_after(20):
        while not topic.pending:
            await trio.lowlevel.checkpoint()
    assert topic.next_seq == 4201
    harness.failed(FULL)
    await until(harness, number)
    reserved = [
        frame.first_seq
        for frame in harness.log.frames.values()
        if frame.kind is FrameKind.SEQS_RESERVED
    ]
    assert max(reserved) >= 4200
    assert topic.reserved_seq == topic.reserving_seq == max(reserved)


async def test_a_blob_is_kept_after_a_log_write_with_an_unknown_outcome(
    harness: ShardHarness,
) -> None:
    """The frame may be on the disk. Without its blob, the next start would report damage."""
    harness.make("a")
    harness.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(harness.commits):
            await trio.lowlevel.checkpoint()
    harness.failed(BROKEN)
    await wait_all_tasks_blocked()
    assert len(files(harness)) == 1


@pytest.mark.parametrize("exists", [True, False])
async def test_a_log_that_breaks_rejects_the_streamed_append_and_the_waiting_requests(
    harness: ShardHarness, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    held = Held(monkeypatch)
    if exists:
        harness.make("a")
    numbers = [harness.append_raw("a", body(PADDING)), harness.append("a", 1), harness.put("a")]
    if exists:
        await held_up(harness, held)
    assert harness.failed(BROKEN) is BROKEN
    held.open()
    found: dict[int, int | str] = {}
    with trio.fail_after(5):
        while len(found) < 3:
            found |= dict(harness.answers())
            await trio.lowlevel.checkpoint()
    assert list(found.items()) == [(number, "not_ready") for number in numbers]
    assert harness.loop.context.held.waiting == {}


async def test_a_streamed_append_creates_its_topic_if_an_earlier_creation_fails(
    harness: ShardHarness,
) -> None:
    """The next start would report a frame of a topic that the log does not contain as damage."""
    small = harness.append("a", 1)
    harness.flush()
    number = harness.append_raw("a", body(PADDING))
    await wait_all_tasks_blocked()
    harness.failed(FULL)
    assert harness.answers() == [(small, "not_ready")]
    answers = await until(harness, number)
    assert (
        answers[number]["status"],
        answers[number]["created"],
        answers[number]["first_seq"],
    ) == (201, True, 1)
    assert {frame.topic_id for frame in harness.log.frames.values()} == {
        harness.engine.topics["a"].id
    }
    assert datas(harness, "a") == PADDING


async def test_waiting_bodies_of_a_disconnected_front_are_dropped(
    harness: ShardHarness,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next front uses the memory of these bodies. No client received an acknowledgement."""
    held = Held(monkeypatch)
    harness.append_raw("a", body(PADDING))
    await held_up(harness, held)
    for _ in range(3):
        harness.append_raw("a", body(PADDING))
    harness.session.close()
    harness.session = harness.loop.open_session("front-0", harness.wire)
    number = harness.append("a", "next")
    held.open()
    answers = await until(harness, number)
    assert answers[number]["seqs"] == [61]
    assert harness.loop.context.held.waiting == {}
