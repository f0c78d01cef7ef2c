"""Building of segments: encodes records as the bytes of a segment file (layout: ``segment.py``).

    header -> extents, each from `ExtentBuilder` -> delete flags -> directory -> trailer

The bytes are produced in chunks. Each chunk takes less than a millisecond, so the caller can do
other work between two chunks. This module does not access files or clocks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.extent_build import ExtentBuilder, ViewSlice, ViewSlices
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    EXTENT_ALIGNMENT,
    HEADER_BYTES,
    TRAILER_BYTES,
    ExtentEntry,
    SegmentHeader,
    Trailer,
    encode_entry,
    encode_header,
    encode_trailer,
    padding,
)

# The maximum size of an extent. A topic with more records gets several extents, because every read
# from an extent must first read and check all of its tables.
EXTENT_BYTES = 64 << 20
EXTENT_RECORDS = 1 << 16
STEP_EXTENTS = 256  # the maximum number of extents whose flags or entries are encoded in one step
STEP_FLAGS = 1024  # A step ends after an extent with more flags than this.


class ExtentSource(NamedTuple):
    """Records of one topic with contiguous seqs from ``first_seq``, in contiguous ranges."""

    topic_id: int
    first_seq: int
    slices: Iterable[ViewSlice]


DeleteFlags = Callable[[int, int, int], Buffer | None]
"""Returns the delete flags of records, given ``topic_id, first_seq, count``. None: all are live."""


def _all_live(_topic_id: int, _first_seq: int, _count: int) -> Buffer | None:
    return None


def build(
    header: SegmentHeader,
    sources: Iterable[ExtentSource],
    delete_flags: DeleteFlags = _all_live,
    *,
    extent_bytes: int = EXTENT_BYTES,
    extent_records: int = EXTENT_RECORDS,
) -> Iterator[bytes]:
    """Yield the bytes of the file in chunks, some of which are empty.

    The sources and their record ranges are iterated one by one. ``delete_flags`` is called only
    after all records have been encoded.
    """
    yield encode_header(header)
    at = HEADER_BYTES
    entries: list[ExtentEntry] = []
    for source in sources:
        seq, slices = source.first_seq, ViewSlices(source.slices)
        if slices.head is None:
            yield b""  # Reading a source without records also counts as a step.
        while slices.head is not None:
            extent = ExtentBuilder(seq, extent_bytes, extent_records)
            entry = yield from _extent(extent, slices, source.topic_id, at)
            entries.append(entry)
            pad = padding(entry.length, EXTENT_ALIGNMENT)
            yield bytes(pad)
            at += entry.length + pad
            seq += entry.record_count
    yield bytes(padding(at))
    at += padding(at)
    yield from _ending(entries, at, delete_flags)


def _extent(
    extent: ExtentBuilder, slices: ViewSlices, topic_id: int, at: int
) -> Generator[bytes, None, ExtentEntry]:
    """Yield the bytes of an extent at offset ``at``. Returns its entry, without ``flags_at``."""
    while slices.head is not None and not extent.full:
        yield extent.take(slices)
    yield bytes(padding(extent.size, 8))
    tables_len = crc = 0
    for part in extent.tables():
        tables_len += len(part)
        crc = crc32c.crc32c(part, crc)
        yield part
    length = extent.size + padding(extent.size, 8) + tables_len
    return ExtentEntry(
        topic_id=topic_id,
        first_seq=extent.first_seq,
        offset=at,
        length=length,
        flags_at=0,  # set when all extents are built
        first_ts=extent.first_ts,
        last_ts=extent.last_ts,
        record_count=extent.count,
        blob_bytes=extent.size,
        tables_len=tables_len,
        tables_crc=crc,
        flags=extent.flags,
        keys_len=extent.keys_len,
    )


def _ending(
    entries: list[ExtentEntry], flags_at: int, delete_flags: DeleteFlags
) -> Iterator[bytes]:
    """Yield the delete flags, the directory and the trailer."""
    record_count = 0
    flags: list[Buffer] = []
    for index, entry in enumerate(entries):
        count = entry.record_count
        flags.append(delete_flags(entry.topic_id, entry.first_seq, count) or bytes(count))
        assert len(flags[-1]) == count, "one flag for each record"
        entries[index] = entry._replace(flags_at=flags_at + record_count)
        record_count += count
        if len(flags) == STEP_EXTENTS or count > STEP_FLAGS:
            yield b"".join(flags)
            flags = []
    yield b"".join((*flags, bytes(padding(record_count))))
    crc = 0
    for start in range(0, len(entries), STEP_EXTENTS):
        part = b"".join(map(encode_entry, entries[start : start + STEP_EXTENTS]))
        crc = crc32c.crc32c(part, crc)
        yield part
    directory_at = flags_at + record_count + padding(record_count)
    file_length = directory_at + ENTRY_BYTES * len(entries) + TRAILER_BYTES
    yield encode_trailer(
        Trailer(directory_at, flags_at, record_count, file_length, len(entries), crc)
    )
