"""Write-ahead log of one shard: the interface for the shard loop.

The loop encodes frames (`Wal.append`) and hands them over in groups (`Wal.flush`). `WalWriter`
writes and syncs them.

    append ... append -> flush -> write [-> fdatasync] -> Progress -> the loop commits and replies

    OK --(NoSpace)--> NO SPACE --(resume)--> short of space --(allocate_files)--> OK
     '--(a write or sync fails)--> failed, until the process restarts

Rotation: a log file is full when the next frame does not fit into it. It is also full when the
blobs and copies to which its frames refer have a total size of ``file_bytes``, the maximum size of
a log file (`spares`). Because of the second rule, blobs are sealed and their space is released even
if their frames are short. A blob cannot be deleted as soon as all its records are deleted: the log
still refers to it, and a replay could not distinguish the deleted blob from a lost one. If the disk
has no space for another file, frames continue in a file that is full because of its blobs, so that
deletes can free space.

After `NoSpace`, the contents of the log are known: the loop rolls back all unwritten changes and
calls `resume`. While the log is short of space, only groups of frames that free space may be
written. Such a group may use the reserve for a new file (``decisions/0015``). A failed log is never
written again. The next startup replays the frames that are really on the disk.
"""

from __future__ import annotations

import os
import secrets
import select
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

