"""Jobs and claims: every live record has exactly one job state. A pass serves the right jobs to
the right claims in the right order.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import msgspec
import pytest

from tests.engine.queue.job_harness import JobHarness
from tests.engine.shard_support import EngineHarness
from topics.engine.changes import lease_jobs
from topics.engine.locators import Locator
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.queue import jobs as module
from topics.engine.queue.claims import STEP, UNREADABLE_MS, ClaimRequest, jobs_of
from topics.engine.queue.jobs import HEAP_STALE_MIN, LEDGER_STEP, PASS_STEPS, Jobs, QueueCounters
from topics.engine.queue.ledger import JobState, Ledger
from topics.engine.queue.timer_queue import NEVER, SLOT_MS
from topics.engine.store import Unreadable
from topics.engine.topic import Topic
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows
from topics.formats.disk.records import RecordsView


def test_an_unreserved_job_waits_for_its_delay_unless_it_was_already_due() -> None:
    harness = JobHarness()
    harness.add("a", delay_ms=50)
    claims.reserve(harness.topic, [1], harness.now)
    claims.unreserve(harness.topic, [1], harness.now)
    assert harness.counters.delayed == 1
    harness.later(50)
    assert harness.counters.delayed == 0
    claims.reserve(harness.topic, [1], harness.now)
    harness.now = harness.now._replace(ts=harness.now.ts - 5000)  # The wall clock is set back
    claims.unreserve(harness.topic, [1], harness.now)
    assert harness.claim() == [1]


def test_the_jobs_of_a_checkpoint_are_packed_in_steps() -> None:
    count = 2 * LEDGER_STEP + 1
    harness = JobHarness(count, leases_durable=True)
    harness.claim(count)
    parts = list(harness.jobs.ledgers(harness.now, with_leases=True))
    assert [len(part.rows) for part in parts] == [LEDGER_STEP, LEDGER_STEP, 1]
    assert {row.state for part in parts for row in part.rows.values()} == {JobState.HELD}
    assert [len(part.rows) for part in harness.jobs.ledgers(harness.now, with_leases=False)] == [
        0,
        0,
        0,
    ]


def test_an_idle_queue_keeps_no_memory_for_finished_jobs() -> None:
    harness = JobHarness(1000)
    harness.claim(1000)
    harness.ack(*range(1, 1001))
    harness.commit()
    assert not any(harness.jobs.is_listed(seq) for seq in range(1, 1001))
    harness.later(2000)
    harness.claim()
    assert harness.jobs.next_at == NEVER
    assert harness.jobs.leases.pollers == {}


# Queues with very many jobs


def test_leases_and_delays_that_end_together_are_processed_in_steps_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    harness = JobHarness(6)
    for data in range(6):
        harness.add(data, delay_ms=1001)  # Seqs 7 to 12
    harness.claim(6)
    harness.later(1001 + SLOT_MS)
    for _ in range(2):
        assert harness.counters == QueueCounters(12, 0, 0, 0), "all are counted"
        assert len(harness.jobs.leases) == 2, "nothing more ends before the pause"
    assert harness.jobs.next_at <= harness.now.ms, "the next deadline processes the remaining jobs"
    harness.later(module.ADVANCE_PAUSE_MS)
    assert harness.counters == QueueCounters(12, 0, 0, 0)
    assert not harness.jobs.leases
    assert [*chain.from_iterable(harness.claim() for _ in range(12))] == [*range(1, 13)]


def test_claims_receive_every_job_that_is_counted_as_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    harness = JobHarness(40)
    harness.claim(20)
    harness.nack(*range(1, 11), delay_ms=1000)
    harness.later(1001 + SLOT_MS)
    found: list[int] = []
    while (ready := harness.counters.ready) > 0:
        taken = harness.claim(3, lease_ms=100_000)
        assert taken, "a claim gets a job while any is ready"
        assert harness.counters == QueueCounters(ready - len(taken), 40 - ready + len(taken), 0, 0)
        found += taken
    assert sorted(found) == [*range(1, 41)]


def test_a_pass_that_has_not_yet_reached_an_expired_lease_is_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timetable lists the entries of extended leases first, so that one step finds no job."""
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    harness = JobHarness(12)
    harness.claim(12)
    harness.extend(*range(1, 9), lease_ms=100_000)
    harness.later(1001 + SLOT_MS)
    assert harness.counters == QueueCounters(4, 8, 0, 0)
    found: list[int] = []
    for _ in range(12):
        if not (taken := harness.claim(4, lease_ms=100_000)):
            assert harness.jobs.is_unfinished
        found += taken
        if len(found) == 4:
            break
    assert sorted(found) == [9, 10, 11, 12]


