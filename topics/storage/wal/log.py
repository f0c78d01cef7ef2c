"""The write-ahead log of one shard, as its loop sees it.

The loop encodes frames (`Wal.append`) and sends them off in groups (`Wal.flush`);
`storage/wal/writer.py` writes and syncs them.

    append ... append -> flush -> write [-> fdatasync] -> Progress -> the loop commits and answers

A file is full when its frames have no more room in it, or when the blobs that they speak of are as
long as a file: so blobs are sealed and given back, too, however short their frames are (decision
0013).

After an error the log is `failed` until the process starts anew and replays what the disk really
holds. When there was no room for a new file it goes on, once the loop has undone what waited and
called `resume`; it is `short_of_room` until `find_room` has found a file for what comes next, and
the reserve. Groups of frames that make room may begin the reserve (``decisions/0015``).
"""

from __future__ import annotations

import os
import secrets
import select
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from topics.formats.buffers import Buffer
from topics.formats.disk.frames import (
    FRAME,
    FRAME_HEADER_BYTES,
    Frame,
    FrameKind,
    encode_frame,
    header_at,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.wal import FILE_HEADER_BYTES, FileHeader
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import NoRoom, WalFile
from topics.storage.wal.groups import WalGroup
from topics.storage.wal.progress import Progress, WalCounters
from topics.storage.wal.writer import WalWriter

_EXTERNAL = int(RecordFlags.EXTERNAL)
MAKE_ROOM = frozenset({FrameKind.DELETE, FrameKind.TOPIC_DELETED, FrameKind.FLOOR, FrameKind.START})


def frame_records(file: WalFile, locator: int, blobs: BlobStore) -> RecordsView:
    """Records of the APPEND frame at position ``place`` of a file."""
    view, offset = file.view(), file.offset(locator)
    _, _, _, _, topic_id, first_seq, _, body_len, count, ext_len, _, flags, _ = FRAME.unpack_from(
        view, offset
    )
    if flags & _EXTERNAL:
        return RecordsView(flags, count, ext_len, blobs.body(topic_id, first_seq))
    start = offset + FRAME_HEADER_BYTES
    return RecordsView(flags, count, ext_len, view[start : start + body_len])


class Wal:
    """The log from ``position`` on; ``files`` hold everything before it."""

    def __init__(
        self,
        folder: Path,
        shard: int,
        files: list[WalFile],
        position: int,
        *,
        blobs: BlobStore,
        file_bytes: int,
        sync_ms: int,
    ) -> None:
        self.folder, self.shard, self.blobs, self.file_bytes = folder, shard, blobs, file_bytes
        self._files = files
        self._folder_id = _identity(folder.stat())
        self._bases = [file.base for file in files]
        self.position = position  # where the next frame goes
        self.synced = position
        self.failed: OSError | None = None
        self._pieces: list[Buffer] = []
        self._start = position
        self._new_file = False
        self._makes_room = True  # the group under way has no other frames
        self._no_room = False  # `NoRoom` was met
        self._tail: WalFile | None = files[-1] if files else None
        self._blob_bytes = (
            blobs.bytes_from(files[-1].base) if files else 0
        )  # of which frames of the tail speak
        self.rotates_by_blobs = (
            False  # with frames of any kind; not while there may be no room for another file
        )
        self._era = 0  # how often it went on after `NoRoom`, from an earlier position than frames had been given before
        self.writer = WalWriter(
            folder, position, self._tail, self._opened, file_bytes=file_bytes, sync_ms=sync_ms
        )
        self.progress_fd = self.writer.progress_fd

    def _opened(self, file: WalFile) -> None:
        self._files.append(file)
        self._bases.append(file.base)

    @property
    def counters(self) -> WalCounters:
        """For the metrics."""
        return self.writer.counters

    @property
    def is_syncing(self) -> bool:
        """A sync is under way."""
        return self.writer.syncer.is_syncing

    def hold_together(self, length: int) -> None:
        """The next frames, so many bytes in all, go into one file: what makes no sense without the
        rest is not torn by `NoRoom`.
        """
        if self._tail is not None and not self._tail.holds(self.position, length):
            self._begin_file(self.position, length)

    def append(self, frame: Frame) -> int:
        """Encode ``frame`` into the group under way; its position. It is nothing yet until `flush`."""
        length, position = frame.length, self.position
        file = self._tail
        if (
            file is None
            or not file.holds(position, length)
            or (self._blob_bytes >= self.file_bytes and self._is_full(frame))
        ):
            file = self._begin_file(position, length)
        self._makes_room &= frame.kind in MAKE_ROOM
        if frame.flags & _EXTERNAL:
            self._blob_bytes += self.blobs.length(frame.topic_id, frame.first_seq)
        self._pieces += encode_frame(frame, position, self.synced, file.seed)
        self.position = position + length
        self.counters.frames += 1
        return position

    def _is_full(self, frame: Frame) -> bool:
        return self.rotates_by_blobs or frame.flags & _EXTERNAL > 0

    def _begin_file(self, position: int, length: int) -> WalFile:
        self.flush(sync=True)  # a file is whole on disk before the next one begins
        size = max(self.file_bytes, FILE_HEADER_BYTES + length)
        self._tail = WalFile(
            self.folder, FileHeader(self.shard, position, secrets.randbits(64), size), size
        )
        self._new_file = self.rotates_by_blobs = True
        self._blob_bytes = 0
        return self._tail

    def flush(self, *, sync: bool) -> Progress | None:
        """Send off the group under way; ``sync``: its answer must wait for the disk. The progress,
        when it is written already.
        """
        if self._tail is None or not (self._pieces or (sync and self.synced < self.position)):
            return None
        group = WalGroup(
            self._era,
            self._tail,
            self._start,
            self.position,
            self._pieces,
            sync,
            self._new_file,
            may_use_reserve=self._makes_room,
        )
        self._pieces, self._start, self._new_file, self._makes_room = [], self.position, False, True
        return self.writer.hand_over(group)

    def begin(self, frames: Iterable[Frame]) -> None:
        """Send off what a start must tell the log before anything else: it may have the reserve."""
        for frame in frames:
            self.append(frame)
        self._makes_room = True
        self.flush(sync=True)

    @property
    def short_of_room(self) -> bool:
        """Only what makes room may be written, until `find_room` says so."""
        return self._no_room or not self.writer.spares.has_reserve

    def find_room(self) -> bool:
        """As `WalWriter.find_room`; the log may grow again when it is True. For a thread."""
        found = self.writer.find_room()
        if found:
            self._no_room = False
        return found

    def take_progress(self) -> list[Progress]:
        """What has been done since the last call, oldest first; not what `flush` returned."""
        taken = self.writer.take()
        for progress in taken:
            if progress.error is None:
                self.synced = max(
                    self.synced, progress.synced
                )  # the threads may report out of turn
            elif isinstance(progress.error, NoRoom):
                self._no_room = True
            else:
                self.failed = progress.error
        return taken

    def resume(self, position: int) -> None:
        """Go on at ``position``, the end of what is written, after `NoRoom`; what was handed over
        since is dropped.

        Where the file has room for frames they go on into it, though blobs have filled it: deletes
        are what makes room.
        """
        self._era += 1
        self._pieces, self._start, self._new_file, self._makes_room = [], position, False, True
        self.position = position
        self.writer.resume(position)
        self._tail = self._files[-1] if self._files else None
        self.blobs.forget_from(position)
        self._blob_bytes = self.blobs.bytes_from(self._tail.base) if self._tail else 0
        self.rotates_by_blobs = False

    def records(self, locator: int) -> RecordsView:
        """Records of the APPEND frame at position ``place``; it must have been written."""
        return frame_records(
            self._files[bisect_right(self._bases, locator) - 1], locator, self.blobs
        )

    def count(self, locator: int) -> int:
        """How many they are, without a look at them."""
        file = self.file(locator)
        return header_at(file.view(), file.offset(locator)).record_count

    def file(self, locator: int) -> WalFile:
        """The file that holds ``place``."""
        return self._files[bisect_right(self._bases, locator) - 1]

    def generation(self, locator: int) -> int:
        """Base of the file that holds ``place``."""
        return self._bases[bisect_right(self._bases, locator) - 1]

    @property
    def oldest(self) -> int:
        """First position that is still in a file."""
        return self._bases[0] if self._bases else self.position

    def whole_files(self) -> list[tuple[int, int]]:
        """``(base, end)`` of every file that will not be written any more, oldest first."""
        return list(pairwise(self._bases))

    def whole_since(self, position: int) -> int:
        """How many such files begin at ``position`` or later."""
        return max(len(self._bases) - 1 - bisect_left(self._bases, position), 0)

    def detach(self, position: int) -> list[WalFile]:
        """Forget all files that end at ``position`` or before; `retire` then takes them off the
        disk.
        """
        count = max(bisect_right(self._bases, position) - 1, 0)
        detached = self._files[:count]
        del self._files[:count], self._bases[:count]
        return detached

    def retire(self, files: list[WalFile]) -> None:
        """As `SpareFiles.add`."""
        self.writer.spares.add(files)

    def is_gone(self) -> bool:
        """Whether the folder, or the file that is written to, is not any more what stands under its
        name. For a thread.
        """
        file = self._files[-1] if self._files else None
        try:
            if _identity(self.folder.stat()) != self._folder_id:
                return True
            return file is not None and _identity(file.path.stat()) != _identity(os.fstat(file.fd))
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:  # a disk that fails shows in the writes
            return False

    def give_up(self, error: OSError) -> None:
        """As `WalWriter.give_up`."""
        self.writer.give_up(error)

    def wait_synced(self) -> None:
        """Block until everything that was handed over is on the disk; raises what kept it from
        there. For use outside a loop.

        After `NoRoom` the log goes on where it was.
        """
        poller = select.poll()
        poller.register(self.progress_fd, select.POLLIN)
        while self.synced < self.position:
            poller.poll()
            self._raise_failures()

    def stop(self) -> None:
        """Write and sync everything, end the threads. Raises the error of that last write or sync,
        unless it was `failed` before.
        """
        self.flush(sync=True)
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


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino
