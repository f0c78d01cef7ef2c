"""Jobs: every live record is in one state, and what has gone is in none."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

import pytest

from tests.engine.queue.job_desk import JobDesk
from topics.engine.now import Now
from topics.engine.queue import claims
from topics.engine.queue import jobs as module
from topics.engine.queue.jobs import HEAP_STALE_MIN, LEDGER_STEP, Counters, Jobs
from topics.engine.queue.ledger import JobState, Ledger
from topics.engine.queue.timetable import NEVER, STALE_MIN
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows
from topics.formats.ranges import SeqRun


def test_next_at_leads_to_the_next_job_and_does_not_stay_behind() -> None:
    desk = JobDesk(2)
    assert desk.jobs.next_at == NEVER
    desk.claim(2, lease_ms=900)
    desk.nack(1, delay_ms=300)
    desk.delete_records("q", before_seq=2)  # what was to come first is gone
    desk.commit()
    desk.later(300)
    assert desk.claim() == []
    assert desk.now.ms < desk.jobs.next_at <= 5000 + 901
    desk.ack(2)
    desk.commit()
    desk.later(1000)
    assert desk.claim() == []
    assert desk.jobs.next_at == NEVER


def test_a_delayed_record_that_comes_back_waits_for_its_time_and_a_due_one_does_not() -> None:
    desk = JobDesk()
    desk.add("a", delay_ms=50)
    claims.set_aside(desk.topic, [1])
    claims.put_back(desk.topic, [1], desk.now)
    assert desk.counters.delayed == 1
    desk.later(50)
    assert desk.counters.delayed == 0
    claims.set_aside(desk.topic, [1])
    desk.now = desk.now._replace(ts=desk.now.ts - 5000)  # the wall clock is set back
    claims.put_back(desk.topic, [1], desk.now)
    assert desk.claim() == [1]


def test_what_a_checkpoint_is_told_comes_in_steps() -> None:
    count = 2 * LEDGER_STEP + 1
    desk = JobDesk(count, leases_durable=True)
    desk.claim(count)
    parts = list(desk.jobs.ledgers(desk.now, with_leases=True))
    assert [len(part.rows) for part in parts] == [LEDGER_STEP, LEDGER_STEP, 1]
    assert {row.state for part in parts for row in part.rows.values()} == {JobState.HELD}
    assert [len(part.rows) for part in desk.jobs.ledgers(desk.now, with_leases=False)] == [0, 0, 0]


def test_an_idle_queue_holds_no_memory_of_jobs_that_were_done() -> None:
    desk = JobDesk(1000)
    desk.claim(1000)
    desk.ack(*range(1, 1001))
    desk.commit()
    assert not any(desk.jobs.is_listed(seq) for seq in range(1, 1001))
    desk.later(2000)
    desk.claim()
    assert desk.jobs.next_at == NEVER
    assert desk.jobs.leases.pollers == {}


def test_delayed_jobs_that_are_deleted_leave_the_timetable() -> None:
    jobs = Jobs()
    for seq in range(1, 3 * STALE_MIN):
        jobs.delay(seq, 10**9, Now(ts=0, ms=0))
        jobs.forget_runs([SeqRun(seq, 1)])
    assert jobs.counters(0).delayed == 0
    assert jobs._delay_times.count <= STALE_MIN * 1.2


# Very many jobs


def test_what_ends_at_one_moment_ends_part_by_part_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ADVANCE_MAX", 4)
    desk = JobDesk(6)
    for data in range(6):
        desk.add(data, delay_ms=1001)  # 7 to 12
    desk.claim(6)
    desk.later(1001)
    for left in (2, 2):
        assert desk.counters == Counters(12 - 2 * left, left, 0, left), "nothing before the pause"
    assert desk.jobs.next_at <= desk.now.ms, "whoever waits for the others comes again"
    desk.later(module.ADVANCE_PAUSE_MS)
    assert desk.counters == Counters(12, 0, 0, 0)
    assert [*chain.from_iterable(desk.claim() for _ in range(12))] == [*range(1, 13)]


def test_a_start_shows_that_it_goes_on_for_each_job() -> None:
    ledger, seen = Ledger(), list[object]()
    ledger.delay(1, (10**6,) * 3)
    ledger.apply(LeaseRows(LeaseOp.RELEASED, (7, 8), (1, 1)))

    def watched(items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            seen.append(item)
            yield item

    Jobs(ledger).begin(Now(ts=0, ms=0), watched=watched)
    assert len(seen) == 5


def test_a_cut_of_very_many_jobs_that_wait_takes_no_time_for_each() -> None:
    jobs, count = Jobs(), 200_000
    for seq in range(1, count + 1):
        jobs.delay(seq, 10**9, Now(ts=0, ms=0))
    began = time.process_time()
    jobs.cut(2)
    jobs.cut(count)
    assert time.process_time() - began < 0.05, "2 us for each of them are 0.4 s"
    assert (jobs.counters(1).delayed, jobs.is_listed(count)) == (1, True)


def test_redrives_that_fail_leave_nothing_behind() -> None:
    desk = JobDesk(4)
    desk.claim(2)
    desk.nack(1, 2)
    desk.add("due", delay_ms=100)
    desk.later(100)
    for _ in range(HEAP_STALE_MIN + 10):
        assert claims.set_aside(desk.topic, [1, 2, 5]) == [1, 2, 5]
        claims.put_back(desk.topic, [1, 2, 5], desk.now)
    assert max(len(desk.jobs._in_line), len(desk.jobs.due)) <= HEAP_STALE_MIN + 8
    assert [desk.claim() for _ in range(6)] == [[1], [2], [3], [4], [5], []]
