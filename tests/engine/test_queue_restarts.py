"""Queues over a restart: their jobs are those of the log, with what it knows of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import records_of
from tests.engine.world import World
from tests.support.limits import LIMITS
from topics.engine.changes import append, finish_jobs, lease_jobs, put_topic
from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.queue.claims import Ask, jobs_of
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.leases import lease_id
from topics.engine.queue.ledger import JobRow, JobState
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import Diff
from topics.formats.json_text import json_bytes


class Process:
    """A world with queue ``q``, whose process may be killed."""

    def __init__(self, **config: Any) -> None:
        self.world, self.now = World(), Now(1_000_000, 5_000)
        self.put(leases_durable=True, **config)

    @property
    def topic(self) -> Topic:
        return self.world.engine.queue("q")

    @property
    def jobs(self) -> Jobs:
        assert self.topic.jobs is not None
        self.topic.jobs.advance(self.now.ms)
        return self.topic.jobs

    def _do(self, change: Change) -> Any:
        if change.frames:
            self.world.submit(change, {}, lambda: None)
            self.world.commit_next(self.now)
        return change

    def put(self, **config: Any) -> None:
        patch = decode_config(json_bytes({"type": "queue", **config}))
        self._do(put_topic.decide(self.world.engine.table, "q", patch, self.now))

    def add(self, *records: dict[str, Any]) -> None:
        body = decode_append(json_bytes({"records": records or [{"data": 1}]}), None, LIMITS)
        change = append.decide(self.world.engine.table, "q", body, self.now)
        assert isinstance(change, Change)
        self._do(change)

    def claim(self, max_jobs: int = 1, lease_ms: int = 1000) -> list[int]:
        holder = jobs_of(self.topic).leases.poller("n")
        (change,) = lease_jobs.claim(
            self.world.engine.table,
            self.topic,
            [Ask(holder, max_jobs, lease_ms)],
            self.now,
            evenly=False,
            max_bytes=1 << 20,
        )
        return list(self._do(change).seqs)

    def nack(self, *seqs: int, delay_ms: int = 0) -> None:
        self._do(lease_jobs.nack(self.topic, "n", seqs, None, delay_ms, self.now))

    def extend(self, *seqs: int, lease_ms: int = 1000) -> None:
        self._do(lease_jobs.extend(self.topic, "n", seqs, None, lease_ms, self.now))

    def ack(self, *seqs: int) -> None:
        leases, _ = finish_jobs.begin_ack(self.topic, "n", seqs, None, self.now)
        self._do(finish_jobs.ack(self.topic, leases, self.now))

    def move(self) -> list[int]:
        return list(self._do(lease_jobs.dying(self.topic, 9, self.now)).seqs)

    def bury(self, *seqs: int) -> None:
        self._do(finish_jobs.bury(self.topic, seqs, self.now))

    def kill(self, down_ms: int = 0) -> None:
        """Its successor has another monotonic clock."""
        self.now = Now(self.now.ts + down_ms, 77)
        self.world.restart(self.now, None, power=False)
        self.world.engine.table.next_lease_number = 1000

    def told(self, seq: int) -> JobRow:
        """What a checkpoint tells of a job."""
        (ledger,) = self.jobs.ledgers(self.now, with_leases=True)
        return ledger.rows[seq]

    def later(self, ms: int) -> None:
        self.now = Now(self.now.ts + ms, self.now.ms + ms)


def test_holders_deadlines_tokens_and_deliveries_are_known_again() -> None:
    process = Process()
    process.add({"data": 1}, {"data": 2})
    process.claim()
    process.nack(1)
    process.claim(2)
    before = [process.jobs.leases.lease(seq) for seq in (1, 2)]
    process.kill(down_ms=400)
    for lease in before:
        again = process.jobs.leases.lease(lease.seq)
        assert (again.number, again.holder.node) == (lease.number, "n")
        assert again.deadline_ms == process.now.ms + 600
    assert [process.jobs.deliveries(seq) for seq in (1, 2)] == [2, 1]
    assert process.jobs.leases.is_held(1, "n", lease_id(before[0].number), process.now.ms)


def test_a_lease_that_ended_meanwhile_is_over_and_its_delivery_counts() -> None:
    process = Process()
    process.add()
    process.claim()
    process.kill(down_ms=1001)
    assert process.claim() == [1]
    assert process.jobs.deliveries(1) == 2


def test_what_was_hidden_or_delayed_waits_for_the_rest_of_its_time() -> None:
    process = Process()
    process.add({"data": 1})
    process.add({"data": 2, "delay_ms": 900})
    process.claim()
    process.nack(1, delay_ms=700)
    process.kill(down_ms=300)
    assert process.claim(9) == []
    process.later(399)
    assert process.claim(9) == []
    process.later(1)
    assert process.claim(9) == [1]
    process.later(200)
    assert process.claim(9) == [2]


def test_without_durable_leases_every_job_is_claimable_and_was_never_delivered() -> None:
    process = Process()
    process.add({"data": 1}, {"data": 2})
    process.claim(2)
    process.put(leases_durable=False)
    process.nack(1)
    process.kill()
    assert len(process.jobs.leases) == 0
    assert process.claim(9) == [1, 2]
    assert process.jobs.deliveries(1) == 1


def test_leases_from_before_they_were_not_durable_do_not_come_back_when_they_are_again() -> None:
    process = Process()
    process.add()
    process.claim()
    process.put(leases_durable=False)
    process.put(leases_durable=True)
    process.kill()
    assert process.claim() == [1]


def test_a_lease_from_before_they_were_durable_is_known_again_once_it_was_extended() -> None:
    process = Process()
    process.put(leases_durable=False)
    process.add()
    process.claim()
    process.put(leases_durable=True)
    process.extend(1, lease_ms=500)
    row = process.told(1)
    process.kill()
    assert process.told(1) == row
    assert process.claim() == []


def exhausted(**config: Any) -> Process:
    """Job 1 is about to be moved."""
    process = Process(max_deliveries=1, dead_letter="d", **config)
    process.add()
    process.claim()
    process.nack(1)
    assert process.claim() == []
    assert process.move() == [1]
    return process


@pytest.mark.parametrize("durable", [False, True])
def test_a_move_that_the_log_knows_of_goes_on(durable: bool) -> None:
    process = exhausted()
    process.put(leases_durable=durable)
    process.kill()
    assert process.claim() == []
    assert process.jobs.deliveries(1) == 1
    assert process.move() == [1]
    process.bury(1)
    process.kill()
    assert process.jobs.counters(process.topic.count) == (0, 0, 1, 0)


def test_a_move_that_the_config_no_longer_asks_for_does_not_go_on() -> None:
    process = exhausted()
    process.put(dead_letter=None)
    process.kill()
    assert process.move() == []
    assert process.claim() == [1]
    assert process.jobs.deliveries(1) == 2


def test_what_was_found_exhausted_and_not_moved_is_found_so_again() -> None:
    process = Process(max_deliveries=1, dead_letter="d")
    process.add()
    process.claim()
    process.nack(1)
    process.claim()
    process.kill()
    assert process.claim() == []
    assert process.move() == [1]


def test_a_job_that_was_not_moved_is_of_its_holder_once_the_log_knows_of_the_lease() -> None:
    process = exhausted()
    lease_jobs.keep_dead(process.topic, [1])
    process.put(dead_letter=None, leases_durable=False)
    jobs_of(process.topic).revive_dead()
    assert process.claim() == [1]
    assert process.told(1).state is JobState.DYING, "the log knows of no lease"
    process.put(leases_durable=True)
    process.extend(1, lease_ms=500)
    row = process.told(1)
    assert (row.state, row.deliveries) == (JobState.HELD, 2)
    process.kill()
    assert process.told(1) == row


def test_jobs_whose_records_have_gone_are_nobodys() -> None:
    process = Process(cap_records=2)
    process.add({"data": 1}, {"data": 2})
    process.claim(2)
    process.add({"data": 3, "delay_ms": 50})
    process.ack(2)
    process.kill()
    assert process.jobs.counters(process.topic.count) == (0, 0, 0, 1)
    assert [process.jobs.is_listed(seq) for seq in (1, 2, 3)] == [False, False, True]
    page = read(process.topic, Diff(), process.world)
    assert [record["$seq"] for record in records_of(page)] == [3]


def test_a_record_in_memory_takes_its_lease_with_it() -> None:
    process = Process()
    process.add()
    process.put(durability="ephemeral")
    process.add()
    process.put(durability="disk")
    process.claim(2)
    process.kill()
    assert sorted(process.jobs.leases) == [1]
