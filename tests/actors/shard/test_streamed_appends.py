"""Long writes, piece by piece: what stands at the edges of the pieces, who waits meanwhile, and
what a write that fails leaves.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.shard import Desk
from topics.actors.shard import appends, streamed_appends
from topics.actors.shard.loop import RPC_TIMEOUT_MS
from topics.actors.shard.streamed_appends import STREAMED_MIN_BYTES
from topics.engine.now import Now
from topics.formats.api import sliced
from topics.formats.disk.frames import Frame, FrameKind
from topics.formats.disk.records import RecordFlags
from topics.formats.wire.envelope import ErrorCode, decode
from topics.storage.verify import verify_blob
from topics.storage.wal import blobs
from topics.storage.wal.file import NoRoom

FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
LONG = 4000
PADDING = ["x" * 100] * 60  # more than LONG


@pytest.fixture
def desk(tmp_path: Path, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Long is what has more than 4,000 bytes; it is decoded by 500 and written by 1,000."""
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", LONG)
    monkeypatch.setattr(streamed_appends, "RUN_BYTES", 1000)
    monkeypatch.setattr(sliced, "SLICE_BYTES", 500)
    return Desk(tmp_path, nursery)


class Held:
    """Holds every write to a blob, or to memory, until opened; the writes wait in threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = 0
        self.after: dict[int, OSError] = {}  # what to raise at the n-th write
        self._opened = False
        for where, name in ((blobs, "write_all"), (streamed_appends.MemorySink, "write")):
            monkeypatch.setattr(where, name, self._holding(getattr(where, name)))

    def _holding(self, real: Callable[..., None]) -> Callable[..., None]:
        def write(*args: Any) -> None:
            self.reached += 1
            if self.reached in self.after:
                raise self.after[self.reached]
            while not self._opened:
                trio.from_thread.run(trio.lowlevel.checkpoint)
            real(*args)

        return write

    def open(self) -> None:
        self._opened = True


def body(datas: Iterable[Any], **fields: Any) -> bytes:
    return json.dumps(
        {"records": [{"data": data} for data in datas], **fields}, ensure_ascii=False
    ).encode()


async def until(desk: Desk, *numbers: int) -> dict[int, dict[str, Any]]:
    """Let the log sync and the tasks run until these are answered; all answers in order of time."""
    found: dict[int, dict[str, Any]] = {}
    with trio.fail_after(20):
        while not set(numbers) <= set(found):
            desk.synced()
            found |= dict(desk.bodies())
            await trio.lowlevel.checkpoint()
    return found


async def held_up(desk: Desk, held: Held, writes: int = 1) -> None:
    """Until so many blobs wait in their first write."""
    with trio.fail_after(20):
        while held.reached < writes:
            desk.synced()
            await trio.lowlevel.checkpoint()


def files(desk: Desk) -> list[str]:
    return sorted(path.name for path in desk.log.blobs.folder.iterdir())


def stored(desk: Desk, topic: str) -> list[dict[str, Any]]:
    desk.diff(topic, limit=1000, max_batch_bytes=8 << 20, include_tags=True)
    ((_, page),) = desk.bodies()
    records: list[dict[str, Any]] = page["records"]
    return records


def datas(desk: Desk, topic: str) -> list[Any]:
    return [record["data"] for record in stored(desk, topic)]


# The edges


@pytest.mark.parametrize("extra", [0, 1])
async def test_a_body_is_long_above_four_mebibytes(
    tmp_path: Path, nursery: trio.Nursery, extra: int
) -> None:
    desk = Desk(tmp_path, nursery)
    raw = body(["x" * 1_000_000] * 4)
    raw += b" " * (STREAMED_MIN_BYTES + extra - len(raw))
    number = desk.append_raw("a", raw)
    assert (desk.loop.context.held._waiting != {}) == bool(extra)
    answers = await until(desk, number)
    assert answers[number]["seqs"] == [1, 2, 3, 4]
    assert len(files(desk)) == extra
    assert datas(desk, "a") == ["x" * 1_000_000] * 4


@pytest.mark.parametrize("shift", range(4))
@pytest.mark.parametrize("length", [100, 999, 1000, 1001, 2500])
async def test_what_stands_on_the_edge_of_a_piece_comes_back_as_it_was(
    desk: Desk, shift: int, length: int
) -> None:
    """Characters of four bytes everywhere, so that every edge cuts one for three of four shifts."""
    sent = ["y" * shift, *(["😀" * (length // 4)] * (2 * LONG // length + 1)), "last"]
    number = desk.append_raw("a", body(sent))
    assert (await until(desk, number))[number]["count"] == len(sent)
    assert datas(desk, "a") == sent
    assert len(files(desk)) == 1


async def test_a_long_write_stores_what_a_short_one_would(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {
            "data": {"n": n, "t": '},{"data":'},
            **({"tag": f"t{n % 3}"} if n % 2 else {}),
            **({"meta": {"m": n}} if n % 5 == 0 else {}),
        }
        | ({"node": "own"} if n % 7 == 0 else {})
        for n in range(150)
    ]
    raw = json.dumps({"records": records, "node": "batch"}).encode()
    await until(desk, desk.append_raw("long", raw))
    monkeypatch.setattr(appends, "STREAMED_MIN_BYTES", 1 << 20)
    await until(desk, desk.append_raw("short", raw))
    long, short = stored(desk, "long"), stored(desk, "short")
    assert len(files(desk)) == 1
    assert [record | {"$ts": 0} for record in long] == [record | {"$ts": 0} for record in short]
    assert desk.engine.topics["long"].bytes == desk.engine.topics["short"].bytes


async def test_the_log_speaks_of_a_blob_that_is_whole(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, seen = desk.log.append, []

    def append(frame: Frame) -> int:
        if frame.flags & RecordFlags.EXTERNAL:
            assert not [*verify_blob(desk.log.blobs.path(frame.topic_id, frame.first_seq))]
            seen.append((frame.first_seq, frame.length < 200))
        return real(frame)

    monkeypatch.setattr(desk.log, "append", append)
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert seen == [(1, True)]


async def test_records_of_a_class_in_memory_make_no_file(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    number = desk.append_raw("a", body(["😀" * 300] * 10))
    assert (await until(desk, number))[number]["seqs"] == list(range(1, 11))
    assert files(desk) == []
    assert datas(desk, "a") == ["😀" * 300] * 10


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_it_is_answered_when_its_class_says(desk: Desk, durability: str) -> None:
    desk.make("a", durability=durability)
    number = desk.append_raw("a", body(PADDING))
    with trio.fail_after(20):
        while not len(desk.commits):
            await trio.lowlevel.checkpoint()
    assert desk.answers() == []
    desk.written()
    await wait_all_tasks_blocked()
    assert desk.answers() == ([(number, 200)] if durability == "disk" else [])
    desk.synced()
    await wait_all_tasks_blocked()
    assert desk.answers() == ([] if durability == "disk" else [(number, 200)])


async def test_ts_does_not_go_back_when_the_clock_does(desk: Desk) -> None:
    """The places of all records are reckoned before the first is rendered, with the digits of this
    ``$ts``.
    """
    desk.make("a")
    desk.engine.topics["a"].last_ts = 10**13
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert {record["$ts"] for record in stored(desk, "a")} == {10**13}


async def test_small_records_share_a_write(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    held.open()
    await until(desk, desk.append_raw("a", body(PADDING)))
    assert held.reached == 1 + 9, "the tables, then seven records of 140 bytes each time"


# Others beside it


async def test_decoding_gives_way_at_every_piece(desk: Desk, nursery: trio.Nursery) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    nursery.start_soon(others)
    await trio.lowlevel.checkpoint()
    raw = body(PADDING * 5)
    began = turns
    await desk.loop.services.streamed_appends._decode(raw)
    assert turns - began > len(raw) // 1000 + len(raw) // 800, (
        "UTF-8 by 1,000 bytes, then records by 500 and up to the next comma"
    )
    nursery.cancel_scope.cancel()


async def test_what_waited_goes_to_the_log_without_another_message(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    number, small = desk.append_raw("a", body(PADDING)), desk.append("a", "small")
    held.open()
    with trio.fail_after(20):
        while number not in dict(desk.answers()):
            desk.log.sync()
            desk.commits.advance()
            await trio.lowlevel.checkpoint()
    desk.log.sync()
    desk.commits.advance()
    assert desk.answers() == [(small, 200)]


async def test_others_are_served_between_its_pieces(desk: Desk) -> None:
    desk.make("other", durability="ephemeral")
    number = desk.append_raw("a", body(PADDING * 5))
    served = 0
    with trio.fail_after(20):
        while number not in dict(desk.answers()):
            desk.append("other", 1)
            served += bool(desk.answers())
            desk.synced()
            await trio.lowlevel.checkpoint()
    assert served > 30


async def test_other_topics_and_all_readers_go_on_while_it_is_written(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    desk.append("a", "before")
    desk.written()
    desk.answers()
    number = desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    small = desk.append("b", 1)
    desk.synced()
    assert desk.answers() == [(small, 201)]
    assert desk.seqs("a") == [1], "nothing of it is seen"
    held.open()
    assert (await until(desk, number))[number]["first_seq"] == 2


async def test_what_comes_to_its_topic_meanwhile_waits_and_keeps_its_order(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    numbers = [desk.append_raw("a", body(PADDING))]
    await held_up(desk, held)
    numbers += [
        desk.append("a", "small"),
        desk.put("a", priority=5),
        desk.append("a", 1, "two", key="k"),
        desk.append("a", 2, key="k"),
    ]
    desk.synced()
    assert desk.answers() == []
    held.open()
    answers = await until(desk, *numbers)
    assert list(answers) == numbers
    assert [answers[number].get("first_seq") for number in numbers] == [1, 61, None, 62, 62]
    assert answers[numbers[-1]]["deduped"] is True
    assert datas(desk, "a") == [*PADDING, "small", 1, "two"]


async def test_two_of_one_topic_come_one_after_the_other(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        desk.append_raw("a", body(PADDING)),
        desk.append_raw("a", body(["b" * 100] * 50)),
        desk.append("a", "small"),
    ]
    await held_up(desk, held)
    assert len(files(desk)) == 1
    held.open()
    answers = await until(desk, *numbers)
    assert [(answers[number]["first_seq"], answers[number]["created"]) for number in numbers] == [
        (1, True),
        (61, False),
        (111, False),
    ]
    assert datas(desk, "a") == [*PADDING, *["b" * 100] * 50, "small"]


async def test_two_of_different_topics_are_written_at_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [desk.append_raw("a", body(PADDING)), desk.append_raw("b", body(["b" * 100] * 50))]
    await held_up(desk, held, writes=2)
    assert len(files(desk)) == 2
    held.open()
    await until(desk, *numbers)
    assert (datas(desk, "a"), datas(desk, "b")) == (PADDING, ["b" * 100] * 50)


async def test_a_long_duplicate_waits_for_the_first_and_gets_its_seqs(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    numbers = [
        desk.append_raw("a", body(PADDING), key="k"),
        desk.append_raw("a", body(PADDING), key="k"),
        desk.append("a", 1, key="k"),
    ]
    await held_up(desk, held)
    held.open()
    answers = await until(desk, *numbers)
    assert [(answers[number]["first_seq"], answers[number]["count"], answers[number]["deduped"]) for number in numbers] == [
        (1, 60, False), (1, 60, True), (1, 60, True),
    ]  # fmt: skip
    assert len(files(desk)) == 1


async def test_it_waits_for_what_is_under_way_on_its_topic(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    small = desk.append("a", "first", key="k")
    desk.flush()
    number = desk.append_raw("a", body(PADDING), key="k")
    await wait_all_tasks_blocked()
    assert (desk.answers(), files(desk)) == ([], [])
    answers = await until(desk, small, number)
    assert [(answers[n]["first_seq"], answers[n]["deduped"]) for n in (small, number)] == [
        (1, False),
        (1, True),
    ]


# Callers who were told that it took too long


async def test_a_long_write_whose_file_hangs_is_a_disk_that_does_not_answer(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing else ends it: it has no time limit of its own."""
    held = Held(monkeypatch)
    desk.make("a")
    number = desk.append_raw("a", body(PADDING))
    await held_up(desk, held)
    for now in range(12):
        desk.loop.context.disk.look(now)
    assert desk.words.disk_silent_ms == 11_000
    refused = desk.append("b", 1)
    assert desk.answers() == [(refused, "not_ready")]
    held.open()
    await held_up(desk, held, 2)
    desk.loop.context.disk.look(12)
    assert desk.words.disk_silent_ms == 0
    assert (await until(desk, number))[number]["first_seq"] == 1


