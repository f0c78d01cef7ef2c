"""Write-ahead log: the log of one shard, as its loop sees it.

The loop encodes frames (`Wal.append`) and hands them over in groups (`Wal.flush`); `WalWriter`
writes and syncs them.

    append ... append -> flush -> write [-> fdatasync] -> Progress -> the loop commits and answers

    OK --(NoRoom)--> NO ROOM --(resume)--> short of room --(find_room)--> OK
     '--(a write or sync fails)--> failed, until the process starts anew

Rotation: a file is full when the next frame has no room in it, or when the blobs of its frames are
as long as ``file_bytes``, the most that a file grows to (`spares`). So blobs are sealed and their
room is given back, however short their frames are. A blob cannot go as soon as nothing in it lives:
the log still names it, and a replay could not tell that from damage. Without room for another file,
frames go on into the one that blobs have filled: deletes make room.

After `NoRoom` nothing is in doubt: the loop undoes what waited and calls `resume`. While the log is
short of room, only groups of frames that make room may be written; such a group may begin the
reserve (``decisions/0015``). A failed log is never written again: the next start replays what the
disk really holds.
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
from topics.storage.wal.file import NoRoom, WalFile
from topics.storage.wal.groups import WalGroup
from topics.storage.wal.progress import Progress
from topics.storage.wal.writer import WalWriter

BEAT_MS, BEATS_MAX = 500, 20
_EXTERNAL = int(RecordFlags.EXTERNAL)
# LEASE frames do not: jobs are claimed and extended without end, and that would use up the reserve,
# which acks, deletes and starts need. A lease that cannot be released ends at its deadline.
# ROUTERS_GONE frames do: a topic goes with its routers.
MAKE_ROOM = frozenset(
    {
        FrameKind.DELETE,
        FrameKind.TOPIC_DELETED,
        FrameKind.FLOOR,
        FrameKind.START,
        FrameKind.ROUTERS_GONE,
    }
)


class Wal:
    """The log from ``lsn`` on; ``files`` hold everything before it."""

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
        self._files = files
        self._bases = [file.base for file in files]
        self.next_lsn = lsn  # where the next frame goes
        self.synced_lsn = lsn
        self.failed: OSError | None = None
        self._pieces: list[Buffer] = []
        # The group under way.
        self._start = lsn
        self._new_file = False
        self._makes_room = True  # it has no other frames
        self._no_room = False  # `NoRoom` was met
        self._tail: WalFile | None = files[-1] if files else None
        # Bytes elsewhere that the frames of the tail name.
        self._blob_bytes = blobs.bytes_from(files[-1].base) if files else 0
        # Any frame may begin a new file because of blobs; not while there may be no room for it.
        self.rotates_by_blobs = False
        # How often the log went on after `NoRoom`, from an LSN below those given out before.
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
        """A sync is under way."""
        return self.writer.syncer.is_syncing()

    def check(self) -> None:
        """Stop all writing if the files no longer belong to the server's data directory."""
        self.writer.check()

    def watch_hangs(self, on_hang: Callable[[int], None]) -> None:
        """Have ``on_hang`` called by a thread, with the number of a disk call of the loop that does
        not return.
        """
        self.writer.hang_watch.on_hang = on_hang

    def hold_together(self, length: int) -> None:
        """Let the next frames, ``length`` bytes in all, go into one file.

        `NoRoom` does not tear them apart: one of them makes no sense without the others.
        """
        if self._tail is not None and not self._tail.holds(self.next_lsn, length):
            self._begin_file(self.next_lsn, length)

    def append(self, frame: Frame) -> int:
        """Encode ``frame`` into the group under way, and return its LSN.

        Nothing is written before `flush`.
        """
        length, lsn = frame.length, self.next_lsn
        file = self._tail
        if (
            file is None
            or not file.holds(lsn, length)
            or (self._blob_bytes >= self.file_bytes and self._is_full(frame))
        ):
            file = self._begin_file(lsn, length)
        if self._makes_room and frame.kind not in MAKE_ROOM:
            self._makes_room = False
        if frame.flags & _EXTERNAL:
            self._blob_bytes += self.blobs.length(frame.topic_id, frame.first_seq)
        elif frame.named_bytes:
            self._blob_bytes += frame.named_bytes
        self._pieces += encode_frame(frame, lsn, self.synced_lsn, file.seed)
        self.next_lsn = lsn + length
        self.counters.frames += 1
        return lsn

    def _is_full(self, frame: Frame) -> bool:
        return (
            self.rotates_by_blobs or frame.flags & _EXTERNAL > 0 or frame.kind is FrameKind.FORWARD
        )

    def end_file(self) -> None:
        """Let the next frame that may begin a file begin one, as if this one were full."""
        self._blob_bytes = max(self._blob_bytes, self.file_bytes)
        self.rotates_by_blobs = True

    def may_name(self, lsn: int, length: int) -> bool:
        """Whether a FORWARD frame of this length, if it comes next, stands in the same file as the
        frame at ``lsn``.
        """
        tail = self._tail
        return (
            tail is not None
            and lsn >= tail.base
            and tail.holds(self.next_lsn, length)
            and self._blob_bytes < self.file_bytes
        )

    def _begin_file(self, lsn: int, length: int) -> WalFile:
        self.flush(sync=True, at_once=False)  # a file is whole on disk before the next one begins
        size = max(self.writer.spares.file_bytes, FILE_HEADER_BYTES + length)
        self._tail = WalFile(
            self.folder, FileHeader(self.shard, lsn, secrets.randbits(64), size), size
        )
        self._new_file = self.rotates_by_blobs = True
        self._blob_bytes = 0
        return self._tail

    def flush(self, *, sync: bool, at_once: bool = True) -> Progress | None:
        """Hand over the group under way; the progress, when that is done already.

        ``sync``: its answers must wait for the disk. ``at_once``: the caller commits what the
        progress covers; without it, `take_progress` brings the progress.
        """
        if self._tail is None or not (self._pieces or (sync and self.synced_lsn < self.next_lsn)):
            return None
        group = WalGroup(
            self._era,
            self._tail,
            self._start,
            self.next_lsn,
            self._pieces,
            sync,
            self._new_file,
            may_use_reserve=self._makes_room,
        )
        self._pieces, self._start, self._new_file, self._makes_room = [], self.next_lsn, False, True
        if not at_once:
            self.writer.put(group)
            return None
        progress = self.writer.hand_over(group)
        if progress is not None:
            self.synced_lsn = max(self.synced_lsn, progress.synced)
        return progress

    def begin(self, frames: Iterable[Frame]) -> None:
        """Hand over the frames of a start, before any other: they may have the reserve."""
        for frame in frames:
            self.append(frame)
        self._makes_room = True
        self.flush(sync=True, at_once=False)

    @property
    def short_of_room(self) -> bool:
        """Whether only frames that make room may be written; until `find_room` returns True."""
        return self._no_room or not self.writer.spares.has_reserve

    @property
    def lacks_files(self) -> bool:
        """Whether the disk had no space for the next file or the reserve."""
        return self.short_of_room or self.writer.spares.is_short

    def find_room(self) -> bool:
        """Make the next file and the reserve; when True, the log is not short of room any more."""
        found = self.writer.find_room()
        if found:
            self._no_room = False
        return found

    def take_progress(self) -> list[Progress]:
        """What has been done since the last call, oldest first; not what `flush` returned."""
        taken = self.writer.state.take()
        for progress in taken:
            if progress.error is None:
                # The threads may report out of order.
                self.synced_lsn = max(self.synced_lsn, progress.synced)
            elif isinstance(progress.error, NoRoom):
                self._no_room = True
            else:
                self.failed = progress.error
        return taken

    def resume(self, lsn: int) -> None:
        """Go on at ``lsn``, the end of what is written, after `NoRoom`.

        What was handed over since is dropped. Frames go on into the last file where it has room,
        though blobs have filled it: deletes are what makes room.
        """
        self._era += 1
        self._pieces, self._start, self._new_file, self._makes_room = [], lsn, False, True
        self.next_lsn = lsn
        self.writer.resume(lsn)
        self._tail = self._files[-1] if self._files else None
        self.blobs.forget_from(lsn)
        self.frames.forget_from(lsn)
        self._blob_bytes = self.blobs.bytes_from(self._tail.base) if self._tail else 0
        self.rotates_by_blobs = False

    def records(self, locator: int) -> RecordsView:
        """Records of a written APPEND frame, or of a row of a written FORWARD frame."""
        file = self._files[bisect_right(self._bases, locator) - 1]
        return self.frames.records(file, locator)

    def payload(self, lsn: int) -> RecordsView:
        """The records that an APPEND or FORWARD frame holds. Raises `Damaged`."""
        return self.frames.payload(self.file(lsn), lsn)

    def frame_at(self, locator: int) -> tuple[FrameHeader, memoryview]:
        """Header and body of the frame that ``locator`` locates, or one of whose rows it locates.

        It must have been written and still stand.
        """
        file = self.file(locator)
        return frame_in(file, frame_lsn(file, locator))

    def forget_asked(self) -> None:
        """Mapped pages may have left memory: they are asked for again."""
        for file in self._files:
            file.forget_asked()

    def file(self, locator: int) -> WalFile:
        """The file that holds a frame."""
        return self._files[bisect_right(self._bases, locator) - 1]

    def base_of(self, locator: int) -> int:
        """Base of the file that holds a frame."""
        return self._bases[bisect_right(self._bases, locator) - 1]

    @property
    def oldest_lsn(self) -> int:
        """LSN of the first frame that is still in a file."""
        return self._bases[0] if self._bases else self.next_lsn

    def full_files(self) -> list[tuple[int, int]]:
        """``(base, end)`` of every file that is full, oldest first: it is not written any more."""
        return list(pairwise(self._bases))

    def count_full_files(self, lsn: int) -> int:
        """How many full files begin at ``lsn`` or later."""
        return max(len(self._bases) - 1 - bisect_left(self._bases, lsn), 0)

    def files_between(self, lsn: int, end: int) -> list[tuple[WalFile, int]]:
        """The files that hold the log from ``lsn`` to ``end``, which is written, and how many bytes
        of each belong to it.
        """
        bases = [*self._bases]  # the writer's thread adds to them
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
        self.frames.forget_below(lsn)
        for file in self.ending_at(lsn):
            file.unmap()

    def detach(self, lsn: int) -> list[WalFile]:
        """Forget all files that end at ``lsn`` or before; `SpareFiles.add` is next."""
        detached = self.ending_at(lsn)
        del self._files[: len(detached)], self._bases[: len(detached)]
        self.frames.forget_below(self.oldest_lsn)
        return detached

    def ending_at(self, lsn: int) -> list[WalFile]:
        """All files that end at ``lsn`` or before."""
        return self._files[: max(bisect_right(self._bases, lsn) - 1, 0)]

    def wait_synced(self, beat: Callable[[], None] = lambda: None) -> None:
        """Block until everything that was handed over is on the disk. For use outside a loop.

        ``beat``: called meanwhile, `BEATS_MAX` times at most: a busy disk may take seconds. Raises
        the error that kept it from there. After `NoRoom` the log goes on where it was.
        """
        poller, beats = select.poll(), 0
        poller.register(self.progress_fd, select.POLLIN)
        while self.synced_lsn < self.next_lsn:
            if not poller.poll(BEAT_MS if beats < BEATS_MAX else None):
                beats += 1
                beat()
            self._raise_failures()

    def stop(self) -> None:
        """Write and sync everything, then end the threads.

        Raises the error of that last write or sync, unless the log was `failed` before.
        """
        self.flush(sync=True, at_once=False)
        self.writer.stop()
        try:
            self._raise_failures()
        finally:
            for file in self._files:
                file.close()
            os.close(self.progress_fd)

    def _raise_failures(self) -> None:
        for progress in self.take_progress():
            if isinstance(progress.error, NoRoom):
                self.resume(progress.written)
            if progress.error is not None:
                raise progress.error
