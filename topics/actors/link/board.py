"""Board: shared memory with the state of every process.

The supervisor and all its children map it. Every field is an 8-byte aligned u64 cell that is
changed by a single store, and has one writer at a time. The table lists the sections in the order
in which they are stored, with the writer of each field in brackets. Each section begins at a
multiple of 64 bytes (a line):

    section              cell  meaning
    server               0     draining: 1 while the server shuts down [supervisor]
                         1     keys_reload_failed: number of rejected key reloads [supervisor]
                         2     started_monotonic_ms: CLOCK_MONOTONIC at server startup [supervisor]
    sessions             n     session number of process pair n, from 1 [supervisor]
    process p            0     state: FrontState or ShardState [p; the supervisor once it has
    (259 lines each,           reaped p]
    the front first)     1     heartbeat_ms: CLOCK_MONOTONIC [p]
                         2     pid [supervisor]
                         3     spawns: number of times that p has been forked [supervisor]
                         4     progress_ppm: progress of the replay in parts per million [shard p]
                         5     topics: number of topics of shard p [shard p]
                         6     disk_silent_ms: time that writes have waited for the disk [shard p]
                         7     delay_ms: how long a new message will wait [shard p]
                         8     start_failure: StartFailure of the last startup [shard p]
                         16    counters, 2048 cells, see `topics.actors.link.counters` [p]
                         2064  limit usage, 8 cells, see `topics.actors.link.ledger` [shard p]
    heads of shard i     two cells for each slot, see `topics.actors.link.heads` [shard i]
    (16 lines each)

Pair n consists of the processes with ranks a < b, n = b * (b - 1) / 2 + a, where the front has rank
0 and shard i has rank i + 1. Unused cells occupy address space but no memory.
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from typing import Final

from topics.actors.link.heads import SLOT_CELLS, SLOTS
from topics.actors.link.process_id import FRONT, ProcessId, shard_id

LINE_CELLS: Final = 8
COUNTERS_AT: Final = 2 * LINE_CELLS
COUNTERS: Final = 2048
LIMITS_AT: Final = COUNTERS_AT + COUNTERS
LIMITS: Final = 8
PROCESS_CELLS: Final = LIMITS_AT + LIMITS
HEADS_CELLS: Final = SLOTS * SLOT_CELLS
assert PROCESS_CELLS == 259 * LINE_CELLS
assert HEADS_CELLS == 16 * LINE_CELLS


class ShardState(IntEnum):
    """The state of a shard. Shown in metrics: never renumber, only add."""

    DOWN = 0
    STARTING = 1
    RECOVERING = 2
    READY = 3
    READ_ONLY = 4
    STOPPED = 5
    NO_ROOM = 6  # the disk is full: the shard serves reads, and changes that free space
    DAMAGED = 7  # permanently down: its data cannot be trusted
    # The data directory no longer belongs to this server. A shard that has started serves reads.
    DIRECTORY_LOST = 8


class StartFailure(IntEnum):
    """Why a shard could not start: never renumber, only add.

    The supervisor keeps restarting the shard. The cause remains on the board until the shard has
    started successfully.
    """

    NONE = 0
    PERMISSION_DENIED = 1  # no permission to open a file or folder of its data
    DISK_FULL = 2
    DISK_FAILED = 3
    START_FAILED = 4  # any other cause; see the log


class FrontState(IntEnum):
    """The state of the front. Shown in metrics: never renumber, only add."""

    DOWN = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


class _Cell:
    """A cell as an attribute: each access is one load or one store."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, owner: ProcessCells | Board, _kind: type[ProcessCells | Board]) -> int:
        return int(owner.cells[self._at])

    def __set__(self, owner: ProcessCells | Board, value: int) -> None:
        owner.cells[self._at] = value


class ProcessCells:
    """The cells that every child process has."""

    __slots__ = ("cells",)

    heartbeat_ms = _Cell(1)
    """CLOCK_MONOTONIC of the last heartbeat, in ms; 0 before the first."""
    pid = _Cell(2)
    """Process id; 0 if no process runs."""
    spawns = _Cell(3)
    """Number of forks of this process since the supervisor started."""

    def __init__(self, cells: memoryview) -> None:
        self.cells = cells

    @property
    def counters(self) -> memoryview:
        """The COUNTERS cells of the metrics. Only the process itself stores values in them."""
        return self.cells[COUNTERS_AT : COUNTERS_AT + COUNTERS]

    def clear(self) -> None:
        """Mark the process as not running.

        Only the supervisor calls this, after the process has ended and before the next fork.
        """
        self.pid = 0
        self.cells[0] = 0  # DOWN in both enums


