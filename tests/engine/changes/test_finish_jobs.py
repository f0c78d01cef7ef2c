"""Finish jobs: acks and moves delete for good, and what could not be written has not happened."""

from __future__ import annotations

import pytest

from tests.engine.queue.job_desk import JobDesk
from tests.engine.shard_support import seqs_of
from topics.engine.changes import finish_jobs
from topics.engine.queue import claims
from topics.engine.store import Unreadable
from topics.formats.disk.frame_bodies import DeleteFlags, decode_runs
from topics.formats.disk.frames import Frame


def runs(frame: Frame) -> list[tuple[int, int]]:
    body = b"".join(map(bytes, frame.parts))
    return [(run.first, run.length) for run in decode_runs(body)]


def test_an_ack_of_many_jobs_is_one_frame_of_runs() -> None:
    desk = JobDesk(6)
    desk.claim(6)
    change = desk.ack(6, 2, 1, 3, 9)
    (frame,) = change.frames
    assert runs(frame) == [(1, 3), (6, 1)]
    assert ([*change.seqs], desk.skipped) == ([1, 2, 3, 6], [9])
    desk.commit()
    assert seqs_of(desk.read("q")) == [4, 5]


def test_an_ack_of_nothing_still_waits_for_the_one_before_it() -> None:
    desk = JobDesk(1, durability="fsync")
    desk.claim()
    first, second = desk.ack(1), desk.ack(1)
    assert second.frames == []
    assert first.sync
    assert second.sync
    assert desk.topic.pending == 2
    desk.commit()
    assert not desk.ack(1).sync


@pytest.mark.parametrize(("durability", "sync"), [("disk", False), ("fsync", True)])
def test_an_ack_is_as_durable_as_the_class(durability: str, sync: bool) -> None:
    desk = JobDesk(1, durability=durability, leases_durable=False)
    desk.claim()
    assert desk.ack(1).sync is sync


def test_the_log_is_told_nothing_of_records_that_it_does_not_hold() -> None:
    desk = JobDesk(2, durability="ephemeral")
    desk.claim(2)
    assert desk.ack(1).frames == []
    desk.commit()
    assert desk.topic.count == 1


def dying(jobs: int = 2) -> JobDesk:
    """All of its jobs are on their way."""
    desk = JobDesk(jobs, max_deliveries=1, dead_letter="d")
    desk.claim(jobs)
    desk.nack(*range(1, jobs + 1))
    desk.claim()
    desk.dying()
    desk.commit()
    return desk


def test_jobs_that_were_moved_are_deleted_and_counted_once_that_is_durable() -> None:
    desk = dying()
    change = desk.bury(2, 1)
    (frame,) = change.frames
    assert frame.flags & DeleteFlags.DEAD_LETTERED
    assert desk.counters.dead_lettered == 0
    desk.commit()
    assert (desk.counters.dead_lettered, desk.topic.count) == (2, 0)


def test_records_of_a_log_may_be_moved_too() -> None:
    desk = JobDesk()
    desk.append("log", 1, 2)
    desk.commit()
    topic = desk.engine.topic("log")
    assert claims.set_aside(topic, [1, 2]) == [1, 2]
    desk.pending.append(finish_jobs.remove(topic, [1], desk.now))
    claims.put_back(topic, [2], desk.now)
    desk.commit()
    assert seqs_of(desk.read("log")) == [2]


def test_a_burial_counts_also_if_the_records_cannot_be_flagged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = dying()
    desk.bury(1, 2)

    def flag_deleted(*_: object) -> None:
        raise Unreadable

    monkeypatch.setattr(desk, "flag_deleted", flag_deleted)
    with pytest.raises(Unreadable):
        desk.commit()
    assert desk.jobs.dead_lettered == 2, "as a replay counts"
