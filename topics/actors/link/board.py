"""What every process may know of the others: one page of words, shared by the supervisor and all
its children.

Every word is a u64, 8-byte aligned, and has one writer at a time (in brackets), so that a single
store changes it. Lines of 64 bytes, in this order:

    line                word  meaning
    global              0     draining: 1 once the server is going down [supervisor]
                        1     started_ms: wall clock of the start [supervisor]
    pair (front,shard)  0     session number of the two, from 1; front-major [supervisor]
    front i             0     state: FrontState [the front; the supervisor once it has reaped it]
                        1     heartbeat_ms: CLOCK_MONOTONIC [the front]
                        2     pid [supervisor]
                        3     spawns: how often it was forked [supervisor]
    shard i             0     state: ShardState [the shard; the supervisor once it has reaped it]
    (five lines)        1     heartbeat_ms: CLOCK_MONOTONIC [the shard]
                        2     pid [supervisor]
                        3     spawns [supervisor]
                        4     progress_ppm: of the replay, in parts per million [the shard]
                        5     topics: how many it holds [the shard]
                        6     disk_silent_ms: how long writes have waited for the disk [the shard]
                        8-39  counters for the metrics [the shard]
    heads of shard i    two words for each slot, see `topics.actors.link.heads` [the shard]
    (16 lines)
"""

from __future__ import annotations

import mmap
from enum import IntEnum
from typing import Final

from topics.actors.link.heads import SLOT_WORDS, SLOTS

LINE_WORDS: Final = 8
SHARD_WORDS: Final = 5 * LINE_WORDS
HEADS_WORDS: Final = SLOTS * SLOT_WORDS
COUNTERS_AT: Final = LINE_WORDS
COUNTERS: Final = 32
assert COUNTERS_AT + COUNTERS == SHARD_WORDS
assert HEADS_WORDS == 16 * LINE_WORDS


class ShardState(IntEnum):
    """How far a shard is. Shown in metrics: never renumber, only add."""

    DOWN = 0
    STARTING = 1
    RECOVERING = 2
    READY = 3
    READ_ONLY = 4
    STOPPED = 5
    NO_ROOM = 6  # the disk is full: it reads, and does what makes room
    DAMAGED = 7  # down for good: its data cannot be trusted


class FrontState(IntEnum):
    """How far a front is. Shown in metrics: never renumber, only add."""

    DOWN = 0
    STARTING = 1
    SERVING = 2
    DRAINING = 3


class ProcessWords:
    """The words that every child process has. Plain attributes to the caller; each access is one
    load or one store.
    """

    __slots__ = ("_words",)

    def __init__(self, words: memoryview) -> None:
        self._words = words

    @property
    def heartbeat_ms(self) -> int:
        """CLOCK_MONOTONIC, ms, of the last sign of life; 0 before the first."""
        return int(self._words[1])

    @heartbeat_ms.setter
    def heartbeat_ms(self, value: int) -> None:
        self._words[1] = value

    @property
    def pid(self) -> int:
        """Process id; 0 when none runs."""
        return int(self._words[2])

    @pid.setter
    def pid(self, value: int) -> None:
        self._words[2] = value

    @property
    def spawns(self) -> int:
        """How often this process was forked since the supervisor started."""
        return int(self._words[3])

    @spawns.setter
    def spawns(self, value: int) -> None:
        self._words[3] = value


class FrontWords(ProcessWords):
    """One front."""

    __slots__ = ()

    @property
    def state(self) -> FrontState:
        """See FrontState."""
        return FrontState(self._words[0])

    @state.setter
    def state(self, value: FrontState) -> None:
        self._words[0] = value