async def later(desk: Desk, clock: MockClock) -> list[tuple[int, int | str]]:
    """More than a request may wait; what was answered by then."""
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
        desk.append("a", "small"), desk.append_many("a", {"records": [{"data": 1}]}), desk.append_raw("a", body(["b" * 100] * 50)),
        desk.put("a", priority=5), desk.delete("a"), desk.delete_records("a", before_seq=10),
    ]  # fmt: skip
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
    position = desk.log.position
    last = desk.append("a", 3)
    await until(desk, last)
    kinds = [frame.kind for place, frame in desk.log.frames.items() if place >= position]
    assert FrameKind.DELETE not in kinds


async def test_what_is_decided_is_answered_as_the_log_says_however_long_it_takes(
    desk: Desk, mock_clock: MockClock
) -> None:
    """A disk that stands still for a minute: none of these can be taken back."""
    desk.make("a", durability="fsync")
    numbers = [
        desk.append("a", 1), desk.append_many("a", {"records": [{"data": 1}]}), desk.put("a", priority=5),
        desk.delete_records("a", before_seq=1), desk.delete("a"),
    ]  # fmt: skip
    assert await later(desk, mock_clock) == []
    desk.synced()
    assert (
        sorted(cid for cid, _ in ((decode(frame.payload).cid, 0) for frame in desk.wire.take()))
        == numbers
    )


