"""Work streams: their pages of jobs, when they have capacity, and the leases that their end
releases.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.queue_harness import TS_0, QueueHarness
from topics.engine.changes import lease_jobs
from topics.formats.disk.frame_bodies import LeaseOp
from topics.formats.disk.frames import FrameKind
from topics.storage.wal.log_file import NoSpace

FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))
BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


# Jobs


async def test_an_open_stream_is_sent_as_many_jobs_as_it_takes(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(jobs=3)
    number = workers.open(2, lease_ms=700)
    workers.run_iteration()
    answer, page = workers.received()
    assert (answer["cid"], answer["status"]) == (number, 200)
    assert (page["work"], page["seqs"]) == (1, [1, 2])
    assert [job["$seq"] for job in page["jobs"]] == [1, 2]
    assert [job["deadline"] for job in page["jobs"]] == [TS_0 + 700] * 2
    assert page["jobs"][0]["lease_id"].startswith("lease_")


async def test_only_one_page_of_a_stream_is_in_flight(workers: QueueHarness) -> None:
    workers.queue()
    workers.open(5)
    workers.jobs(1)
    assert workers.pages() == [(1, [1])]
    workers.jobs(2)
    assert workers.pages() == []
    workers.taken()
    assert workers.pages() == [(1, [2, 3])]
    workers.taken()
    assert workers.pages() == []


@pytest.mark.parametrize("how", ["ack", "nack", "delete"])
async def test_a_full_stream_is_refilled_when_it_holds_fewer_jobs(
    workers: QueueHarness, how: str
) -> None:
    workers.queue(jobs=3)
    workers.open(1)
    workers.pages()
    workers.taken()
    assert workers.pages() == []
    if how == "ack":
        workers.ack(1, node="s")
    elif how == "nack":
        workers.nack(1, node="s", delay_ms=1000)
    else:
        workers.delete_records("q", before_seq=2)
    assert workers.pages() == [(1, [2])]


async def test_a_full_stream_is_refilled_when_a_lease_ends(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(lease_ms=1000, jobs=1)
    workers.open(1)
    workers.pages()
    workers.taken()
    workers.run_iteration()
    await trio.sleep(1.0)
    assert workers.pages() == []
    await trio.sleep(0.03)
    assert workers.pages() == [(1, [1])]


async def test_a_job_acked_before_its_page_is_taken_causes_no_second_page(
    workers: QueueHarness,
) -> None:
    workers.queue(jobs=2)
    workers.open(1)
    workers.pages()
    workers.ack(1, node="s")
    assert workers.pages() == []
    workers.taken()
    assert workers.pages() == [(1, [2])]


async def test_a_page_has_about_one_mib_or_at_least_one_job(workers: QueueHarness) -> None:
    workers.queue()
    for length in [100_000] * 20 + [1_000_000] * 3:
        workers.append("q", "x" * length)
    workers.open(50)
    sent = []
    while pages := workers.pages():
        sent += [len(seqs) for _, seqs in pages]
        workers.taken()
    assert sum(sent) == 23
    assert max(sent[:2]) <= 11
    assert sent[-1] <= 2


# Streams and claims together


async def test_streams_and_claims_are_served_in_order_from_one_wait_list(
    workers: QueueHarness,
) -> None:
    workers.queue()
    workers.open(1, work=1)
    claim = workers.claim(wait_ms=30_000, node="w")
    workers.open(1, work=2, node="t")
    workers.run_iteration()
    workers.received()
    workers.append("q", 1, 2, 3)
    workers.run_iteration()
    messages = [each for each in workers.received() if "outcomes" not in each][-3:]
    assert [each.get("work") or each["cid"] for each in messages] == [1, claim, 2]
    workers.taken(2)
    workers.ack(3, node="t")
    workers.taken(1)
    workers.ack(1, node="s")
    workers.run_iteration()
    workers.received()
    workers.append("q", 4)
    assert workers.pages() == [(2, [4])], "stream 2 had capacity first"


# Ends


async def test_closing_a_stream_releases_only_the_jobs_that_it_holds(
    workers: QueueHarness,
) -> None:
    workers.queue(jobs=3)
    workers.claim(node="s")
    workers.open(2, node="s")
    assert workers.pages() == [(1, [2, 3])]
    workers.ack(2, node="s")
    workers.close()
    workers.close()
    claim = workers.claim(node="other", max=9)
    assert workers.claimed() == [(claim, [3])]
    assert len(workers.services.work_streams) == len(workers.services.job_dispatch) == 0


@pytest.mark.parametrize(("pages", "deliveries"), [(0, [1, 1, 1]), (1, [2, 2, 1]), (2, [2, 2, 2])])
async def test_a_page_that_was_not_shown_to_the_client_counts_no_delivery(
    workers: QueueHarness, pages: int, deliveries: list[int]
) -> None:
    workers.queue(jobs=2)
    workers.open(3)
    assert workers.pages() == [(1, [1, 2])]
    if pages:
        workers.taken()
        workers.jobs(1)
        assert workers.pages() == [(1, [3])]
    else:
        workers.jobs(1)
    workers.received()
    workers.close(pages=pages)
    workers.claim(max=9)
    workers.run_iteration()
    assert [job["deliveries"] for job in workers.answer()["claimed"]] == deliveries


async def test_the_jobs_of_a_closed_stream_go_to_the_waiting_claimers(
    workers: QueueHarness,
) -> None:
    workers.queue(jobs=1)
    workers.open(1, work=1)
    workers.open(1, work=2)
    assert workers.pages() == [(1, [1])]
    workers.close(1)
    assert workers.pages() == [(2, [1])]


async def test_the_end_of_a_session_ends_its_streams(workers: QueueHarness) -> None:
    workers.queue(jobs=2)
    workers.open(1, work=1)
    workers.open(1, work=2)
    workers.run_iteration()
    workers.close_session()
    assert len(workers.services.work_streams) == len(workers.services.job_dispatch) == 0
    claim = workers.claim(max=9)
    assert workers.claimed() == [(claim, [1, 2])]


async def test_a_stream_whose_front_accepts_no_message_is_released(workers: QueueHarness) -> None:
    workers.queue()
    workers.open(1)
    workers.run_iteration()
    workers.wire.broken = True
    workers.jobs(1)
    workers.run_iteration()
    assert len(workers.services.work_streams) == 0
    workers.wire.broken = False
    claim = workers.claim()
    assert workers.claimed() == [(claim, [1])]


async def test_a_reused_stream_number_identifies_a_new_stream(workers: QueueHarness) -> None:
    workers.queue()
    workers.queue("other")
    workers.jobs(1)
    workers.open(1)
    workers.pages()
    workers.open(1, topic="other")
    workers.jobs(1, "other")
    claim = workers.claim()
    workers.run_iteration()
    messages = workers.received()
    assert [each["seqs"] for each in messages if "event" in each] == [[1]]
    assert [each["cid"] for each in messages if each.get("claimed")] == [claim]


@pytest.mark.parametrize("kind", [None, "log", "queue"])
async def test_a_deleted_queue_ends_its_streams_even_if_it_is_recreated(
    workers: QueueHarness, kind: str | None
) -> None:
    workers.queue(jobs=1)
    workers.open(1, work=1)
    workers.open(1, work=2)
    workers.run_iteration()
    workers.received()
    workers.delete("q")
    if kind is not None:
        workers.put("q", type=kind)
    workers.synced()
    workers.run_iteration()
    ended = [message for message in workers.received() if "event" in message]
    assert [(message["event"], message["work"], message["error"]) for message in ended] == [
        ("work.ended", 2, "not_a_queue"),
        ("work.ended", 1, "not_a_queue"),
    ]
    assert len(workers.services.work_streams) == len(workers.services.job_dispatch) == 0
    workers.close()
    workers.taken(2)


async def test_a_deleted_queue_ends_a_stream_that_has_just_gained_capacity(
    workers: QueueHarness,
) -> None:
    workers.queue(jobs=1)
    workers.open(1)
    workers.pages()
    topic = workers.engine.topic("q")
    workers.delete("q")
    assert topic.jobs is not None
    topic.jobs.advance(workers.commits.now().ms + 60_000)
    assert topic.jobs.leases.loosened, "its lease has ended in the meantime"
    workers.synced()
    workers.run_iteration()
    assert [message["event"] for message in workers.received() if "event" in message] == [
        "work.ended"
    ]


async def test_a_stream_with_unreadable_records_ends_and_releases_its_jobs(
    workers: QueueHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers.queue(jobs=1)
    workers.open(2)
    workers.pages()
    workers.taken()

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(lease_jobs, "claim", fail)
        workers.run_iteration()
    (ended,) = workers.received()
    assert (ended["event"], ended["error"]) == ("work.ended", "internal")
    claim = workers.claim()
    assert workers.claimed() == [(claim, [1])]


async def test_a_stream_needs_a_queue_and_a_shard_that_can_write(workers: QueueHarness) -> None:
    workers.queue()
    workers.make("log", durability="ephemeral")
    expected = {
        workers.open(topic="log"): "not_a_queue",
        workers.open(topic="nowhere"): "topic_not_found",
    }
    assert dict(workers.answers()) == expected
    workers.put("other")
    workers.failed(BROKEN)
    workers.answers()
    number = workers.open()
    assert workers.answers() == [(number, "not_ready")]


# Durable leases


async def test_jobs_with_durable_leases_are_sent_when_the_log_has_them(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.open(1)
    assert workers.pages() == []
    workers.written()
    assert workers.pages() == [(1, [1])]


async def test_leases_that_the_log_has_lost_are_retried_after_a_pause(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.open(1)
    workers.run_iteration()
    tried = len(workers.log.groups)
    workers.failed(FULL)
    workers.run_iteration()
    await wait_all_tasks_blocked()
    assert len(workers.log.groups) == tried
    await trio.sleep(1.1)
    workers.written()
    assert workers.pages() == [(1, [1])]


async def test_a_stream_that_closes_before_its_leases_are_logged_releases_them(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.open(1)
    workers.run_iteration()
    workers.close()
    workers.run_iteration()
    workers.written()
    assert workers.pages() == []
    frames = [frame for frame in workers.log.frames.values() if frame.kind is FrameKind.LEASE]
    assert [frame.flags for frame in frames] == [LeaseOp.CLAIMED, LeaseOp.RELEASED]
    claim = workers.claim()
    workers.run_iteration()
    workers.written()
    assert workers.claimed() == [(claim, [1])]


async def test_the_release_for_a_disconnected_front_is_logged_without_another_message(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="disk", leases_durable=True)
    workers.append("q", 1)
    workers.written()
    workers.open(1)
    workers.run_iteration()
    workers.written()
    await wait_all_tasks_blocked()
    before = len(workers.log.groups)
    workers.close_session()
    await wait_all_tasks_blocked()
    assert len(workers.log.groups) == before + 1


async def test_a_shard_that_temporarily_cannot_write_keeps_its_streams(
    workers: QueueHarness, autojump_clock: MockClock
) -> None:
    workers.queue(jobs=1)
    workers.claim(lease_ms=500)
    workers.claimed()
    workers.open(1)
    waiting = workers.claim(wait_ms=30_000)
    workers.run_iteration()
    workers.received()
    workers.loop.context.disk.is_stalled = True
    await trio.sleep(0.6)
    assert workers.answers() == [(waiting, "not_ready")]
    workers.loop.context.disk.is_stalled = False
    await trio.sleep(1.1)
    assert workers.pages() == [(1, [1])]


async def test_a_stream_that_holds_too_many_jobs_after_a_lost_ack_does_not_block_others(
    workers: QueueHarness,
) -> None:
    workers.queue(durability="disk")
    workers.append("q", 1, 2, 3)
    workers.written()
    workers.open(1)
    assert workers.pages() == [(1, [1])]
    workers.taken()
    workers.ack(1, node="s")
    other = workers.claim()
    workers.run_iteration()
    (claimed, page) = (
        message for message in workers.received() if "claimed" in message or "event" in message
    )
    assert (claimed["cid"], page["seqs"]) == (other, [3])
    workers.failed(FULL)
    workers.failed(FULL)
    workers.taken()
    workers.append("q", 4)
    workers.written()
    last = workers.claim()
    assert workers.claimed() == [(last, [4])]
