"""Polled claims: their jobs, their wait times, and leases whose response was not delivered."""

from __future__ import annotations

import errno
import os

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.queue_harness import QueueHarness, seqs_of
from topics.formats.api.limits import CLAIM_BYTES_MAX
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


# Responses


@pytest.mark.slow
async def test_a_claim_response_contains_at_most_about_32_mib_of_jobs(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    """No time passes, because appends would wait for the log to reserve later timestamps."""
    workers.queue()
    for _ in range(400):
        workers.append("q", "x" * (1 << 17))
    workers.received()
    claim = workers.claim(max=1000)
    ((cid, seqs),) = workers.claimed()
    assert cid == claim
    assert CLAIM_BYTES_MAX >> 17 <= len(seqs) + 1 <= (CLAIM_BYTES_MAX >> 17) + 1


# Waiting


async def test_a_waiting_claim_ends_without_jobs_after_its_wait_time(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue()
    claim = workers.claim(wait_ms=1000)
    workers.run_iteration()
    await trio.sleep(0.999)
    assert workers.claimed() == []
    await trio.sleep(0.002)
    assert workers.claimed() == [(claim, [])]
    assert len(workers.services.job_dispatch) == 0
    assert workers.services.claims._polls == {}
    workers.jobs(1)
    assert workers.claimed() == []


async def test_a_delete_that_the_log_lost_ends_no_wait(workers: QueueHarness) -> None:
    workers.queue()
    claim = workers.claim(wait_ms=30_000)
    workers.run_iteration()
    delete = workers.delete("q")
    workers.run_iteration()
    workers.failed(FULL)
    workers.failed(FULL)
    assert workers.answers() == [(delete, "not_ready")]
    workers.jobs(1)
    assert workers.claimed() == [(claim, [1])]


async def test_waits_end_if_the_creation_of_their_queue_is_lost(workers: QueueHarness) -> None:
    put = workers.put("q", type="queue", durability="ephemeral")
    claim = workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.failed(FULL)
    workers.run_iteration()
    assert workers.answers() == [(put, "not_ready"), (claim, "topic_not_found")]
    assert len(workers.services.job_dispatch) == 0


# Leases whose response was not delivered


async def test_a_claim_that_is_cancelled_while_it_waits_leases_no_job(
    workers: QueueHarness,
) -> None:
    workers.queue()
    claim, other = workers.claim(wait_ms=30_000), workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.cancel(claim)
    workers.received()
    workers.jobs(1)
    assert workers.claimed() == [(other, [1])]


@pytest.mark.parametrize("wait_ms", [0, 30_000])
async def test_leases_of_an_undelivered_response_go_to_the_next_claim(
    workers: QueueHarness, wait_ms: int
) -> None:
    workers.queue()
    if not wait_ms:
        workers.jobs(2)
    workers.claim(wait_ms=wait_ms, max=2)
    workers.run_iteration()
    if wait_ms:
        workers.jobs(2)
        workers.run_iteration()
    workers.unclaimed(workers.received()[-1])
    workers.claim(max=2)
    workers.run_iteration()
    answer = workers.answer()
    assert seqs_of(answer) == [1, 2]
    assert [job["deliveries"] for job in answer["claimed"]] == [1, 1], (
        "the undelivered response counts no delivery"
    )


async def test_only_unchanged_leases_are_unclaimed(
    workers: QueueHarness,
) -> None:
    workers.queue(lease_ms=500)
    workers.claim(wait_ms=30_000, max=3)
    workers.run_iteration()
    workers.append_raw("q", b'{"records":[{"data":1},{"data":2},{"data":3}]}')
    workers.run_iteration()
    reply = workers.received()[-1]
    workers.ack(1)
    workers.nack(2)
    new_claim = workers.claim(lease_ms=86_400_000)
    assert workers.claimed() == [(new_claim, [2])]
    workers.unclaimed(reply)
    next_claim = workers.claim(max=3)
    assert workers.claimed() == [(next_claim, [3])]


@pytest.mark.parametrize("config", [{}, {"type": "queue"}, None])
async def test_leases_of_a_deleted_or_recreated_topic_are_not_unclaimed(
    workers: QueueHarness, config: dict[str, str] | None
) -> None:
    workers.queue(jobs=1)
    workers.claim()
    workers.run_iteration()
    reply = workers.received()[-1]
    workers.delete("q")
    workers.run_iteration()
    workers.synced()
    if config is not None:
        workers.make("q", durability="ephemeral", **config)
    workers.received()
    workers.unclaimed(reply)
    workers.state()
    assert workers.answer()["status"] == ("topic_not_found" if config is None else 200)


async def test_durable_leases_are_unclaimed_durably(workers: QueueHarness) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.claim()
    workers.run_iteration()
    workers.written()
    reply = workers.received()[-1]
    tried = len(workers.log.groups)
    workers.unclaimed(reply)
    workers.run_iteration()
    assert len(workers.log.groups) == tried + 1


async def test_waiting_claims_of_a_disconnected_front_are_dropped(workers: QueueHarness) -> None:
    workers.queue()
    workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.close_session()
    assert len(workers.services.job_dispatch) == 0
    claim = workers.claim(wait_ms=30_000)
    workers.jobs(1)
    assert workers.claimed() == [(claim, [1])]


# Durable leases


async def test_durable_leases_are_returned_when_the_log_has_synced_them(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="fsync", leases_durable=True)
    workers.append("q", 1)
    workers.synced()
    claim = workers.claim()
    workers.run_iteration()
    workers.written()
    assert (claim, [1]) not in workers.claimed()
    workers.synced()
    assert workers.claimed() == [(claim, [1])]


async def test_leases_that_the_log_cannot_write_are_rejected_and_undone(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.answers()
    claim, waiting = workers.claim(), workers.claim(wait_ms=30_000)
    workers.run_iteration()
    tried = len(workers.log.groups)
    workers.failed(FULL)
    workers.run_iteration()
    assert workers.answers() == [(claim, "not_ready")]
    assert len(workers.log.groups) == tried, "the waiting claim is not retried immediately"
    await trio.sleep(1.1)
    workers.written()
    assert workers.claimed() == [(waiting, [1])]


async def test_a_claim_that_is_cancelled_during_its_log_write_releases_its_jobs(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.received()
    claim = workers.claim()
    workers.run_iteration()
    workers.cancel(claim)
    other = workers.claim()
    workers.run_iteration()
    workers.written()
    (reply,) = [reply for reply in workers.received() if reply["status"] == 200]
    assert (reply["cid"], seqs_of(reply), reply["claimed"][0]["deliveries"]) == (other, [1], 1)


async def test_a_claim_whose_wait_ends_during_its_log_write_still_receives_its_jobs(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    claim = workers.claim(wait_ms=1000)
    workers.run_iteration()
    workers.append("q", 1)
    workers.written()
    workers.run_iteration()
    await trio.sleep(2)
    assert workers.claimed() == []
    workers.written()
    assert workers.claimed() == [(claim, [1])]


@pytest.mark.parametrize("is_durable", [False, True])
async def test_only_durable_leases_are_rejected_while_the_log_is_short_of_space(
    workers: QueueHarness, is_durable: bool
) -> None:
    workers.queue(durability="disk", leases_durable=is_durable)
    workers.append("q", 1)
    workers.written()
    workers.answers()
    workers.log.lacks_space = True
    claim = workers.claim()
    workers.run_iteration()
    assert workers.answers() == [(claim, "not_ready" if is_durable else 200)]


async def test_a_shard_that_cannot_write_rejects_claims_and_ends_waits(
    workers: QueueHarness,
) -> None:
    workers.queue()
    waiting = workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.append("q", 1)
    workers.put("other")
    workers.failed(BROKEN)
    workers.run_iteration()
    claim = workers.claim()
    statuses = dict(workers.answers())
    assert (statuses[waiting], statuses[claim]) == ("not_ready", "not_ready")


async def test_a_claim_of_a_held_queue_is_served_when_the_queue_is_released(
    workers: QueueHarness,
) -> None:
    workers.queue(jobs=1)
    workers.loop.context.held.hold("q")
    claim = workers.claim()
    workers.run_iteration()
    await wait_all_tasks_blocked()
    assert workers.received() == []
    workers.loop.context.release_topic("q")
    assert workers.claimed() == [(claim, [1])]


async def test_a_cancelled_claim_of_a_held_queue_leases_no_job(
    workers: QueueHarness,
) -> None:
    workers.queue()
    workers.loop.context.held.hold("q")
    claim = workers.claim(wait_ms=30_000)
    workers.cancel(claim)
    workers.loop.context.release_topic("q")
    workers.jobs(1)
    other = workers.claim()
    assert (other, [1]) in workers.claimed()
    assert workers.services.claims._deferred == {}