# Writes that fail


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
    assert (desk.log.frames, files(desk), desk.loop.context.held._waiting) == ({}, [], {})
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


async def test_one_that_is_cancelled_midway_leaves_no_file(
    desk: Desk, nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(monkeypatch)
    desk.make("a")
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as mine:
            mine.start_soon(
                desk.loop.services.streamed_appends.append, "a", body(PADDING), None, None
            )
            await held_up(desk, held)
            assert len(files(desk)) == 1
            held.open()
            scope.cancel()
    assert scope.cancelled_caught
    assert files(desk) == []
    assert desk.seqs("a") == []


async def test_without_room_for_its_frame_its_blob_goes_too(desk: Desk) -> None:
    """The disk is full: 64 MiB that nobody can read must not stay until the next start."""
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
    desk.make("a", ttl_ms=1000)
    old = desk.append("a", "old")
    await until(desk, old)
    desk.make("a", durability=durability)
    number = desk.append_raw("a", body(PADDING), key="k")
    await held_up(desk, held)
    now = desk.loop.context.now
    desk.loop.context.now = Now(now.ts + 5000, now.ms + 5000)
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


async def test_a_reservation_that_fails_meanwhile_leaves_no_seq_of_it_unreserved(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in memory only: after a restart their seqs must not be given to others."""
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
    assert desk.loop.context.held._waiting == {}


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
    """The memory of those bodies is the next front's; nobody was told that they are stored."""
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
    assert desk.loop.context.held._waiting == {}
