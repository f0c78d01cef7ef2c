"""Dedupe window: the idempotency keys of one topic (§0.8). A key stands for the seqs of the write
that used it, for the length of the topic's window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

_NO_ORDER: deque[str] = deque()  # shared by all empty windows: a deque of its own takes 760 bytes


class DedupeEntry(NamedTuple):
    """The write that a key stands for. ``at_ms``: on the monotonic clock, which never steps."""

    first_seq: int
    record_count: int
    at_ms: int


_NO_KEYS: dict[str, DedupeEntry] = {}  # likewise


class DedupeWindow:
    """Committed keys, oldest first."""

    __slots__ = ("_keys", "_order")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._keys: dict[str, DedupeEntry] = _NO_KEYS
        # The dict alone would do, but its first entry is found behind all that were deleted.
        self._order = _NO_ORDER

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def items(self) -> Iterator[tuple[str, DedupeEntry]]:
        """All keys with their writes, the oldest first. The window may change between two steps."""
        for key in tuple(self._order):
            write = self._keys.get(key)
            if write is not None:
                yield key, write

    def oldest_seq(self, otherwise: int) -> int:
        """First seq of the oldest write in the window, ``otherwise`` when it is empty."""
        return self._keys[self._order[0]].first_seq if self._order else otherwise

    def first_seq(self, key: str) -> int:
        """First seq of the write that a key stands for, 0 for none."""
        return self._keys[key].first_seq if key in self._keys else 0

    def find(self, key: str, now_ms: int, window_ms: int) -> DedupeEntry | None:
        """The write that a key stands for, if that is younger than ``window_ms``."""
        found = self._keys.get(key)
        return found if found and now_ms - found.at_ms < window_ms else None

    def remember(self, key: str, write: DedupeEntry, window_ms: int) -> None:
        """Keep a key from now on, and drop those that are too old."""
        self.expire(write.at_ms, window_ms)
        if self._keys.pop(key, None):
            # Rare, for an entry of this key was too old: it must not keep its early rank.
            self._order.remove(key)
        if window_ms:
            if self._order is _NO_ORDER:
                self._keys, self._order = {}, deque()
            self._keys[key] = write
            self._order.append(key)

    def expire(self, now_ms: int, window_ms: int) -> None:
        """Drop keys that are ``window_ms`` old or older. They are in order of time: no other key is
        looked at.
        """
        keys, order = self._keys, self._order
        while order and now_ms - keys[order[0]].at_ms >= window_ms:
            del keys[order.popleft()]
        if not order and order is not _NO_ORDER:
            self._reset()
