"""Appends for which the log finds no space while a backup keeps files."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import Desk
from topics.actors.shard.sealing.reclaim import Pin
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


def backup(desk: Desk) -> Pin:
    """A backup keeps files of the shard."""
    pin = desk.loop.services.sealing.reclaim.pin = Pin()
    return pin


async def freed(desk: Desk) -> None:
    """The sealing task deletes the files, and the shard continues."""
    await wait_all_tasks_blocked()
    desk.loop.services.sealing._notify_freed()
    await wait_all_tasks_blocked()


def written(desk: Desk) -> list[tuple[int, int]]:
    """First seq and number of records of the appends in the log."""
    return [
        (frame.first_seq, frame.record_count)
        for frame in desk.log.frames.values()
        if frame.kind is FrameKind.APPEND
    ]


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
async def test_a_lost_append_is_decided_again_when_the_files_of_the_backup_are_deleted(
    desk: Desk, durability: str
) -> None:
    desk.make("a", durability=durability)
    pin = backup(desk)
    number = desk.append("a", "first")
    assert desk.failed(FULL) is None
    await wait_all_tasks_blocked()
    assert pin.is_broken
    assert desk.answers() == []
    assert desk.seqs("a") == []
    await freed(desk)
    assert desk.answers() == [], "the log has not taken it yet"
    desk.synced()
    assert [(at, found["seqs"]) for at, found in desk.bodies()] == [(number, [1])]
    assert desk.seqs("a") == [1]
    assert written(desk) == [(1, 1)]


async def test_an_ephemeral_append_that_waits_for_the_log_is_decided_again(desk: Desk) -> None:
    desk.make("a", durability="ephemeral")
    backup(desk)
    number, behind = desk.append("a", *range(5)), desk.append("a", "behind")
    desk.commits.flush()
    early = desk.answers()
    desk.failed(FULL)
    await freed(desk)
    desk.synced()
    assert [*early, *desk.answers()] == [(number, 200), (behind, 200)]
    assert desk.seqs("a") == [*range(1, 7)]


async def test_the_lost_requests_of_a_group_are_decided_again_and_the_others_are_not(
    desk: Desk,
) -> None:
    desk.make("a")
    backup(desk)
    bodies: list[Any] = [{"records": [{"data": index}]} for index in range(4)]
    number = desk.append_many("a", bodies[0], b"{", *bodies[1:])
    desk.failed(FULL)
    assert desk.batches() == []
    await freed(desk)
    desk.synced()
    ((at, found),) = desk.batches()
    assert at == number
    assert [each.get("seqs", each.get("code")) for each in found] == [
        *([1], "invalid_request", [2], [3], [4])
    ]
    assert written(desk) == [(1, 4)], "they share a frame again"


async def test_retries_of_a_key_are_answered_once_and_alike(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    first = desk.append("a", "once", key="k")
    second = desk.append_many("a", {"records": [{"data": 1}]}, {"records": [{"data": 2}]})
    third = desk.append("a", "once", key="k")
    desk.failed(FULL)
    await freed(desk)
    desk.synced()
    assert sorted(number for number, _ in desk.batches()) == [first, second, third]
    assert desk.seqs("a") == [1, 2, 3]


async def test_appends_that_arrive_in_the_meantime_wait_and_keep_their_order(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    first = desk.append("a", 1)
    desk.failed(FULL)
    desk.log.lacks_space = True
    second = desk.append("a", 2)
    await wait_all_tasks_blocked()
    third = desk.append_many("a", {"records": [{"data": 3}]})
    other = desk.append("new", 4)
    assert desk.answers() == []
    desk.log.lacks_space = False
    await freed(desk)
    desk.synced()
    assert [number for number, _ in desk.batches()] == [first, second, third, other]
    assert written(desk) == [(1, 1), (2, 1), (3, 1), (1, 1)]


async def test_an_append_to_a_log_that_is_short_of_space_breaks_the_pin(desk: Desk) -> None:
    """A delete may have taken the reserve."""
    desk.make("a")
    pin = backup(desk)
    desk.log.lacks_space = True
    number = desk.append("a", 1)
    await wait_all_tasks_blocked()
    assert pin.is_broken
    desk.log.lacks_space = False
    await freed(desk)
    desk.synced()
    assert desk.answers() == [(number, 200)]


async def looked_for_space(desk: Desk, *, found: bool) -> None:
    """As `freed`, while the log is short of space: it searches for some in a thread."""
    desk.log.lacks_space = True

    def find_room() -> bool:
        desk.log.lacks_space = not found
        return found

    desk.log.allocate_files = find_room
    await freed(desk)
    while desk.loop.services.appends._space.is_active:
        await trio.lowlevel.checkpoint()


async def test_the_log_looks_for_space_before_appends_are_decided_again(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    number = desk.append("a", 1)
    desk.failed(FULL)
    await looked_for_space(desk, found=True)
    desk.synced()
    assert desk.answers() == [(number, 200)]


async def test_on_a_disk_that_is_still_full_all_waiting_appends_are_refused(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    lost, grouped = desk.append("a", 1), desk.append_many("a", {"records": [{"data": 2}]})
    desk.failed(FULL)
    new = desk.append("a", 3)
    await looked_for_space(desk, found=False)
    assert desk.answers() == [(number, "not_ready") for number in (lost, grouped, new)]
    again = desk.append("a", 4)
    assert desk.answers() == [(again, "not_ready")], "no backup keeps files any more"
    assert desk.seqs("a") == []
    assert written(desk) == []


async def test_an_append_that_finds_no_space_again_is_refused(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    number = desk.append("a", 1)
    desk.failed(FULL)
    backup(desk)  # another one does not make it wait again
    await freed(desk)
    desk.failed(FULL)
    assert refusals(desk) == {number: ["disk_full"]}
    assert desk.seqs("a") == []


async def test_without_a_backup_a_lost_append_is_refused_immediately(desk: Desk) -> None:
    desk.make("a")
    number = desk.append("a", 1)
    desk.failed(FULL)
    assert refusals(desk) == {number: ["disk_full"]}


async def test_a_broken_log_refuses_what_is_under_way_and_what_waits(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    waiting = desk.append("a", 1)
    desk.failed(FULL)
    await wait_all_tasks_blocked()
    desk.delete_records("a", before_seq=1)
    desk.put("a", priority=5)
    assert desk.failed(BROKEN) is BROKEN
    desk.wire.take()
    await freed(desk)
    assert refusals(desk) == {waiting: ["read_only"]}


async def test_a_lost_append_waits_for_the_one_that_holds_its_topic(desk: Desk) -> None:
    desk.make("a")
    backup(desk)
    number = desk.append("a", 1)
    desk.failed(FULL)
    await wait_all_tasks_blocked()
    desk.loop.context.held.hold("a")
    await freed(desk)
    desk.synced()
    assert desk.answers() == []
    desk.loop.context.release_topic("a")
    desk.synced()
    assert desk.answers() == [(number, 200)]


def refusals(desk: Desk) -> dict[int, list[str]]:
    """The reasons of the refused requests of each message."""
    return {
        number: [each["detail"]["reason"] for each in found] for number, found in desk.batches()
    }
