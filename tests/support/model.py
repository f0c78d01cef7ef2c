"""What one topic must look like after appends, deletes, caps and recreations (§0.10, §3.3, §5): the
obvious model, in dicts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Kept(NamedTuple):
    """One record that a reader gets."""

    data: Any
    tag: str | None = None


@dataclass(slots=True)
class TopicModel:
    """``live`` is in seq order. ``evict_floor`` is above the last seq that a cap took, 1 when it
    never took any.
    """

    cap_records: int = 0
    head_seq: int = 0
    evict_floor: int = 1
    live: dict[int, Kept] = field(default_factory=dict)

    @property
    def earliest_seq(self) -> int:
        return next(iter(self.live), self.head_seq + 1)

    def append(self, records: Iterable[Kept], first_seq: int | None = None) -> None:
        """Add records and let the cap take the oldest live ones. ``first_seq``: where the server
        says that they begin.
        """
        if first_seq is not None:
            self.head_seq = first_seq - 1
        for record in records:
            self.head_seq += 1
            self.live[self.head_seq] = record
        self._trim()

    def set_cap(self, cap_records: int) -> None:
        self.cap_records = cap_records
        self._trim()

    def delete(self, before_seq: int | None = None, match: Any = None) -> int:
        """Remove what a delete with this body removes; how many that were."""
        gone = [
            seq
            for seq, kept in self.live.items()
            if (before_seq is None or seq < before_seq) and matches(match, kept.tag)
        ]
        for seq in gone:
            del self.live[seq]
        return len(gone)

    def gap(self, from_seq: int) -> tuple[int, int] | None:
        """What the tombstone of a read from ``from_seq`` spans, None for a silent read."""
        return (from_seq + 1, self.earliest_seq - 1) if from_seq + 1 < self.evict_floor else None

    def after(self, from_seq: int) -> list[int]:
        """The seqs that a read from ``from_seq`` gets."""
        return [seq for seq in self.live if seq > from_seq]

    def _trim(self) -> None:
        while self.cap_records and len(self.live) > self.cap_records:
            evicted = next(iter(self.live))
            del self.live[evicted]
            self.evict_floor = evicted + 1


def matches(match: Any, tag: str | None) -> bool:
    """Whether a delete's ``match`` (None: there is none) takes a record with this tag."""
    if match is None:
        return True
    if tag is None:
        return False
    if isinstance(match, str):
        return tag == match
    _tag, operator, operand = match
    return bool(tag == operand) if operator == "Eq" else tag.startswith(operand[:-1])
