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

from tests.engine.queue.job_desk import JobDesk
from tests.engine.shard_support import Desk
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


def test_a_job_put_back_waits_for_its_delay_unless_it_was_already_due() -> None:
    desk = JobDesk()
    desk.add("a", delay_ms=50)
    claims.reserve(desk.topic, [1], desk.now)
    claims.unreserve(desk.topic, [1], desk.now)
    assert desk.counters.delayed == 1
    desk.later(50)
    assert desk.counters.delayed == 0
    claims.reserve(desk.topic, [1], desk.now)
    desk.now = desk.now._replace(ts=desk.now.ts - 5000)  # The wall clock is set back
    claims.unreserve(desk.topic, [1], desk.now)
    assert desk.claim() == [1]


def test_the_jobs_of_a_checkpoint_are_packed_in_steps() -> None:
    count = 2 * LEDGER_STEP + 1
    desk = JobDesk(count, leases_durable=True)
    desk.claim(count)
    parts = list(desk.jobs.ledgers(desk.now, with_leases=True))
    assert [len(part.rows) for part in parts] == [LEDGER_STEP, LEDGER_STEP, 1]
    assert {row.state for part in parts for row in part.rows.values()} == {JobState.HELD}
    assert [len(part.rows) for part in desk.jobs.ledgers(desk.now, with_leases=False)] == [0, 0, 0]


def test_an_idle_queue_keeps_no_memory_for_finished_jobs() -> None:
    desk = JobDesk(1000)
    desk.claim(1000)
    desk.ack(*range(1, 1001))
    desk.commit()
    assert not any(desk.jobs.is_listed(seq) for seq in range(1, 1001))
    desk.later(2000)
    desk.claim()
    assert desk.jobs.next_at == NEVER
    assert desk.jobs.leases.pollers == {}


# Queues with very many jobs


def test_leases_and_delays_that_end_together_are_processed_in_steps_and_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    desk = JobDesk(6)
    for data in range(6):
        desk.add(data, delay_ms=1001)  # Seqs 7 to 12
    desk.claim(6)
    desk.later(1001 + SLOT_MS)
    for _ in range(2):
        assert desk.counters == QueueCounters(12, 0, 0, 0), "all are counted"
        assert len(desk.jobs.leases) == 2, "nothing more ends before the pause"
    assert desk.jobs.next_at <= desk.now.ms, "whoever waits for the others comes again"
    desk.later(module.ADVANCE_PAUSE_MS)
    assert desk.counters == QueueCounters(12, 0, 0, 0)
    assert not desk.jobs.leases
    assert [*chain.from_iterable(desk.claim() for _ in range(12))] == [*range(1, 13)]


def test_claims_receive_every_job_that_is_counted_as_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    desk = JobDesk(40)
    desk.claim(20)
    desk.nack(*range(1, 11), delay_ms=1000)
    desk.later(1001 + SLOT_MS)
    found: list[int] = []
    while (ready := desk.counters.ready) > 0:
        taken = desk.claim(3, lease_ms=100_000)
        assert taken, "a claim gets a job while any is ready"
        assert desk.counters == QueueCounters(ready - len(taken), 40 - ready + len(taken), 0, 0)
        found += taken
    assert sorted(found) == [*range(1, 41)]


