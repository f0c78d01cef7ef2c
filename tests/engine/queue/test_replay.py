"""Replay of a queue: what each frame tells the ledger, and from what the jobs go on."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from tests.engine.shard_support import Desk, fill
from topics.engine.changes.by_kind import replay_frame
from topics.engine.queue import claims
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.ledger import JobRow, JobState, Ledger
from topics.engine.queue.replay import begin, follow_config, ledger_of, note_delays, open_ledger
from topics.engine.replay import Misfit, Replay
from topics.engine.snapshot import jobs_to_keep, restore_topic, snapshot_topic
from topics.engine.topic import Topic
from topics.formats.disk.frame_bodies import (
    LeaseOp,
    LeaseRows,
    delete_runs_frame,
    lease_frame,
)
from topics.formats.disk.frames import Frame, FrameHeader, encode_frame, header_at
from topics.formats.ranges import SeqRun

HELD, FREE, DYING = JobState
POSITION = 1000  # LSN as of which the checkpoint holds the topic


def header_of(frame: Frame, lsn: int) -> FrameHeader:
    return header_at(b"".join(encode_frame(frame, lsn, 0, 0)), 0)


class Replaying:
    """The queue ``a`` of a desk, while its frames are replayed."""

    def __init__(self, desk: Desk, *writes: int, **config: Any) -> None:
        fill(desk, *writes, **{"type": "queue", "leases_durable": True, **config})
        self.desk, self.topic = desk, desk.engine.topic("a")
        open_ledger(self.topic)
        self.replay = Replay(desk.engine.table)
        self.replay.note_restored(self.topic, self.topic.head_seq, POSITION)

    @property
    def ledger(self) -> Ledger:
        ledger = ledger_of(self.topic)
        assert ledger is not None
        return ledger

    def play(self, frame: Frame, lsn: int = POSITION) -> None:
        body = b"".join(map(bytes, frame.parts))
        replay_frame(self.replay, header_of(frame, lsn), body, lsn < POSITION)

    def claim(self, *seqs: int, until: int = 2_000_000, lsn: int = POSITION) -> None:
        rows = LeaseRows(
            LeaseOp.CLAIMED, seqs, (1,) * len(seqs), "w", until, range(70, 70 + len(seqs))
        )
        self.play(lease_frame(self.topic.id, 5, rows), lsn)

    def begin(self) -> None:
        begin(self.topic, self.desk, self.desk.now)


def test_leases_that_the_checkpoint_holds_are_not_replayed(desk: Desk) -> None:
    queue = Replaying(desk, 3)
    queue.claim(1, lsn=POSITION - 8)
    queue.claim(2)
    assert queue.ledger.rows == {2: (HELD, 2_000_000, 70, 1, "w")}


def test_a_lease_of_a_log_or_of_an_unknown_operation_does_not_fit(desk: Desk) -> None:
    queue = Replaying(desk, 1)
    fill(desk, 1)
    rows = LeaseRows(LeaseOp.CLAIMED, (1,), (1,), "w", 9, (70,))
    with pytest.raises(Misfit, match="operation 9"):
        queue.play(lease_frame(queue.topic.id, 5, rows)._replace(flags=9))
    desk.put("log")
    with pytest.raises(Misfit, match="no queue"):
        queue.play(lease_frame(desk.engine.topic("log").id, 5, rows))


def test_dead_lettered_jobs_are_counted_by_frames_that_the_checkpoint_does_not_hold(
    desk: Desk,
) -> None:
    queue = Replaying(desk, 9)
    for lsn, seq in ((POSITION - 8, 1), (POSITION, 4)):
        runs = [SeqRun(seq, 2), SeqRun(seq + 2, 1)]
        queue.play(delete_runs_frame(queue.topic.id, runs, 5, dead_lettered=True), lsn)
    queue.play(delete_runs_frame(queue.topic.id, [SeqRun(8, 1)], 5))
    assert queue.ledger.dead_lettered == 3
    assert queue.topic.count == 2


def test_delays_that_the_checkpoint_holds_are_not_replayed(desk: Desk) -> None:
    queue = Replaying(desk)
    desk.append("a", records=[{"data": 1, "delay_ms": 70}, {"data": 2}])
    desk.commit()
    (view,) = desk._views

    class OneWrite:
        def records(self, _: int) -> Any:
            return view

    desk.engine.store = OneWrite()  # type: ignore[assignment]
    note_delays(queue.replay, queue.topic, POSITION - 8, 1)
    assert queue.ledger.delays == {}
    note_delays(queue.replay, queue.topic, POSITION, 1)
    assert queue.ledger.delays == {1: desk.now.ts + 70}


@pytest.mark.parametrize("config", [{"leases_durable": False}, {"durability": "ephemeral"}])
def test_where_the_log_has_no_leases_they_are_forgotten(desk: Desk, config: Any) -> None:
    queue = Replaying(desk, 3)
    queue.claim(1)
    follow_config(queue.topic)
    assert [*queue.ledger.rows] == [1]
    desk.put("a", **config)
    follow_config(queue.topic)
    assert [*queue.ledger.rows] == []


# After the last frame


def test_jobs_without_a_live_record_are_not_known_any_more(desk: Desk) -> None:
    queue = Replaying(desk, 2, 3, 2, 2)
    desk.delete_records("a", before_seq=2)
    desk.commit()
    queue.play(delete_runs_frame(queue.topic.id, [SeqRun(4, 1), SeqRun(6, 2)], 5))
    queue.claim(*range(1, 12))
    queue.ledger.delay(4, (desk.now.ts + 9,))
    queue.begin()
    assert sorted(jobs_of(queue.topic).leases) == [2, 3, 5, 8, 9]
    assert jobs_of(queue.topic).counters(queue.topic.count) == (0, 5, 0, 0)


@pytest.mark.parametrize(
    ("config", "state"),
    [
        ({"max_deliveries": 3, "dead_letter": "d"}, DYING),
        ({"max_deliveries": 4, "dead_letter": "d"}, FREE),
        ({"max_deliveries": 0, "dead_letter": "d"}, FREE),
        ({"max_deliveries": 3}, FREE),
    ],
)
def test_a_move_goes_on_while_the_job_is_exhausted(
    desk: Desk, config: Any, state: JobState
) -> None:
    queue = Replaying(desk, 1, **config)
    queue.ledger.rows[1] = JobRow(DYING, 0, 0, 3, "")
    queue.begin()
    jobs = jobs_of(queue.topic)
    assert ([*jobs.dying], jobs.deliveries(1)) == ([1] if state is DYING else [], 3)
    assert jobs.counters(1).ready == (state is not DYING), "what a claim can get"


# The checkpoint


def kept(topic: Topic, desk: Desk) -> Any:
    """The topic as a checkpoint has it: CBOR."""
    found = snapshot_topic(topic, POSITION)
    found["queue"]["parts"] += jobs_to_keep(topic, desk.now)
    return cbor2.loads(cbor2.dumps(found))


def restored(value: Any) -> Ledger:
    again = Desk()
    ledger = ledger_of(restore_topic(Replay(again.engine.table), value))
    assert ledger is not None
    return ledger


ROWS = {
    1: JobRow(HELD, 1_500_000, 70, 2, "w"),
    2: JobRow(FREE, 1_400_000, 0, 1, ""),
    3: JobRow(FREE, 0, 0, 5, ""),
    4: JobRow(DYING, 0, 0, 3, "another"),
}


def test_a_checkpoint_holds_all_that_a_restart_knows(desk: Desk) -> None:
    queue = Replaying(desk, 6, max_deliveries=3, dead_letter="d")
    queue.ledger.rows |= ROWS
    queue.ledger.delays[5] = 1_003_000
    queue.ledger.dead_lettered = 7
    queue.begin()
    ledger = restored(kept(queue.topic, desk))
    assert (ledger.rows, dict(ledger.delays), ledger.dead_lettered) == (ROWS, {5: 1_003_000}, 7)


def test_a_checkpoint_holds_moves_and_delays_alone_where_leases_are_not_durable(desk: Desk) -> None:
    queue = Replaying(desk, 6, max_deliveries=3, dead_letter="d", leases_durable=False)
    queue.ledger.rows |= ROWS
    queue.ledger.delays[5] = 1_003_000
    queue.begin()
    ledger = restored(kept(queue.topic, desk))
    assert (ledger.rows, dict(ledger.delays)) == ({4: ROWS[4]}, {5: 1_003_000})


def test_jobs_that_are_set_aside_are_in_a_checkpoint_as_they_were(desk: Desk) -> None:
    queue = Replaying(desk, 6, max_deliveries=3, dead_letter="d")
    queue.ledger.rows |= ROWS
    queue.ledger.delays[5] = 1_003_000
    queue.begin()
    assert claims.set_aside(queue.topic, range(1, 7)) == [2, 3, 4, 5, 6]
    ledger = restored(kept(queue.topic, desk))
    assert (ledger.rows, dict(ledger.delays)) == (ROWS, {5: 1_003_000})


def test_a_checkpoint_from_before_there_were_leases_has_no_jobs(desk: Desk) -> None:
    queue = Replaying(desk, 1)
    queue.begin()
    value = kept(queue.topic, desk)
    del value["queue"]
    assert restored(value).rows == {}
