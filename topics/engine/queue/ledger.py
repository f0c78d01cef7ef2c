"""Ledger: the state of the jobs of one queue that survives a restart (decision 0025). The records
themselves are not part of it.

    rows           by seq: jobs that are leased, claimable again, or being moved to a dead-letter
                   topic; according to the log, the other jobs have never been delivered
    delays         by seq: earliest delivery time of a job that has never been delivered (wall ms)
    dead_lettered  the number of jobs moved to a dead-letter topic

Startup loads the ledger from a checkpoint (`unpack`) and applies the frames of the log to it. Then
`Jobs.begin` creates the states of the jobs from it. All times are on the wall clock, so that a
restart can compute the remaining time.

A replay may apply frames to a checkpoint that already contains their effects, because changes of
leases are effective before their frames are written. The result is the same for each job:

- A row is the outcome of the last frame about its job, and each frame contains the complete row. A
  checkpoint that contains the effects of later frames has another row, or none. These later frames
  are also replayed, and the last of them determines the row.
- Only the sum `dead_lettered` must not contain the effects of a frame that is replayed. So it only
  counts committed changes, and frames below the LSN of the topic in the checkpoint are not counted.
- Rows and delays of jobs whose record was deleted in the meantime are dropped at the end of the
  replay (`topics.engine.queue.queue_replay`).

A checkpoint contains ``dead_lettered`` with the topic, and the jobs in parts of plain values. The
columns of rows have one item for each row, in the same order, and so do the two columns of delays.
Integers are little-endian. A part:

    key         items  meaning
    seq         u64    seqs of the rows
    state       u8     `JobState`
    until       i64    ``until_ts``
    number      u64    number of the lease, or 0
    deliveries  u32    number of deliveries
    node        u32    index into ``nodes``
    nodes       text   each holder once
    delayed     u64    seqs of the delays
    due         i64    delivery time of each delay (wall ms)
    erred       u64    seqs of the rows with an error of a nack; the last three keys are omitted
                       if no row has an error
    error       u32    index into ``errors``, for each of these rows
    errors      text   each error once
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, Literal, NamedTuple

from topics.engine.queue.delays import Delays
from topics.formats.api.topic_config import TopicConfig
from topics.formats.disk.frame_bodies import LeaseOp, LeaseRows
from topics.formats.ranges import SeqRun


class JobState(IntEnum):
    """State of a job that has been delivered. The numbers are stored on disk: never renumber, only
    add.
    """

    HELD = 1
    FREE = 2  # claimable from ``until_ts`` on
    DYING = 3  # being moved to a dead-letter topic


class JobRow(NamedTuple):
    """The state of one job.

    ``until_ts`` (wall ms) is the deadline of its lease, or the time at which it becomes claimable.
    ``number`` is the number of the lease, and ``node`` is its holder. They are 0 and empty if the
    job is not leased. For a dying job, ``node`` is the topic to which the job is moved.
    """

    state: JobState
    until_ts: int
    number: int
    deliveries: int
    node: str


_Column = Literal["I", "Q", "q"]  # u32, u64, i64
_STATES = {int(state): state for state in JobState}


def keeps_leases(config: TopicConfig) -> bool:
    """Return whether the log contains all leases and deliveries, and not only those of jobs that
    are being moved.
    """
    return config.leases_durable and config.durability != "ephemeral"


class Ledger:
    """The jobs of one queue. Free and dying jobs are in the order in which they became free or
    dying.
    """

    __slots__ = ("_start_seq", "dead_lettered", "delays", "errors", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, JobRow] = {}
        # Error text of the last nack that had one, for jobs with a row.
        self.errors: dict[int, str] = {}
        self.delays = Delays()
        self.dead_lettered = 0
        self._start_seq = 0  # start seq of the last `cut`

    # Frames of the log

    def apply(self, frame: LeaseRows) -> None:
        """Apply a LEASE frame."""
        if frame.op == LeaseOp.CLAIMED:
            self._claim(frame)
        else:
            self._end(frame)

    def _claim(self, frame: LeaseRows) -> None:
        self._remove_delays(frame.seqs)
        for seq, number, deliveries in zip(
            frame.seqs, frame.numbers, frame.deliveries, strict=True
        ):
            self.rows[seq] = JobRow(JobState.HELD, frame.until_ts, number, deliveries, frame.node)

    def _end(self, frame: LeaseRows) -> None:
        self._remove_delays(frame.seqs)
        state = JobState.DYING if frame.op == LeaseOp.DYING else JobState.FREE
        for seq, deliveries in zip(frame.seqs, frame.deliveries, strict=True):
            self.rows.pop(seq, None)  # so that the rows have the order of the free queue
            self.rows[seq] = JobRow(state, frame.until_ts, 0, deliveries, frame.node)
        if frame.error is not None:
            self.errors.update(dict.fromkeys(frame.seqs, frame.error))

    def delay(self, first_seq: int, due: Iterable[int]) -> None:
        """Add the delays of a write that begins at ``first_seq``.

        ``due`` has the delivery time of each record (wall ms), or 0 for immediate delivery.
        """
        self.delays.update((seq, due_ts) for seq, due_ts in enumerate(due, first_seq) if due_ts)

    def _remove_delays(self, seqs: Iterable[int]) -> None:
        """Remove the delays of jobs that have been delivered."""
        if self.delays:
            for seq in seqs:
                self.delays.pop(seq, None)

    # Removal

    def clear_leases(self) -> None:
        """Remove all rows except dying jobs, because leases are not durable from here on."""
        self.rows = {seq: row for seq, row in self.rows.items() if row.state is JobState.DYING}
        self.errors = {seq: error for seq, error in self.errors.items() if seq in self.rows}

    def revive(self, is_exhausted: Callable[[JobRow], bool]) -> None:
        """Make dying jobs claimable if they are not exhausted according to the current config."""
        for seq, row in self.rows.items():
            if row.state is JobState.DYING and not is_exhausted(row):
                self.rows[seq] = row._replace(state=JobState.FREE, node="")

    def cut(self, start_seq: int) -> None:
        """Remove the jobs below ``start_seq``, because their records were removed.

        The cost depends only on the number of seqs since the last call, because a replay of a
        capped queue calls this for each write.
        """
        first, self._start_seq = self._start_seq, max(self._start_seq, start_seq)
        if first < start_seq:
            self.remove_runs((SeqRun(first, start_seq - first),))

    def remove_runs(self, runs: Iterable[SeqRun]) -> None:
        """Remove the jobs of these runs, because their records were deleted. The runs are in
        ascending order.
        """
        if self.rows or self.delays:
            runs = tuple(runs)
            self.delays.drop_runs(runs)
            for seq in seqs_in_runs(runs, len(self.rows), self.rows):
                self.rows.pop(seq, None)
                self.errors.pop(seq, None)

    def remove(self, seqs: Iterable[int]) -> None:
        """Remove these jobs, because their records were deleted."""
        for seq in seqs:
            self.rows.pop(seq, None)
            self.errors.pop(seq, None)
            self.delays.pop(seq, None)

    # Format in a checkpoint

    def pack(self) -> dict[str, Any]:
        """Return one part as plain values, excluding `dead_lettered`."""
        rows, delays = self.rows, self.delays
        states, untils, numbers, deliveries, nodes = (
            zip(*rows.values(), strict=True) if rows else ((),) * 5
        )
        refs = {node: ref for ref, node in enumerate(dict.fromkeys(nodes))}
        return {
            "seq": _packed("Q", rows),
            "state": bytes(states),
            "until": _packed("q", untils),
            "number": _packed("Q", numbers),
            "deliveries": _packed("I", deliveries),
            "node": _packed("I", map(refs.__getitem__, nodes)),
            "nodes": [*refs],
            "delayed": _packed("Q", delays),
            "due": _packed("q", [due_ts for _, due_ts in delays.rows()]),
            **(self._packed_errors() if self.errors else {}),
        }

    def _packed_errors(self) -> dict[str, Any]:
        errors = {error: ref for ref, error in enumerate(dict.fromkeys(self.errors.values()))}
        return {
            "erred": _packed("Q", self.errors),
            "error": _packed("I", map(errors.__getitem__, self.errors.values())),
            "errors": [*errors],
        }

    def unpack(self, part: Mapping[str, Any]) -> None:
        """Add the rows, delays and errors of a part that `pack` returned."""
        columns = (
            map(_STATES.__getitem__, part["state"]),
            _unpacked("q", part["until"]),
            _unpacked("Q", part["number"]),
            _unpacked("I", part["deliveries"]),
            map(part["nodes"].__getitem__, _unpacked("I", part["node"])),
        )
        rows = map(JobRow._make, zip(*columns, strict=True))
        self.rows.update(zip(_unpacked("Q", part["seq"]), rows, strict=True))
        if "erred" in part:
            errors = map(part["errors"].__getitem__, _unpacked("I", part["error"]))
            self.errors.update(zip(_unpacked("Q", part["erred"]), errors, strict=True))
        due = _unpacked("q", part["due"])
        self.delays.update(zip(_unpacked("Q", part["delayed"]), due, strict=True))


def _packed(typecode: _Column, values: Iterable[int]) -> bytes:
    return array(typecode, values).tobytes()


def _unpacked(typecode: _Column, packed: bytes) -> Sequence[int]:
    return array(typecode, packed)


def seqs_in_runs(runs: Sequence[SeqRun], count: int, known: Iterable[int]) -> Collection[int]:
    """Return the seqs of these runs in ascending order, or only the seqs that are in ``known``.

    ``known`` has ``count`` seqs and is used if it is shorter than the runs, so the cost depends on
    the shorter of the two.
    """
    if sum(run.length for run in runs) <= count:
        return [*chain.from_iterable(range(first, first + length) for first, length in runs)]
    if len(runs) == 1:
        first, end = runs[0].first, runs[0].first + runs[0].length
        return [seq for seq in known if first <= seq < end]
    firsts = [run.first for run in runs]

    def is_in(seq: int) -> bool:
        at = bisect_right(firsts, seq) - 1
        return at >= 0 and seq < firsts[at] + runs[at].length

    return [seq for seq in known if is_in(seq)]
