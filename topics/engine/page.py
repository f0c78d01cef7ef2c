"""Page: the result of one difference read (§3), with the tombstone that may precede its records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from topics.formats.buffers import Buffer
from topics.formats.ranges import SeqRange


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A loss that is reported within a page (§3.3). All records from ``gap_from`` to ``gap_to``
    (inclusive) are lost for the reader.
    """

    gap_from: int
    gap_to: int
    reason: str
    earliest_seq: int
    head_seq: int

    def as_json(self) -> dict[str, Any]:
        """Return the tombstone as the JSON object of a response."""
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
    """Result of one read.

    ``chunks`` contains one or more rendered records each. The caller joins the chunks with commas.
    ``count`` is the number of these records, and ``scanned`` is the number of records that the read
    examined. ``unfinished``: the read found nothing yet and stopped before the head. The caller
    must read again from ``next_from_seq``.
    """

    from_seq: int
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Tombstone | None
    chunks: list[Buffer] = field(default_factory=list)
    count: int = 0
    scanned: int = 0
    unfinished: bool = False

    @property
    def caught_up(self) -> bool:
        """Return whether the reader has reached the head. A page without records does not imply
        this.
        """
        return self.next_from_seq >= self.head_seq

    @property
    def completes_poll(self) -> bool:
        """Return whether the page completes a long poll: it has records or a tombstone."""
        return bool(self.count or self.tombstone)

    def report_gap(self, gap: SeqRange, reason: str) -> None:
        """Set the tombstone of the page."""
        self.tombstone = Tombstone(gap.first, gap.last, reason, self.earliest_seq, self.head_seq)
