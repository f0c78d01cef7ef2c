"""What a campaign of routers saw: what was appended, what was read where, and how it ended.

A record's data is ``[writer, number, position, padding]``, as `writers` has it: that names the
record wherever a copy of it stands. Of bytes only a checksum is kept.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from topics.formats.ranges import SeqRange

Origin = tuple[int, int, int]
"""Writer, how-manieth write of it, which record of that."""

STAMP = "_topics_router"
_HEAD = re.compile(rb'\{"\$seq":(\d+),"\$ts":(\d+)')


class Sent(NamedTuple):
    """A record as it was appended. ``data``: checksum of its bytes."""

    origin: Origin
    node: str | None
    tag: str | None
    data: int
    meta: dict[str, Any] | None


class Stamp(NamedTuple):
    """What an exactly_once router says of a copy."""

    router: str
    source: str
    seq: int
    key: str


class Copy(NamedTuple):
    """A record of a dest. ``whole``: checksum of all its bytes, ``data``: of the data's."""

    ts: int
    whole: int
    origin: Origin
    node: str | None
    tag: str | None
    data: int
    meta: dict[str, Any] | None  # without the stamp
    stamp: Stamp | None


class Gap(NamedTuple):
    """A tombstone."""

    reason: str
    first: int
    last: int


class Page(NamedTuple):
    """An answer to a read. ``seqs``: of its records, as ranges."""

    topic: str
    from_seq: int
    next_seq: int
    head_seq: int
    seqs: tuple[SeqRange, ...]
    gap: Gap | None


class End(NamedTuple):
    """A dest after all lags are 0, read whole. ``seqs``: of its records, as ranges."""

    head_seq: int
    records: int  # its count
    seqs: tuple[SeqRange, ...]


class Total(NamedTuple):
    """A router after all lags are 0."""

    forwarded: int
    lag_records: int


@dataclass(slots=True)
class History:
    """One campaign. ``sent``: by source and seq, what was acknowledged. ``deleted``: by topic, the
    last seq that a delete may have taken. ``changed``: what was read twice and differs. ``ends``
    and ``totals``: once while the server went on, once after a restart.
    """

    sent: dict[str, dict[int, Sent]] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    copies: dict[str, dict[int, Copy]] = field(default_factory=dict)
    pages: list[Page] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # the most that a capped topic held
    ends: list[dict[str, End]] = field(default_factory=list)
    totals: list[dict[str, Total]] = field(default_factory=list)
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def take(self, page: Page, copies: Iterable[tuple[int, Copy]]) -> None:
        """A page that was read, with its records."""
        self.pages.append(page)
        known = self.copies.setdefault(page.topic, {})
        for seq, copy in copies:
            before = known.setdefault(seq, copy)
            if before.whole != copy.whole or before.ts != copy.ts:
                self.changed.append(f"{page.topic} {seq} was {before}, now it is {copy}")

    def may_delete(self, topic: str, last: int) -> None:
        """Before a delete of everything up to ``last`` is sent."""
        self.deleted[topic] = max(self.deleted.get(topic, 0), last)

    def saw_count(self, topic: str, count: int) -> None:
        self.counts[topic] = max(self.counts.get(topic, 0), count)


class _Record(msgspec.Struct):
    data: msgspec.Raw
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    meta: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    records: list[msgspec.Raw]
    next_from_seq: int
    head_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None = None


_decode_answer = msgspec.json.Decoder(_Answer).decode
_decode_record = msgspec.json.Decoder(_Record).decode
_decode_data = msgspec.json.Decoder(tuple[int, int, int, str]).decode


class Read(NamedTuple):
    """A diff's answer."""

    page: Page
    copies: list[tuple[int, Copy]]
    caught_up: bool


def read_of(topic: str, from_seq: int, body: bytes) -> Read:
    """The answer to a diff with tags. ValueError for a record that no campaign appended."""
    answer = _decode_answer(body)
    copies = [copy_of(bytes(record)) for record in answer.records]
    told = answer.tombstone
    gap = None if told is None else Gap(told["reason"], told["gap_from"], told["gap_to"])
    ranges = tuple(ranges_of(seq for seq, _ in copies))
    page = Page(topic, from_seq, answer.next_from_seq, answer.head_seq, ranges, gap)
    return Read(page, copies, answer.caught_up)


def copy_of(record: bytes) -> tuple[int, Copy]:
    """A rendered record with its seq."""
    head = _HEAD.match(record)
    if head is None:
        raise ValueError(f"a record begins with {record[:60]!r}")
    found = _decode_record(record)
    *origin, _padding = _decode_data(found.data)
    meta = dict(found.meta or {})
    stamp = meta.pop(STAMP, None)
    copy = Copy(
        int(head[2]),
        zlib.crc32(record),
        (origin[0], origin[1], origin[2]),
        found.node,
        found.tag,
        zlib.crc32(bytes(found.data)),
        meta or None,
        None if stamp is None else _stamp_of(stamp),
    )
    return int(head[1]), copy


def _stamp_of(stamp: dict[str, Any]) -> Stamp:
    return Stamp(stamp["router"], stamp["source"], stamp["source_seq"], stamp["key"])


def ranges_of(seqs: Iterable[int]) -> list[SeqRange]:
    """Ascending seqs as ranges; where they do not ascend, a range begins, too."""
    ranges: list[SeqRange] = []
    for seq in seqs:
        if ranges and ranges[-1].last + 1 == seq:
            ranges[-1] = SeqRange(ranges[-1].first, seq)
        else:
            ranges.append(SeqRange(seq, seq))
    return ranges