from topics.formats.buffers import Buffer
from topics.formats.disk.frames import (
    Frame,
    FrameHeader,
    FrameKind,
    encode_frame,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.wal import FILE_HEADER_BYTES, FileHeader
from topics.storage.folders import Check, unchecked
from topics.storage.frame_reader import FrameReader, frame_in, frame_lsn
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.groups import WalGroup
from topics.storage.wal.log_file import NoSpace, WalFile
from topics.storage.wal.log_progress import LogProgress
from topics.storage.wal.writer import WalWriter

HEARTBEAT_MS, HEARTBEATS_MAX = 500, 20  # used by `Wal.wait_synced`
_EXTERNAL = int(RecordFlags.EXTERNAL)
# The kinds of frames that free space. LEASE frames are not included: clients claim and extend jobs
# continually, which would use up the reserve that acks, deletes and startup need. A lease that
# cannot be released expires at its deadline. ROUTERS_GONE frames are included because deleting a
# topic deletes its routers.
SPACE_FREEING_KINDS = frozenset(
    {
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
        FrameKind.FLOOR,
        FrameKind.START,
        FrameKind.ROUTERS_GONE,
    }
)


class Wal:
    """The log of a shard, appended to from ``lsn`` on. ``files`` contain all earlier frames."""

    def __init__(
        self,
        folder: Path,
        shard: int,
        files: list[WalFile],
        lsn: int,
        *,
        blobs: BlobStore,
        frames: FrameReader,
        file_bytes: int,
        sync_ms: int,
        check: Check = unchecked,
    ) -> None:
        self.folder, self.shard, self.blobs, self.file_bytes = folder, shard, blobs, file_bytes
        self.frames = frames
        # The writer thread appends to both lists (`_opened`). The loop removes from their
        # beginning. The list of bases allows bisection without accessing the files.
        self._files = files
        self._bases = [file.base for file in files]
        self.next_lsn = lsn  # LSN of the next frame
        # Increased by `flush` and `take_progress`, and never above the frames that were reported
        # to the loop.
        self.synced_lsn = lsn
        # Set once by `take_progress`, and never reset.
        self.failed: OSError | None = None
        self._chunks: list[Buffer] = []
        # The current group: the frames that were appended since the last hand-over.
        self._start = lsn
        self._new_file = False
        self._frees_space = True  # true if the group has only frames of `SPACE_FREEING_KINDS`
        self._no_space = False  # true if a new file could not be created
        # The file of the next frame. It may not exist on disk yet, until the writer thread
        # creates it.
        self._tail: WalFile | None = files[-1] if files else None
        # Bytes that are sealed with the last file in addition to its frames: blobs, and the copies
        # that FORWARD frames render.
        self._blob_bytes = blobs.bytes_from(files[-1].base) if files else 0
        # Whether any frame may begin a new file when the blobs have filled the last one. False
        # while the disk may have no space for a new file.
        self.rotates_by_blobs = False
        # The number of times that the log was resumed after `NoSpace`. LSNs from the resume point
        # on are reused. The writer drops groups from an earlier era, because their frames were
        # rolled back.
        self._era = 0
        self.writer = WalWriter(
            *(folder, lsn, self._tail, self._opened),
            file_bytes=file_bytes,
            sync_ms=sync_ms,
            check=check,
        )
        self.progress_fd, self.counters = self.writer.progress_fd, self.writer.counters

    def _opened(self, file: WalFile) -> None:
        self._files.append(file)
        self._bases.append(file.base)

    @property
    def is_syncing(self) -> bool:
        """Whether a sync is in flight."""
        return self.writer.syncer.is_syncing()

    def check(self) -> None:
        """Stop all writing if the files no longer belong to the server's data directory."""
        self.writer.check()

    def watch_hangs(self, on_hang: Callable[[int], None]) -> None:
        """Set the function that is called if a disk call of the loop does not return.

        A thread calls ``on_hang`` with the number of the call.
        """
        self.writer.hang_watch.on_hang = on_hang

    def keep_contiguous(self, length: int) -> None:
        """Ensure that the next frames, ``length`` bytes in total, are put into one file.

        Then `NoSpace` refuses all of these frames or none. They depend on each other.
        """
        # If the frames do not fit into the current file, they begin a new one.
        if self._tail is not None and not self._tail.holds(self.next_lsn, length):
            self._begin_file(self.next_lsn, length)

    def append(self, frame: Frame) -> int:
        """Encode ``frame`` into the current group and return its LSN.

        Nothing is written before `flush`.
        """
        length, lsn = frame.length, self.next_lsn
        file = self._tail
        # A new file is needed if there is none, if the frame does not fit, or if blobs have filled
        # the file.
        if (
            file is None
            or not file.holds(lsn, length)
            or (self._blob_bytes >= self.file_bytes and self._is_full(frame))
        ):
            file = self._begin_file(lsn, length)
        # A group may use the reserve only if all of its frames free space.
        if self._frees_space and frame.kind not in SPACE_FREEING_KINDS:
            self._frees_space = False
        # Count the bytes that are sealed with this file although they are stored elsewhere.
        if frame.flags & _EXTERNAL:
            self._blob_bytes += self.blobs.length(frame.topic_id, frame.first_seq)
        elif frame.named_bytes:
            self._blob_bytes += frame.named_bytes
        # ``synced_lsn`` in the header shows a later startup how much of the log was certainly on
        # the disk when this frame was written (`decisions/0014`).
        self._chunks += encode_frame(frame, lsn, self.synced_lsn, file.seed)
        self.next_lsn = lsn + length
        self.counters.frames += 1
        return lsn

    def _is_full(self, frame: Frame) -> bool:
        """Return whether ``frame`` begins a new file if blobs have filled the last file."""
        return (
            self.rotates_by_blobs or frame.flags & _EXTERNAL > 0 or frame.kind is FrameKind.FORWARD
        )

    def end_file(self) -> None:
        """Treat the current file as full: the next frame that may begin a new file begins one.

        Forwards call this if their frame does not fit into the file whose frames it refers to.
        """
        self._blob_bytes = max(self._blob_bytes, self.file_bytes)
        self.rotates_by_blobs = True

    def may_name(self, lsn: int, length: int) -> bool:
        """Return whether a FORWARD frame of this length may refer to the frame at ``lsn``.

        This is the case if the FORWARD frame would be appended to the same log file as that frame.
        """
        tail = self._tail
        return (
            tail is not None
            and lsn >= tail.base
            and tail.holds(self.next_lsn, length)
            and self._blob_bytes < self.file_bytes
        )

    def _begin_file(self, lsn: int, length: int) -> WalFile:
        # A file is complete on disk before the next one begins.
        # Otherwise a power loss could keep the beginning of the next file and lose the end of
        # this one. Startup would then find a gap.
        self.flush(sync=True, immediate=False)
        size = max(self.writer.spares.file_bytes, FILE_HEADER_BYTES + length)
        # The random seed is part of each checksum. So frames of a file that was used before are
        # never mistaken for frames of this file.
        self._tail = WalFile(
            self.folder, FileHeader(self.shard, lsn, secrets.randbits(64), size), size
        )
        self._new_file = self.rotates_by_blobs = True
        self._blob_bytes = 0
        return self._tail

    def flush(self, *, sync: bool, immediate: bool = True) -> LogProgress | None:
        """Hand over the current group. Return the progress if the group is already written.

        With ``sync``, the replies of the group wait until it is synced. With ``immediate``, the
        caller must commit the frames that the returned progress covers. Otherwise the writer thread
        writes the group and `take_progress` returns the progress.
        """
        # Return if there is nothing to write and nothing to sync.
        if self._tail is None or not (self._chunks or (sync and self.synced_lsn < self.next_lsn)):
            return None
        # A group without frames only requests a sync.
        group = WalGroup(
            self._era,
            self._tail,
            self._start,
            self.next_lsn,
            self._chunks,
            sync,
            self._new_file,
            may_use_reserve=self._frees_space,
        )
        # The next group begins empty. The writer owns the chunks from now on.
        self._chunks, self._start, self._new_file, self._frees_space = (
            [],
            self.next_lsn,
            False,
            True,
        )
        if not immediate:
            self.writer.put(group)
            return None
        progress = self.writer.hand_over(group)
        if progress is not None:
            self.synced_lsn = max(self.synced_lsn, progress.synced)
        return progress

    def begin(self, frames: Iterable[Frame]) -> None:
        """Hand over the startup frames before all other frames. They may use the reserve."""
        # Startup frames must be written even on a nearly full disk, because nothing can be
        # acknowledged before them. So the group may use the reserve regardless of the kinds of
        # its frames.
        for frame in frames:
            self.append(frame)
        self._frees_space = True
        self.flush(sync=True, immediate=False)

    @property
    def lacks_space(self) -> bool:
        """Whether only frames that free space may be written, until `allocate_files` returns
        True."""
        return self._no_space or not self.writer.spares.has_reserve

    @property
    def lacks_files(self) -> bool:
        """Whether the disk had no space for the next file or the reserve."""
        return self.lacks_space or self.writer.spares.is_incomplete

    def allocate_files(self) -> bool:
        """Create the next file and the reserve. Return True if both exist. In that case, the log is
        no longer short of space.
        """
        found = self.writer.allocate_files()
        if found:
            self._no_space = False
        return found

    def take_progress(self) -> list[LogProgress]:
        """Return the progress since the last call, oldest first, except what `flush` returned."""
        taken = self.writer.state.take()
        for progress in taken:
            if progress.error is None:
                # The threads may report out of order.
                self.synced_lsn = max(self.synced_lsn, progress.synced)
            elif isinstance(progress.error, NoSpace):
                self._no_space = True
            else:
                self.failed = progress.error
        return taken

    def resume(self, lsn: int) -> None:
        """Continue at ``lsn``, the end of the written frames, after `NoSpace`.

        Frames that were handed over since are dropped. The next frames are appended to the last
        file while they fit, even if blobs have filled it, because deletes free space.
        """
        # The groups that are still queued belong to the old era and are dropped by the writer.
        self._era += 1
        self._chunks, self._start, self._new_file, self._frees_space = [], lsn, False, True
        self.next_lsn = lsn
        self.writer.resume(lsn)
        # A file that could not be created is not in the list, so the last file is the tail again.
        self._tail = self._files[-1] if self._files else None
        # Frames from ``lsn`` on are undone. Their blobs and cached data must no longer be found.
        self.blobs.drop_from(lsn)
        self.frames.drop_from(lsn)
        self._blob_bytes = self.blobs.bytes_from(self._tail.base) if self._tail else 0
        self.rotates_by_blobs = False

    def records(self, locator: int) -> RecordsView:
        """Return the records of a written APPEND frame or of a row in a written FORWARD frame.

        Raise `Damaged` if they cannot be read.
        """
        file = self._files[bisect_right(self._bases, locator) - 1]
        return self.frames.records(file, locator)

    def payload(self, lsn: int) -> RecordsView:
        """Return the records that an APPEND or FORWARD frame contains. Raise `Damaged`."""
        return self.frames.payload(self.file(lsn), lsn)

    def frame_at(self, locator: int) -> tuple[FrameHeader, memoryview]:
        """Return the header and the body of the frame to which ``locator`` refers.

        ``locator`` may also refer to a row of a FORWARD frame. The frame must already have been
        written, and its file must not be detached.
        """
        file = self.file(locator)
        return frame_in(file, frame_lsn(file, locator))

    def reset_checked(self) -> None:
        """Discard the results of earlier checks that mapped pages can be read.

        Pages may have been dropped from memory since they were checked.
        """
        for file in self._files:
            file.reset_checked()

    def file(self, locator: int) -> WalFile:
        """Return the file that contains a frame or row."""
        return self._files[bisect_right(self._bases, locator) - 1]

    def base_of(self, locator: int) -> int:
        """Return the base LSN of the file that contains a frame or row."""
        return self._bases[bisect_right(self._bases, locator) - 1]

    @property
    def oldest_lsn(self) -> int:
        """LSN of the oldest frame whose file the log still has."""
        return self._bases[0] if self._bases else self.next_lsn

    def full_files(self) -> list[tuple[int, int]]:
        """Return ``(base, end)`` of every full file, oldest first.

        A full file is not written any longer.
        """
        return list(pairwise(self._bases))

    def count_full_files(self, lsn: int) -> int:
        """Return the number of full files that begin at ``lsn`` or later."""
        return max(len(self._bases) - 1 - bisect_left(self._bases, lsn), 0)

    def files_between(self, lsn: int, end: int) -> list[tuple[WalFile, int]]:
        """Return the files that contain the log from ``lsn`` to ``end``, which must be written.

        Return each file with the length of its used part, which includes the file header.
        """
        # The writer thread may append to both lists, first to the list of files. So the copy of
        # the bases bounds both.
        bases = [*self._bases]
        first = max(bisect_right(bases, lsn) - 1, 0)
        files, ends = self._files[first : len(bases)], [*bases[first + 1 :], end]
        return [
            (file, file.offset(min(stop, end)))
            for file, stop in zip(files, ends, strict=True)
            if file.base < end
        ]

    def unmap_below(self, lsn: int) -> None:
        """Release the maps of log files below ``lsn``, whose records are stored in segments.

        No request reads these files. They are kept until no checkpoint needs them.
        """
        self.frames.drop_below(lsn)
        for file in self.ending_at(lsn):
            file.unmap()

    def detach(self, lsn: int) -> list[WalFile]:
        """Remove all files whose frames are all below ``lsn`` from the log and return them.

        The caller must pass them to `SpareFiles.add`.
        """
        # Locators below ``lsn`` are no longer in the index, so no reader can reach the files.
        detached = self.ending_at(lsn)
        del self._files[: len(detached)], self._bases[: len(detached)]
        self.frames.drop_below(self.oldest_lsn)
        return detached

    def ending_at(self, lsn: int) -> list[WalFile]:
        """Return all files whose frames are all below ``lsn``."""
        # The last file is never included, because frames are still appended to it.
        return self._files[: max(bisect_right(self._bases, lsn) - 1, 0)]

    def wait_synced(self, heartbeat: Callable[[], None] = lambda: None) -> None:
        """Block until all groups that were handed over are synced. For use outside an event loop.

        ``heartbeat`` is called every `HEARTBEAT_MS` while this call waits, but at most
        `HEARTBEATS_MAX` times, because a busy disk may take seconds. Raise the error that prevented
        a write or sync. After `NoSpace` the log is resumed at the end of the written frames.
        """
        poller, beats = select.poll(), 0
        poller.register(self.progress_fd, select.POLLIN)
        while self.synced_lsn < self.next_lsn:
            # The limit on heartbeats makes the supervisor notice a disk that does not respond.
            if not poller.poll(HEARTBEAT_MS if beats < HEARTBEATS_MAX else None):
                beats += 1
                heartbeat()
            self._raise_failures()

    def stop(self) -> None:
        """Write and sync all frames, then stop the threads and close the files.

        Raise the error of this last write or sync, unless the log has `failed` before.
        """
        # Order of a shutdown: all frames are written and synced, then the threads end, then the
        # files are closed.
        self.flush(sync=True, immediate=False)
        self.writer.stop()
        try:
            self._raise_failures()
        finally:
            for file in self._files:
                file.close()
            os.close(self.progress_fd)

    def _raise_failures(self) -> None:
        for progress in self.take_progress():
            if isinstance(progress.error, NoSpace):
                self.resume(progress.written)
            if progress.error is not None:
                raise progress.error
