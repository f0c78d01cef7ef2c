"""Looks at every byte of files at rest and says what is wrong. Nothing is changed, and no server is
needed.

Bytes that a crash may leave are no finding: a torn tail of the newest log file, files that were
being written.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topics.formats.buffers import Buffer
from topics.formats.disk import blob, wal
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frames import FRAME_MAGIC, FrameHeader, FrameKind, check_frame
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    BadSegment,
    ExtentEntry,
    Trailer,
    check_directory,
    decode_directory,
    decode_header,
    decode_trailer,
    padding,
)
from topics.formats.disk.segment_check import check_extent
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, FileHeader
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import DAMAGED, mapped
from topics.storage.segments.file import SUFFIX as SEGMENT_SUFFIX
from topics.storage.segments.file import segment_path
from topics.storage.wal.blobs import SUFFIX as BLOB_SUFFIX
from topics.storage.wal.file import RESERVE, SPARE, log_name, log_paths

_ZEROS = bytes(1 << 20)
KEPT = "kept aside; readers are told of what was in it"
STRANGE_FLAGS_MAX = 10  # told one by one for each extent


class Finding(NamedTuple):
    """Something that is not as it was written."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason}"


def verify_directory(data_dir: Path, shards: int) -> Iterator[Finding | Path]:
    """Findings in every file of a data directory; each path when it has been looked at."""
    for shard in range(shards):
        name = f"{shard:02d}"
        standing = _standing(data_dir / "checkpoint" / name)
        needed = min((checkpoint.replay_from for checkpoint in standing.values()), default=0)
        blobs_wanted: set[tuple[int, int]] = set()
        end: int | None = None
        paths = log_paths(data_dir / "wal" / name, shard)
        for path in paths:
            log = LogCheck(path, shard, needed)
            yield from log.run(begins_at=end, last=path is paths[-1])
            if path is paths[0] and log.base > needed:
                yield Finding(
                    path,
                    0,
                    f"the log begins at {log.base:#x}, and a start needs it from {needed:#x} on",
                )
            blobs_wanted = (blobs_wanted | log.blobs) - {
                named for named in blobs_wanted if named[0] in log.deleted
            }
            end = log.end
            yield path
        for path in sorted((data_dir / "wal" / name).glob(f"*{DAMAGED}")):
            yield from _kept_log(path)
            yield path
        for path in sorted((data_dir / "checkpoint" / name).glob("*.ckpt")):
            yield from verify_checkpoint(path)
            if path in standing:
                yield from _unfounded(path, standing[path], end or 0, data_dir / "segment" / name)
            yield path
        for path in sorted((data_dir / "segment" / name).glob(f"*{SEGMENT_SUFFIX}")):
            yield from verify_segment(path, shard)
            yield path
        folder = data_dir / "blob" / name
        for path in sorted(folder.glob(f"*{BLOB_SUFFIX}")):
            yield from verify_blob(path)
            yield path
        for path in sorted(folder.glob(f"*{DAMAGED}")):
            yield Finding(path, 0, f"damaged blob, {KEPT}")
            yield path
        for topic_id, first_seq in sorted(blobs_wanted):
            path = folder / f"{topic_id:x}-{first_seq:x}{BLOB_SUFFIX}"
            if not path.exists():
                yield Finding(path, 0, "the log speaks of it, and it is not there")


# Segments


def verify_segment(path: Path, shard: int | None = None) -> Iterator[Finding]:
    """Every checksum and everything that must hold. ``shard`` is the one that it should belong to."""
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
    if not _zeros(data[44:HEADER_BYTES]):
        yield Finding(path, 44, "the zeros behind the header are none")
    entries = [*decode_directory(directory)]
    misplaced = [*_misplaced(entries, trailer)]
    yield from (
        Finding(path, trailer.directory_at + ENTRY_BYTES * index, reason)
        for index, reason in misplaced
    )
    if misplaced:
        return
    for entry in entries:
        yield from (
            Finding(path, offset, reason) for offset, reason in _extent_findings(data, entry)
        )
    flags_end = trailer.flags_at + trailer.record_count
    if not _zeros(data[flags_end : trailer.directory_at]):
        yield Finding(path, flags_end, "the zeros behind the delete flags are none")


