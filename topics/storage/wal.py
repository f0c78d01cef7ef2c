"""The write-ahead log of one shard, and the threads that write and sync it.

The shard's loop encodes frames (`Wal.append`) and hands them over in groups (`Wal.flush`). The writer thread merges all groups that
wait into one write and, when one of them asks for it, one fdatasync; then it reports through ``progress_fd``, an eventfd.

    append ... append -> flush --(queue)--> write [-> fdatasync] -> Progress --(eventfd)--> the loop commits and answers
                                              '--(what nobody waits for)--> fdatasync in a thread of its own -> Progress

A write that waits for no sync would otherwise wait behind the regular ones. Only one sync runs at a time, and none after one that
failed: the kernel tells of lost pages once, so a second sync would seem to have gone well.

After an error nothing more is written: the group that failed and all behind it are lost; the log is `failed` until the process
starts anew and replays what the disk really holds. The one exception is a new file for which there is no room: nothing was touched
then, so the log goes on from the position where it was, once the loop has undone what waited and called `resume`.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import secrets
import select
import threading
import time
from bisect import bisect_left, bisect_right
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from topics.formats.records import RecordFlags, RecordsView
from topics.formats.requests import Buffer
from topics.formats.wal import FILE_HEADER_BYTES, FRAME, FRAME_HEADER_BYTES, FileHeader, Frame, encode_frame
from topics.storage.blobs import BlobStore
from topics.storage.disk import sync_directory, write_all
from topics.storage.wal_file import SPARE, NoRoom, WalFile, prepare

PREPARE = -1  # instead of a position to sync to: make a spare file
SPARES = 2  # files kept for their room and their pages
SYNC_BYTES = 4 << 20  # so much is synced before its time, so that no later sync takes long
JOIN_BYTES = 1 << 20  # below, one copy is cheaper than many pieces in one call


@dataclass(slots=True)
class _Group:
    """Pieces of frames that stand one after the other in one file; ``era`` counts how often the log went on after `NoRoom`."""

    era: int
    file: WalFile
    position: int
    end: int
    pieces: list[Buffer]
    sync: bool
    new_file: bool


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the log reaches after a write: ``written`` in the kernel's hands, ``synced`` on the disk; what both took."""

    written: int
    synced: int
    write_ms: float
    sync_ms: float
    error: OSError | None = None


@dataclass(slots=True)
class WalCounters:
    """Since the start of the process."""

    frames: int = 0
    batches: int = 0
    fsyncs: int = 0
    bytes_written: int = 0
    rotations: int = 0


def frame_records(file: WalFile, place: int, blobs: BlobStore) -> RecordsView:
    """Records of the APPEND frame at position ``place`` of a file."""
    view, offset = file.view(), file.offset(place)
    _, _, _, _, topic_id, first_seq, _, body_len, count, ext_len, _, flags, _ = FRAME.unpack_from(view, offset)
    if flags & RecordFlags.EXTERNAL:
        return RecordsView(flags, count, ext_len, blobs.body(topic_id, first_seq))
    start = offset + FRAME_HEADER_BYTES
    return RecordsView(flags, count, ext_len, view[start : start + body_len])


