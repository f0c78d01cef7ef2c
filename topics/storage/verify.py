"""Verification: checks every byte of a data directory that no server is using. It changes nothing.

It compares each file with its checksums. Then it runs the read-only part of recovery for each shard
from each of its checkpoints, which finds files that contradict each other or are missing.

Bytes that a crash may leave are not reported: a torn tail of the newest log file, and unfinished
files. Files that were kept as ``NAME.damaged`` are not reported either, because the server has
already reported the damage to readers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from topics.engine.now import Now
from topics.formats.buffers import Buffer
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.extent_build import check_extent
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frames import FrameHeader, scan_frames
from topics.formats.disk.segment import (
    EXTENT_ALIGNMENT,
    HEADER_USED_BYTES,
    PAGE_BYTES,
    BadSegment,
    ExtentEntry,
    Trailer,
    decode_directory,
    decode_ends,
    padding,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, FileHeader, decode_file_header
from topics.storage import checkpoints
from topics.storage.checkpoints import Checkpoint
from topics.storage.disk import Damaged
from topics.storage.file_names import BLOB, CHECKPOINT, SEGMENT, Foreign, foreign, own_files
from topics.storage.mapped_file import CANNOT_READ, FILE_ERRORS, MappedFile
from topics.storage.recovery.log_tail import DamagedLog, synced_beyond
from topics.storage.recovery.shard_recovery import ShardReader, without_gc
from topics.storage.segments.segment_file import segment_path
from topics.storage.start_progress import StartProgress
from topics.storage.wal.blobs import check_blob
from topics.storage.wal.log_file import log_paths

INVALID_FLAGS_MAX = 10  # maximum number of invalid flags that are reported per extent
SECTOR_BYTES = 512  # the unit in which a punched hole becomes zeros
_ZEROS = bytes(1 << 20)


class Finding(NamedTuple):
    """Damage: bytes that differ from the bytes that were written."""

    path: Path
    offset: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, offset {self.offset}: {self.reason}"


def verify_directory(data_dir: Path, shards: int) -> Iterator[Finding | Foreign | Path]:
    """Yield the findings in every file of a data directory, and each path that has been checked.

    Also yield foreign names, which do not count as damage.
    """
    yield from foreign(data_dir, shards)
    for shard in range(shards):
        yield from _verify_shard(data_dir, shard, shards)


def _verify_shard(data_dir: Path, shard: int, shards: int) -> Iterator[Finding | Path]:
    """Check each file of a shard, then check a recovery of the shard from each checkpoint."""
    wal, checkpoint, segment, blobs = (
        data_dir / part / f"{shard:02d}" for part in ("wal", "checkpoint", "segment", "blob")
    )
    intact: list[Checkpoint] = []
    with contextlib.suppress(Damaged):
        # A crash may leave a third checkpoint, whose files may have been removed.
        intact = checkpoints.intact_checkpoints(checkpoint)[: checkpoints.CHECKPOINTS_KEPT]
    logs = log_paths(wal, shard)
    # Startup never replays frames below this LSN.
    needed = min((each.replay_from for each in intact), default=0)
    damaged: set[Path] = set()
    for paths, verify in (
        (logs, partial(verify_log, needed=needed)),
        (own_files(checkpoint, CHECKPOINT), verify_checkpoint),
        (own_files(segment, SEGMENT), partial(verify_segment, shard=shard)),
        (own_files(blobs, BLOB), verify_blob),
    ):
        for path in paths:
            for finding in verify(path):
                damaged.add(finding.path)
                yield finding
            yield path
    # Start from each checkpoint, because the older one must be usable if the newest is damaged.
    for age in range(max(len(intact), 1)):
        refusal = _refusal(data_dir, shard, shards, age)
        # Damage that follows from a damaged log file was reported with that file.
        if refusal is not None and damaged.isdisjoint(
            logs if isinstance(refusal, DamagedLog) else (refusal.path,)
        ):
            damaged.add(refusal.path)
            yield Finding(refusal.path, refusal.offset, refusal.reason)


@without_gc()
def _refusal(data_dir: Path, shard: int, shards: int, age: int) -> Damaged | None:
    """Return the damage that would prevent startup from the newest checkpoint, or None.

    ``age`` 1 selects the checkpoint before the newest.
    """
    reader = None
    try:
        reader = ShardReader(data_dir, shard, shards, StartProgress(lambda _: None), age=age)
        reader.open_log(writable=False)
        reader.read(Now(0, 0), trusts_stop=False)
    except Damaged as damage:
        return damage
    finally:
        if reader is not None:
            reader.close()
    return None


def verify_log(path: Path, needed: int = 0) -> Iterator[Finding]:
    """Yield the findings in one log file.

    Damage below the LSN ``needed`` is not reported, because startup does not need these frames.
    """
    data, unreadable = read_file(path)
    yield from unreadable
    try:
        header = decode_file_header(data[:FILE_HEADER_BYTES])
    except BadHeader as error:
        yield Finding(path, 0, str(error))
        return
    end = header.base
    for frame in frames(data, header):
        end = frame.end
    # If a later frame states that this position was synced, the damage is not a torn tail.
    later = synced_beyond(data, header.base, header.seed, end)
    if later is not None and end >= needed:
        reason = f"damaged frame that was synced, according to the frame at offset {later}"
        yield Finding(path, FILE_HEADER_BYTES + end - header.base, reason)


def frames(data: memoryview, header: FileHeader) -> Iterator[FrameHeader]:
    """Yield the headers of the intact frames of a log file, up to the first damaged frame."""
    return scan_frames(data, FILE_HEADER_BYTES, header.base, header.seed)


def verify_checkpoint(path: Path) -> Iterator[Finding]:
    """Yield the findings in one checkpoint file."""
    try:
        if not checkpoints.is_intact(path):
            yield Finding(path, 0, "is not a complete checkpoint")
    except Damaged as damage:
        yield Finding(path, damage.offset, damage.reason)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        yield Finding(path, 0, CANNOT_READ)


def verify_segment(path: Path, shard: int | None = None) -> Iterator[Finding]:
    """Check all checksums and invariants of one segment file, and yield the findings.

    ``shard`` is the shard that the segment must belong to.
    """
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
    entries = [*decode_directory(directory)]
    # Checksums are only checked if all parts are at the expected offsets.
    misplaced = [*_misplaced(data, trailer, entries)]
    found = misplaced or chain.from_iterable(_extent_findings(data, entry) for entry in entries)
    yield from (Finding(path, offset, reason) for offset, reason in found)


def _misplaced(
    data: memoryview, trailer: Trailer, entries: list[ExtentEntry]
) -> Iterator[tuple[int, str]]:
    """Yield offset and reason for each misplaced part, and for nonzero bytes between parts."""
    # The parts of a segment follow each other without gaps, except for alignment.
    at, flags_at = HEADER_USED_BYTES, trailer.flags_at
    for begin, end, alignment in _parts(trailer, entries):
        if begin != at + padding(at, alignment):
            yield begin, "this part does not start at the end of the previous part"
        elif not is_zero(data[at:begin]):
            yield at, "bytes between two parts are not zero"
        at = end
    for entry in entries:
        if entry.flags_at != flags_at or not entry.record_count:
            yield entry.offset, "the delete flags of the extent are at the wrong offset"
        flags_at += entry.record_count
    if flags_at != trailer.flags_at + trailer.record_count:
        yield trailer.flags_at, "the numbers of delete flags and records differ"


def _parts(trailer: Trailer, entries: list[ExtentEntry]) -> Iterator[tuple[int, int, int]]:
    """Yield begin, end and alignment of all parts after the header, in the order of the file."""
    alignment = PAGE_BYTES
    for entry in entries:
        yield entry.offset, entry.offset + entry.blob_bytes, alignment
        yield entry.tables_at, entry.offset + entry.length, 8
        # The first extent is aligned to a page, and the others are aligned to a smaller unit.
        alignment = EXTENT_ALIGNMENT
    yield trailer.flags_at, trailer.flags_at + trailer.record_count, PAGE_BYTES
    yield trailer.directory_at, trailer.file_length, PAGE_BYTES


def _extent_findings(data: memoryview, entry: ExtentEntry) -> Iterator[tuple[int, str]]:
    """Yield offset and reason for each invalid delete flag and each damaged part of an extent."""
    flags = data[entry.flags_at : entry.flags_at + entry.record_count]
    invalid = ((at, flag) for at, flag in enumerate(flags, entry.flags_at) if flag > 1)
    for at, flag in islice(invalid, INVALID_FLAGS_MAX):
        yield at, f"invalid delete flag {flag}, treated as 0"
    # The bytes of a punched extent are zeros, so its checksums do not match.
    if is_punched(entry, data):
        return
    try:
        view = ExtentView(entry, data)
    except BadSegment as error:
        yield error.offset, error.reason
        return
    if entry.keys_len != view.keys_len:
        yield entry.offset, "the directory and the tables differ in the length of the keys"
    yield from check_extent(view)


def is_punched(entry: ExtentEntry, data: memoryview) -> bool:
    """Return whether the space of the extent was released after all its records were deleted.

    A power loss during the release may leave some blocks, which the next startup releases.
    """
    flags = bytes(data[entry.flags_at : entry.flags_at + entry.record_count])
    pages, end = entry.pages, entry.offset + entry.length
    # A power loss may have kept some blocks, so one zeroed sector is sufficient.
    return flags.count(1) == len(flags) and any(
        is_zero(data[at : min(at + SECTOR_BYTES, pages.stop, end)])
        for at in range(pages.start, min(pages.stop, end), SECTOR_BYTES)
    )


def verify_blob(path: Path) -> Iterator[Finding]:
    """Yield a finding if a blob file is damaged or does not contain the write in its name."""
    try:
        check_blob(path)
    except BadBlob as error:
        yield Finding(path, error.offset, f"blob {error}")


def read_file(path: Path) -> tuple[memoryview, list[Finding]]:
    """Return all bytes of a file, with zeros in unreadable pages, and a finding for each such page.

    Raise OSError.
    """
    data, bad = MappedFile.of(path).salvage()
    return data, [Finding(path, at, CANNOT_READ) for at in bad]


def is_zero(data: Buffer) -> bool:
    """Return whether all bytes are zeros."""
    return all(
        data[start : start + len(_ZEROS)] == _ZEROS[: len(data) - start]
        for start in range(0, len(data), len(_ZEROS))
    )