def _misplaced(entries: list[ExtentEntry], trailer: Trailer) -> Iterator[tuple[int, str]]:
    """Extents that do not follow on one another, or are too small for what they hold."""
    at, flags_at = HEADER_BYTES, trailer.flags_at
    for index, entry in enumerate(entries):
        if (entry.offset, entry.flags_at) != (at, flags_at):
            yield index, f"extent {index} does not stand where the one before it ends"
        if (
            entry.record_count == 0
            or entry.length != entry.blob_bytes + padding(entry.blob_bytes, 8) + entry.tables_len
        ):
            yield index, f"extent {index} has another length than its parts"
        at, flags_at = at + entry.length + padding(entry.length), flags_at + entry.record_count
    if at != trailer.flags_at or flags_at != trailer.flags_at + trailer.record_count:
        yield len(entries), "the extents do not end where the delete flags begin"
    if trailer.directory_at != flags_at + padding(flags_at):
        yield len(entries), "the directory does not follow on the delete flags"


def _extent_findings(data: memoryview, entry: ExtentEntry) -> Iterator[tuple[int, str]]:
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
    if is_punched(entry, data):
        return
    blob_end, end = entry.offset + entry.blob_bytes, entry.offset + entry.length
    for start, stop in ((blob_end, entry.tables_at), (end, end + padding(entry.length))):
        if not _zeros(data[start:stop]):
            yield start, "the zeros behind a part are none"
    try:
        view = ExtentView(entry, data)
    except BadSegment as error:
        yield error.offset, error.reason
        return
    yield from check_extent(view)


def is_punched(entry: ExtentEntry, data: memoryview) -> bool:
    """Whether the extent's room was given back: all its records were deleted before."""
    flags = bytes(data[entry.flags_at : entry.flags_at + entry.record_count])
    return flags.count(1) == len(flags) and _zeros(data[entry.offset : entry.offset + entry.length])


def _zeros(data: Buffer) -> bool:
    return all(
        data[start : start + len(_ZEROS)] == _ZEROS[: len(data) - start]
        for start in range(0, len(data), len(_ZEROS))
    )


# The log


class LogCheck:
    """One log file. Afterwards: its ``base`` and ``end``, the ``blobs`` that it speaks of, the
    topics that it says are ``deleted``.

    Blobs of frames before ``needed`` are in segments: they may have gone.
    """

    def __init__(self, path: Path, shard: int, needed: int = 0) -> None:
        self.path, self._shard, self._needed = path, shard, needed
        self.base = 0
        self.end: int | None = None
        self.blobs: set[tuple[int, int]] = set()
        self.deleted: set[int] = set()

    def run(self, *, begins_at: int | None, last: bool) -> Iterator[Finding]:
        """What is wrong with it. The log before it ends at ``begins_at``; the ``last`` file may end
        in a torn frame.
        """
        data = mapped(self.path)
        try:
            header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
        except BadHeader as error:
            yield Finding(self.path, 0, str(error))
            return
        self.base = header.base
        if len(data) < header.size:
            yield Finding(
                self.path, len(data), f"the file is cut: it was made with {header.size} bytes"
            )
        named = self.path.name == log_name(header.base) or self.path.suffix in (SPARE, RESERVE)
        if header.shard != self._shard or not named:
            yield Finding(
                self.path, 12, f"belongs to shard {header.shard}, position {header.base:#x}"
            )
        if begins_at not in (None, header.base) and header.base > self._needed:
            yield Finding(
                self.path,
                0,
                f"the log before it ends at {begins_at:#x}: a file between is missing or cut",
            )
        offset = FILE_HEADER_BYTES
        for frame in frames(data, header):
            self._note(frame)
            offset = FILE_HEADER_BYTES + frame.end - header.base
        self.end = header.base + offset - FILE_HEADER_BYTES
        if last:
            later = _synced_beyond(data, header, offset, self.end)
            if later is not None:
                yield Finding(
                    self.path,
                    offset,
                    f"damaged frame; the one at offset {later} says that it had been synced",
                )

    def _note(self, frame: FrameHeader) -> None:
        if (
            frame.kind == FrameKind.APPEND
            and frame.flags & RecordFlags.EXTERNAL
            and frame.lsn >= self._needed
        ):
            self.blobs.add((frame.topic_id, frame.first_seq))
        elif frame.kind == FrameKind.TOPIC_DELETED:
            self.deleted.add(frame.topic_id)
            self.blobs = {named for named in self.blobs if named[0] != frame.topic_id}


