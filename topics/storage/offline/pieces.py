"""Pieces: which records of a topic live, and where they stand.

A *span* is a run of records at one locator: an extent of a segment, or a frame of the log. A
*piece* is some spans of one topic, in the order of seqs: small and plain, to be sent to another
process that reads the same directory.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from topics.engine.topic import Topic
from topics.formats.grouping import grouped
from topics.storage.offline.shard import OfflineShard

PIECE_RECORDS = 500_000


class Span(NamedTuple):
    """Records ``start`` to ``stop`` (exclusive) of those at ``locator``, whose first has
    ``first_seq``. ``dead``: a byte for each record of the span, 1: deleted, packed; None when none
    is.
    """

    locator: int
    first_seq: int
    start: int
    stop: int
    live: int  # how many of them live
    dead: bytes | None

    def dead_flags(self) -> bytes | None:
        """A byte for each record at the locator up to ``stop``; None when none is deleted."""
        return None if self.dead is None else bytes(self.start) + zlib.decompress(self.dead)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some live records of a topic."""

    data_dir: Path
    shard: int
    topic: str
    topic_id: int
    spans: tuple[Span, ...]

    @property
    def count(self) -> int:
        """How many records it has."""
        return sum(span.live for span in self.spans)

    @property
    def first_seq(self) -> int:
        """No record has a lower seq."""
        return self.spans[0].first_seq + self.spans[0].start

    @property
    def last_seq(self) -> int:
        """No record has a higher seq."""
        return self.spans[-1].first_seq + self.spans[-1].stop - 1


def pieces_of(
    shard: OfflineShard, topic: Topic, first_seq: int, last_seq: int, max_records: int
) -> Iterator[Piece]:
    """The live records of a topic from ``first_seq`` to ``last_seq``, about ``max_records`` in a
    piece.
    """
    spans = _spans(shard, topic, max(first_seq, topic.start_seq), last_seq, max_records)
    for group in grouped(spans, lambda span: span.live, max_records):
        yield Piece(shard.data_dir, shard.shard, topic.name, topic.id, tuple(group))


def _spans(
    shard: OfflineShard, topic: Topic, first: int, last: int, max_records: int
) -> Iterator[Span]:
    """Spans of at most ``max_records`` in which something lives."""
    for first_seq, count, locator, size, _ in topic.index.from_seq(first):
        if first_seq > last:
            return
        if not size:
            continue
        begin, end = max(first - first_seq, 0), min(count, last + 1 - first_seq)
        flags = shard.deleted(locator)
        for start in range(begin, end, max_records):
            stop = min(start + max_records, end)
            dead = None if flags is None else bytes(flags[start:stop])
            gone = 0 if dead is None else dead.count(1)
            if gone < stop - start:
                packed = zlib.compress(dead, 1) if dead is not None and gone else None
                yield Span(locator, first_seq, start, stop, stop - start - gone, packed)