class Wal:
    """The log from ``position`` on; ``files`` hold everything before it."""

    def __init__(
        self, folder: Path, shard: int, files: list[WalFile], position: int, *, blobs: BlobStore, file_bytes: int, sync_ms: int
    ) -> None:
        self.folder, self.shard, self.blobs = folder, shard, blobs
        self.file_bytes, self._sync_s = file_bytes, sync_ms / 1000
        self._files = files
        self._bases = [file.base for file in files]
        self.position = position  # where the next frame goes
        self.synced = position
        self.failed: OSError | None = None
        self.counters = WalCounters()
        self._pieces: list[Buffer] = []
        self._start = position
        self._new_file = False
        self._tail: WalFile | None = files[-1] if files else None
        self._spares: queue.SimpleQueue[Path] = queue.SimpleQueue()
        self._find_spares()
        self._queue: queue.SimpleQueue[_Group | None] = queue.SimpleQueue()
        self._done: deque[Progress] = deque()
        self._held: _Group | None = None
        self._era = 0  # how often it went on after `NoRoom`, from an earlier position than frames had been given before
        self._sync_lock = threading.Lock()  # held during a sync and while its outcome is noted
        self._synced = position  # as the threads know it
        self._broken = False  # an error has been reported that leaves the file in doubt; nothing is reported after it
        self._behind: queue.SimpleQueue[tuple[WalFile, int] | None] = queue.SimpleQueue()
        self._prepared_for = -1  # base of the file behind which a spare was asked for
        self.progress_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The writer gets its start by value: by the time that it runs, the loop may have gone on.
        self._thread = threading.Thread(target=self._run, args=(position, self._tail), name="wal writer", daemon=True)
        self._syncer = threading.Thread(target=self._sync_behind, name="wal syncer", daemon=True)
        self._thread.start()
        self._syncer.start()

    def _find_spares(self) -> None:
        """Those that an earlier process left."""
        for path in self.folder.glob(f"*{SPARE}"):
            if self._spares.qsize() < SPARES and path.stat().st_size == self.file_bytes:
                self._spares.put(path)
            else:
                path.unlink()

    # The loop's side

    def hold_together(self, length: int) -> None:
        """The next frames, so many bytes in all, go into one file: what makes no sense without the rest is not torn by `NoRoom`."""
        if self._tail is not None and not self._tail.holds(self.position, length):
            self._begin_file(self.position, length)

    def append(self, frame: Frame) -> int:
        """Encode ``frame`` into the group under way; its position. It is nothing yet until `flush`."""
        length, position = frame.length, self.position
        file = self._tail
        if file is None or not file.holds(position, length):
            file = self._begin_file(position, length)
        self._pieces += encode_frame(frame, position, self.synced, file.seed)
        self.position = position + length
        self.counters.frames += 1
        return position

    def _begin_file(self, position: int, length: int) -> WalFile:
        self.flush(sync=True)  # a file is whole on disk before the next one begins
        size = max(self.file_bytes, FILE_HEADER_BYTES + length)
        self._tail = WalFile(self.folder, FileHeader(self.shard, position, secrets.randbits(64)), size)
        self._new_file = True
        return self._tail

    def flush(self, *, sync: bool) -> None:
        """Hand the group under way to the writer; ``sync``: its answer must wait for the disk."""
        if not self._pieces and not (sync and self.synced < self.position):
            return
        if self._tail is None:
            return
        self._queue.put(_Group(self._era, self._tail, self._start, self.position, self._pieces, sync, self._new_file))
        self._pieces, self._start, self._new_file = [], self.position, False

    def take_progress(self) -> list[Progress]:
        """What the writer has done since the last call, oldest first."""
        try:
            os.eventfd_read(self.progress_fd)
        except BlockingIOError:
            return []
        taken = []
        while self._done:
            progress = self._done.popleft()
            if progress.error is None:
                self.synced = max(self.synced, progress.synced)  # the threads may report out of turn
            elif not isinstance(progress.error, NoRoom):
                self.failed = progress.error
            taken.append(progress)
        return taken

    def resume(self, position: int) -> None:
        """Go on at ``position``, the end of what is written, after `NoRoom`; what was handed over since is dropped."""
        self._era += 1
        self._pieces, self._start, self._new_file = [], position, False
        self.position = position
        self._tail = self._files[-1] if self._files else None

    def records(self, place: int) -> RecordsView:
        """Records of the APPEND frame at position ``place``; it must have been written."""
        return frame_records(self._files[bisect_right(self._bases, place) - 1], place, self.blobs)

    def generation(self, place: int) -> int:
        """Base of the file that holds ``place``."""
        return self._bases[bisect_right(self._bases, place) - 1]

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
        """Forget all files that end at ``position`` or before; `retire` then takes them off the disk."""
        count = max(bisect_right(self._bases, position) - 1, 0)
        detached = self._files[:count]
        del self._files[:count], self._bases[:count]
        return detached

    def retire(self, files: list[WalFile]) -> None:
        """Keep detached files as spares, or unlink them. Takes its time: for a thread. Raises OSError."""
        spares: list[Path] = []
        for file in files:
            file.close()
            if self._spares.qsize() + len(spares) < SPARES and file.size == self.file_bytes:
                spare = file.path.with_suffix(SPARE)
                file.path.replace(spare)
                spares.append(spare)
            else:
                file.path.unlink()
        sync_directory(self.folder)  # or a power loss brings a file back under its old name, with the header of its next life
        for spare in spares:
            self._spares.put(spare)

    def wait_synced(self) -> None:
        """Block until everything that was handed over is on the disk; raises what kept it from there. For use outside a loop."""
        poller = select.poll()
        poller.register(self.progress_fd, select.POLLIN)
        while self.synced < self.position:
            poller.poll()
            self._raise_failures()

    def stop(self) -> None:
        """Write and sync everything, end the threads. Raises the error of that last write or sync, unless it was `failed` before."""
        self.flush(sync=True)
        self._queue.put(None)
        self._thread.join()
        self._behind.put(None)
        self._syncer.join()
        try:
            self._raise_failures()
        finally:
            for file in self._files:
                file.close()
            os.close(self.progress_fd)

    def _raise_failures(self) -> None:
        for progress in self.take_progress():
            if progress.error is not None:
                raise progress.error

    # The writer's side

    def _run(self, position: int, file: WalFile | None) -> None:
        written = handed_on = position
        failed_era = -1
        sync_at = math.inf  # when what nobody waits for goes to the syncer
        while True:
            groups = self._next_groups(sync_at)
            if groups is None:
                return None
            if self._broken:
                return self._drain()
            if groups and groups[0].era <= failed_era:
                continue  # handed over before the loop knew of the failure
            began = time.perf_counter()
            sync_ms = 0.0
            try:
                if groups:
                    if groups[0].new_file:
                        self._create(groups[0].file)
                    file = groups[0].file
                    self._write(groups)
                    written = groups[-1].end
                    self._look_ahead(file, written)
                wrote = time.perf_counter()
                if file is not None and any(group.sync for group in groups):
                    if not self._sync(file, written):
                        return self._drain()
                    sync_ms = (time.perf_counter() - wrote) * 1000
                    handed_on, sync_at = written, math.inf
                elif file is not None and (wrote >= sync_at or written - handed_on >= SYNC_BYTES):
                    self._behind.put((file, written))
                    handed_on, sync_at = written, math.inf
                elif written > handed_on:
                    sync_at = min(sync_at, wrote + self._sync_s)
            except NoRoom as error:
                failed_era = groups[0].era
                self._report(Progress(written, self._synced, 0.0, 0.0, error))
            except OSError as error:
                with self._sync_lock:
                    self._break(error, written)
                return self._drain()
            else:
                if groups:
                    self._report(Progress(written, self._synced, (wrote - began) * 1000, sync_ms))

    def _look_ahead(self, file: WalFile, written: int) -> None:
        """A file that is half full will need a next one: making it takes 50 ms beside a busy journal, so it is made meanwhile."""
        if file.base != self._prepared_for and 2 * file.offset(written) > self.file_bytes and self._spares.empty():
            self._prepared_for = file.base
            self._behind.put((file, PREPARE))

    def _sync(self, file: WalFile, position: int) -> bool:
        """Sync what was written before ``position``; False when an earlier sync has failed. Raises OSError."""
        with self._sync_lock:
            if self._broken:
                return False
            if position > self._synced:
                file.sync()
                self._synced = position
                self.counters.fsyncs += 1
            return True

    def _sync_behind(self) -> None:
        """The syncer, which makes spare files, too. Whatever waits is synced by one call, the last one.

        A file that has been synced whole is not touched again.
        """
        while (job := self._behind.get()) is not None:
            file, position = job
            if position == PREPARE:
                with contextlib.suppress(OSError):  # when there is no room, the writer will find out and say so
                    self._spares.put(prepare(self.folder, f"{file.base:016x}.fresh", self.file_bytes))
                continue
            began = time.perf_counter()
            with self._sync_lock:
                if self._broken or position <= self._synced:
                    continue
                try:
                    file.sync()
                except OSError as error:
                    self._break(error, position)
                    continue
                self._synced = position
                self.counters.fsyncs += 1
            self._report(Progress(position, position, 0.0, (time.perf_counter() - began) * 1000))

    def _break(self, error: OSError, written: int) -> None:
        """Tell of an error that leaves the file in doubt, once. The lock is held."""
        if not self._broken:
            self._report(Progress(written, self._synced, 0.0, 0.0, error))
            self._broken = True

    def _write(self, groups: list[_Group]) -> None:
        pieces = [piece for group in groups for piece in group.pieces]
        length = groups[-1].end - groups[0].position
        if length < JOIN_BYTES:
            pieces = [b"".join(pieces)]
        write_all(groups[0].file.fd, pieces, groups[0].file.offset(groups[0].position))
        self.counters.batches += 1
        self.counters.bytes_written += length

    def _create(self, file: WalFile) -> None:
        spare = None
        if file.size == self.file_bytes and not self._spares.empty():
            spare = self._spares.get()
        file.create(spare)
        self._files.append(file)
        self._bases.append(file.base)
        self.counters.rotations += 1

    def _next_groups(self, until: float) -> list[_Group] | None:
        """All that waits for one file, oldest first; empty when it is time to sync what nobody waits for; None at the end."""
        first = self._held
        self._held = None
        if first is None:
            try:
                first = self._queue.get(timeout=None if until == math.inf else max(0.0, until - time.perf_counter()))
            except queue.Empty:
                return []
            if first is None:
                return None
        groups = [first]
        while True:
            try:
                group = self._queue.get_nowait()
            except queue.Empty:
                return groups
            if group is None:
                self._queue.put(None)  # first what was handed over before the end
                return groups
            if group.new_file or group.era != first.era:
                self._held = group
                return groups
            groups.append(group)

    def _drain(self) -> None:
        """After an error that leaves the file in doubt: take what comes and let it fall, until the end."""
        while self._queue.get() is not None:
            pass

    def _report(self, progress: Progress) -> None:
        if self._broken:
            return
        self._done.append(progress)
        os.eventfd_write(self.progress_fd, 1)
