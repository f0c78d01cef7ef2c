"""Lease logging: the PUT that makes leases durable is answered when the log contains all leases."""

from __future__ import annotations

import errno
import os

import pytest
from trio.testing import wait_all_tasks_blocked

from tests.support.queue_harness import QueueHarness
from topics.actors.shard.queues import lease_logging
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def held(workers: QueueHarness, monkeypatch: pytest.MonkeyPatch) -> QueueHarness:
    """Five leased jobs, and slices of two."""
    monkeypatch.setattr(lease_logging, "SLICE_JOBS", 2)
    workers.queue(durability="fsync")
    workers.append("q", 1, 2, 3, 4, 5)
    workers.synced()
    workers.received()
    workers.claim(max=5)
    workers.claimed()
    return workers


def lease_frames(workers: QueueHarness) -> int:
    return sum(frame.kind is FrameKind.LEASE for frame in workers.log.frames.values())


async def turn_over(workers: QueueHarness) -> None:
    await wait_all_tasks_blocked()
    workers.run_iteration()


async def test_the_reply_waits_for_every_slice(held: QueueHarness) -> None:
    held.put("q", leases_durable=True)
    held.synced()
    for count in (1, 2, 3):
        await turn_over(held)
        assert (held.received(), lease_frames(held)) == ([], count)
        held.synced()
    await turn_over(held)
    assert held.answer()["config"]["leases_durable"] is True
    held.put("q", leases_durable=True)
    held.run_iteration()
    assert held.answer()["created"] is False
    assert lease_frames(held) == 3


async def test_a_second_put_writes_all_slices_again(held: QueueHarness) -> None:
    held.put("q", leases_durable=True)
    held.synced()
    await turn_over(held)
    held.put("q", leases_durable=True)
    assert held.received() == []
    answers = []
    for _ in range(8):
        held.synced()
        await turn_over(held)
        answers += held.received()
    assert [each["status"] for each in answers] == [200, 200]


async def test_a_rejected_slice_rejects_the_put_and_is_written_by_the_next_put(
    held: QueueHarness,
) -> None:
    held.put("q", leases_durable=True)
    held.synced()
    await turn_over(held)
    held.failed(FULL)
    assert held.answer()["status"] == "not_ready"
    held.put("q", leases_durable=True)
    answers = []
    for _ in range(6):
        held.synced()
        await turn_over(held)
        answers += held.received()
    assert [each["status"] for each in answers] == [200]


async def test_a_put_that_is_reverted_in_the_meantime_still_gets_its_reply(
    held: QueueHarness,
) -> None:
    held.put("q", leases_durable=True)
    held.synced()
    held.put("q", leases_durable=False)
    answers = []
    for _ in range(3):
        held.synced()
        await turn_over(held)
        answers += held.received()
    assert [each["config"]["leases_durable"] for each in answers] == [False, True]