def _kept_log(path: Path) -> Iterator[Finding]:
    data = mapped(path)
    try:
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
    except BadHeader as error:
        yield Finding(path, 0, f"{error}, {KEPT}")
        return
    end = max((frame.end for frame in frames(data, header)), default=header.base)
    yield Finding(path, FILE_HEADER_BYTES + end - header.base, f"damaged frame, {KEPT}")


def frames(data: memoryview, header: FileHeader) -> Iterator[FrameHeader]:
    """Headers of the whole frames of a log file, up to the first that is not."""
    position = header.base
    while True:
        frame = check_frame(data, FILE_HEADER_BYTES + position - header.base, position, header.seed)
        if not isinstance(frame, FrameHeader):
            return
        yield frame
        position = frame.end


def _synced_beyond(data: memoryview, header: FileHeader, start: int, position: int) -> int | None:
    """Offset of a whole frame behind ``start`` that knows the log to be synced beyond ``position``."""
    rest = bytes(data[start:])
    at = rest.find(FRAME_MAGIC)
    while at >= 0:
        offset = start + at
        frame = check_frame(data, offset, header.base + offset - FILE_HEADER_BYTES, header.seed)
        if isinstance(frame, FrameHeader) and frame.durable_lsn > position:
            return offset
        at = rest.find(FRAME_MAGIC, at + 1)
    return None


# The others


def verify_blob(path: Path) -> Iterator[Finding]:
    """A blob file, which must be that of the write in its name."""
    try:
        topic_id, first_seq = (int(part, 16) for part in path.stem.split("-"))
        blob.check(mapped(path), topic_id, first_seq)
    except (BadBlob, ValueError) as error:
        yield Finding(path, 0, f"blob {error}")


def verify_checkpoint(path: Path) -> Iterator[Finding]:
    """A checkpoint file, for itself."""
    try:
        checkpoint = checkpoints.decode(path.read_bytes())
    except checkpoints.UnknownVersion as error:
        yield Finding(path, 8, str(error))
        return
    if checkpoint is None:
        yield Finding(path, 0, "is no whole checkpoint")


def _standing(folder: Path) -> dict[Path, Checkpoint]:
    """The whole ones of the checkpoints that are kept. A crash may leave one more: what it needs
    may be gone.
    """
    found = {}
    for path in sorted(folder.glob(f"*{checkpoints.SUFFIX}"))[-checkpoints.KEEP :]:
        with contextlib.suppress(checkpoints.UnknownVersion):
            checkpoint = checkpoints.decode(path.read_bytes())
            if checkpoint is not None:
                found[path] = checkpoint
    return found


def _unfounded(path: Path, checkpoint: Checkpoint, end: int, segments: Path) -> Iterator[Finding]:
    """What a whole checkpoint says of files that do not bear it out. ``end``: of the log."""
    if checkpoint.lsn > end:
        yield Finding(
            path,
            16,
            f"says that the log was synced to {checkpoint.lsn:#x}, and it ends at {end:#x}",
        )
    for number in checkpoint.segments:
        if not segment_path(segments, number).exists():
            yield Finding(
                path,
                checkpoints.HEADER_BYTES,
                f"speaks of segment {number:#x}, and it is not there",
            )