class FrontCells(ProcessCells):
    """The cells of the front: its state and counters."""

    __slots__ = ()

    @property
    def state(self) -> FrontState:
        """See FrontState."""
        return FrontState(self.cells[0])

    @state.setter
    def state(self, value: FrontState) -> None:
        self.cells[0] = value


class ShardCells(ProcessCells):
    """The cells of a shard: those of every process, plus its replay progress, delays and limits."""

    __slots__ = ()

    progress_ppm = _Cell(4)
    """Progress of the replay, in parts per million."""
    topics = _Cell(5)
    """Number of topics of the shard."""
    disk_silent_ms = _Cell(6)
    """How long the log or a streamed append has waited for the disk without progress, in ms."""
    delay_ms = _Cell(7)
    """Expected delay of a new write in ms: its wait for the event loop, plus its wait for the log.

    The usual duration of a write and a sync is not included.
    """

    start_failure = _Cell(8)
    """See StartFailure."""

    @property
    def state(self) -> ShardState:
        """See ShardState."""
        return ShardState(self.cells[0])

    @state.setter
    def state(self, value: ShardState) -> None:
        self.cells[0] = value

    @property
    def limits(self) -> memoryview:
        """The LIMITS cells: the shard's usage of each shared limit."""
        return self.cells[LIMITS_AT : LIMITS_AT + LIMITS]

    def clear(self) -> None:
        """Also reset the replay progress and both delays. The start failure remains."""
        super().clear()
        self.progress_ppm = self.disk_silent_ms = self.delay_ms = 0


class Board:
    """The shared memory of the board. The supervisor creates it before any fork.

    It exists until the last process that maps it ends.
    """

    keys_reload_failed = _Cell(1)
    """Number of key reloads that have been rejected since the server started."""
    started_monotonic_ms = _Cell(2)
    """CLOCK_MONOTONIC at server startup, in ms."""

    def __init__(self, shards: int) -> None:
        """Create a board with every state DOWN and every session number 1."""
        self.shards = shards
        self.processes = (FRONT, *map(shard_id, range(shards)))
        count = len(self.processes)
        pairs = count * (count - 1) // 2
        self._sessions_at = LINE_CELLS
        self._processes_at = self._sessions_at + _round_up_to_lines(pairs)
        self._heads_at = self._processes_at + count * PROCESS_CELLS
        length = self._heads_at + shards * HEADS_CELLS
        self.cells = memoryview(mmap.mmap(-1, 8 * length)).cast("Q")
        for pair in range(pairs):
            # The session fields of new rings are 0, so no data is transferred before both sides
            # have started.
            self.cells[self._sessions_at + pair] = 1
        self.front = FrontCells(self._process(FRONT))

    def session(self, one: ProcessId, other: ProcessId) -> int:
        """Return the number of the current link session of the two processes."""
        return int(self.session_cell(one, other)[0])

    def bump_session(self, one: ProcessId, other: ProcessId) -> None:
        """End the current session of the pair, which invalidates all data sent in it.

        Only the supervisor calls this, before it forks either process.
        """
        self.session_cell(one, other)[0] += 1

    def session_cell(self, one: ProcessId, other: ProcessId) -> memoryview:
        """Return the session number as a view of one cell, for frequent reads."""
        low, high = sorted((self._rank(one), self._rank(other)))
        assert low < high, "a pair has two processes"
        at = self._sessions_at + high * (high - 1) // 2 + low
        return self.cells[at : at + 1]

    def shard(self, index: int) -> ShardCells:
        """Return the cells of shard ``index``."""
        return ShardCells(self._process(shard_id(index)))

    def heads(self, shard: int) -> memoryview:
        """Return the head slots of ``shard`` (`topics.actors.link.heads`)."""
        at = self._heads_at + shard * HEADS_CELLS
        return self.cells[at : at + HEADS_CELLS]

    def process(self, process: ProcessId) -> FrontCells | ShardCells:
        """Return the cells of a process."""
        return self.front if process == FRONT else self.shard(process.index)

    def _process(self, process: ProcessId) -> memoryview:
        at = self._processes_at + self._rank(process) * PROCESS_CELLS
        return self.cells[at : at + PROCESS_CELLS]

    def _rank(self, process: ProcessId) -> int:
        if process == FRONT:
            return 0
        assert process in self.processes, "a process of this board"
        return 1 + process.index

    @property
    def draining(self) -> bool:
        """Whether the server is shutting down."""
        return bool(self.cells[0])

    @draining.setter
    def draining(self, value: bool) -> None:
        self.cells[0] = int(value)


def _round_up_to_lines(cells: int) -> int:
    return -(-cells // LINE_CELLS) * LINE_CELLS
