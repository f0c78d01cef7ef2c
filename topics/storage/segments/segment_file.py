"""Segment file on disk (bytes: ``formats/disk/segment.py``): everything except its extents.

Opening a segment reads header, trailer, directory and delete flags, and keeps two bytes for each
extent: whether one of its records is deleted, and whether its tables were found intact. Directory
entries are read again from the file when they are needed.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    BadSegment,
    ExtentEntry,
    SegmentHeader,
    decode_directory,
    decode_ends,
    decode_entry,
)
from topics.storage.disk import AtomicFile, Damaged, check_space, punch_hole, write_all, write_back
from topics.storage.mapped_file import read_at

SUFFIX = ".seg"
FINDINGS_MAX = 100


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment file."""
    return folder / f"{number:010x}{SUFFIX}"


class Segment:
    """An intact segment file. ``on_damage`` is called for damage that is found after the file was
    opened.
    """

    def __init__(self, path: Path, shard: int, number: int) -> None:
        """Read header, trailer and delete flags. Raise `Damaged`."""
        self.path, self.number = path, number
        self.on_damage: Callable[[Damaged], None] = lambda _: None
        self.findings: list[str] = []  # invalid delete flags; their records are live
        try:
            with path.open("rb") as file:
                fd = file.fileno()
                self.header, self.trailer, directory = decode_ends(
                    lambda offset, length: read_at(path, fd, length, offset), os.fstat(fd).st_size
                )
                flags = read_at(path, fd, self.trailer.record_count, self.trailer.flags_at)
        except FileNotFoundError as error:
            raise Damaged(path, 0, "segment of the checkpoint is missing") from error
        except BadSegment as error:
            raise Damaged(path, error.offset, f"segment {error.reason}") from error
        if (self.header.shard, self.header.number) != (shard, number):
            owner = f"shard {self.header.shard}, number {self.header.number}"
            raise Damaged(path, 0, f"belongs to {owner}")
        self.size = self.trailer.file_length
        self.has_deleted = bytearray(self.trailer.entry_count)
        # Extents whose tables were found intact. They are not checked again, because a delete reads
        # all extents of a topic.
        self.checked = bytearray(self.trailer.entry_count)
        # If no flag is set, the directory need not be decoded.
        if flags.count(0) != len(flags):
            self._note_flags(directory, flags)

    def _note_flags(self, directory: Buffer, flags: bytes) -> None:
        """Set `has_deleted` for each extent, and collect invalid flags."""
        for extent, entry in enumerate(decode_directory(directory)):
            start = entry.flags_at - self.trailer.flags_at
            part = flags[start : start + entry.record_count]
            self.has_deleted[extent] = 1 in part
            # Any value other than 0 or 1 is reported, and the record counts as live.
            if part.translate(None, b"\0\1"):
                self.findings += [
                    f"{self.path}, offset {entry.flags_at + index}: delete flag {flag}"
                    for index, flag in enumerate(part)
                    if flag > 1
                ]
        del self.findings[FINDINGS_MAX:]

    def damaged(self, offset: int, reason: str) -> Exception:
        """Report damage to `on_damage`, and return the error for the reader to raise."""
        damage = Damaged(self.path, offset, reason)
        self.on_damage(damage)
        return damage

    def check_tables(self) -> None:
        """Check all tables now, so that the first delete by tag does not need to check them.

        May run in a thread. Raise `Damaged`.
        """
        with self.path.open("rb") as file:
            for extent, entry in enumerate(self.entries()):
                tables = read_at(self.path, file.fileno(), entry.tables_len, entry.tables_at)
                if crc32c.crc32c(tables) != entry.tables_crc:
                    raise self.damaged(entry.tables_at, "the tables of the extent are damaged")
                self.checked[extent] = 1

    # The directory

    def entries(self) -> Iterator[ExtentEntry]:
        """Return all extents, read from the file."""
        length = ENTRY_BYTES * self.trailer.entry_count
        with self.path.open("rb") as file:
            at = self.trailer.directory_at
            return decode_directory(read_at(self.path, file.fileno(), length, at))

    def entry_offset(self, extent: int) -> int:
        """Return the offset of the extent's directory entry in the file."""
        return self.trailer.directory_at + ENTRY_BYTES * extent

    def entry(self, fd: int, extent: int) -> ExtentEntry:
        """Return one extent's directory entry, read from the open file. Raise `Damaged`."""
        at = self.entry_offset(extent)
        data = read_at(self.path, fd, ENTRY_BYTES, at)
        if len(data) < ENTRY_BYTES:
            raise self.damaged(at, "the segment is truncated")
        return decode_entry(data)

    @contextlib.contextmanager
    def opened(self) -> Iterator[int]:
        """Open the file to read and write flags, and yield its descriptor. Raise OSError."""
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    # Releasing space

    def unpunched(self, used: Set[int]) -> list[int]:
        """Return the extents that are not in ``used`` and whose space can be released."""
        if len(used) == self.trailer.entry_count:
            return []
        with self.path.open("rb") as file:
            return [
                extent
                for extent, entry in enumerate(self.entries())
                if extent not in used and not _is_hole(file.fileno(), entry.pages)
            ]

    def punch(self, fd: int, extents: Sequence[int]) -> None:
        """Set all delete flags of these extents durably, and release their space. Raise OSError.

        Pages that they share with other extents are kept. A later merge releases them.
        """
        holes: list[range] = []
        for extent in extents:
            entry = self.entry(fd, extent)
            if pages := entry.pages:
                write_all(fd, [b"\1" * entry.record_count], entry.flags_at)
                self.has_deleted[extent] = 1
                self.checked[extent] = 0
                holes.append(pages)
        if holes:
            os.fdatasync(fd)
        for pages in holes:
            punch_hole(fd, pages.start, len(pages))


def _is_hole(fd: int, pages: range) -> bool:
    """Return whether these pages of the file are a hole, or empty."""
    try:
        return not pages or os.lseek(fd, pages.start, os.SEEK_DATA) >= pages.stop
    except OSError as error:
        return error.errno == errno.ENXIO  # ENXIO: the file has no data up to its end


class SegmentWriter:
    """Writes a new segment.

    Call `write` with the buffers that ``segment_build.build`` yields, then `finish`. Each call must
    run in a thread. The file has a temporary name until it is complete and durable. The data of
    each `write` is written back to the disk immediately.
    """

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        """Create the temporary file. Raise OSError."""
        self.header = header
        self._file = AtomicFile(segment_path(folder, header.number), ".tmp")
        self._offset = 0

    def write(self, chunks: Sequence[Buffer]) -> None:
        """Append to the file. Raise OSError."""
        begin, length = self._offset, sum(map(len, chunks))
        self._offset += length
        # A write that fails halfway would use the remaining space of the disk.
        check_space(self._file.path.parent, length)
        write_all(self._file.fd, chunks, begin)
        write_back(self._file.fd, begin, length)

    def finish(self) -> Segment:
        """Make the file durable under its name. Then open it and check all its tables.

        If this raises OSError or `Damaged`, the caller must call `abandon`.
        """
        self._file.publish()
        segment = Segment(self._file.path, self.header.shard, self.header.number)
        segment.check_tables()
        return segment

    def abandon(self) -> None:
        """Remove the file."""
        self._file.abandon()
