"""The ledger: the jobs of a queue as the log and a checkpoint record them. Frames are replayed in
order, even onto a checkpoint that already covers some of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.shard_support import EngineHarness, body_of, fill, header_of
from tests.support.tables import table
from topics.engine.changes.replay_dispatch import replay_frame
from topics.engine.queue import claims
from topics.engine.queue import ledger as module
from topics.engine.queue.claims import jobs_of
from topics.engine.queue.ledger import JobRow, JobState, Ledger, keeps_leases
from topics.engine.queue.queue_replay import (
    apply_config,
    begin,
    ledger_of,
    note_delays,
    open_ledger,
)
from topics.engine.replay import Replay, StateMismatch
from topics.engine.snapshot import job_items, restore_jobs, restore_topic, snapshot_topic
from topics.engine.topic import Topic
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import (
    LeaseOp,
    LeaseRows,
    delete_runs_frame,
    lease_frame,
)
from topics.formats.disk.frames import Frame
from topics.formats.ranges import SeqRun

HELD, FREE, DYING = JobState


def claimed(
    *seqs: int, node: str = "w", until: int = 100, number: int = 7, deliveries: int = 1
) -> LeaseRows:
    counts = (deliveries,) * len(seqs)
    numbers = range(number, number + len(seqs))
    return LeaseRows(LeaseOp.CLAIMED, seqs, counts, node, until, numbers)


def released(*seqs: int, until: int = 50, deliveries: int = 1) -> LeaseRows:
    return LeaseRows(LeaseOp.RELEASED, seqs, (deliveries,) * len(seqs), until_ts=until)


def dying(*seqs: int, deliveries: int = 3) -> LeaseRows:
    return LeaseRows(LeaseOp.DYING, seqs, (deliveries,) * len(seqs))


def after(*frames: LeaseRows) -> Ledger:
    found = Ledger()
    for frame in frames:
        found.apply(frame)
    return found


def restored_copy(ledger: Ledger) -> Ledger:
    """Return the ledger as a checkpoint restores it."""
    found = Ledger()
    found.unpack(cbor2.loads(cbor2.dumps(ledger.pack())))
    return found


# Contents of the log


@pytest.mark.parametrize(
    ("leases_durable", "durability", "expected"),
    [
        (True, "disk", True),
        (True, "ephemeral", False),
        (False, "fsync", False),
    ],
)
def test_a_restart_keeps_leases_if_both_leases_and_records_are_in_the_log(
    leases_durable: bool, durability: str, expected: bool
) -> None:
    config = TopicConfig(leases_durable=leases_durable, durability=durability)  # type: ignore[arg-type]
    assert keeps_leases(config) is expected


# Removed records


RUNS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 9)), max_size=4).map(
    lambda gaps: [
        SeqRun(1 + sum(map(sum, gaps[:at])) + gap, length) for at, (gap, length) in enumerate(gaps)
    ]
)


@given(
    seqs=st.sets(st.integers(1, 60)),
    delayed=st.sets(st.integers(1, 60)),
    runs=RUNS,
)
def test_the_rows_of_removed_records_are_dropped(
    seqs: set[int], delayed: set[int], runs: Sequence[SeqRun]
) -> None:
    ledger = after(claimed(*seqs))
    ledger.delays.update(dict.fromkeys(delayed, 5))
    ledger.remove_runs(iter(runs))
    dropped = {seq for first, length in runs for seq in range(first, first + length)}
    assert ({*ledger.rows}, {*ledger.delays}) == (seqs - dropped, delayed - dropped)


@given(seqs=st.sets(st.integers(1, 60)), cuts=st.lists(st.integers(1, 70)))
def test_a_cut_drops_all_rows_below_the_start(seqs: set[int], cuts: list[int]) -> None:
    ledger = after(claimed(*seqs))
    ledger.delays.update(dict.fromkeys(seqs, 5))
    for cut in cuts:
        ledger.cut(cut)
        assert min(ledger.rows, default=cut) >= cut
    start = max(cuts, default=0)
    assert {*ledger.rows} == {*ledger.delays} == {seq for seq in seqs if seq >= start}


def test_a_cut_visits_no_more_seqs_than_the_cuts_before_left() -> None:
    count = 100_000
    ledger = after(claimed(*range(count, 2 * count)))
    ledger.cut(1)
    began = time.process_time()
    for start in range(1, count, 5):
        ledger.cut(start)
    assert time.process_time() - began < 2, "20,000 cuts that walk 100,000 rows take minutes"


# Frames that are replayed onto a checkpoint which already covers some of them

JOBS = 4
SOME = st.sets(st.integers(1, JOBS))
SMALL = st.integers(1, 9)
FRAMES = st.lists(
    st.one_of(
        st.builds(lambda seqs, until, n: claimed(*seqs, until=until, number=n), SOME, SMALL, SMALL),
        st.builds(lambda seqs, n: released(*seqs, deliveries=n), SOME, SMALL),
        st.builds(lambda seqs: dying(*seqs), SOME),
    ),
    max_size=12,
)


@given(frames=FRAMES, data=st.data())
def test_frames_replayed_onto_a_state_that_covers_some_of_them_restore_the_same_rows(
    frames: list[LeaseRows], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(frames)))
    known = Ledger()
    for seq in range(1, JOBS + 1):
        # The checkpoint packs the jobs in steps, so that each row may be of a different time.
        reached = data.draw(st.integers(position, len(frames)))
        row = after(*frames[:reached]).rows.get(seq)
        if row is not None:
            known.rows[seq] = row
    ledger = restored_copy(known)
    for frame in frames[position:]:
        ledger.apply(frame)
    assert ledger.rows == after(*frames).rows


@given(frames=FRAMES, data=st.data())
def test_free_jobs_keep_their_order_after_a_checkpoint_of_a_single_moment(
    frames: list[LeaseRows], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(frames)))
    reached = data.draw(st.integers(position, len(frames)))
    ledger = restored_copy(after(*frames[:reached]))
    for frame in frames[position:]:
        ledger.apply(frame)
    assert free(ledger) == free(after(*frames))


def free(ledger: Ledger) -> list[int]:
    return [seq for seq, row in ledger.rows.items() if row.state is FREE]


# The format in a checkpoint


def test_a_part_has_the_columns_of_its_documented_table() -> None:
    rows = table(module.__doc__ or "", "A part:")
    part = after(claimed(1, 2), released(3)._replace(error="why"), dying(4)).pack()
    assert [row["key"] for row in rows] == [*part]
    sizes = {"u8": 1, "u32": 4, "u64": 8, "i64": 8}
    for row in rows[: rows.index(next(row for row in rows if row["key"] == "nodes"))]:
        assert len(part[row["key"]]) == 4 * sizes[row["items"]], row["key"]


def test_the_bytes_of_a_part_are_stable() -> None:
    ledger = after(claimed(1, node="a", until=1000, number=2**63), released(300, until=2))
    ledger.delay(4, (70_000,))
    assert ledger.pack() == {
        "seq": bytes.fromhex("0100000000000000 2c01000000000000"),
        "state": bytes([1, 2]),
        "until": bytes.fromhex("e803000000000000 0200000000000000"),
        "number": bytes.fromhex("0000000000000080 0000000000000000"),
        "deliveries": bytes.fromhex("01000000 01000000"),
        "node": bytes.fromhex("00000000 01000000"),
        "nodes": ["a", ""],
        "delayed": bytes.fromhex("0400000000000000"),
        "due": bytes.fromhex("7011010000000000"),
    }


def test_the_numbers_of_states_never_change() -> None:
    assert [(state.name, state.value) for state in JobState] == [
        ("HELD", 1),
        ("FREE", 2),
        ("DYING", 3),
    ]


ROWS = st.dictionaries(
    st.integers(1, 2**64 - 1),
    st.builds(
        JobRow,
        st.sampled_from(JobState),
        st.integers(-(2**63), 2**63 - 1),
        st.integers(0, 2**64 - 1),
        st.integers(0, 2**32 - 1),
        st.text(max_size=3),
    ),
)


@given(rows=ROWS, delays=st.dictionaries(st.integers(1, 2**64 - 1), st.integers(0, 2**62)))
def test_a_packed_part_restores_all_rows_in_order(
    rows: dict[int, JobRow], delays: dict[int, int]
) -> None:
    ledger = Ledger()
    ledger.rows = rows
    ledger.delays.update(delays)
    found = restored_copy(ledger)
    assert [*found.rows.items()] == [*rows.items()]
    assert [*found.delays.items()] == sorted(delays.items())
    assert all(row.state is JobState(row.state) for row in found.rows.values())


# Replay of a queue


HELD, FREE, DYING = JobState
POSITION = 1000  # LSN of the topic's entry in the checkpoint


class Replaying:
    """The queue ``a`` during the replay of its frames."""

    def __init__(self, harness: EngineHarness, *writes: int, **config: Any) -> None:
        fill(harness, *writes, **{"type": "queue", "leases_durable": True, **config})
        self.harness, self.topic = harness, harness.engine.topic("a")
        open_ledger(self.topic)
        self.replay = Replay(harness.engine.table)
        self.replay.note_restored(self.topic, self.topic.head_seq, POSITION)

    @property
    def ledger(self) -> Ledger:
        ledger = ledger_of(self.topic)
        assert ledger is not None
        return ledger

    def play(self, frame: Frame, lsn: int = POSITION) -> None:
        replay_frame(self.replay, header_of(frame, lsn), body_of(frame), lsn < POSITION)

    def claim(self, *seqs: int, until: int = 2_000_000, lsn: int = POSITION) -> None:
        rows = LeaseRows(
            LeaseOp.CLAIMED, seqs, (1,) * len(seqs), "w", until, range(70, 70 + len(seqs))
        )
        self.play(lease_frame(self.topic.id, 5, rows), lsn)

    def begin(self) -> None:
        begin(self.topic, self.harness, self.harness.now)


def test_a_lease_frame_of_a_log_topic_or_with_an_unknown_operation_is_a_misfit(
    harness: EngineHarness,
) -> None:
    queue = Replaying(harness, 1)
    fill(harness, 1)
    rows = LeaseRows(LeaseOp.CLAIMED, (1,), (1,), "w", 9, (70,))
    with pytest.raises(StateMismatch, match="operation 9"):
        queue.play(lease_frame(queue.topic.id, 5, rows)._replace(flags=9))
    harness.put("log")
    with pytest.raises(StateMismatch, match="not a queue"):
        queue.play(lease_frame(harness.engine.topic("log").id, 5, rows))


def test_delays_that_the_checkpoint_covers_are_not_replayed(harness: EngineHarness) -> None:
    queue = Replaying(harness)
    harness.append("a", records=[{"data": 1, "delay_ms": 70}, {"data": 2}])
    harness.commit()
    (view,) = harness._views

    class OneWrite:
        def records(self, _: int) -> Any:
            return view

    harness.engine.store = OneWrite()  # type: ignore[assignment]
    note_delays(queue.replay, queue.topic, POSITION - 8, 1)
    assert queue.ledger.delays == {}
    note_delays(queue.replay, queue.topic, POSITION, 1)
    assert queue.ledger.delays == {1: harness.now.ts + 70}


# After the last frame of the log


def test_jobs_without_a_live_record_are_dropped_after_the_replay(harness: EngineHarness) -> None:
    queue = Replaying(harness, 2, 3, 2, 2)
    harness.delete_records("a", before_seq=2)
    harness.commit()
    queue.play(delete_runs_frame(queue.topic.id, [SeqRun(4, 1), SeqRun(6, 2)], 5))
    queue.claim(*range(1, 12))
    queue.ledger.delay(4, (harness.now.ts + 9,))
    queue.begin()
    assert sorted(jobs_of(queue.topic).leases) == [2, 3, 5, 8, 9]
    assert jobs_of(queue.topic).counters(queue.topic.count) == (0, 5, 0, 0)


# Checkpoints


def kept(topic: Topic, harness: EngineHarness) -> Any:
    """Return the topic and its jobs as a checkpoint encodes them in CBOR."""
    found = [snapshot_topic(topic, POSITION), *job_items(topic, harness.now)]
    return cbor2.loads(cbor2.dumps(found))


def restored(value: Any) -> Ledger:
    (kept_topic, *parts), replay = value, Replay(EngineHarness().engine.table)
    topic = restore_topic(replay, kept_topic)
    for part in parts:
        restore_jobs(replay, topic.id, part)
    ledger = ledger_of(topic)
    assert ledger is not None
    return ledger


KEPT = {
    1: JobRow(HELD, 1_500_000, 70, 2, "w"),
    2: JobRow(FREE, 1_400_000, 0, 1, ""),
    3: JobRow(FREE, 0, 0, 5, ""),
    4: JobRow(DYING, 0, 0, 3, "another"),
}


def test_without_durable_leases_a_checkpoint_holds_only_moves_and_delays(
    harness: EngineHarness,
) -> None:
    queue = Replaying(harness, 6, max_deliveries=3, dead_letter="d", leases_durable=False)
    queue.ledger.rows |= KEPT
    queue.ledger.delays[5] = 1_003_000
    queue.begin()
    ledger = restored(kept(queue.topic, harness))
    assert (ledger.rows, dict(ledger.delays)) == ({4: KEPT[4]}, {5: 1_003_000})


def test_a_checkpoint_records_reserved_jobs_in_their_previous_state(
    harness: EngineHarness,
) -> None:
    queue = Replaying(harness, 6, max_deliveries=3, dead_letter="d")
    queue.ledger.rows |= KEPT
    queue.ledger.delays[5] = 1_003_000
    queue.begin()
    assert claims.reserve(queue.topic, range(1, 7), harness.now) == [2, 3, 4, 5, 6]
    ledger = restored(kept(queue.topic, harness))
    assert (ledger.rows, dict(ledger.delays)) == (KEPT, {5: 1_003_000})


def test_the_last_error_of_a_nack_is_kept_with_its_job() -> None:
    why = released(1, 2)._replace(error="why")
    ledger = after(claimed(1, 2, 3), why, claimed(1), released(1), released(2)._replace(error=""))
    assert ledger.errors == restored_copy(ledger).errors == {1: "why", 2: ""}
    ledger.remove((1,))
    assert ledger.errors == {2: ""}
    ledger.cut(3)
    assert ledger.errors == {}
    ledger = after(why, dying(2))
    ledger.clear_leases()
    assert ledger.errors == {2: "why"}


@pytest.mark.parametrize("config", [{"leases_durable": False}, {"durability": "ephemeral"}])
def test_leases_are_dropped_when_they_become_non_durable(
    harness: EngineHarness, config: Any
) -> None:
    queue = Replaying(harness, 3)
    queue.claim(1)
    apply_config(queue.topic)
    assert [*queue.ledger.rows] == [1]
    harness.put("a", **config)
    apply_config(queue.topic)
    assert [*queue.ledger.rows] == []


def test_a_checkpoint_holds_everything_that_a_restart_restores(harness: EngineHarness) -> None:
    queue = Replaying(harness, 6, max_deliveries=3, dead_letter="d")
    queue.ledger.rows |= KEPT
    queue.ledger.delays[5] = 1_003_000
    queue.ledger.dead_lettered = 7
    queue.begin()
    ledger = restored(kept(queue.topic, harness))
    assert (ledger.rows, dict(ledger.delays), ledger.dead_lettered) == (KEPT, {5: 1_003_000}, 7)


def test_free_jobs_are_in_the_order_of_their_releases() -> None:
    ledger = after(claimed(1, 2, 3), released(2), released(3), claimed(2), released(1), released(2))
    assert free(ledger) == [3, 1, 2]


def test_leases_that_the_checkpoint_covers_are_not_replayed(harness: EngineHarness) -> None:
    queue = Replaying(harness, 3)
    queue.claim(1, lsn=POSITION - 8)
    queue.claim(2)
    assert queue.ledger.rows == {2: (HELD, 2_000_000, 70, 1, "w")}
