"""Job dispatch: which claims and streams get which jobs, and in which iteration; cohorts, and
bounds of an iteration.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.moves import redrive, run_log, with_fake_peers
from tests.support.queue_harness import QueueHarness, seqs_of
from topics.actors.rpc.replies import APPLICATION_ERROR
from topics.actors.shard.queues import job_dispatch
from topics.engine.changes import lease_jobs
from topics.engine.queue import claims
from topics.errors import NotReady, TopicFull

# In order


async def test_claims_of_one_iteration_are_served_in_it_each_with_its_max_and_lease(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(jobs=5)
    workers.claim(max=3, lease_ms=1000)
    workers.claim(max=3, lease_ms=2000)
    workers.claim(max=3)
    workers.run_iteration()
    replies = workers.received()
    assert [seqs_of(answer) for answer in replies] == [[1, 2, 3], [4, 5], []]
    assert [answer["ready"] for answer in replies] == [2, 0, 0]
    deadlines = [answer["claimed"][0]["deadline"] for answer in replies[:2]]
    assert deadlines[1] - deadlines[0] == 1000


async def test_the_wait_list_of_a_queue_is_freed_when_it_is_empty(workers: QueueHarness) -> None:
    workers.queue(jobs=1)
    idle = len(workers.loop.deadlines)
    workers.claim(wait_ms=30_000)
    workers.claim(wait_ms=30_000)
    workers.run_iteration()
    assert len(workers.services.job_dispatch) == 1
    workers.jobs(1)
    workers.run_iteration()
    assert (len(workers.services.job_dispatch), len(workers.loop.deadlines)) == (0, idle)


async def test_a_commit_after_an_iteration_serves_the_waiting_claims(workers: QueueHarness) -> None:
    workers.queue(durability="disk")
    claim = workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.append("q", 1)
    workers.written()
    await wait_all_tasks_blocked()
    replies = workers.received()
    assert [answer["cid"] for answer in replies] == [claim + 1, claim]


async def test_unreadable_records_fail_only_one_claim(
    workers: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.queue()
    waiting = workers.claim(wait_ms=30_000)
    workers.open(1, node="s")
    workers.run_iteration()
    workers.received()

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(lease_jobs, "claim", fail)
        workers.jobs(1)
        workers.run_iteration()
    replies = [each for each in workers.received() if each.get("cid") == waiting]
    assert replies == [{"cid": waiting, "status": APPLICATION_ERROR}]
    workers.jobs(1)
    assert workers.pages() == [(1, [1])], "the next claim in the wait list"


# Bounds of an iteration


async def test_an_iteration_leases_a_bounded_number_of_jobs_and_alternates_between_wait_lists(
    workers: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_dispatch, "JOBS_PER_ITERATION", 20)
    for topic in ("a", "b"):
        workers.queue(topic)
        workers.jobs(100, topic)
    workers.received()
    of_a = [workers.claim("a", max=10) for _ in range(4)]
    of_b = [workers.claim("b", max=10) for _ in range(2)]
    served = []
    while claimed := [cid for cid, seqs in workers.claimed() if len(seqs) == 10]:
        served.append(claimed)
    assert served == [of_a[:2], of_a[2:], of_b]


@pytest.mark.slow
async def test_large_jobs_count_more_than_small_ones(workers: QueueHarness) -> None:
    workers.queue()
    for _ in range(40):
        workers.append("q", "x" * 1_000_000)
    workers.synced()  # Some of them write to the log if this takes long
    workers.received()
    for _ in range(40):
        workers.claim()
    assert [len(workers.claimed()) for _ in range(4)] == [17, 17, 6, 0]


async def test_the_rest_of_an_iteration_is_served_without_another_message(
    workers: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_dispatch, "JOBS_PER_ITERATION", job_dispatch.PASS_COST + 1)
    workers.queue(jobs=3)
    for _ in range(3):
        workers.claim()
    await wait_all_tasks_blocked()
    assert [seqs_of(answer) for answer in workers.received()] == [[1], [2], [3]]


@pytest.mark.parametrize("jitter_ms", [0, 100])
async def test_a_pass_that_ends_early_continues_in_the_next_iteration_until_all_claims_are_served(
    workers: QueueHarness,
    autojump_clock: MockClock,
    jitter_ms: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(claims, "PASS_STEPS", 8)
    workers.queue(max_deliveries=1, dead_letter="d", claim_jitter_ms=jitter_ms)
    exhausted = workers.jobs(20)
    workers.claim(max=20)
    await trio.sleep(0.2)
    workers.nack(*exhausted)
    workers.jobs(2)
    workers.received()
    hasty, other = workers.claim(), workers.claim()
    await trio.sleep(0.2)
    assert workers.claimed() == [(hasty, [21]), (other, [22])]


# Cohorts


async def test_a_claim_with_remaining_time_that_gets_no_job_waits_for_the_next_cohort(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(claim_jitter_ms=100)
    patient, hasty = workers.claim(wait_ms=30_000, max=9), workers.claim(max=9)
    await trio.sleep(0.2)
    assert workers.claimed() == [(hasty, [])]
    workers.jobs(1)
    workers.run_iteration()
    await trio.sleep(0.05)
    workers.jobs(3)
    late = workers.claim(max=9)
    assert workers.claimed() == [], "the job has opened a window"
    await trio.sleep(0.06)
    assert workers.claimed() == [(patient, [1, 3]), (late, [2, 4])]


async def test_a_claim_whose_wait_ends_within_a_window_gets_its_reply_at_the_end_of_the_window(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(claim_jitter_ms=100)
    first, second = workers.claim(wait_ms=50), workers.claim(wait_ms=60)
    await trio.sleep(0.08)
    assert workers.claimed() == []
    workers.jobs(1)
    await trio.sleep(0.03)
    assert workers.claimed() == [(first, [1]), (second, [])]


async def test_a_cohort_that_needs_several_iterations_gets_even_shares(
    workers: QueueHarness, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_dispatch, "JOBS_PER_ITERATION", 20)
    workers.queue(claim_jitter_ms=100, jobs=45)
    cohort = [workers.claim(max=30), workers.claim(max=30, wait_ms=300), workers.claim(max=30)]
    await trio.sleep(0.2)
    assert [(cid, len(seqs)) for cid, seqs in workers.claimed()] == [(cid, 15) for cid in cohort]


async def test_a_claim_that_arrives_while_a_cohort_is_served_belongs_to_the_next_one(
    workers: QueueHarness, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_dispatch, "JOBS_PER_ITERATION", 10)
    workers.queue(claim_jitter_ms=100, jobs=40)
    first, second = workers.claim(max=30), workers.claim(max=30)
    workers.run_iteration()
    workers.loop.deadlines.run_due(trio.current_time() + 0.1)  # The window is over
    assert [(cid, len(seqs)) for cid, seqs in workers.claimed()] == [(first, 20)]
    late = workers.claim(max=30)
    assert [(cid, len(seqs)) for cid, seqs in workers.claimed()] == [(second, 20)]
    await trio.sleep(0.2)
    assert workers.claimed() == [(late, [])]


async def test_a_window_ends_when_all_its_claims_are_cancelled(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(claim_jitter_ms=100)
    idle = len(workers.loop.deadlines)
    claim = workers.claim()
    workers.run_iteration()
    workers.cancel(claim)
    assert (len(workers.services.job_dispatch), len(workers.loop.deadlines)) == (0, idle)


# Dead letters


async def test_exhausted_jobs_are_reported_and_do_not_use_up_a_claim(workers: QueueHarness) -> None:
    notified: list[str] = []
    workers.services.job_dispatch._on_dead = lambda topic: notified.append(topic.name)
    workers.queue(max_deliveries=1, dead_letter="dlq")
    workers.jobs(2)
    workers.claim()
    workers.claimed()
    workers.nack(1)
    claim = workers.claim()
    assert workers.claimed() == [(claim, [2])]
    assert notified == ["q"]


# Jobs that are moved


async def exhausted_queue(workers: QueueHarness) -> None:
    """Create a queue whose only job was delivered as often as allowed."""
    workers.queue(max_deliveries=1, dead_letter="dead")
    workers.jobs(1)
    workers.claim()
    assert await claimed(workers) == [1]
    workers.nack(1)
    await run_log(workers)
    assert [reply["nacked"] for reply in workers.received()] == [1]


async def claimed(workers: QueueHarness) -> list[int]:
    """Return the seqs of the jobs that claims have received since the last call."""
    await run_log(workers)
    return [job["$seq"] for reply in workers.received() for job in reply.get("claimed", ())]


async def test_a_pass_that_finds_an_exhausted_job_moves_it(workers: QueueHarness) -> None:
    await exhausted_queue(workers)
    workers.claim()
    assert await claimed(workers) == []
    assert workers.engine.topic("dead").head_seq == 1
    assert workers.engine.topic("q").count == 0


async def test_a_waiting_claim_gets_the_jobs_that_a_changed_config_makes_claimable(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(workers)
    await exhausted_queue(workers)
    workers.claim(wait_ms=20_000)
    assert await claimed(workers) == []
    (batch,) = peers.take()
    batch.answer(TopicFull("full"))
    workers.put("q", dead_letter=None)
    assert await claimed(workers) == [1]


async def test_a_waiting_claim_gets_the_jobs_that_could_not_be_redriven(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    peers = with_fake_peers(workers)
    workers.queue()
    workers.jobs(2)
    redrive(workers, "q", to="a")
    await run_log(workers)
    workers.claim(max=5, wait_ms=20_000)
    assert await claimed(workers) == []
    (batch,) = peers.take()
    batch.fail(NotReady("away"))
    assert await claimed(workers) == [1, 2]
