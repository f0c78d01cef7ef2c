"""Changes of jobs: which frames they write to the log, and how an undo restores the leases."""

from __future__ import annotations

import pytest

from tests.engine.queue.job_harness import JobHarness
from tests.engine.shard_support import body_of, header_of, seqs_of
from topics.engine.changes import lease_jobs
from topics.engine.changes.change import Change
from topics.engine.queue.claims import ClaimRequest
from topics.engine.queue.leases import LeaseHolder, lease_id
from topics.engine.store import Unreadable
from topics.formats.disk.frame_bodies import (
    LeaseOp,
    LeaseRows,
    decode_lease,
    decode_runs,
)
from topics.formats.disk.frames import Frame, FrameKind


def durable(jobs: int = 2, **config: object) -> JobHarness:
    return JobHarness(jobs, leases_durable=True, **config)


def rows_of(change: Change) -> LeaseRows:
    """Return the rows of the change's only frame, which is a LEASE frame."""
    (frame,) = change.frames
    assert frame.kind == FrameKind.LEASE
    return decode_lease(header_of(frame), body_of(frame))


# Frames


def test_nacks_extensions_and_closed_streams_write_lease_frames() -> None:
    harness = durable(3)
    harness.claim(2)
    rows = rows_of(harness.nack(1, delay_ms=50))
    assert (rows.op, [*rows.seqs], [*rows.deliveries]) == (LeaseOp.RELEASED, [1], [1])
    assert rows.until_ts == harness.now.ts + 50
    change = harness.extend(2, lease_ms=9000)
    rows = rows_of(change)
    assert (rows.op, [*rows.seqs], rows.until_ts) == (LeaseOp.CLAIMED, [2], change.until_ts)
    assert (rows.node, [*rows.deliveries]) == ("n", [1])
    assert change.until_ts == harness.now.ts + 9000
    stream = LeaseHolder("n", is_stream=True)
    harness.claims(ClaimRequest(stream, 1, 1000))
    rows = rows_of(harness.close(stream))
    assert (rows.op, [*rows.seqs], rows.until_ts) == (LeaseOp.RELEASED, [3], harness.now.ts)


@pytest.mark.parametrize(("durability", "sync"), [("disk", False), ("fsync", True)])
def test_a_lease_is_as_durable_as_its_topic_and_a_move_is_always_synced(
    durability: str, sync: bool
) -> None:
    harness = durable(2, durability=durability, max_deliveries=1, dead_letter="d")
    (change,) = harness.claims(ClaimRequest(harness.poll(), 1, 1000))
    assert change.sync is sync
    assert harness.nack(1).sync is sync
    harness.claim()
    assert harness.dying().sync


def test_a_move_starts_with_at_most_the_requested_number_of_jobs() -> None:
    harness = JobHarness(3, max_deliveries=1, dead_letter="d")
    harness.claim(3)
    harness.nack(1, 2, 3)
    harness.claim()
    assert [*harness.dying(2).seqs] == [1, 2]
    again = harness.dying(2)
    assert ([*again.seqs], again.frames) == ([1, 2], []), "one batch is in flight at a time"
    lease_jobs.return_to_dead(harness.topic, [1, 2])
    assert [*harness.dying(2).seqs] == [3, 1]


# Ownership of leases


def test_a_seq_given_with_two_tokens_is_accepted_if_one_token_is_valid() -> None:
    harness = JobHarness(1)
    (change,) = harness.claims(ClaimRequest(harness.poll(), 1, 1000))
    right = lease_id(change.jobs[0].number)
    for tokens in (["lease_0", right], [right, "lease_0"]):
        change = lease_jobs.extend(harness.topic, "n", [1, 1], tokens, 5000, harness.now)
        assert ([*change.seqs], [*change.skipped]) == ([1], [])


def test_a_claim_whose_response_was_not_delivered_counts_no_delivery() -> None:
    harness = durable(2)
    (change,) = harness.claims(ClaimRequest(harness.poll(), 2, 1000))
    jobs = [(job.seq, job.number) for job in change.jobs]
    rows = rows_of(harness.unclaim(*jobs))
    assert (rows.op, [*rows.deliveries]) == (LeaseOp.RELEASED, [0, 0])
    (change,) = harness.claims(ClaimRequest(harness.poll(), 2, 1000))
    assert [job.deliveries for job in change.jobs] == [1, 1]
    assert [*harness.unclaim(*jobs).seqs] == []  # The jobs are leased under other numbers by now


# Finished jobs: acks and moves delete records permanently


def runs(frame: Frame) -> list[tuple[int, int]]:
    return [(run.first, run.length) for run in decode_runs(body_of(frame))]


def test_an_ack_of_many_jobs_is_one_frame_of_runs() -> None:
    harness = JobHarness(6)
    harness.claim(6)
    change = harness.ack(6, 2, 1, 3, 9)
    (frame,) = change.frames
    assert runs(frame) == [(1, 3), (6, 1)]
    assert ([*change.seqs], harness.skipped) == ([1, 2, 3, 6], [9])
    harness.commit()
    assert seqs_of(harness.read("q")) == [4, 5]


def test_an_ack_without_jobs_waits_for_the_pending_ack_before_it() -> None:
    harness = JobHarness(1, durability="fsync")
    harness.claim()
    first, second = harness.ack(1), harness.ack(1)
    assert second.frames == []
    assert first.sync
    assert second.sync
    assert harness.topic.pending == 2
    harness.commit()
    assert not harness.ack(1).sync
    harness.undo()
    assert harness.topic.pending == 0


def dying(jobs: int = 2) -> JobHarness:
    """Return an engine whose jobs are all being moved to the dead letter topic."""
    harness = JobHarness(jobs, max_deliveries=1, dead_letter="d")
    harness.claim(jobs)
    harness.nack(*range(1, jobs + 1))
    harness.claim()
    harness.dying()
    harness.commit()
    return harness


def test_moved_jobs_are_counted_as_dead_lettered_even_if_flagging_their_records_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = dying()
    harness.remove_dead_lettered(1, 2)

    def flag_deleted(*_: object) -> None:
        raise Unreadable

    monkeypatch.setattr(harness, "flag_deleted", flag_deleted)
    with pytest.raises(Unreadable):
        harness.commit()
    assert harness.jobs.dead_lettered == 2, "as a replay counts"