def test_a_pass_that_has_not_yet_reached_an_expired_lease_is_unfinished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The timetable lists the entries of extended leases first, so that one step finds no job."""
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    desk = JobDesk(12)
    desk.claim(12)
    desk.extend(*range(1, 9), lease_ms=100_000)
    desk.later(1001 + SLOT_MS)
    assert desk.counters == QueueCounters(4, 8, 0, 0)
    found: list[int] = []
    for _ in range(12):
        if not (taken := desk.claim(4, lease_ms=100_000)):
            assert desk.jobs.is_unfinished
        found += taken
        if len(found) == 4:
            break
    assert sorted(found) == [9, 10, 11, 12]


@pytest.mark.slow
def test_one_hundred_thousand_expired_leases_are_counted_without_ending_each() -> None:
    desk, count = JobDesk(), 100_000
    for _ in range(0, count, 1000):
        desk.add(*range(1000))
        desk.claim(1000)
    desk.later(2000)
    began = time.process_time()
    assert desk.counters == QueueCounters(count, 0, 0, 0)
    assert time.process_time() - began < 0.2, "ending all of them takes half a second"
    assert len(desk.jobs.leases) == count - module.ADVANCE_MAX


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
    assert time.process_time() - began < 0.05, "2 us for each of them are 0.4 s"
    assert (jobs.counters(1).delayed, jobs.is_listed(count)) == (1, True)


def test_failed_redrives_leave_no_stale_entries() -> None:
    desk = JobDesk(4)
    desk.claim(2)
    desk.nack(1, 2)
    desk.add("due", delay_ms=100)
    desk.later(100)
    for _ in range(HEAP_STALE_MIN + 10):
        assert claims.reserve(desk.topic, [1, 2, 5], desk.now) == [1, 2, 5]
        claims.unreserve(desk.topic, [1, 2, 5], desk.now)
    assert max(len(desk.jobs._free_queue), len(desk.jobs.due)) <= HEAP_STALE_MIN + 8
    assert [desk.claim() for _ in range(6)] == [[1], [2], [3], [4], [5], []]


def test_a_redrive_can_take_a_job_whose_lease_has_expired_but_was_not_advanced() -> None:
    desk = JobDesk(3)
    desk.claim(2, lease_ms=100)
    desk.now = desk.now._replace(ms=desk.now.ms + 100, ts=desk.now.ts + 100)
    assert claims.count_busy(desk.topic, [1, 2, 3], desk.now) == 2
    assert claims.reserve(desk.topic, [1, 2], desk.now) == []
    desk.now = desk.now._replace(ms=desk.now.ms + 1, ts=desk.now.ts + 1)
    assert claims.count_busy(desk.topic, [1, 2, 3], desk.now) == 0
    assert claims.reserve(desk.topic, [1, 2, 3], desk.now) == [1, 2, 3]
    claims.unreserve(desk.topic, [1, 2, 3], desk.now)
    assert desk.counters == QueueCounters(3, 0, 0, 0)
    assert [desk.jobs.deliveries(seq) for seq in (1, 2, 3)] == [1, 1, 0]
    assert desk.claim(3) == [1, 2, 3]


# Claims


@pytest.mark.parametrize("others", [0, 2])
def test_a_job_that_is_due_at_its_own_ts_is_delivered(others: int) -> None:
    """`$ts` never decreases, so that after the wall clock is set back a job may be due at its own
    `$ts`.
    """
    desk = JobDesk(1)
    desk.claim()
    desk.now = desk.now._replace(ts=desk.now.ts - 5)
    desk.append("q", records=[{"data": 1, "delay_ms": 5}, *({"data": 2} for _ in range(others))])
    desk.commit()
    desk.later(5)
    assert desk.claim(9) == [*range(2, 3 + others)]


def test_a_pass_limits_the_bytes_of_large_jobs_that_are_followed_by_small_ones() -> None:
    """The pass must not estimate the next records by their mean size."""
    desk = JobDesk()
    desk.add(*["x" * 100_000] * 21, *range(2000))
    taken: list[int] = []
    while len(taken) < 21:
        (change,) = desk.claims(ClaimRequest(desk.poll(), STEP, 1000), max_bytes=250_000)
        assert len(change.jobs) == 3, "two, and the one with which it is enough"
        taken += change.seqs
    assert taken == [*range(1, 22)]
    assert [job.deliveries for job in change.jobs] == [1, 1, 1]
    assert desk.counters == (2000, 21, 0, 0)


def test_a_job_with_an_unreadable_record_is_hidden_and_does_not_block_others() -> None:
    desk = JobDesk()
    desk.add("bad")
    desk.add("good")
    locator = desk.topic.index.entry(0)[2]
    desk.unreadable.add(locator)
    assert desk.claim(9) == [2]
    assert desk.counters.ready == 0
    assert claims.records_of(desk.topic, desk.engine.store, [1]) == []
    desk.later(UNREADABLE_MS - 1)
    desk.ack(2)
    assert desk.claim() == [2]  # Its lease has expired
    desk.later(1)
    desk.unreadable.clear()
    assert desk.claim() == [1]
    assert desk.jobs.deliveries(1) == 1


def test_live_records_are_returned_in_the_requested_order() -> None:
    desk = JobDesk()
    desk.append("q", records=[{"data": 1}, {"data": 2, "tag": "t"}, {"data": 3}])
    desk.commit()
    desk.add(4)
    desk.delete_records("q", match="t")
    desk.commit()
    found = claims.records_of(desk.topic, desk.engine.store, [4, 3, 2, 1, 9])
    assert [(seq, msgspec.json.decode(record)["data"]) for seq, record in found] == [
        (4, 4),
        (3, 3),
        (1, 1),
    ]


def test_a_failed_pass_leases_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = JobDesk()
    for data in "abc":
        desk.add(data)
    real, failing = desk.records, desk.topic.index.entry(1)[2]

    def records(locator: int) -> RecordsView:
        if locator == failing:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(locator)

    with monkeypatch.context() as patch:
        patch.setattr(desk, "records", records)
        for _ in range(2):
            with pytest.raises(OSError, match="open files"):
                desk.claim(3)
            assert desk.counters.ready == 3
    (change,) = desk.claims(ClaimRequest(desk.poll(), 3, 1000))
    assert [(job.seq, job.deliveries) for job in change.jobs] == [(1, 1), (2, 1), (3, 1)]


# Jobs that a pass must skip

ASIDE = 10_000


def restarted(desk: JobDesk) -> JobDesk:
    """Restore the queue from a checkpoint, as a new process does."""
    ledger = Ledger()
    for part in desk.jobs.ledgers(desk.now, with_leases=True):
        ledger.unpack(part.pack())
    desk.topic.jobs = Jobs(ledger)
    desk.topic.jobs.begin(desk.now, desk.topic.start_seq)
    return desk


def delayed() -> JobDesk:
    desk = JobDesk()
    for _ in range(ASIDE // 1000):
        desk.add(*range(1000), delay_ms=10**6)
    return desk


def held() -> JobDesk:
    desk = JobDesk(ASIDE, leases_durable=True)
    desk.claim(ASIDE, lease_ms=10**6)
    desk.commit()
    return desk


def hidden() -> JobDesk:
    desk = held()
    desk.nack(*range(1, ASIDE + 1), delay_ms=10**6)
    desk.commit()
    return desk


@pytest.mark.parametrize("aside", [delayed, held, hidden])
@pytest.mark.parametrize("restart", [False, True])
def test_jobs_set_aside_do_not_slow_the_first_claim_after_them(
    aside: Callable[[], JobDesk], restart: bool
) -> None:
    desk = aside()
    desk.add("behind")
    if restart:
        desk = restarted(desk)
    began = time.process_time()
    assert desk.claim() == [ASIDE + 1]
    assert time.process_time() - began < 0.02, "7 us for each of them are 0.07 s"
    assert desk.jobs.steps_left > PASS_STEPS - 100


def alternating() -> JobDesk:
    """Every second job is delayed. The others are acked, but the restarted queue holds no state of
    their acks.
    """
    desk = JobDesk()
    for first in range(0, ASIDE, 1000):
        datas = [{"data": at, "delay_ms": 10**6 * (at % 2)} for at in range(first, first + 1000)]
        desk.append("q", records=datas)
        desk.commit()
        desk.ack(*desk.claim(1000))
        desk.commit()
    desk.add("behind")
    return restarted(desk)


def exhausted() -> JobDesk:
    desk = JobDesk(ASIDE, max_deliveries=1, dead_letter="d")
    desk.nack(*desk.claim(ASIDE))
    desk.add("behind")
    return desk


def left() -> JobDesk:
    """The list of released jobs still contains jobs that a cap has evicted."""
    desk = JobDesk(ASIDE)
    desk.nack(*desk.claim(ASIDE))
    desk.put("q", cap_records=1)
    desk.add("behind")
    return desk


def damaged() -> JobDesk:
    desk = JobDesk(ASIDE)
    desk.unreadable = {desk.topic.index.entry(0)[2]}
    desk.add("behind")
    return desk


@pytest.mark.parametrize("aside", [alternating, exhausted, left, damaged])
def test_a_pass_ends_after_a_limit_of_fruitless_steps_and_the_next_pass_continues(
    aside: Callable[[], JobDesk],
) -> None:
    desk = aside()
    passes = 0
    while not (got := desk.claim()):
        assert desk.jobs.is_unfinished
        passes += 1
    assert got == [ASIDE + 1]
    assert passes in (ASIDE // PASS_STEPS, ASIDE // 2 // PASS_STEPS)
    assert desk.claim() == []
    assert not desk.jobs.is_unfinished


# Exhausted jobs


PLENTY = 1 << 20


def exhausted_dead(desk: Desk, *datas: str) -> Topic:
    """Return a queue of exhausted jobs, each appended as a write of its own."""
    desk.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
    for data in datas:
        desk.append("q", data)
    desk.commit()
    topic = desk.engine.topic("q")
    holder = jobs_of(topic).leases.poller("worker")
    (claim,) = lease_jobs.claim(
        desk.engine.table, topic, [ClaimRequest(holder, 99, 1000)], desk.now, evenly=False
    )
    lease_jobs.nack(topic, "worker", claim.seqs, None, 0, desk.now)
    (claim,) = lease_jobs.claim(
        desk.engine.table, topic, [ClaimRequest(holder, 99, 1000)], desk.now, evenly=False
    )
    assert not claim.seqs
    return topic


def test_a_dead_job_with_an_unreadable_record_is_hidden_and_does_not_block_others(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = exhausted_dead(desk, "x", "y")
    damaged, real = topic.index.entry(0)[2], desk.records

    def records(locator: Locator) -> RecordsView:
        if locator == damaged:
            raise Unreadable
        return real(locator)

    monkeypatch.setattr(desk, "records", records)
    assert [seq for seq, _ in claims.dead(topic, desk.engine.store, 9, PLENTY, desk.now)] == [2]
    jobs = jobs_of(topic)
    assert (list(jobs.dead), jobs.counters(topic.count).ready) == ([2], 0)
    desk.later(UNREADABLE_MS)
    jobs.advance(desk.now.ms)
    assert jobs.counters(topic.count).ready == 1, "tried again by a later pass"
