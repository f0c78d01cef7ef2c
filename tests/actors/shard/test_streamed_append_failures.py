"""Tests of failed streamed appends, and of callers whose requests have timed out."""

from __future__ import annotations

import errno
import os

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.shard import Desk
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


async def test_a_long_write_whose_file_hangs_is_a_disk_that_does_not_answer(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long write has no other time limit."""
    held = Held(monkeypatch)
    desk.make("a")
    number = desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    for now in range(12):
        desk.loop.context.disk.check(now)
    assert desk.cells.disk_silent_ms == 11_000
    refused = desk.append("b", 1)
    assert desk.answers() == [(refused, "not_ready")]
    held.open()
    await held_up(desk, held, 2)
    desk.loop.context.disk.check(12)
    assert desk.cells.disk_silent_ms == 0
    assert (await until(desk, number))[number]["first_seq"] == 1


async def later(desk: Desk, clock: MockClock) -> list[tuple[int, int | str]]:
    """Wait longer than the timeout of a request. Return the replies sent until then."""
    clock.jump(RPC_TIMEOUT_MS / 1000 + 1)
    desk.loop.router._expire_until(trio.current_time())
    return desk.answers()


async def test_what_waited_too_long_behind_it_is_not_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    number = desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    waiting = [
        desk.append("a", "small"),
        desk.append_many("a", {"records": [{"data": 1}]}),
        desk.append_raw("a", body(["b" * 100] * 50)),
        desk.put("a", priority=5),
        desk.delete("a"),
        desk.delete_records("a", before_seq=10),
    ]
    assert sorted(await later(desk, mock_clock)) == [(each, ErrorCode.TIMEOUT) for each in waiting]
    last = desk.append("a", "in time")
    held.open()
    answers = await until(desk, number, last)
    assert (answers[number]["first_seq"], answers[last]["first_seq"]) == (1, 61)
    assert answers.keys() == {number, last}
    assert datas(desk, "a") == [*PADDING, "in time"]
    assert desk.engine.topics["a"].config.priority is None


async def test_what_waited_for_a_front_that_has_gone_is_not_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    desk.append("a", "small")
    desk.session.close()
    desk.session = desk.loop.open_session("front-0", desk.wire)
    last = desk.append("a", "of the next one")
    held.open()
    assert (await until(desk, last))[last]["first_seq"] == 61


async def test_a_delete_that_waited_too_long_for_its_topic_is_not_done(
    desk: Desk, mock_clock: MockClock
) -> None:
    desk.make("a", cap_records=10)
    await until(desk, desk.append("a", 1))
    desk.append("a", 2)
    number = desk.delete_records("a", match=["tag", "Glob", "*"])
    assert await later(desk, mock_clock) == [(number, ErrorCode.TIMEOUT)]
    position = desk.log.next_lsn
    last = desk.append("a", 3)
    await until(desk, last)
    kinds = [frame.kind for place, frame in desk.log.frames.items() if place >= position]
    assert FrameKind.DELETE not in kinds


async def test_what_is_decided_is_answered_as_the_log_says_however_long_it_takes(
    desk: Desk, mock_clock: MockClock
) -> None:
    """The disk hangs for a minute. Decided changes cannot be undone."""
    desk.make("a", durability="fsync")
    numbers = [
        desk.append("a", 1),
        desk.append_many("a", {"records": [{"data": 1}]}),
        desk.put("a", priority=5),
        desk.delete_records("a", before_seq=1),
        desk.delete("a"),
    ]
    assert await later(desk, mock_clock) == []
    desk.synced()
    answered = [decode(frame.payload).cid for frame in desk.wire.take()]
    assert sorted(answered) == numbers


MALFORMED = {
    "cut": body(PADDING)[:-2],
    "more behind it": body(PADDING) + b"{}",
    "another member behind it": body(PADDING)[:-1] + b',"create":"yes"}',
    "a last record without data": body(PADDING)[:-2] + b',{"tag":"t"}]}',
    "a character cut at the end": body(PADDING)[:-2] + b',{"data":"\xf0\x9f\x98"}]}',
    "half a character as the last byte": body(PADDING) + b"\xf0",
    "a surrogate in the middle": body(PADDING).replace(b"x" * 100, b"x" * 97 + b"\xed\xa0\x80", 1),
    "a long tag in the last record": body(PADDING)[:-2]
    + b',{"data":1,"tag":"%b"}]}' % (b"t" * 300),
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED)
async def test_a_bad_end_is_refused_and_nothing_is_stored(desk: Desk, raw: bytes) -> None:
    assert len(raw) > LONG
    number, small = desk.append_raw("a", raw), desk.append("a", 1, create=False)
    answers = await until(desk, number, small)
    assert [answers[n]["code"] for n in (number, small)] == ["invalid_request", "topic_not_found"]
    assert (desk.log.frames, files(desk), desk.loop.context.held.waiting) == ({}, [], {})
    desk.make("a")
    again, next_one = desk.append_raw("a", raw), desk.append("a", "next")
    answers = await until(desk, again, next_one)
    assert (answers[again]["code"], answers[next_one]["first_seq"]) == ("invalid_request", 1)
    assert files(desk) == []


@pytest.mark.parametrize("write", [1, 2, 4])
async def test_a_disk_that_fills_up_midway_takes_nothing_of_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, write: int
) -> None:
    held = Held(monkeypatch)
    held.open()
    held.after[write] = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    desk.make("a")
    number, small = desk.append_raw("a", body(PADDING), key="k"), desk.append("a", "small", key="k")
    answers = await until(desk, number, small)
    assert answers[number]["code"] == "not_ready"
    assert (answers[small]["first_seq"], answers[small]["deduped"]) == (1, False)
    assert files(desk) == []
    again = desk.append_raw("a", body(PADDING))
    assert (await until(desk, again))[again]["first_seq"] == 2


async def test_a_streamed_append_that_is_cancelled_leaves_no_file(
    desk: Desk, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as mine:
            params = AppendParams("a", None, True, None, 0)
            mine.start_soon(desk.loop.services.streamed_appends.append, params, body(PADDING))
            await held_up(desk, held)
            assert len(files(desk)) == 1
            held.open()
            scope.cancel()
    assert scope.cancelled_caught
    assert files(desk) == []
    assert desk.seqs("a") == []


async def test_without_room_for_its_frame_its_blob_goes_too(desk: Desk) -> None:
    """Otherwise 64 MiB that no record uses would remain on the full disk until the next start."""
    desk.make("a")
    number = desk.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(desk.commits):
            await trio.lowlevel.checkpoint()
    assert len(files(desk)) == 1
    desk.failed(FULL)
    await wait_all_tasks_blocked()
    assert desk.answers() == [(number, "not_ready")]
    assert (files(desk), desk.log.blobs.added()) == ([], [])
    small = desk.append("a", 1)
    desk.written()
    assert desk.answers() == [(small, 200)]
    assert datas(desk, "a") == [1]


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
async def test_a_floor_that_finds_no_room_meanwhile_takes_nothing_from_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """A read lets go of what is too old while the records are on their way; the frame that tells of
    it meets a full disk.
    """
    held = Held(monkeypatch)
    desk.make("a", ttl_ms=60_000)
    old = desk.append("a", "old")
    await until(desk, old)
    desk.make("a", durability=durability)
    number = desk.append_raw("a", body(PADDING), key="k")
    await held_up(desk, held)
    now = desk.loop.context.now
    desk.loop.context.now = Now(now.ts + 120_000, now.ms + 120_000)
    assert desk.seqs("a") == []
    topic = desk.engine.topics["a"]
    desk.failed(FULL)
    assert (topic.next_seq, topic.pending, topic.floor_due) == (62, 1, True)
    assert topic.pending_keys.keys() == {"k"}
    small = desk.append("a", "small")
    held.open()
    answers = await until(desk, number, small)
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
async def test_a_reservation_that_fails_meanwhile_leaves_no_seq_of_it_unreserved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, the seqs of records in memory must not be assigned again."""
    desk.make("a", durability="ephemeral")
    with monkeypatch.context() as patch:
        patch.setattr(appends, "STREAMED_MIN_BYTES", 1 << 20)
        desk.append("a", *[0] * 2100)
    desk.flush()
    topic = desk.engine.topics["a"]
    assert (topic.reserved_seq, topic.reserving_seq) == (4096, 2100 + 4096)
    number = desk.append_raw("a", body([0] * 2100))
    with trio.fail_after(20):
        while not topic.pending:
            await trio.lowlevel.checkpoint()
    assert topic.next_seq == 4201
    desk.failed(FULL)
    await until(desk, number)
    told = [
        frame.first_seq
        for frame in desk.log.frames.values()
        if frame.kind is FrameKind.SEQS_RESERVED
    ]
    assert max(told) >= 4200
    assert topic.reserved_seq == topic.reserving_seq == max(told)


async def test_after_a_write_that_failed_in_doubt_its_blob_stays(desk: Desk) -> None:
    """The frame may be on the disk: without its blob the next start would call that damage."""
    desk.make("a")
    desk.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(desk.commits):
            await trio.lowlevel.checkpoint()
    desk.failed(BROKEN)
    await wait_all_tasks_blocked()
    assert len(files(desk)) == 1


@pytest.mark.parametrize("exists", [True, False])
async def test_a_log_that_breaks_meanwhile_refuses_it_and_all_that_waited(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, exists: bool
) -> None:
    held = Held(monkeypatch)
    if exists:
        desk.make("a")
    numbers = [desk.append_raw("a", body(PADDING)), desk.append("a", 1), desk.put("a")]
    if exists:
        await held_up(desk, held)
    assert desk.failed(BROKEN) is BROKEN
    held.open()
    found: dict[int, int | str] = {}
    with trio.fail_after(5):
        while len(found) < 3:
            found |= dict(desk.answers())
            await trio.lowlevel.checkpoint()
    assert list(found.items()) == [(number, "not_ready") for number in numbers]
    assert desk.loop.context.held.waiting == {}


async def test_a_topic_whose_making_failed_meanwhile_is_made_for_it(desk: Desk) -> None:
    """A frame about a topic that the log does not know would be damage to the next start."""
    small = desk.append("a", 1)
    desk.flush()
    number = desk.append_raw("a", body(PADDING))
    await wait_all_tasks_blocked()
    desk.failed(FULL)
    assert desk.answers() == [(small, "not_ready")]
    answers = await until(desk, number)
    assert (
        answers[number]["status"],
        answers[number]["created"],
        answers[number]["first_seq"],
    ) == (201, True, 1)
    assert {frame.topic_id for frame in desk.log.frames.values()} == {desk.engine.topics["a"].id}
    assert datas(desk, "a") == PADDING


async def test_what_waited_behind_a_long_write_goes_with_its_front(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next front uses the memory of these bodies. No client received an acknowledgement."""
    held = Held(monkeypatch)
    desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    for _ in range(3):
        desk.append_raw("a", body(PADDING))
    desk.session.close()
    desk.session = desk.loop.open_session("front-0", desk.wire)
    number = desk.append("a", "next")
    held.open()
    answers = await until(desk, number)
    assert answers[number]["seqs"] == [61]
    assert desk.loop.context.held.waiting == {}
