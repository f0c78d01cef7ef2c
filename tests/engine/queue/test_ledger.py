"""Ledger: what the log says of jobs, in order or over a state that knows of some of it already."""

from __future__ import annotations

import time
from collections.abc import Sequence

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.tables import table
from topics.engine.queue import ledger as module
from topics.engine.queue.ledger import JobRow, JobState, Ledger, keeps_leases
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows
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


def again(ledger: Ledger) -> Ledger:
    """As it comes back from a checkpoint."""
    found = Ledger()
    found.unpack(cbor2.loads(cbor2.dumps(ledger.pack())))
    return found


# What the log says


def test_free_jobs_are_in_the_order_of_their_releases() -> None:
    ledger = after(claimed(1, 2, 3), released(2), released(3), claimed(2), released(1), released(2))
    assert free(ledger) == [3, 1, 2]


@pytest.mark.parametrize(
    ("leases_durable", "durability", "expected"),
    [
        (True, "disk", True),
        (True, "ephemeral", False),
        (False, "fsync", False),
    ],
)
def test_a_restart_knows_leases_when_they_and_their_records_are_in_the_log(
    leases_durable: bool, durability: str, expected: bool
) -> None:
    config = TopicConfig(leases_durable=leases_durable, durability=durability)  # type: ignore[arg-type]
    assert keeps_leases(config) is expected


def test_a_move_does_not_go_on_when_the_job_is_not_exhausted_any_more() -> None:
    ledger = after(dying(1, deliveries=3), dying(2, deliveries=5), claimed(4))
    ledger.revive(lambda row: row.deliveries >= 5)
    assert [row.state for row in ledger.rows.values()] == [FREE, DYING, HELD]
    assert ledger.rows[1] == (FREE, 0, 0, 3, "")


# Records that go


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
def test_what_is_known_of_removed_records_is_forgotten(
    seqs: set[int], delayed: set[int], runs: Sequence[SeqRun]
) -> None:
    ledger = after(claimed(*seqs))
    ledger.delays.update(dict.fromkeys(delayed, 5))
    ledger.forget_runs(iter(runs))
    gone = {seq for first, length in runs for seq in range(first, first + length)}
    assert ({*ledger.rows}, {*ledger.delays}) == (seqs - gone, delayed - gone)


@given(seqs=st.sets(st.integers(1, 60)), cuts=st.lists(st.integers(1, 70)))
def test_nothing_is_known_below_the_start(seqs: set[int], cuts: list[int]) -> None:
    ledger = after(claimed(*seqs))
    ledger.delays.update(dict.fromkeys(seqs, 5))
    for cut in cuts:
        ledger.cut(cut)
        assert min(ledger.rows, default=cut) >= cut
    start = max(cuts, default=0)
    assert {*ledger.rows} == {*ledger.delays} == {seq for seq in seqs if seq >= start}


def test_a_cut_costs_no_more_than_the_seqs_since_the_last_one() -> None:
    count = 100_000
    ledger = after(claimed(*range(count, 2 * count)))
    ledger.cut(1)
    began = time.process_time()
    for start in range(1, count, 5):
        ledger.cut(start)
    assert time.process_time() - began < 2, "20,000 cuts that walk 100,000 rows take minutes"


# Over a state that knows of some frames already

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
def test_frames_over_a_state_that_knows_of_some_of_them_come_to_the_same_end(
    frames: list[LeaseRows], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(frames)))
    known = Ledger()
    for seq in range(1, JOBS + 1):
        # A checkpoint tells of each job as it is when its turn comes.
        reached = data.draw(st.integers(position, len(frames)))
        row = after(*frames[:reached]).rows.get(seq)
        if row is not None:
            known.rows[seq] = row
    ledger = again(known)
    for frame in frames[position:]:
        ledger.apply(frame)
    assert ledger.rows == after(*frames).rows


@given(frames=FRAMES, data=st.data())
def test_free_jobs_are_in_their_order_after_a_checkpoint_of_one_moment(
    frames: list[LeaseRows], data: st.DataObject
) -> None:
    position = data.draw(st.integers(0, len(frames)))
    reached = data.draw(st.integers(position, len(frames)))
    ledger = again(after(*frames[:reached]))
    for frame in frames[position:]:
        ledger.apply(frame)
    assert free(ledger) == free(after(*frames))


def free(ledger: Ledger) -> list[int]:
    return [seq for seq, row in ledger.rows.items() if row.state is FREE]


# In a checkpoint


def test_a_part_has_the_columns_of_its_table() -> None:
    rows = table(module.__doc__ or "", "A part;")
    part = after(claimed(1, 2), released(3), dying(4)).pack()
    assert [row["key"] for row in rows] == [*part]
    sizes = {"u8": 1, "u32": 4, "u64": 8, "i64": 8}
    for row in rows[: rows.index(next(row for row in rows if row["key"] == "nodes"))]:
        assert len(part[row["key"]]) == 4 * sizes[row["items"]], row["key"]


def test_the_bytes_of_a_part() -> None:
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
def test_every_part_comes_back_in_its_order(
    rows: dict[int, JobRow], delays: dict[int, int]
) -> None:
    ledger = Ledger()
    ledger.rows = rows
    ledger.delays.update(delays)
    found = again(ledger)
    assert [*found.rows.items()] == [*rows.items()]
    assert [*found.delays.items()] == sorted(delays.items())
    assert all(row.state is JobState(row.state) for row in found.rows.values())
