"""The records that a topic must have after appends and deletes (§5)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Kept(NamedTuple):
    """A record that a reader receives."""

    data: Any
    tag: str | None = None


@dataclass(slots=True)
class TopicModel:
    """A topic. ``live`` is in the order of seqs."""

    head_seq: int = 0
    live: dict[int, Kept] = field(default_factory=dict)

    @property
    def earliest_seq(self) -> int:
        return next(iter(self.live), self.head_seq + 1)

    def append(self, records: Iterable[Kept]) -> None:
        for record in records:
            self.head_seq += 1
            self.live[self.head_seq] = record

    def delete(self, before_seq: int | None = None, match: Any = None) -> int:
        """Delete records as a delete with this body does, and return their number."""
        deleted = [
            seq
            for seq, kept in self.live.items()
            if (before_seq is None or seq < before_seq) and matches(match, kept.tag)
        ]
        for seq in deleted:
            del self.live[seq]
        return len(deleted)

    def after(self, from_seq: int) -> list[int]:
        """Return the seqs that a read from ``from_seq`` returns."""
        return [seq for seq in self.live if seq > from_seq]


def matches(match: Any, tag: str | None) -> bool:
    """Return whether the ``match`` of a delete (None if absent) selects a record with this tag."""
    if match is None:
        return True
    if tag is None:
        return False
    if isinstance(match, str):
        return tag == match
    _tag, operator, operand = match
    return bool(tag == operand) if operator == "Eq" else tag.startswith(operand[:-1])
