"""Verifies a segment: every checksum, and everything that must hold between its parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    BadSegment,
    ExtentEntry,
    SegmentHeader,
    Trailer,
    check_directory,
    decode_directory,
    decode_header,
    decode_trailer,
    padding,
)
from topics.formats.disk.segment_check import check_extent
from topics.storage.disk import mapped
from topics.storage.segments.file import segment_path
from topics.storage.verify.finding import Finding, is_zero

STRANGE_FLAGS_MAX = 10  # told one by one for each extent


def verify_segment(path: Path, shard: int | None = None) -> Iterator[Finding]:
    """Every checksum and everything that must hold. ``shard``: of which it should be."""
    data = mapped(path)
    try:
        header = decode_header(data[:HEADER_BYTES])
        trailer = decode_trailer(data[-TRAILER_BYTES:], len(data))
        directory = data[
            trailer.directory_at : trailer.directory_at + ENTRY_BYTES * trailer.entry_count
        ]
        check_directory(directory, trailer)
    except BadSegment as error:
        yield Finding(path, error.offset, error.reason)
        return
    if (shard not in (None, header.shard)) or segment_path(
        path.parent, header.number
    ).name != path.name:
        yield Finding(path, 12, f"belongs to shard {header.shard}, number {header.number}")
    if not is_zero(data[44:HEADER_BYTES]):
        yield Finding(path, 44, "bytes behind the header are not zero")
    entries = [*decode_directory(directory)]
    misplaced = [*_misplaced(entries, header, trailer)]
    yield from (
        Finding(path, trailer.directory_at + ENTRY_BYTES * index, reason)
        for index, reason in misplaced
    )
    if misplaced:
        return
    for entry in entries:
        yield from (
            Finding(path, offset, reason)
            for offset, reason in _extent_findings(data, header, entry)
        )
    extents_end = max((entry.offset + entry.length for entry in entries), default=HEADER_BYTES)
    flags_end = trailer.flags_at + trailer.record_count
    for start, stop, name in (
        (extents_end, trailer.flags_at, "extents"),
        (flags_end, trailer.directory_at, "delete flags"),
    ):
        if not is_zero(data[start:stop]):
            yield Finding(path, start, f"bytes behind the {name} are not zero")


def _misplaced(
    entries: list[ExtentEntry], header: SegmentHeader, trailer: Trailer
) -> Iterator[tuple[int, str]]:
    """Extents that do not follow on one another, or whose length is not that of their parts."""
    at, flags_at = HEADER_BYTES, trailer.flags_at
    for index, entry in enumerate(entries):
        if (entry.offset, entry.flags_at) != (at, flags_at):
            yield index, f"extent {index} does not begin where the one before it ends"
        if (
            entry.record_count == 0
            or entry.length != entry.blob_bytes + padding(entry.blob_bytes, 8) + entry.tables_len
        ):
            yield index, f"extent {index} has another length than its parts"
        end = entry.offset + entry.length
        at, flags_at = end + padding(end, header.extent_alignment), flags_at + entry.record_count
    if at + padding(at) != trailer.flags_at or flags_at != trailer.flags_at + trailer.record_count:
        yield len(entries), "the extents do not end where the delete flags begin"
    if trailer.directory_at != flags_at + padding(flags_at):
        yield len(entries), "the directory does not follow on the delete flags"


def _extent_findings(
    data: memoryview, header: SegmentHeader, entry: ExtentEntry
) -> Iterator[tuple[int, str]]:
    flags = bytes(data[entry.flags_at : entry.flags_at + entry.record_count])
    strange = (
        [index for index, flag in enumerate(flags) if flag > 1]
        if flags.translate(None, b"\0\1")
        else []
    )
    yield from (
        (entry.flags_at + index, f"delete flag {flags[index]}, taken for 0")
        for index in strange[:STRANGE_FLAGS_MAX]
    )
    if is_punched(header, entry, data):
        return
    blob_end, end = entry.offset + entry.blob_bytes, entry.offset + entry.length
    pad = padding(end, header.extent_alignment)
    for start, stop in ((blob_end, entry.tables_at), (end, end + pad)):
        if not is_zero(data[start:stop]):
            yield start, "bytes behind a part are not zero"
    try:
        view = ExtentView(entry, data)
    except BadSegment as error:
        yield error.offset, error.reason
        return
    if header.version > 1 and entry.keys_len != view.keys_len:
        yield entry.offset, "the directory has another length of the keys than the tables"
    yield from check_extent(view)


def is_punched(header: SegmentHeader, entry: ExtentEntry, data: memoryview) -> bool:
    """Whether the extent's room was given back, after all its records were deleted."""
    flags = bytes(data[entry.flags_at : entry.flags_at + entry.record_count])
    pages = header.pages(entry)
    return (
        flags.count(1) == len(flags)
        and len(pages) > 0
        and is_zero(data[pages.start : min(pages.stop, entry.offset + entry.length)])
    )
