"""Between decision and answer: who is answered when, in what order, and what becomes of all who
wait when the log fails.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import Desk
from topics.engine import reading
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.put_topic import PutTopic
from topics.engine.topic import RESERVE_MIN
from topics.formats.api.requests import decode_append, decode_config
from topics.formats.disk.frames import FrameKind
from topics.formats.json_text import json_bytes
from topics.storage.disk import Damaged
from topics.storage.wal.file import NoRoom
from topics.storage.wal.writer import Progress

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))
FULL = NoRoom(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def desk(tmp_path: Path, nursery: trio.Nursery) -> Iterator[Desk]:
    return Desk(tmp_path, nursery)


def kinds(desk: Desk) -> list[FrameKind]:
    return [frame.kind for frame in desk.log.frames.values()]


# What each class promises


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
    assert desk.log.groups[-1][1] is False, "nobody asked for a sync"


async def test_a_record_of_class_fsync_is_answered_and_read_once_it_is_synced(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    first = desk.append("a", 1)
    desk.written()
    assert (desk.answers(), desk.seqs("a")) == ([], [])
    assert desk.log.groups[-1][1] is True, "it asked for the sync"
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
    for ask, status in (
        (lambda: desk.put("a"), 201),
        (lambda: desk.put("a", priority=3), 200),
        (lambda: desk.delete("a"), 200),
    ):
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
    at_once = desk.put("a")
    assert desk.answers() == [(at_once, 200)]
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
    second = desk.append("a", 2)  # in the group under way
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
    desk.log.at_once = True
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
    desk.log.at_once = True
    here = desk.append("b", 1)
    desk.flush()
    assert desk.answers() == [(here, 200)]
    assert (desk.seqs("a"), desk.seqs("b")) == ([], [1])
    desk.synced()
    assert len(desk.answers()) == 1
    assert desk.seqs("a") == [1]


async def test_a_floor_that_comes_of_a_commit_goes_to_the_log_with_it(desk: Desk) -> None:
    desk.make("a", cap_records=4)
    desk.append("a", 1, 2, 3)
    desk.synced()
    desk.make("a", durability="ephemeral")
    desk.append("a", 4)
    desk.make("a", durability="disk")
    desk.answers()
    desk.log.at_once = True
    desk.append("a", 5)
    desk.flush()
    assert len(desk.answers()) == 1
    assert desk.seqs("a") == [2, 3, 4, 5]
    assert kinds(desk)[-2:] == [FrameKind.APPEND, FrameKind.FLOOR]
    assert desk.log.written == desk.log.position, "nothing is left in the group under way"
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
    position = desk.log.position
    lost = [
        desk.append("a", "lost", key="k"),
        desk.append("a", "lost"),
        desk.put("a", priority=9),
        desk.append("new", 1),
    ]
    assert desk.failed(FULL) is None
    assert desk.answers() == [(kept, 200), *((number, "not_ready") for number in lost)]
    assert (desk.log.position, len(desk.commits)) == (position, 0)
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
    """Nothing would ever tell of it: the writer reports no more."""
    desk.make("a")
    desk.failed(BROKEN)
    body = decode_append(b'{"records":[{"data":1}]}', None, desk.loop.context.limits)
    change = desk.engine.append("a", body, desk.loop.context.now)
    assert isinstance(change, Append)
    with trio.fail_after(1):
        assert await desk.commits.submit_and_wait(change) is BROKEN
    assert (desk.engine.topics["a"].next_seq, desk.engine.topics["a"].pending) == (1, 0)


async def test_a_deletion_that_failed_leaves_its_topic_as_it_was(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    desk.append("a", "kept")
    desk.answers()
    gone = desk.delete("a")
    new = desk.append("a", "of another topic")
    desk.failed(FULL)
    assert desk.answers() == [(new, "not_ready")]
    desk.failed(FULL)  # alone it could have had the reserve
    assert desk.answers() == [(gone, "not_ready")]
    assert desk.seqs("a") == [1]
    again = desk.append("a", "next")
    assert desk.answers() == [(again, 200)]
    assert desk.seqs("a") == [1, 2]


async def test_a_delete_that_met_a_full_disk_among_appends_is_done_once_more_by_itself(
    desk: Desk,
) -> None:
    desk.make("a")
    desk.append("a", 1, 2)
    desk.make("b")
    desk.append("b", 1)
    desk.synced()
    desk.answers()
    some, whole = desk.delete_records("a", before_seq=2), desk.delete("b")
    lost = desk.append("a", "lost")
    desk.failed(FULL)
    assert desk.answers() == [(lost, "not_ready")]
    assert [frame.kind for frame in list(desk.log.frames.values())[-2:]] == [
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
    ]
    desk.synced()
    assert desk.answers() == [(some, 200), (whole, 200)]
    assert desk.seqs("a") == [2]


# Idempotency keys


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_retries_of_a_key_that_is_on_its_way_wait_for_the_first_and_get_its_answer(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    numbers = [
        desk.append("a", 1, 2, key="k"),
        desk.append("a", 1, 2, key="k"),
        desk.append("a", "whatever", key="k"),
    ]
    desk.flush()
    desk.commits.advance()
    assert desk.answers() == []
    desk.synced()
    assert [
        (number, body["status"], body["seqs"], body["deduped"]) for number, body in desk.bodies()
    ] == [(number, 200, [1, 2], number != numbers[0]) for number in numbers]
    late = desk.append("a", 1, 2, key="k")
    assert [(number, body["seqs"], body["deduped"]) for number, body in desk.bodies()] == [
        (late, [1, 2], True)
    ]
    assert desk.seqs("a") == [1, 2]


async def test_retries_are_refused_with_the_first_and_the_key_is_free_again(desk: Desk) -> None:
    desk.make("a")
    numbers = [desk.append("a", 1, key="k"), desk.append("a", 1, key="k")]
    desk.failed(FULL)
    assert desk.answers() == [(number, "not_ready") for number in numbers]
    again = desk.append("a", 1, key="k")
    desk.written()
    assert [(number, body["first_seq"], body["deduped"]) for number, body in desk.bodies()] == [
        (again, 1, False)
    ]


async def test_a_retry_whose_topic_is_made_by_the_first_is_not_told_that_it_made_it(
    desk: Desk,
) -> None:
    first, second = desk.append("a", 1, key="k"), desk.append("a", 1, key="k")
    desk.synced()
    assert [(number, body["status"], body["created"]) for number, body in desk.bodies()] == [
        (first, 201, True),
        (second, 200, False),
    ]


# Readers


@pytest.mark.parametrize(("durability", "commit"), [("disk", "written"), ("fsync", "synced")])
async def test_a_waiting_reader_is_woken_by_the_commit_and_by_nothing_earlier(
    desk: Desk, durability: str, commit: str
) -> None:
    desk.make("a", durability=durability)
    desk.make("b", durability="ephemeral")
    poll = desk.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    append = desk.append("a", "x")
    desk.append("b", "another topic's")
    desk.flush()
    await wait_all_tasks_blocked()
    assert poll not in dict(desk.answers())
    getattr(desk, commit)()
    await wait_all_tasks_blocked()
    answers = dict(desk.bodies())
    assert [record["data"] for record in answers[poll]["records"]] == ["x"]
    assert append in answers


async def test_a_commit_right_after_the_first_look_wakes_the_reader(desk: Desk) -> None:
    """Both are done in one turn of the loop, before the task that waits has begun."""
    desk.make("a")
    poll = desk.diff("a", wait_ms=30_000)
    append = desk.append("a", "x")
    desk.written()
    await wait_all_tasks_blocked()
    assert sorted(desk.answers()) == [(poll, 200), (append, 200)]


async def test_a_long_poll_that_comes_upon_damage_is_told_and_the_shard_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.make("a")
    poll = desk.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()

    def damaged(*_: object) -> NoReturn:
        raise Damaged(Path("1.seg"), 4096, "records are damaged")

    with monkeypatch.context() as patch:
        patch.setattr("topics.actors.shard.long_polls.read", damaged)
        append = desk.append("a", 1)
        desk.synced()
        await wait_all_tasks_blocked()
    assert desk.answers() == [(append, 200), (poll, "internal")]
    again = desk.diff("a")
    assert desk.answers() == [(again, 200)]


@pytest.mark.parametrize("wait_ms", [0, 1])
async def test_a_diff_looks_through_all_that_was_there_when_it_came_whatever_it_waits(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    wait_ms: int,
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    desk.make("a")
    for _ in range(20):
        desk.append("a", 0, node="me")
    desk.written()
    desk.answers()
    diff = desk.diff("a", node="me", wait_ms=wait_ms)
    for _ in range(3):
        assert desk.answers() == [], "it gives way to others"
        await trio.lowlevel.checkpoint()
    await trio.sleep(0.01)
    ((number, page),) = desk.bodies()
    assert (number, page["next_from_seq"], page["caught_up"]) == (diff, 20, True)


async def test_a_diff_without_a_wait_ends_at_what_was_the_head_when_it_came(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SCAN_RECORDS_MAX", 3)
    desk.make("a")
    for _ in range(8):
        desk.append("a", 0, node="me")
    desk.written()
    desk.diff("a", node="me", wait_ms=0)
    for _ in range(10):
        for _ in range(4):
            desk.append("a", 0, node="me")
        desk.written()
        await trio.lowlevel.checkpoint()
    (page,) = [page for _, page in desk.bodies() if "next_from_seq" in page]
    assert 8 <= page["next_from_seq"] < 16


async def test_all_readers_of_a_topic_are_woken(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    polls = [desk.diff("a", wait_ms=30_000) for _ in range(3)]
    await wait_all_tasks_blocked()
    append = desk.append("a", "x")
    await wait_all_tasks_blocked()
    assert sorted(desk.answers()) == sorted([(append, 200), *((poll, 200) for poll in polls)])


async def test_a_write_that_failed_wakes_nobody(
    desk: Desk, autojump_clock: trio.testing.MockClock
) -> None:
    desk.make("a")
    poll = desk.diff("a", wait_ms=5_000)
    await wait_all_tasks_blocked()
    desk.append("a", "lost")
    desk.failed(FULL)
    desk.answers()
    await trio.sleep(4.9)
    assert desk.answers() == []
    await trio.sleep(0.2)
    assert [(number, body["records"], body["head_seq"]) for number, body in desk.bodies()] == [
        (poll, [], 0)
    ]


async def test_a_deletion_ends_the_wait_of_its_readers_once_it_is_durable(desk: Desk) -> None:
    desk.make("a")
    poll = desk.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    gone = desk.delete("a")
    desk.written()
    await wait_all_tasks_blocked()
    assert desk.answers() == []
    desk.synced()
    await wait_all_tasks_blocked()
    assert sorted(number for number, _ in desk.answers()) == [poll, gone]


async def test_a_reader_that_has_gone_waits_no_more(desk: Desk) -> None:
    desk.make("a")
    poll = desk.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    desk.cancel(poll)
    await wait_all_tasks_blocked()
    assert [number for number, _ in desk.answers()] == [poll]
    assert desk.loop.services.long_polls._polls == {}


async def test_a_cancel_in_the_same_batch_as_its_long_poll_ends_it(desk: Desk) -> None:
    desk.make("a")
    poll = desk.diff("a", wait_ms=30_000)
    desk.cancel(poll)
    await wait_all_tasks_blocked()
    assert [number for number, _ in desk.answers()] == [poll]
    assert desk.loop.services.long_polls._polls == {}


async def test_what_cannot_be_read_when_a_long_poll_wakes_costs_it_its_answer_and_nobody_else(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    desk.make("a", ttl_ms=1000)
    poll = desk.diff("a", wait_ms=30_000)
    await wait_all_tasks_blocked()
    number = desk.append("a", 1)
    with monkeypatch.context() as patch:
        patch.setattr(desk.engine, "expire", fail)
        desk.synced()
        await wait_all_tasks_blocked()
    assert [answered for answered, _ in desk.answers()] == [number, poll]
    assert desk.seqs("a") == [1]


async def test_a_session_that_ends_in_the_same_batch_as_its_long_poll_ends_it(desk: Desk) -> None:
    desk.make("a")
    desk.diff("a", wait_ms=30_000)
    desk.session.close()
    await wait_all_tasks_blocked()
    assert desk.loop.services.long_polls._polls == {}


# A disk that hangs


async def test_writes_are_refused_while_the_disk_does_not_answer_and_reads_are_not(
    desk: Desk,
) -> None:
    desk.make("a", durability="fsync")
    waiting = desk.append("a", 1)
    desk.flush()
    for now in range(12):
        desk.loop.context.disk.look(now)
    assert desk.words.disk_silent_ms == 11_000
    refused, read = desk.append("a", 2), desk.diff("a")
    assert sorted(desk.answers()) == [(refused, "not_ready"), (read, 200)]
    desk.synced()
    desk.loop.context.disk.look(12)
    again = desk.append("a", 3)
    desk.synced()
    assert desk.words.disk_silent_ms == 0
    assert desk.answers() == [(waiting, 200), (again, 200)]


async def test_a_disk_that_is_busy_but_moves_is_not_stalled(desk: Desk) -> None:
    desk.make("a", durability="fsync")
    for now in range(30):
        desk.append("a", now)
        desk.flush()
        desk.loop.context.disk.look(now)
        if now % 5 == 4:
            desk.synced()
    assert desk.words.disk_silent_ms < 10_000
    assert {code for _, code in desk.answers()} == {200}


async def test_a_sync_that_nobody_waits_for_may_hang_as_well(desk: Desk) -> None:
    desk.log.is_syncing = True
    for now in range(12):
        desk.loop.context.disk.look(now)
    assert desk.words.disk_silent_ms == 11_000
    desk.log.is_syncing = False
    desk.loop.context.disk.look(12)
    assert desk.words.disk_silent_ms == 0


# What is held, and for how long


async def test_records_in_memory_are_freed_with_their_topic_or_with_the_write_that_failed(
    desk: Desk,
) -> None:
    desk.make("a", durability="ephemeral")
    desk.append("a", 1)
    desk.append("a", 2)
    assert len(desk.commits.store._in_memory) == 2
    desk.append("a", *range(RESERVE_MIN))  # waits for a reservation
    assert len(desk.commits.store._in_memory) == 3
    desk.failed(FULL)
    assert len(desk.commits.store._in_memory) == 2
    desk.delete("a")
    assert len(desk.commits.store._in_memory) == 2, "the deletion may fail yet"
    desk.synced()
    assert desk.commits.store._in_memory == {}


async def test_the_files_of_a_topic_are_removed_once_its_deletion_is_durable(desk: Desk) -> None:
    desk.make("a")
    topic = desk.engine.topics["a"]
    desk.log.blobs.add(topic.id, 1, 0)
    path = desk.log.blobs.path(topic.id, 1)
    path.touch()
    desk.delete("a")
    desk.written()
    assert path.exists()
    desk.synced()
    assert not path.exists()


# Waiting inside the shard


def put(desk: Desk, name: str, **config: Any) -> PutTopic:
    return desk.engine.put(name, decode_config(json_bytes(config)), desk.loop.context.now)


async def test_a_change_can_be_awaited(desk: Desk, nursery: trio.Nursery) -> None:
    results: list[Progress | OSError] = []

    async def wait(change: Change) -> None:
        results.append(await desk.commits.submit_and_wait(change))

    nursery.start_soon(wait, put(desk, "a"))
    await wait_all_tasks_blocked()
    assert (results, desk.log.groups[-1][1]) == ([], True)
    desk.synced()
    await wait_all_tasks_blocked()
    assert isinstance(results[0], Progress)
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


async def test_a_key_lives_from_its_commit_on(desk: Desk) -> None:
    desk.make("a")
    desk.append("a", 1, key="k")
    desk.commits.now = lambda: desk.loop.context.now._replace(ms=desk.loop.context.now.ms + 777)
    desk.written()
    assert desk.engine.topics["a"].dedupe._keys["k"].at_ms == desk.loop.context.now.ms + 777
