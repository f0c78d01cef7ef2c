"""Verification: every byte of a data directory, without a server and without a change.

Bytes that a crash may leave are no finding: a torn tail of the newest log file, files that were
being written. Neither are files that were kept as damaged: readers are told of what was in them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from topics.formats.buffers import Buffer
from topics.formats.disk import blob, linked_copies
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.checkpoint import HEADER_BYTES as CHECKPOINT_HEADER_BYTES
from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameKind,
    header_at,
    scan_frames,
)
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    HEADER_BYTES,
    BadSegment,
    ExtentEntry,
    SegmentHeader,
    Trailer,
    decode_directory,
    decode_ends,
    padding,
)
from topics.formats.disk.segment_check import check_extent
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, FileHeader, decode_file_header
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.linked import LinkedPayloads
from topics.storage.mapped_file import CANNOT_READ, FILE_ERRORS, MappedFile
from topics.storage.recovery.tail import synced_beyond
from topics.storage.segments.file import SUFFIX as SEGMENT_SUFFIX
from topics.storage.segments.file import segment_path
from topics.storage.wal.blobs import SUFFIX as BLOB_SUFFIX
from topics.storage.wal.file import RESERVE, SPARE, log_name, log_paths

STRANGE_FLAGS_MAX = 10  # told one by one for each extent
_ZEROS = bytes(1 << 20)


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
        yield from ShardCheck(data_dir, shard).run()


class ShardCheck:
    """The files of one shard. What the log says is compared with the files beside it."""

    def __init__(self, data_dir: Path, shard: int) -> None:
        self._shard = shard
        self._wal, self._checkpoint, self._segment, self._blob = (
            data_dir / part / f"{shard:02d}" for part in ("wal", "checkpoint", "segment", "blob")
        )
        self._log_end = 0
        self._blobs_wanted: set[tuple[int, int]] = set()
        self._linked = LinkedPayloads(data_dir, shard)

    def run(self) -> Iterator[Finding | Path]:
        """Findings; each path when it has been looked at."""
        standing = standing_checkpoints(self._checkpoint)
        needed = min((checkpoint.replay_from for checkpoint in standing.values()), default=0)
        yield from self._verify_log(needed)
        yield from self._verify_checkpoints(standing)
        for path in sorted(self._segment.glob(f"*{SEGMENT_SUFFIX}")):
            yield from verify_segment(path, self._shard)
            yield path
        yield from self._verify_blobs()

    def _verify_log(self, needed: int) -> Iterator[Finding | Path]:
        """``needed``: a start replays the log from this LSN on."""
        end: int | None = None
        paths = log_paths(self._wal, self._shard)
        for path in paths:
            log = LogCheck(path, self._shard, self._linked, needed)
            yield from log.run(begins_at=end, last=path is paths[-1])
            if path is paths[0] and log.base > needed:
                reason = (
                    f"the log begins at {log.base:#x}, and a start needs it from {needed:#x} on"
                )
                yield Finding(path, 0, reason)
            self._blobs_wanted = (self._blobs_wanted | log.blobs) - {
                named for named in self._blobs_wanted if named[0] in log.deleted
            }
            end = log.end
            yield path
        self._log_end = end or 0

    def _verify_checkpoints(self, standing: Mapping[Path, Checkpoint]) -> Iterator[Finding | Path]:
        for path in sorted(self._checkpoint.glob(f"*{checkpoints.SUFFIX}")):
            yield from verify_checkpoint(path)
            if path in standing:
                yield from unfounded(path, standing[path], self._log_end, self._segment)
            yield path

    def _verify_blobs(self) -> Iterator[Finding | Path]:
        for path in sorted(self._blob.glob(f"*{BLOB_SUFFIX}")):
            yield from verify_blob(path)
            yield path
        for topic_id, first_seq in sorted(self._blobs_wanted):
            path = self._blob / f"{topic_id:x}-{first_seq:x}{BLOB_SUFFIX}"
            if not path.exists():
                yield Finding(path, 0, "blob named by the log is missing")


# The log


class LogCheck:
    """One log file. Afterwards: its ``base`` and ``end``, the ``blobs`` that its frames name, the
    topics that are ``deleted`` by it.

    Records of frames below ``needed`` are in segments: blobs that these name, and what copies of
    version 0.1 are read from (``linked``), may be gone.
    """

    def __init__(self, path: Path, shard: int, linked: LinkedPayloads, needed: int = 0) -> None:
        self.path, self._shard, self._linked, self._needed = path, shard, linked, needed
        self.base = 0
        self.end: int | None = None
        self.blobs: set[tuple[int, int]] = set()
        self.deleted: set[int] = set()

    def run(self, *, begins_at: int | None, last: bool) -> Iterator[Finding]:
        """Findings. ``begins_at``: where the log before it ends. The ``last`` file may have a torn
        tail.
        """
        data, unreadable = read_file(self.path)
        yield from unreadable
        try:
            header = decode_file_header(data[:FILE_HEADER_BYTES])
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
            yield Finding(self.path, 12, f"belongs to shard {header.shard}, LSN {header.base:#x}")
        if begins_at not in (None, header.base) and header.base > self._needed:
            yield Finding(
                self.path,
                0,
                f"the log before it ends at {begins_at:#x}: a file between is missing or cut",
            )
        offset = FILE_HEADER_BYTES
        for frame in frames(data, header):
            self._note(frame)
            if frame.lsn >= self._needed:
                yield from self._check_copies(frame, data, offset)
            offset = FILE_HEADER_BYTES + frame.end - header.base
        self.end = header.base + offset - FILE_HEADER_BYTES
        if last:
            later = synced_beyond(data, header.base, header.seed, self.end)
            if later is not None:
                yield Finding(
                    self.path,
                    offset,
                    f"damaged frame; the frame at offset {later} says that it had been synced",
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

    def _check_copies(self, frame: FrameHeader, data: memoryview, offset: int) -> Iterator[Finding]:
        """What copies are read from is there."""
        body = data[offset + FRAME_HEADER_BYTES :][: frame.body_len]
        try:
            if frame.kind == FrameKind.FORWARD:
                for run in decode_forward(frame, body).runs:
                    if run.lsn and not self._has_records(data, run.lsn, frame.lsn):
                        yield Finding(self.path, offset, f"copies of no frame at {run.lsn:#x}")
            elif frame.kind == FrameKind.ROUTER:
                for shard, run in linked_copies.decode(frame, body).rows:
                    self._linked.payload(shard, run.lsn)
        except BadCopies as error:
            yield Finding(self.path, offset, str(error))
        except Damaged as damage:
            yield Finding(damage.path, damage.offset, damage.reason)

    def _has_records(self, data: memoryview, lsn: int, before: int) -> bool:
        """Whether a frame with records is at ``lsn`` of this file, ``before`` another frame."""
        if not self.base <= lsn < before:
            return False
        header = header_at(data, FILE_HEADER_BYTES + lsn - self.base)
        return header.lsn == lsn and header.kind in (FrameKind.APPEND, FrameKind.FORWARD)


def frames(data: memoryview, header: FileHeader) -> Iterator[FrameHeader]:
    """Headers of the whole frames of a log file, up to the first that is not."""
    return scan_frames(data, FILE_HEADER_BYTES, header.base, header.seed)


# Checkpoints


def verify_checkpoint(path: Path) -> Iterator[Finding]:
    """A checkpoint file, for itself."""
    try:
        checkpoint = checkpoints.read(path)
    except checkpoints.UnreadableVersion as error:
        yield Finding(path, 8, str(error))
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        yield Finding(path, 0, CANNOT_READ)
    else:
        if checkpoint is None:
            yield Finding(path, 0, "is not a whole checkpoint")


def standing_checkpoints(folder: Path) -> dict[Path, Checkpoint]:
    """The whole ones of the checkpoints that are kept.

    A crash may leave one more: files that it needs may be gone.
    """
    found = {}
    for path in sorted(folder.glob(f"*{checkpoints.SUFFIX}"))[-checkpoints.KEEP :]:
        with contextlib.suppress(checkpoints.UnreadableVersion, OSError):
            checkpoint = checkpoints.read(path)
            if checkpoint is not None:
                found[path] = checkpoint
    return found


def unfounded(path: Path, checkpoint: Checkpoint, end: int, segments: Path) -> Iterator[Finding]:
    """What a whole checkpoint says that other files contradict. ``end``: of the log."""
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
                CHECKPOINT_HEADER_BYTES,
                f"names segment {number:#x}, which is missing",
            )


# Segments


def verify_segment(path: Path, shard: int | None = None) -> Iterator[Finding]:
    """Every checksum and everything that must hold. ``shard``: of which it should be."""
    data, unreadable = read_file(path)
    yield from unreadable
    try:
        header, trailer, directory = decode_ends(
            lambda offset, length: data[offset : offset + length], len(data)
        )
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


# Blobs


def verify_blob(path: Path) -> Iterator[Finding]:
    """A blob file, which must be that of the write in its name."""
    data, unreadable = read_file(path)
    if unreadable:
        yield from unreadable
        return
    try:
        topic_id, first_seq = (int(part, 16) for part in path.stem.split("-"))
        blob.check(data, topic_id, first_seq)
    except (BadBlob, ValueError) as error:
        yield Finding(path, 0, f"blob {error}")


def read_file(path: Path) -> tuple[memoryview, list[Finding]]:
    """All bytes of a file, with zeros for what cannot be read, which is a finding for each page.

    Raises OSError.
    """
    data, bad = MappedFile.of(path).salvage()
    return data, [Finding(path, at, CANNOT_READ) for at in bad]


def is_zero(data: Buffer) -> bool:
    """Whether the bytes are zeros alone."""
    return all(
        data[start : start + len(_ZEROS)] == _ZEROS[: len(data) - start]
        for start in range(0, len(data), len(_ZEROS))
    )
