"""Appends for which the log finds no space while a backup keeps files."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.shard import ShardHarness
from topics.actors.shard.sealing.reclaim import Pin
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


def backup(harness: ShardHarness) -> Pin:
    """Let a backup keep files of the shard."""
    pin = harness.loop.services.sealing.reclaim.pin = Pin()
    return pin


async def freed(harness: ShardHarness) -> None:
    """Report as the sealing task that files are deleted, and let the shard continue."""
    await wait_all_tasks_blocked()
    harness.loop.services.sealing._notify_freed()
    await wait_all_tasks_blocked()


def written(harness: ShardHarness) -> list[tuple[int, int]]:
    """Return the first seq and the number of records of the appends in the log."""
    return [
        (frame.first_seq, frame.record_count)
        for frame in harness.log.frames.values()
        if frame.kind is FrameKind.APPEND
    ]


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
async def test_a_lost_append_is_decided_again_when_the_files_of_the_backup_are_deleted(
    harness: ShardHarness, durability: str
) -> None:
    harness.make("a", durability=durability)
    pin = backup(harness)
    number = harness.append("a", "first")
    assert harness.failed(FULL) is None
    await wait_all_tasks_blocked()
    assert pin.is_broken
    assert harness.answers() == []
    assert harness.seqs("a") == []
    await freed(harness)
    assert harness.answers() == [], "the append is not written to the log yet"
    harness.synced()
    assert [(at, found["seqs"]) for at, found in harness.bodies()] == [(number, [1])]
    assert harness.seqs("a") == [1]
    assert written(harness) == [(1, 1)]


async def test_an_ephemeral_append_that_waits_for_the_log_is_decided_again(
    harness: ShardHarness,
) -> None:
    harness.make("a", durability="ephemeral")
    backup(harness)
    number, second = harness.append("a", *range(5)), harness.append("a", "second")
    harness.commits.flush()
    early = harness.answers()
    harness.failed(FULL)
    await freed(harness)
    harness.synced()
    assert [*early, *harness.answers()] == [(number, 200), (second, 200)]
    assert harness.seqs("a") == [*range(1, 7)]


async def test_the_lost_requests_of_a_group_are_decided_again_and_the_others_are_not(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    backup(harness)
    bodies: list[Any] = [{"records": [{"data": index}]} for index in range(4)]
    number = harness.append_many("a", bodies[0], b"{", *bodies[1:])
    harness.failed(FULL)
    assert harness.batches() == []
    await freed(harness)
    harness.synced()
    ((at, found),) = harness.batches()
    assert at == number
    assert [each.get("seqs", each.get("code")) for each in found] == [
        *([1], "invalid_request", [2], [3], [4])
    ]
    assert written(harness) == [(1, 4)], "they share a frame again"


async def test_each_retry_of_a_key_gets_one_reply(harness: ShardHarness) -> None:
    harness.make("a")
    backup(harness)
    first = harness.append("a", "once", key="k")
    second = harness.append_many("a", {"records": [{"data": 1}]}, {"records": [{"data": 2}]})
    third = harness.append("a", "once", key="k")
    harness.failed(FULL)
    await freed(harness)
    harness.synced()
    assert sorted(number for number, _ in harness.batches()) == [first, second, third]
    assert harness.seqs("a") == [1, 2, 3]


async def test_appends_that_arrive_in_the_meantime_wait_and_keep_their_order(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    backup(harness)
    first = harness.append("a", 1)
    harness.failed(FULL)
    harness.log.lacks_space = True
    second = harness.append("a", 2)
    await wait_all_tasks_blocked()
    third = harness.append_many("a", {"records": [{"data": 3}]})
    other = harness.append("new", 4)
    assert harness.answers() == []
    harness.log.lacks_space = False
    await freed(harness)
    harness.synced()
    assert [number for number, _ in harness.batches()] == [first, second, third, other]
    assert written(harness) == [(1, 1), (2, 1), (3, 1), (1, 1)]


async def test_an_append_to_a_log_that_is_short_of_space_breaks_the_pin(
    harness: ShardHarness,
) -> None:
    """A delete may have taken the reserve."""
    harness.make("a")
    pin = backup(harness)
    harness.log.lacks_space = True
    number = harness.append("a", 1)
    await wait_all_tasks_blocked()
    assert pin.is_broken
    harness.log.lacks_space = False
    await freed(harness)
    harness.synced()
    assert harness.answers() == [(number, 200)]


async def freed_after_allocation(harness: ShardHarness, *, found: bool) -> None:
    """Do the same as `freed`, while the log lacks space and tries in a thread to allocate files."""
    harness.log.lacks_space = True

    def allocate() -> bool:
        harness.log.lacks_space = not found
        return found

    harness.log.allocate_files = allocate
    await freed(harness)
    while harness.loop.services.appends._space.is_active:
        await trio.lowlevel.checkpoint()


async def test_the_log_allocates_files_before_appends_are_decided_again(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    backup(harness)
    number = harness.append("a", 1)
    harness.failed(FULL)
    await freed_after_allocation(harness, found=True)
    harness.synced()
    assert harness.answers() == [(number, 200)]


async def test_on_a_disk_that_is_still_full_all_waiting_appends_are_refused(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    backup(harness)
    lost, grouped = harness.append("a", 1), harness.append_many("a", {"records": [{"data": 2}]})
    harness.failed(FULL)
    new = harness.append("a", 3)
    await freed_after_allocation(harness, found=False)
    assert harness.answers() == [(number, "not_ready") for number in (lost, grouped, new)]
    third = harness.append("a", 4)
    assert harness.answers() == [(third, "not_ready")], "no backup keeps files"
    assert harness.seqs("a") == []
    assert written(harness) == []


async def test_an_append_that_finds_no_space_again_is_refused(harness: ShardHarness) -> None:
    harness.make("a")
    backup(harness)
    number = harness.append("a", 1)
    harness.failed(FULL)
    backup(harness)  # a second backup does not make the append wait again
    await freed(harness)
    harness.failed(FULL)
    assert refusals(harness) == {number: ["disk_full"]}
    assert harness.seqs("a") == []


async def test_without_a_backup_a_lost_append_is_refused_immediately(harness: ShardHarness) -> None:
    harness.make("a")
    number = harness.append("a", 1)
    harness.failed(FULL)
    assert refusals(harness) == {number: ["disk_full"]}


async def test_a_broken_log_rejects_appends_in_flight_and_waiting_appends(
    harness: ShardHarness,
) -> None:
    harness.make("a")
    backup(harness)
    waiting = harness.append("a", 1)
    harness.failed(FULL)
    await wait_all_tasks_blocked()
    harness.delete_records("a", before_seq=1)
    harness.put("a", priority=5)
    assert harness.failed(BROKEN) is BROKEN
    harness.wire.take()
    await freed(harness)
    assert refusals(harness) == {waiting: ["read_only"]}


async def test_a_lost_append_waits_for_the_one_that_holds_its_topic(harness: ShardHarness) -> None:
    harness.make("a")
    backup(harness)
    number = harness.append("a", 1)
    harness.failed(FULL)
    await wait_all_tasks_blocked()
    harness.loop.context.held.hold("a")
    await freed(harness)
    harness.synced()
    assert harness.answers() == []
    harness.loop.context.release_topic("a")
    harness.synced()
    assert harness.answers() == [(number, 200)]


def refusals(harness: ShardHarness) -> dict[int, list[str]]:
    """Return the reasons of the refused requests of each message."""
    return {
        number: [each["detail"]["reason"] for each in found] for number, found in harness.batches()
    }
