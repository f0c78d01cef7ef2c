"""Writes, and the segments that are built of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from tests.formats.disk.record_support import RECORDS, TEXTS, request, view_of
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.records import RecordsView
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    TRAILER_BYTES,
    ExtentEntry,
    SegmentHeader,
    Trailer,
    decode_directory,
    decode_trailer,
)
from topics.formats.disk.segment_build import EXTENT_BYTES, EXTENT_RECORDS, ExtentSource, build

HEADER = SegmentHeader(shard=3, number=7, base=0x1000, end=0x2000)


@dataclass(frozen=True)
class Write:
    """A write. ``records`` are ``(node, tag, data, meta)``. The first ``skip`` records are deleted
    when the segment is built.
    """

    records: Sequence[tuple[str | None, str | None, bytes, bytes | None]]
    node: str | None = None
    key: str | None = None
    skip: int = 0
    ts_ms: int = 1_748_450_000_000
    due: Sequence[int] | None = None

    def view(self, first_seq: int) -> RecordsView:
        body = request([*self.records], self.node, self.key)
        return view_of(body, first_seq, self.ts_ms, keep_key=True, due=self.due)


@st.composite
def writes(draw: st.DrawFn) -> list[Write]:
    """Draw writes of one topic. Only the first may have deleted records."""
    found: list[Write] = []
    for _ in range(draw(st.integers(1, 6))):
        records = draw(RECORDS)
        skip = draw(st.integers(0, len(records) - 1)) if not found else 0
        key = draw(st.sampled_from([None, "k1", "ké"]))
        found.append(Write(records, draw(TEXTS), key, skip, 1_748_450_000_000 + 5 * len(found)))
    return found


def source(
    topic_id: int, first_seq: int, batch: Iterable[Write]
) -> tuple[ExtentSource, list[RecordsView]]:
    """Return a source that begins with ``first_seq``, and a view for each write."""
    views, chunks, seq = [], [], first_seq
    for write in batch:
        view = write.view(seq - write.skip)
        views.append(view)
        chunks.append((view, write.skip, view.count))
        seq += view.count - write.skip
    return ExtentSource(topic_id, first_seq, chunks), views


def build_bytes(
    sources: Iterable[ExtentSource],
    *,
    extent_bytes: int = EXTENT_BYTES,
    extent_records: int = EXTENT_RECORDS,
) -> bytes:
    chunks = build(HEADER, sources, extent_bytes=extent_bytes, extent_records=extent_records)
    return b"".join(chunks)


def opened(data: bytes) -> tuple[Trailer, list[ExtentEntry]]:
    trailer = decode_trailer(data[-TRAILER_BYTES:], len(data))
    end = trailer.directory_at + ENTRY_BYTES * trailer.entry_count
    return trailer, [*decode_directory(data[trailer.directory_at : end])]


def extents(data: bytes) -> list[ExtentView]:
    return [ExtentView(entry, memoryview(data)) for entry in opened(data)[1]]


def plain(count: int, size: int = 20, tag: str | None = None) -> Write:
    """Return a write of equal records. ``tag`` may contain ``%d`` for the number of the record."""
    tags = [tag % number if tag is not None and "%d" in tag else tag for number in range(count)]
    return Write([(None, tags[number], b'"%b"' % (b"x" * size), None) for number in range(count)])


def model(batch: list[Write], first_seq: int) -> list[tuple[int, RecordsView, int]]:
    """Return ``(seq, write, index)`` of each record that the segment must contain."""
    _, views = source(1, first_seq, batch)
    kept = [
        (view, index)
        for write, view in zip(batch, views, strict=True)
        for index in range(write.skip, view.count)
    ]
    return [(seq, view, index) for seq, (view, index) in enumerate(kept, first_seq)]


SEGMENT_BYTES = build_bytes(
    [
        source(1, 5, [plain(3, tag="t%d"), Write([("n", None, b"1", b"{}")], key="k")])[0],
        source(2, 9, [plain(2)])[0],
    ]
)
