"""Dedupe window: the idempotency keys of one topic (§0.8). A key stands for the seqs of the write
that used it, for the length of the topic's window; that of a copy for longer (``moved_keys.py``).

    key --BLAKE2b, 128 bits--> digest --newest generation first--> row --> first seq, count, time

The window is a list of generations, each a dict of digests with columns of what they stand for, in
the order of time. A new one begins after a quarter of the window, or `GENERATION_KEYS` keys; the
oldest is dropped whole when the last of its keys is over. So an expiry costs the same however many
keys end at once, at most a generation a step, and a key takes 100 to 140 bytes, none of which the
collector looks at.

Two keys with one digest would be taken for one: of 128 bits that is as likely as a wrong bit that
every checksum of this server misses, and no client can look for such a pair.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import NamedTuple

from topics.engine.moved_keys import MovedKeys, is_copy_key

GENERATION_KEYS = 1 << 17  # dropped in a few milliseconds
DIGEST_BYTES = 16
_DIGEST = blake2b(digest_size=DIGEST_BYTES)
_BEFORE_ALL_MS = -(1 << 63)


class DedupeEntry(NamedTuple):
    """The write that a key stands for."""

    first_seq: int
    record_count: int


class KeyRow(NamedTuple):
    """A key of the window. ``at_ms``: on the monotonic clock, which never steps."""

    digest: bytes
    first_seq: int
    record_count: int
    at_ms: int


class _Generation:
    """Keys of neighbouring writes. ``rows``: by digest, the row of the columns that counts."""

    __slots__ = ("at", "counts", "rows", "seqs")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.at, self.seqs, self.counts = array("q"), array("Q"), array("I")


class DedupeWindow:
    """Committed keys, oldest first. ``moved``: keys of copies, if there ever were any."""

    __slots__ = ("_generations", "moved")

    def __init__(self) -> None:
        # A tuple, as most topics have none, or few.
        self._generations: tuple[_Generation, ...] = ()
        self.moved: MovedKeys | None = None

    def __len__(self) -> int:
        """Keys in memory, with those that are over and not dropped yet."""
        return sum(len(generation.rows) for generation in self._generations)

    def find(self, key: str, now_ms: int, window_ms: int, from_seq: int = 0) -> DedupeEntry | None:
        """The write that a key stands for: one that is younger than ``window_ms``, from
        ``from_seq`` on, or a copy.
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
        """Keep the key of a copy beside the window."""
        if self.moved is None:
            self.moved = MovedKeys()
        self.moved.note(key, seq)

    def remember(
        self, key: str, first_seq: int, record_count: int, now_ms: int, window_ms: int
    ) -> None:
        """Keep the key of a write, which comes behind all others."""
        if is_copy_key(key):
            self.note_copy(key, first_seq)
        if window_ms:
            self.extend(((digest_of(key), first_seq, record_count, now_ms),), window_ms)
        self.expire(now_ms, window_ms)

    def extend(self, writes: Iterable[tuple[int, int, int, int]], window_ms: int) -> None:
        """Take keys into the window: digest, first seq, count of records and time of each. If a
        replay has two writes the other way round, the later one has the time of the one before.
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
            if rows.setdefault(digest, row) != row:  # a key that comes again is the newest
                del rows[digest]
                rows[digest] = row
            at.append(at_ms)
            seqs.append(first_seq)
            counts.append(record_count)
            row, last_ms = row + 1, at_ms

    def expire(self, now_ms: int, window_ms: int) -> int:
        """Drop the oldest generation, if all of its keys are ``window_ms`` old or older; how many
        they were. There is no more to drop when it is 0.
        """
        generations = self._generations
        if not generations or now_ms - generations[0].at[-1] < window_ms:
            return 0
        self._generations = generations[1:]
        return len(generations[0].at)

    def oldest_seq(self, now_ms: int, window_ms: int, otherwise: int) -> int:
        """First seq of the oldest write that is younger than ``window_ms``, ``otherwise`` when
        there is none.
        """
        for generation in self._generations:
            row = bisect_right(generation.at, now_ms - window_ms)
            if row < len(generation.at):
                return generation.seqs[row]
        return otherwise

    def rows(self, now_ms: int, window_ms: int) -> Iterator[KeyRow]:
        """The keys that are younger than ``window_ms``, oldest first. The window may change between
        two steps.
        """
        for generation in self._generations:
            if now_ms - generation.at[-1] < window_ms:
                at, seqs, counts = generation.at, generation.seqs, generation.counts
                for digest, row in tuple(generation.rows.items()):
                    if now_ms - at[row] < window_ms:
                        packed = digest.to_bytes(DIGEST_BYTES, "little")
                        yield KeyRow(packed, seqs[row], counts[row], at[row])


def digest_of(key: str) -> int:
    """What stands for the key, in memory and in checkpoints."""
    digest = _DIGEST.copy()  # a quarter faster than a new one
    digest.update(key.encode())
    return int.from_bytes(digest.digest(), "little")