class ShardWords(ProcessWords):
    """One shard."""

    __slots__ = ()

    @property
    def state(self) -> ShardState:
        """See ShardState."""
        return ShardState(self._words[0])

    @state.setter
    def state(self, value: ShardState) -> None:
        self._words[0] = value

    @property
    def progress_ppm(self) -> int:
        """How much of the replay is done, in parts per million."""
        return int(self._words[4])

    @progress_ppm.setter
    def progress_ppm(self, value: int) -> None:
        self._words[4] = value

    @property
    def topics(self) -> int:
        """How many topics the shard holds."""
        return int(self._words[5])

    @topics.setter
    def topics(self, value: int) -> None:
        self._words[5] = value

    @property
    def disk_silent_ms(self) -> int:
        """How long the log, or long writes, have waited for the disk without any progress."""
        return int(self._words[6])

    @disk_silent_ms.setter
    def disk_silent_ms(self, value: int) -> None:
        self._words[6] = value

    @property
    def counters(self) -> memoryview:
        """COUNTERS words for the metrics; what each counts is the shard's business. Only the shard
        may store.
        """
        return self._words[COUNTERS_AT : COUNTERS_AT + COUNTERS]


class Board:
    """The shared page. Made by the supervisor before any fork; it lives as long as the last process
    that has it.
    """

    def __init__(self, words: memoryview, shards: int, fronts: int) -> None:
        self.shards = shards
        self.fronts = fronts
        self._words = words
        self._pairs_at = LINE_WORDS
        self._fronts_at = self._pairs_at + fronts * shards * LINE_WORDS
        self._shards_at = self._fronts_at + fronts * LINE_WORDS
        self._heads_at = self._shards_at + shards * SHARD_WORDS

    @classmethod
    def create(cls, shards: int, fronts: int) -> Board:
        """A board with every state DOWN and every session number 1."""
        lines = 1 + fronts * shards + fronts
        memory = mmap.mmap(-1, 8 * (lines * LINE_WORDS + shards * (SHARD_WORDS + HEADS_WORDS)))
        board = cls(memoryview(memory).cast("Q"), shards, fronts)
        for front in range(fronts):
            for shard in range(shards):
                # 1, because rings are born with 0: nothing flows before both sides have started.
                board.session_cell(front, shard)[0] = 1
        return board

    def session(self, front: int, shard: int) -> int:
        """Which session of the pair is the current one."""
        return int(self.session_cell(front, shard)[0])

    def bump_session(self, front: int, shard: int) -> None:
        """End the current session of the pair: what it has sent is void. Only the supervisor,
        before it forks either side.
        """
        self.session_cell(front, shard)[0] += 1

    def session_cell(self, front: int, shard: int) -> memoryview:
        """The session number as a view of one word, for those who look at it with every message."""
        assert 0 <= front < self.fronts, "a front of this board"
        assert 0 <= shard < self.shards, "a shard of this board"
        at = self._pairs_at + (front * self.shards + shard) * LINE_WORDS
        return self._words[at : at + 1]

    def front(self, index: int) -> FrontWords:
        """The words of front ``index``."""
        assert 0 <= index < self.fronts, "a front of this board"
        at = self._fronts_at + index * LINE_WORDS
        return FrontWords(self._words[at : at + LINE_WORDS])

    def shard(self, index: int) -> ShardWords:
        """The words of shard ``index``."""
        assert 0 <= index < self.shards, "a shard of this board"
        at = self._shards_at + index * SHARD_WORDS
        return ShardWords(self._words[at : at + SHARD_WORDS])

    def heads(self, shard: int) -> memoryview:
        """The words of the slots of ``shard`` (`topics.actors.link.heads`)."""
        assert 0 <= shard < self.shards, "a shard of this board"
        at = self._heads_at + shard * HEADS_WORDS
        return self._words[at : at + HEADS_WORDS]

    @property
    def draining(self) -> bool:
        """The server is going down."""
        return bool(self._words[0])

    @draining.setter
    def draining(self, value: bool) -> None:
        self._words[0] = int(value)

    @property
    def started_ms(self) -> int:
        """Wall clock of the start, in ms."""
        return int(self._words[1])

    @started_ms.setter
    def started_ms(self, value: int) -> None:
        self._words[1] = value
