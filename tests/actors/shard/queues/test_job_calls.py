"""Job calls: acks, nacks, extensions and lease lists, and the time of their replies."""

from __future__ import annotations

import errno
import os

import pytest

from tests.support.queue_harness import QueueHarness
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def held(workers: QueueHarness) -> QueueHarness:
    """Three jobs. ``w`` has leased the first two."""
    workers.queue(jobs=3)
    workers.claim(max=2)
    workers.claimed()
    return workers


def claim_of_disk(workers: QueueHarness, **config: object) -> list[str]:
    """Lease both jobs of a queue in the log and return their lease ids."""
    workers.queue(**{"durability": "disk", **config})  # type: ignore[arg-type]
    workers.append("q", 1, 2)
    workers.synced()
    workers.received()
    workers.claim(max=2)
    workers.run_iteration()
    workers.synced()
    return [job["lease_id"] for job in workers.answer()["claimed"]]


# Acks


@pytest.mark.parametrize(("durability", "commit"), [("disk", "written"), ("fsync", "synced")])
async def test_an_ack_gets_its_reply_when_it_is_as_durable_as_its_class(
    workers: QueueHarness, durability: str, commit: str
) -> None:
    claim_of_disk(workers, durability=durability)
    workers.ack(1)
    workers.run_iteration()
    if durability == "fsync":
        workers.written()
    assert workers.received() == []
    getattr(workers, commit)()
    answer = workers.answer()
    assert (answer["acked"], answer["ready"], answer["in_flight"]) == (1, 0, 1)
    assert answer["performance"]["wal_append_ms"] == 1.5
    assert answer["performance"]["fsync_ms"] == (2.5 if durability == "fsync" else 0)


async def test_the_acks_of_an_iteration_share_one_frame_and_get_separate_replies(
    workers: QueueHarness,
) -> None:
    claim_of_disk(workers)
    before = len(workers.log.frames)
    acks = [workers.ack(2), workers.ack(3, 1), workers.ack(2), workers.ack(1, node="other")]
    missing_topic = workers.ack(1, topic="nowhere")
    workers.run_iteration()
    assert [frame.kind for frame in [*workers.log.frames.values()][before:]] == [FrameKind.DELETE]
    assert workers.answers() == [(missing_topic, "topic_not_found")]
    workers.written()
    results = {each["cid"]: (each["acked"], each["skipped"]) for each in workers.received()}
    assert results == dict(zip(acks, [(1, []), (1, [3]), (0, [2]), (0, [1])], strict=True))
    assert workers.seqs("q") == []


async def test_acks_that_the_log_lost_together_are_rejected_and_their_jobs_stay_leased(
    workers: QueueHarness,
) -> None:
    claim_of_disk(workers)
    acks = [workers.ack(1), workers.ack(2)]
    workers.failed(BROKEN)
    assert workers.answers() == [(ack, "not_ready") for ack in acks]
    workers.state()
    assert workers.answer()["queue"]["in_flight"] == 2


async def test_acks_are_decided_before_later_calls(workers: QueueHarness) -> None:
    claim_of_disk(workers)
    ack, nack = workers.ack(1), workers.nack(1, 2)
    workers.run_iteration()
    assert [(reply["cid"], reply["nacked"]) for reply in workers.received()] == [(nack, 1)]
    workers.written()
    assert [(reply["cid"], reply["acked"]) for reply in workers.received()] == [(ack, 1)]


async def test_a_pending_ack_counts_as_in_flight(workers: QueueHarness) -> None:
    claim_of_disk(workers)
    workers.ack(1)
    workers.state()
    assert workers.answer()["queue"] == {
        "ready": 0,
        "in_flight": 2,
        "dead_lettered": 0,
        "delayed": 0,
    }


async def test_an_ack_that_found_no_space_together_with_an_append_is_retried_alone(
    workers: QueueHarness,
) -> None:
    claim_of_disk(workers)
    ack, lost = workers.ack(1), workers.append("q", "lost")
    workers.failed(FULL)
    assert workers.answers() == [(lost, "not_ready")]
    assert [*workers.log.frames.values()][-1].kind is FrameKind.DELETE
    workers.written()
    answer = workers.answer()
    assert (answer["cid"], answer["acked"]) == (ack, 1)


# Nacks and extensions


@pytest.mark.parametrize("call", ["nack", "extend"])
async def test_a_call_on_durable_leases_gets_its_reply_when_the_log_has_its_frame(
    workers: QueueHarness, call: str
) -> None:
    claim_of_disk(workers, leases_durable=True)
    number = getattr(workers, call)(1, lease_ms=1000)
    workers.run_iteration()
    assert workers.received() == []
    workers.written()
    assert [reply["cid"] for reply in workers.received()] == [number]
    second = getattr(workers, call)(2, lease_ms=1000)
    workers.failed(FULL)
    assert [(reply["cid"], reply["status"]) for reply in workers.received()] == [
        (second, "not_ready")
    ]


@pytest.mark.parametrize("call", ["ack", "nack", "extend"])
async def test_a_held_queue_is_not_changed_before_it_is_released(
    held: QueueHarness, call: str
) -> None:
    held.loop.context.held.hold("q")
    number = getattr(held, call)(1, lease_ms=1000)
    assert held.received() == []
    held.loop.context.release_topic("q")
    assert held.answers() == [(number, 200)]


# Leases
