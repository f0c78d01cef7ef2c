"""Limits ledger: what every process holds of each limit, so that all fronts share one cap (§11).

    words on the board         writer           content
    limits of process p        process p        one count for each `Limit`
    key counts of front f      front f          one count for each `KeyLimit`, slot by slot

A process counts in words of its own and sums those of all processes of its kind. It counts first
and sums afterwards, with a full fence in between, and takes its count back when the sum is above
the cap. So of two processes that race for the last place at least one sees the other: the sum of
what was granted never exceeds a cap. One that took its count back looks once more whether there is
room: the last of those who did finds it, so a place is not left free by a race.

Which slot a key counts in is part of the key table (`topics.actors.link.key_table`). The slot of a
key that was removed goes to another one when no front counts anything in it any more.

A front that dies holds nothing: the supervisor sets its counts to 0 before the next fork. What a
shard holds outlives it (`topics.actors.link.shard_ledger`). A ledger must never store in the words
of another process.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from topics.actors.link.board import KEY_LIMITS, LIMITS, Board
from topics.actors.link.fences import load_fences
from topics.actors.link.process_id import ProcessId, ProcessKind
from topics.engine.access import Access

ATTEMPTS: Final = 8  # of one that others get in the way of


class Limit(IntEnum):
    """What a cap of the whole server bounds: the index of its count, less than LIMITS."""

    WATCH_SESSIONS = 0  # of fronts
    SSE_CONNECTIONS = 1  # of fronts
    TOPICS = 2  # of shards
    TOTAL_BYTES = 3  # of shards


class KeyLimit(IntEnum):
    """What a cap for each key bounds: the index of its count. At most KEY_LIMITS."""

    SSE_CONNECTIONS = 0
    REQUESTS_IN_FLIGHT = 1
    WATCH_SESSIONS = 2


assert len(Limit) < LIMITS
assert len(KeyLimit) <= KEY_LIMITS


class Allowance:
    """One count of this process, among those of the other processes of its kind."""

    __slots__ = ("_fence", "_index", "_own", "_rows")

    def __init__(self, own: memoryview, rows: list[memoryview], index: int) -> None:
        self._own, self._rows, self._index = own, rows, index
        self._fence = load_fences().full if len(rows) > 1 else None

    def take(self, most: int, amount: int = 1) -> bool:
        """Count ``amount`` more; False, and nothing is counted, when the sum would exceed ``most``.

        0 means no cap.
        """
        own, index, fence = self._own, self._index, self._fence
        held = own[index]
        if not most:
            own[index] = held + amount
            return True
        for _ in range(ATTEMPTS):
            # What cannot fit is not counted at all: it would be in the way of others.
            if self.total() + amount > most:
                return False
            own[index] = held + amount
            if fence is None:
                return True
            fence()
            if self.total() <= most:
                return True
            own[index] = held
            fence()
        return False

    def give_back(self, amount: int = 1) -> None:
        """Count ``amount`` less: what was taken is over."""
        own, index = self._own, self._index
        assert own[index] >= amount, "only what was taken is given back"
        own[index] -= amount

    def total(self) -> int:
        """What all processes of the kind hold together."""
        index = self._index
        return sum([row[index] for row in self._rows])


class LimitsLedger:
    """The end of one process. One thread of the process uses it."""

    def __init__(self, board: Board, own: ProcessId) -> None:
        kin = board.processes(own.kind)
        self._own = board.process(own).limits
        self._rows = [board.process(process).limits for process in kin]
        is_front = own.kind is ProcessKind.FRONT
        self._own_keys = board.key_counts(own.index) if is_front else memoryview(b"")
        self._key_rows = [board.key_counts(process.index) for process in kin] if is_front else []

    def of_server(self, limit: Limit) -> Allowance:
        """The count of a limit that the whole server shares; to be kept by the caller."""
        return Allowance(self._own, self._rows, limit)

    def of_key(self, limit: KeyLimit, slot: int) -> Allowance:
        """The count of a limit that the key of a slot has; to be kept by the caller."""
        return Allowance(self._own_keys, self._key_rows, slot * KEY_LIMITS + limit)


class KeySlots:
    """Which slot each key counts in. Only the supervisor has one."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._rows = [board.key_counts(front) for front in range(board.fronts)]
        self._by_digest: dict[bytes, int] = {}  # keys that were removed included

    def assign(self, access: Access, before: Access | None = None) -> Access:
        """The same keys with their slots; a key that is known keeps its own. ``before``: the keys
        that count now, if every front goes by them. Raises ValueError when there are too few slots.
        """
        if before is not None:
            self._forget_unused({principal.digest for principal in before.principals})
        slots = self._by_digest
        new = [one.digest for one in access.principals if one.digest not in slots]
        free = sorted({*range(self._board.key_slots)} - {*slots.values()})
        if len(new) > len(free):
            most = self._board.key_slots
            raise ValueError(
                f"too many keys: {len(new)} are new and {len(free)} of {most} slots are free;"
                " removed keys free theirs later"
            )
        slots |= zip(new, free, strict=False)
        return Access(one.at(slots[one.digest]) for one in access.principals)

    def _forget_unused(self, kept: set[bytes]) -> None:
        """Free the slots of keys that no request can come with and nothing is counted for."""
        for digest, slot in [*self._by_digest.items()]:
            words = range(slot * KEY_LIMITS, (slot + 1) * KEY_LIMITS)
            if digest not in kept and not any(row[at] for row in self._rows for at in words):
                del self._by_digest[digest]


def forget_counts(board: Board, process: ProcessId) -> None:
    """Free what a dead front has held. Only the supervisor, before the next fork."""
    if process.kind is ProcessKind.FRONT:
        _zero(board.process(process).limits)
        _zero(board.key_counts(process.index))


def _zero(words: memoryview) -> None:
    for index in range(len(words)):
        words[index] = 0