@pytest.mark.slow
def test_one_hundred_thousand_expired_leases_are_counted_without_ending_each() -> None:
    harness, count = JobHarness(), 100_000
    for _ in range(0, count, 1000):
        harness.add(*range(1000))
        harness.claim(1000)
    harness.later(2000)
    began = time.process_time()
    assert harness.counters == QueueCounters(count, 0, 0, 0)
    assert time.process_time() - began < 0.2, "ending all of them takes half a second"
    assert len(harness.jobs.leases) == count - module.ADVANCE_MAX


def test_a_start_reports_progress_for_each_job() -> None:
    ledger, seen = Ledger(), list[object]()
    ledger.delay(1, (10**6,) * 3)
    ledger.apply(LeaseRows(LeaseOp.RELEASED, (7, 8), (1, 1)))

    def watched(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            seen.append(item)
            yield item

    Jobs(ledger).begin(Now(ts=0, ms=0), watched=watched)
    assert len(seen) == 5


@pytest.mark.slow
def test_a_cut_of_very_many_delayed_jobs_does_not_visit_each_job() -> None:
    jobs, count = Jobs(), 200_000
    for seq in range(1, count + 1):
        jobs.delay(seq, 10**9, Now(ts=0, ms=0))
    began = time.process_time()
    jobs.cut(2)
    jobs.cut(count)
    assert time.process_time() - began < 0.05, "a visit of each job would take 0.4 s"
    assert (jobs.counters(1).delayed, jobs.is_listed(count)) == (1, True)


def test_failed_redrives_leave_no_stale_entries() -> None:
    harness = JobHarness(4)
    harness.claim(2)
    harness.nack(1, 2)
    harness.add("due", delay_ms=100)
    harness.later(100)
    for _ in range(HEAP_STALE_MIN + 10):
        assert claims.reserve(harness.topic, [1, 2, 5], harness.now) == [1, 2, 5]
        claims.unreserve(harness.topic, [1, 2, 5], harness.now)
    assert max(len(harness.jobs._free_queue), len(harness.jobs.due)) <= HEAP_STALE_MIN + 8
    assert [harness.claim() for _ in range(6)] == [[1], [2], [3], [4], [5], []]


def test_a_redrive_can_take_a_job_whose_lease_has_expired_but_was_not_advanced() -> None:
    harness = JobHarness(3)
    harness.claim(2, lease_ms=100)
    harness.now = harness.now._replace(ms=harness.now.ms + 100, ts=harness.now.ts + 100)
    assert claims.count_busy(harness.topic, [1, 2, 3], harness.now) == 2
    assert claims.reserve(harness.topic, [1, 2], harness.now) == []
    harness.now = harness.now._replace(ms=harness.now.ms + 1, ts=harness.now.ts + 1)
    assert claims.count_busy(harness.topic, [1, 2, 3], harness.now) == 0
    assert claims.reserve(harness.topic, [1, 2, 3], harness.now) == [1, 2, 3]
    claims.unreserve(harness.topic, [1, 2, 3], harness.now)
    assert harness.counters == QueueCounters(3, 0, 0, 0)
    assert [harness.jobs.deliveries(seq) for seq in (1, 2, 3)] == [1, 1, 0]
    assert harness.claim(3) == [1, 2, 3]


# Claims


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_is_due_at_its_own_ts_is_delivered(others: int) -> None:
    """`$ts` never decreases, so that after the wall clock is set back a job may be due at its own
    `$ts`.
    """
    harness = JobHarness(1)
    harness.claim()
    harness.now = harness.now._replace(ts=harness.now.ts - 5)
    harness.append("q", records=[{"data": 1, "delay_ms": 5}, *({"data": 2} for _ in range(others))])
    harness.commit()
    harness.later(5)
    assert harness.claim(9) == [*range(2, 3 + others)]


def test_a_pass_limits_the_bytes_of_large_jobs_that_are_followed_by_small_ones() -> None:
    """The pass must not estimate the next records by their mean size."""
    harness = JobHarness()
    harness.add(*["x" * 100_000] * 21, *range(2000))
    taken: list[int] = []
    while len(taken) < 21:
        (change,) = harness.claims(ClaimRequest(harness.poll(), STEP, 1000), max_bytes=250_000)
        assert len(change.jobs) == 3, "two jobs, and the one that reaches the limit"
        taken += change.seqs
    assert taken == [*range(1, 22)]
    assert [job.deliveries for job in change.jobs] == [1, 1, 1]
    assert harness.counters == (2000, 21, 0, 0)


def test_a_job_with_an_unreadable_record_is_hidden_and_does_not_block_others() -> None:
    harness = JobHarness()
    harness.add("bad")
    harness.add("good")
    locator = harness.topic.index.entry(0)[2]
    harness.unreadable.add(locator)
    assert harness.claim(9) == [2]
    assert harness.counters.ready == 0
    assert claims.records_of(harness.topic, harness.engine.store, [1]) == []
    harness.later(UNREADABLE_MS - 1)
    harness.ack(2)
    assert harness.claim() == [2]  # Its lease has expired
    harness.later(1)
    harness.unreadable.clear()
    assert harness.claim() == [1]
    assert harness.jobs.deliveries(1) == 1


def test_live_records_are_returned_in_the_requested_order() -> None:
    harness = JobHarness()
    harness.append("q", records=[{"data": 1}, {"data": 2, "tag": "t"}, {"data": 3}])
    harness.commit()
    harness.add(4)
    harness.delete_records("q", match="t")
    harness.commit()
    found = claims.records_of(harness.topic, harness.engine.store, [4, 3, 2, 1, 9])
    assert [(seq, msgspec.json.decode(record)["data"]) for seq, record in found] == [
        (4, 4),
        (3, 3),
        (1, 1),
    ]


def test_a_failed_pass_leases_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = JobHarness()
    for data in "abc":
        harness.add(data)
    real, failing = harness.records, harness.topic.index.entry(1)[2]

    def records(locator: int) -> RecordsView:
        if locator == failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(locator)

    with monkeypatch.context() as patch:
        patch.setattr(harness, "records", records)
        for _ in range(2):
            with pytest.raises(OSError, match="open files"):
                harness.claim(3)
            assert harness.counters.ready == 3
    (change,) = harness.claims(ClaimRequest(harness.poll(), 3, 1000))
    assert [(job.seq, job.deliveries) for job in change.jobs] == [(1, 1), (2, 1), (3, 1)]


# Jobs that a pass must skip

SKIPPED_JOBS = 10_000


def restarted(harness: JobHarness) -> JobHarness:
    """Restore the queue from a checkpoint, as a new process does."""
    ledger = Ledger()
    for part in harness.jobs.ledgers(harness.now, with_leases=True):
        ledger.unpack(part.pack())
    harness.topic.jobs = Jobs(ledger)
    harness.topic.jobs.begin(harness.now, harness.topic.start_seq)
    return harness


def delayed() -> JobHarness:
    harness = JobHarness()
    for _ in range(SKIPPED_JOBS // 1000):
        harness.add(*range(1000), delay_ms=10**6)
    return harness


def held() -> JobHarness:
    harness = JobHarness(SKIPPED_JOBS, leases_durable=True)
    harness.claim(SKIPPED_JOBS, lease_ms=10**6)
    harness.commit()
    return harness


def hidden() -> JobHarness:
    harness = held()
    harness.nack(*range(1, SKIPPED_JOBS + 1), delay_ms=10**6)
    harness.commit()
    return harness


@pytest.mark.parametrize("prepare", [delayed, held, hidden])
@pytest.mark.parametrize("restart", [False, True])
def test_jobs_that_cannot_be_claimed_do_not_slow_the_first_claim_after_them(
    prepare: Callable[[], JobHarness], restart: bool
) -> None:
    harness = prepare()
    harness.add("last")
    if restart:
        harness = restarted(harness)
    began = time.process_time()
    assert harness.claim() == [SKIPPED_JOBS + 1]
    assert time.process_time() - began < 0.02, "a visit of each skipped job would take 0.07 s"
    assert harness.jobs.steps_left > PASS_STEPS - 100


def alternating() -> JobHarness:
    """Every second job is delayed. The others are acked, but the restarted queue holds no state of
    their acks.
    """
    harness = JobHarness()
    for first in range(0, SKIPPED_JOBS, 1000):
        datas = [{"data": at, "delay_ms": 10**6 * (at % 2)} for at in range(first, first + 1000)]
        harness.append("q", records=datas)
        harness.commit()
        harness.ack(*harness.claim(1000))
        harness.commit()
    harness.add("last")
    return restarted(harness)


def exhausted() -> JobHarness:
    harness = JobHarness(SKIPPED_JOBS, max_deliveries=1, dead_letter="d")
    harness.nack(*harness.claim(SKIPPED_JOBS))
    harness.add("last")
    return harness


def left() -> JobHarness:
    """The list of released jobs still contains jobs that a cap has evicted."""
    harness = JobHarness(SKIPPED_JOBS)
    harness.nack(*harness.claim(SKIPPED_JOBS))
    harness.put("q", cap_records=1)
    harness.add("last")
    return harness


def damaged() -> JobHarness:
    harness = JobHarness(SKIPPED_JOBS)
    harness.unreadable = {harness.topic.index.entry(0)[2]}
    harness.add("last")
    return harness


@pytest.mark.parametrize("prepare", [alternating, exhausted, left, damaged])
def test_a_pass_ends_after_a_limit_of_fruitless_steps_and_the_next_pass_continues(
    prepare: Callable[[], JobHarness],
) -> None:
    harness = prepare()
    passes = 0
    while not (got := harness.claim()):
        assert harness.jobs.is_unfinished
        passes += 1
    assert got == [SKIPPED_JOBS + 1]
    assert passes in (SKIPPED_JOBS // PASS_STEPS, SKIPPED_JOBS // 2 // PASS_STEPS)
    assert harness.claim() == []
    assert not harness.jobs.is_unfinished


# Exhausted jobs


PLENTY = 1 << 20


def exhausted_dead(harness: EngineHarness, *datas: str) -> Topic:
    """Return a queue of exhausted jobs, each appended as a write of its own."""
    harness.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
    for data in datas:
        harness.append("q", data)
    harness.commit()
    topic = harness.engine.topic("q")
    holder = jobs_of(topic).leases.poller("worker")
    (claim,) = lease_jobs.claim(
        harness.engine.table, topic, [ClaimRequest(holder, 99, 1000)], harness.now, evenly=False
    )
    lease_jobs.nack(topic, "worker", claim.seqs, None, 0, harness.now)
    (claim,) = lease_jobs.claim(
        harness.engine.table, topic, [ClaimRequest(holder, 99, 1000)], harness.now, evenly=False
    )
    assert not claim.seqs
    return topic


def test_a_dead_job_with_an_unreadable_record_is_hidden_and_does_not_block_others(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = exhausted_dead(harness, "x", "y")
    damaged, real = topic.index.entry(0)[2], harness.records

    def records(locator: Locator) -> RecordsView:
        if locator == damaged:
            raise Unreadable
        return real(locator)

    monkeypatch.setattr(harness, "records", records)
    assert [seq for seq, _ in claims.dead(topic, harness.engine.store, 9, PLENTY, harness.now)] == [
        2
    ]
    jobs = jobs_of(topic)
    assert (list(jobs.dead), jobs.counters(topic.count).ready) == ([2], 0)
    harness.later(UNREADABLE_MS)
    jobs.advance(harness.now.ms)
    assert jobs.counters(topic.count).ready == 1, "a later pass retries the hidden job"
