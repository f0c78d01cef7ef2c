"""Dedupe window: the idempotency keys of one topic (§0.8). A key maps to the seqs of the write that
used it, for the duration of the topic's window. The keys of copies are kept longer
(``moved_keys.py``).

    key --BLAKE2b, 128 bits--> digest --newest generation first--> row --> first seq, count, time

The window is a list of generations. A generation is a dict of digests and columns of the other
values, ordered by time. A new generation begins after a quarter of the window, or after
`GENERATION_KEYS` keys. The oldest generation is dropped as a unit when all of its keys have
expired. One step drops at most one generation, so its duration is bounded even if more keys expire
at the same time. A key takes 100 to 140 bytes, and none of its values is tracked by the garbage
collector.

Two keys with the same digest would be treated as the same key. With 128 bits, this is less likely
than corrupt data that no checksum detects. A client that searches for such a pair needs about
2**64 attempts.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from topics.engine.moved_keys import MovedKeys, is_copy_key

GENERATION_KEYS = 1 << 17  # a generation of this size is dropped in a few milliseconds
DIGEST_BYTES = 16
_DIGEST = blake2b(digest_size=DIGEST_BYTES)
_BEFORE_ALL_MS = -(1 << 63)


class DedupeEntry(NamedTuple):
    """The write that used a key."""

    first_seq: int
    record_count: int


class KeyRow(NamedTuple):
    """A key in the window. ``at_ms`` is the time of its write on the monotonic clock."""

    digest: bytes
    first_seq: int
    record_count: int
    at_ms: int


class _Generation:
    """The keys of consecutive writes. ``rows`` maps a digest to its current row in the columns."""

    __slots__ = ("at", "counts", "rows", "seqs")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.at, self.seqs, self.counts = array("q"), array("Q"), array("I")


class DedupeWindow:
    """The keys of committed writes, oldest first. ``moved`` has the keys of copies, or is None if
    no copy was stored.
    """

    __slots__ = ("_generations", "moved")

    def __init__(self) -> None:
        # A tuple, because most topics have no or few generations and it takes less memory than a
        # list.
        self._generations: tuple[_Generation, ...] = ()
        self.moved: MovedKeys | None = None

    def __len__(self) -> int:
        """Return the number of keys in memory, including expired keys not dropped yet."""
        return sum(len(generation.rows) for generation in self._generations)

    def find(self, key: str, now_ms: int, window_ms: int, from_seq: int = 0) -> DedupeEntry | None:
        """Return the write that used a key, or None.

        The write must be younger than ``window_ms`` and its first seq at least ``from_seq``.
        Neither bound applies to the key of a copy.
        """
        if self._generations:
            digest = digest_of(key)
            for generation in reversed(self._generations):
                row = generation.rows.get(digest)
                if row is not None:
                    first_seq = generation.seqs[row]
                    if now_ms - generation.at[row] < window_ms and first_seq >= from_seq:
                        return DedupeEntry(first_seq, generation.counts[row])
                    break
        if self.moved is not None and is_copy_key(key):
            first_seq = self.moved.find(key)
            return DedupeEntry(first_seq, 1) if first_seq else None
        return None

    def note_copy(self, key: str, seq: int) -> None:
        """Store the key of a copy alongside the window."""
        if self.moved is None:
            self.moved = MovedKeys()
        self.moved.add(key, seq)

    def add(self, key: str, first_seq: int, record_count: int, now_ms: int, window_ms: int) -> None:
        """Store the key of a write that follows all earlier writes."""
        if is_copy_key(key):
            self.note_copy(key, first_seq)
        if window_ms:
            self.extend(((digest_of(key), first_seq, record_count, now_ms),), window_ms)
        self.expire(now_ms, window_ms)

    def extend(self, writes: Iterable[tuple[int, int, int, int]], window_ms: int) -> None:
        """Add keys to the window: digest, first seq, record count and time of each.

        The writes must be in the order of their seqs. A replay may contain a write with an earlier
        time than the write before it. Both then have the later time.
        """
        newest = self._generations[-1] if self._generations else _Generation()
        rows, at, seqs, counts = newest.rows, newest.at, newest.seqs, newest.counts
        row = len(at) or GENERATION_KEYS
        last_ms, until_ms = (at[-1], at[0] + window_ms // 4) if at else (_BEFORE_ALL_MS, 0)
        for digest, first_seq, record_count, at_ms in writes:
            if at_ms < last_ms:
                at_ms = last_ms
            if row >= GENERATION_KEYS or at_ms > until_ms:
                newest = _Generation()
                self._generations += (newest,)
                rows, at, seqs, counts = newest.rows, newest.at, newest.seqs, newest.counts
                row, until_ms = 0, at_ms + window_ms // 4
            if rows.setdefault(digest, row) != row:  # a repeated key moves to the end
                del rows[digest]
                rows[digest] = row
            at.append(at_ms)
            seqs.append(first_seq)
            counts.append(record_count)
            row, last_ms = row + 1, at_ms

    def expire(self, now_ms: int, window_ms: int) -> int:
        """Drop the oldest generation if all of its keys are ``window_ms`` old or older.

        Return the number of its keys. If it is 0, there is nothing more to drop.
        """
        generations = self._generations
        if not generations or now_ms - generations[0].at[-1] < window_ms:
            return 0
        self._generations = generations[1:]
        return len(generations[0].at)

    def oldest_seq(self, now_ms: int, window_ms: int, otherwise: int) -> int:
        """Return the first seq of the oldest write that is younger than ``window_ms``, else
        ``otherwise``.
        """
        for generation in self._generations:
            row = bisect_right(generation.at, now_ms - window_ms)
            if row < len(generation.at):
                return generation.seqs[row]
        return otherwise

    def rows(self, now_ms: int, window_ms: int) -> Iterator[KeyRow]:
        """Yield the keys that are younger than ``window_ms``, oldest first.

        The window may change between two steps.
        """
        for generation in self._generations:
            if now_ms - generation.at[-1] < window_ms:
                at, seqs, counts = generation.at, generation.seqs, generation.counts
                for digest, row in tuple(generation.rows.items()):
                    if now_ms - at[row] < window_ms:
                        packed = digest.to_bytes(DIGEST_BYTES, "little")
                        yield KeyRow(packed, seqs[row], counts[row], at[row])


def digest_of(key: str) -> int:
    """Return the digest that represents the key in memory and in checkpoints."""
    digest = _DIGEST.copy()  # copying a hash object is a quarter faster than creating one
    digest.update(key.encode())
    return int.from_bytes(digest.digest(), "little")
