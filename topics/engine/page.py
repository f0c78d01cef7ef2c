"""Page: the answer to one difference read, and the tombstone that may come first in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topics.formats.buffers import Buffer
from topics.formats.ranges import SeqRange


@dataclass(frozen=True, slots=True)
class Tombstone:
    """Loss, told in band (§3.3). Both ends of the gap are lost."""

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    def as_json(self) -> dict[str, Any]:
        """The tombstone in an answer."""
        return {
            "gap_from": self.gap_from,
            "gap_to": self.gap_to,
            "reason": self.reason,
            "missed_estimate": self.gap_to - self.gap_from + 1,
            "earliest_seq": self.earliest_seq,
            "head_seq": self.head_seq,
        }


@dataclass(slots=True)
class Page:
    """Answer to one read.

    ``pieces``: rendered records, to be joined by commas. ``unfinished``: nothing was found yet and
    there is more to scan: ask again from ``next_from_seq``.
    """

    from_seq: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    pieces: list[Buffer] = field(default_factory=list)
    count: int = 0
    scanned: int = 0
    unfinished: bool = False

    @property
    def caught_up(self) -> bool:
        """The only sign that there is no more right now."""
        return self.next_from_seq >= self.head_seq

    @property
    def worth_answering(self) -> bool:
        """Whether a long poll ends with this page."""
        return bool(self.count or self.tombstone)

    def tell_gap(self, gap: SeqRange, reason: str) -> None:
        """Put a tombstone into the page."""
        self.tombstone = Tombstone(gap.first, gap.last, reason, self.earliest_seq, self.head_seq)
