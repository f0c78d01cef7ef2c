"""Verifies a file of the log: its header, its frames, and how it follows on the file before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from topics.formats.disk import linked_copies
from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    FrameKind,
    header_at,
    scan_frames,
)
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.wal import (
    FILE_HEADER_BYTES,
    BadHeader,
    FileHeader,
    decode_file_header,
)
from topics.storage.disk import Damaged
from topics.storage.linked import LinkedPayloads
from topics.storage.recovery.tail import synced_beyond
from topics.storage.verify.finding import Finding, read_file
from topics.storage.wal.file import RESERVE, SPARE, log_name


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
