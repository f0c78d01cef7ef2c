"""Limits ledger: what every process holds of each limit, so that all fronts share one cap (§11).

    words on the board         writer           content
    limits of process p        process p        one count for each `Limit`
    key table, slot s          the supervisor   first 8 bytes of the key's digest; 0: free
    key counts of front f      front f          one count for each `KeyLimit`, slot by slot

A process counts in words of its own and sums those of all processes of its kind. It counts first
and sums afterwards, with a full fence in between, and takes its count back when the sum is above
the cap. So of two processes that race for the last place at least one sees the other: the sum of
what was granted never exceeds a cap. Both may be refused; the client tries again.

A process that dies holds nothing: the supervisor sets its counts to 0 before the next fork. A
ledger must never store in the words of another process.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from topics.actors.link.board import KEY_LIMITS, LIMITS, Board
from topics.actors.link.fences import load_fences
from topics.actors.link.process_id import ProcessId, ProcessKind, front_id


class Limit(IntEnum):
    """What a cap of the whole server bounds: the index of its count. At most LIMITS."""

    WATCH_SESSIONS = 0
    SSE_CONNECTIONS = 1


class KeyLimit(IntEnum):
    """What a cap for each key bounds: the index of its count. At most KEY_LIMITS."""

    SSE_CONNECTIONS = 0
    REQUESTS_IN_FLIGHT = 1


assert len(Limit) <= LIMITS
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
        own, index = self._own, self._index
        held = own[index]
        own[index] = held + amount
        if not most:
            return True
        if self._fence is not None:
            self._fence()
        if self.total() <= most:
            return True
        own[index] = held
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
        self._key_table = board.key_table
        is_front = own.kind is ProcessKind.FRONT
        self._own_keys = board.key_counts(own.index) if is_front else memoryview(b"")
        self._key_rows = [board.key_counts(process.index) for process in kin] if is_front else []
        self._by_key: dict[tuple[KeyLimit, bytes], Allowance] = {}

    @classmethod
    def of_one_front(cls, digests: Iterable[bytes]) -> LimitsLedger:
        """The ledger of a front that shares with nobody, for these keys."""
        keys = list(digests)
        board = Board.create(shards=0, fronts=1, key_slots=len(keys))
        assign_key_slots(board, keys)
        return cls(board, front_id(0))

    def of_server(self, limit: Limit) -> Allowance:
        """The count of a limit that the whole server shares; to be kept by the caller."""
        return Allowance(self._own, self._rows, limit)

    def of_key(self, limit: KeyLimit, digest: bytes) -> Allowance:
        """The count of a limit that one key has. KeyError when the key has no slot."""
        found = self._by_key.get((limit, digest))
        if found is None:
            index = self._slot(digest) * KEY_LIMITS + limit
            found = Allowance(self._own_keys, self._key_rows, index)
            self._by_key[limit, digest] = found
        return found

    def _slot(self, digest: bytes) -> int:
        tag = _tag(digest)
        for slot, word in enumerate(self._key_table):
            if word == tag:
                return slot
        raise KeyError("this key has no slot in the ledger")


def assign_key_slots(board: Board, digests: Iterable[bytes]) -> None:
    """Give every key its slot, before the first fork. Raises ValueError when there are too few."""
    tags = list(map(_tag, digests))
    if len(tags) > board.key_slots:
        raise ValueError(f"{len(tags)} keys and {board.key_slots} slots in the limits ledger")
    for slot, tag in enumerate(tags):
        board.key_table[slot] = tag


def forget_counts(board: Board, process: ProcessId) -> None:
    """Free what a dead process has held. Only the supervisor, before the next fork."""
    _zero(board.process(process).limits)
    if process.kind is ProcessKind.FRONT:
        _zero(board.key_counts(process.index))


def _zero(words: memoryview) -> None:
    for index in range(len(words)):
        words[index] = 0


def _tag(digest: bytes) -> int:
    # Digests are SHA-256: no two configured keys have the same 8 bytes, and none has 0.
    return int.from_bytes(digest[:8], "little")
