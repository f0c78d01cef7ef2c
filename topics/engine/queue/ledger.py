"""Ledger: state of the jobs of one queue after a restart, beyond their records (decision 0025).

    rows           by seq: jobs that are leased, claimable again, or on their way to a dead-letter
                   topic; the others were never delivered, as far as the log knows
    delays         by seq: when a job that was never delivered may be (wall ms)
    dead_lettered  the number of jobs moved to a dead-letter topic

A checkpoint fills it (`unpack`), the replay of the log changes it, and `Jobs.begin` takes over from
it. All times are wall clock: after a restart the rest of each time counts.

A replay may apply frames over a checkpoint that knows of some of them already: changes of leases
are effective before their frames are written. The result is the same for each job:

- A row is the outcome of the last frame about its job, which contains all of it. A checkpoint that
  knows of later frames has another row, or none; those frames are replayed, too, and the last of
  them decides.
- Only the sum, `dead_lettered`, must not know of a frame that is replayed. It is that of committed
  changes, and frames below the LSN as of which the checkpoint holds the topic are not counted.
- Rows and delays of jobs whose record was deleted in the meantime are dropped at the end of the
  replay (`topics.engine.queue.queue_replay`).

A checkpoint holds ``dead_lettered`` with the topic, and the jobs in parts of plain values. The
columns of rows have an item for each row, in the same order, and so have both columns of delays.
Integers are little-endian. A part:

    key         items  meaning
    seq         u64    of the rows
    state       u8     `JobState`
    until       i64    ``until_ts``
    number      u64    of the lease
    deliveries  u32    how often it was delivered
    node        u32    index into ``nodes``
    nodes       text   each holder once
    delayed     u64    seqs of the delays
    due         i64    when each is due (wall ms)
    erred       u64    seqs of the rows with an error of a nack; these three where there is one
    error       u32    of each of them, index into ``errors``
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
    """State of a job that was delivered. Written to disk: never renumber, only add."""

    HELD = 1
    FREE = 2  # claimable from ``until_ts`` on
    DYING = 3  # on its way to a dead-letter topic


class JobRow(NamedTuple):
    """One job. ``until_ts`` (wall ms): its deadline, or from when on it is claimable. ``number`` of
    its lease and ``node``: 0 and empty while nobody holds it. ``node`` of a dying one: the topic
    that it goes to.
    """

    state: JobState
    until_ts: int
    number: int
    deliveries: int
    node: str


_Column = Literal["I", "Q", "q"]  # u32, u64, i64
_STATES = {int(state): state for state in JobState}


def keeps_leases(config: TopicConfig) -> bool:
    """Return whether the log contains leases and deliveries, and not only jobs that are moved."""
    return config.leases_durable and config.durability != "ephemeral"


class Ledger:
    """The jobs of one queue; free and dying ones in the order in which they became so."""

    __slots__ = ("_start_seq", "dead_lettered", "delays", "errors", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, JobRow] = {}
        self.errors: dict[int, str] = {}  # of rows: what the last nack with an error said
        self.delays = Delays()
        self.dead_lettered = 0
        self._start_seq = 0  # of the last `cut`

    # What the log says

    def apply(self, frame: LeaseRows) -> None:
        """A LEASE frame."""
        if frame.op == LeaseOp.CLAIMED:
            self._claim(frame)
        else:
            self._end(frame)

    def _claim(self, frame: LeaseRows) -> None:
        self._forget_delays(frame.seqs)
        for seq, number, deliveries in zip(
            frame.seqs, frame.numbers, frame.deliveries, strict=True
        ):
            self.rows[seq] = JobRow(JobState.HELD, frame.until_ts, number, deliveries, frame.node)

    def _end(self, frame: LeaseRows) -> None:
        self._forget_delays(frame.seqs)
        state = JobState.DYING if frame.op == LeaseOp.DYING else JobState.FREE
        for seq, deliveries in zip(frame.seqs, frame.deliveries, strict=True):
            self.rows.pop(seq, None)  # it goes to the end of the line
            self.rows[seq] = JobRow(state, frame.until_ts, 0, deliveries, frame.node)
        if frame.error is not None:
            self.errors.update(dict.fromkeys(frame.seqs, frame.error))

    def delay(self, first_seq: int, due: Iterable[int]) -> None:
        """A write of records from ``first_seq`` on. ``due``: of each (wall ms), 0 for at once."""
        self.delays.update((seq, due_ts) for seq, due_ts in enumerate(due, first_seq) if due_ts)

    def _forget_delays(self, seqs: Iterable[int]) -> None:
        """These jobs have been delivered."""
        if self.delays:
            for seq in seqs:
                self.delays.pop(seq, None)

    # What no longer counts

    def clear_leases(self) -> None:
        """Leases are not durable from here on: only jobs on their way elsewhere stay."""
        self.rows = {seq: row for seq, row in self.rows.items() if row.state is JobState.DYING}
        self.errors = {seq: error for seq, error in self.errors.items() if seq in self.rows}

    def revive(self, is_exhausted: Callable[[JobRow], bool]) -> None:
        """Jobs on their way elsewhere that are not exhausted by the config of now are claimable."""
        for seq, row in self.rows.items():
            if row.state is JobState.DYING and not is_exhausted(row):
                self.rows[seq] = row._replace(state=JobState.FREE, node="")

    def cut(self, start_seq: int) -> None:
        """No record below ``start_seq`` lives.

        It costs no more than the seqs since the last call: a replay of a capped queue calls it for
        each write.
        """
        first, self._start_seq = self._start_seq, max(self._start_seq, start_seq)
        if first < start_seq:
            self.forget_runs((SeqRun(first, start_seq - first),))

    def forget_runs(self, runs: Iterable[SeqRun]) -> None:
        """No record of these runs lives, which are in rising order."""
        if self.rows or self.delays:
            runs = tuple(runs)
            self.delays.drop_runs(runs)
            for seq in those_in(runs, len(self.rows), self.rows):
                self.rows.pop(seq, None)
                self.errors.pop(seq, None)

    def forget(self, seqs: Iterable[int]) -> None:
        """The records of these jobs have gone."""
        for seq in seqs:
            self.rows.pop(seq, None)
            self.errors.pop(seq, None)
            self.delays.pop(seq, None)

    # In a checkpoint

    def pack(self) -> dict[str, Any]:
        """One part, as plain values; `dead_lettered` is not in it."""
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
        """Take over what `pack` gave."""
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


def those_in(runs: Sequence[SeqRun], count: int, known: Iterable[int]) -> Collection[int]:
    """The seqs of these runs, in rising order, or those of ``known`` that are in them, where
    these ``count`` are fewer.
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
