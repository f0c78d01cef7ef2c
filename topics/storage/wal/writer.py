"""Group commit: writes and syncs the log of one shard.

The shard loop hands over groups of frames (`WalGroup`). The writer thread merges all waiting groups
of one file into one write. If a group requests a sync, one fdatasync follows. The loop writes a
short group itself, because the hand-over to the thread takes longer than the write. It also syncs
such a group itself while syncs are cheap (``decisions/0040``). This raised the throughput of 16
clients of class ``disk`` from 7,700 to 10,100 records/s. The loop does not write during a sync,
because the write may then wait for the journal of the file system. A non-blocking write is not an
alternative: ext4 supports ``RWF_NOWAIT`` for reads only.

    hand_over --(short group, earlier groups written, no sync or a cheap sync)-->
       |                                   write [-> fdatasync] --> Progress, returned
       |
       '--(GroupQueue)--> writer thread: write [-> fdatasync] --(eventfd)--> Progress, by `take`
                               |
                               '--(no group requests a sync)--> Syncer: fdatasync, within sync_ms

Only one thread writes at a time. The loop may write a group on two conditions. The log must be
written up to the start of the group, so that no other write is in flight. No earlier group may be
waiting for a sync, because that sync may fail. Otherwise the writer thread writes the group, and
also all later groups until it has caught up. A group that the loop syncs counts as reported only
after its sync, so that its frames are cut if the sync fails.

If the data directory no longer belongs to the server (`storage/folders.py`), nothing is synced:
each sync performs the quick check first. `check`, which the loop calls twice a second, also checks
that the file is still in its folder. After an error, nothing more is written (`WriteState`). The
only exception is a new file for which the disk has no space. In that case, no file was changed, so
the log continues at the LSN that it had reached, in a new era (`WalGroup`).
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from topics.storage.disk import write_all
from topics.storage.folders import Check, DirectoryLost, identity, identity_at, unchecked
from topics.storage.wal.groups import GroupQueue, WalGroup
from topics.storage.wal.hang_watch import HangWatch
from topics.storage.wal.log_file import NoSpace, WalFile
from topics.storage.wal.log_progress import LogProgress, WalCounters, WriteState
from topics.storage.wal.spares import SpareFiles
from topics.storage.wal.syncer import Syncer

SYNC_BYTES = 4 << 20  # unsynced bytes that cause a sync before `sync_ms` has passed
JOIN_MAX_BYTES = 1 << 20  # up to this length, copying buffers is cheaper than a vectored write
LOOP_WRITE_MAX_BYTES = 32 << 10  # maximum length of a group that the loop writes itself
UNSYNCED_MAX_BYTES = 256 << 10  # a longer sync would block the loop even on a fast disk
NOT_FOUND_ERRORS = "the files of the log were deleted or replaced"


class WalWriter:
    """Writes the log from ``lsn`` on, starting in ``file``.

    ``on_new_file`` is called with each new file before its first frame is written. ``sync_ms`` is
    the time within which written frames are synced if no group requests a sync.
    """

    def __init__(
        self,
        folder: Path,
        lsn: int,
        file: WalFile | None,
        on_new_file: Callable[[WalFile], None],
        *,
        file_bytes: int,
        sync_ms: int,
        check: Check = unchecked,
    ) -> None:
        self._on_new_file, self._sync_s = on_new_file, sync_ms / 1000
        self._check = check
        self.counters = WalCounters()
        self.spares = SpareFiles(folder, file.size if file else 0, file_bytes)
        # `state` is shared by the loop and both threads. It has its own lock.
        self.state = WriteState(file, lsn, self.counters)
        self.syncer = Syncer(self.state, check)
        self.hang_watch = HangWatch()
        self.progress_fd = self.state.progress_fd
        self._groups = GroupQueue()
        # Used by the loop only: the LSN up to which groups have requested a sync, and the LSN up to
        # which the writer thread was notified of the loop's writes.
        self._sync_wanted = self._notified = lsn
        # True while the writer thread has no sync planned. The loop must then notify it of its
        # next write.
        self._must_notify = True
        # The following attributes are used by the writer thread only. They are set here and not in
        # the thread, because the loop may write before the thread runs.
        self._file = file
        self._handed_on = lsn  # the log up to here is synced, or `Syncer` has a job to sync it
        self._wrote_at = 0.0  # time at which the last write ended
        self._sync_at = math.inf  # time at which to sync frames for which no group requests a sync
        self._failed_era = -1  # groups of this era and earlier ones are dropped
        self._thread = threading.Thread(target=self._run, name="wal writer", daemon=True)
        self._thread.start()
        self.syncer.start()
        self.hang_watch.start()

    # Called by the loop

    def hand_over(self, group: WalGroup) -> LogProgress | None:
        """Write the group or queue it for the writer thread.

        Return the progress if the group is already written. Otherwise `WriteState.take` returns it
        later.
        """
        state = self.state
        # The loop may write itself only if it cannot block and cannot overtake the thread.
        if (
            # No other write is in flight, and the write neither takes long nor creates a file.
            state.written == group.start
            and group.end - group.start <= LOOP_WRITE_MAX_BYTES
            and not group.new_file
            # If an earlier sync failed, it would refuse frames below an acknowledged record.
            and state.synced >= self._sync_wanted
        ):
            if group.sync:
                # `try_acquire` does not wait. If a sync is running, the loop must not wait for
                # it.
                if self._may_sync(group.end) and self.syncer.try_acquire():
                    return self._sync_immediately(group)
            elif not self.syncer.is_syncing():  # during a sync, a write may block
                return self._write_immediately(group)
        self.put(group)
        return None

    def put(self, group: WalGroup) -> None:
        """Queue the group for the writer thread. `WriteState.take` returns the progress."""
        if group.sync:
            # Groups after this one are also passed to the thread until this sync is done.
            self._sync_wanted = group.end
        self._groups.put(group)

    def _may_sync(self, end: int) -> bool:
        is_little = end - self.state.synced <= UNSYNCED_MAX_BYTES
        return is_little and self.syncer.pace.is_cheap(time.perf_counter())

    def _write_immediately(self, group: WalGroup) -> LogProgress | None:
        began = time.perf_counter()
        # From here until `end`, a thread checks that the call returns (`decisions/0040`).
        self.hang_watch.begin()
        written = self._write([group], immediate=True)
        self.hang_watch.end()
        if not written:
            return None
        took_ms = (time.perf_counter() - began) * 1000
        # Notify the writer thread of the unsynced frames. The thread sleeps without a time limit,
        # and would not plan the background sync of this group otherwise.
        if self._must_notify or group.end - self._notified >= SYNC_BYTES:
            self._must_notify = False
            self._notify(group)
        return LogProgress(group.end, self.state.synced, took_ms, 0.0)

    def _sync_immediately(self, group: WalGroup) -> LogProgress | None:
        """Write and sync a group while holding off all other syncs.

        Return None if the log is broken. In that case, the frames of the group are cut.
        """
        began = wrote_at = time.perf_counter()
        self.hang_watch.begin()
        try:
            # A group without frames only requests the sync of earlier frames.
            if group.chunks:
                if not self._write([group]):
                    return None
                wrote_at = time.perf_counter()
            if not self.syncer.sync_acquired(group.file, group.end):
                return None
        finally:
            self.hang_watch.end()
            self.syncer.release()
        # The changes may be acknowledged only if no failure has cut the frames in the meantime.
        if not self.state.note_synced_group(group.end):
            return None
        synced_at = time.perf_counter()
        if group.end - self._notified >= SYNC_BYTES:
            self._notify(group)  # so that the thread prepares the next file
        write_ms, sync_ms = (wrote_at - began) * 1000, (synced_at - wrote_at) * 1000
        return LogProgress(group.end, group.end, write_ms, sync_ms)

    def _notify(self, group: WalGroup) -> None:
        """Notify the writer thread of how far the loop has written."""
        self._notified = group.end
        # An empty group only carries the LSN.
        # ``start`` equals ``end``, so nothing is written.
        self._groups.put(WalGroup(group.era, group.file, group.end, group.end, [], False, False))

    def check(self) -> None:
        """Stop all writing if the files no longer belong to the server's data directory.

        These system calls do not block the loop, because the kernel caches names that are looked up
        this often.
        """
        state = self.state
        # Nothing is written to a broken log, so no check is needed.
        if state.broken is None:
            try:
                self._check()
                _check_name(state.file)
            except OSError as error:
                state.fail(error)

    def resume(self, lsn: int) -> None:
        """Continue the log at ``lsn`` after `NoSpace`.

        Groups that were handed over since are dropped and will not be synced.
        """
        # A sync beyond ``lsn`` will never be reported, and the loop would wait for it before each
        # write.
        self._sync_wanted = min(self._sync_wanted, lsn)

    def allocate_files(self) -> bool:
        """Create the next file and the reserve if they are missing. Return whether both exist.

        This call may block on the disk, so it must run in a thread.
        """
        return self.state.broken is None and self.spares.fill(f"{self.state.written:016x}.room")

    def stop(self) -> None:
        """Process all groups that were handed over, then stop the threads.

        `WriteState.take` still returns their progress afterwards.
        """
        self._groups.close()
        self._thread.join()
        self.syncer.stop()
        self.hang_watch.stop()

    # Run by the writer thread

    def _run(self) -> None:
        state = self.state
        while (groups := self._groups.take(self._sync_at)) is not None:
            # After a failure every group is lost. `state` has the error, which the loop takes.
            if state.broken is not None:
                return self._groups.discard()
            # Drop the groups of a log that was cut back by `NoSpace`.
            # The loop rolls these groups back when it takes the error.
            if groups and groups[0].era <= self._failed_era:
                continue  # handed over before the loop noticed the failure
            try:
                progress = self._write_and_sync(groups)
            except NoSpace as error:
                # Groups of this era may still be in the queue. They follow frames that were not
                # written.
                self._failed_era = groups[0].era
                state.report(LogProgress(state.written, state.synced, 0.0, 0.0, error))
                continue
            except OSError as error:
                state.fail(error)
                return self._groups.discard()
            if progress is not None:
                state.report(progress)
            self._plan_sync()
        return None

    def _write_and_sync(self, groups: list[WalGroup]) -> LogProgress | None:
        """Write the groups, all of one file, and start the syncs that are due.

        Return the progress, or None if there is none to report. Raise `NoSpace` or OSError.
        """
        began = time.perf_counter()
        # Groups without frames request a sync, or notify this thread of the loop's writes.
        full = [group for group in groups if group.chunks]
        if groups:
            # All groups of one call belong to one file, because a new file begins with its own
            # group.
            self._enter_file(groups[0])
            if full and not self._write(full):
                return None
            self._prepare_next_file()
        self._wrote_at = time.perf_counter()
        # Do not report more than these groups. The loop may have written a later group whose sync
        # is still in flight.
        # A later group of the loop is reported by the loop itself.
        written = full[-1].end if full else self.state.written
        sync_ms = 0.0
        if is_requested := any(group.sync for group in groups):
            # One sync serves all groups of the call. This is the group commit.
            if not self._sync(written):
                return None
            sync_ms = (time.perf_counter() - self._wrote_at) * 1000
        # No group is waiting for a sync. A background sync is due, or the unsynced bytes have
        # reached the limit above which a sync takes too long.
        elif self._wrote_at >= self._sync_at or written - self._handed_on >= SYNC_BYTES:
            self._sync_later(written)
        # Only the loop's notification was handled, and it needs no report.
        if not (full or is_requested):
            return None
        write_ms = (self._wrote_at - began) * 1000
        # The loop itself reports or refuses the later groups that it has synced.
        return LogProgress(written, min(self.state.synced, written), write_ms, sync_ms)

    def _enter_file(self, group: WalGroup) -> None:
        """Switch to the group's file, and create it if it is new. Raise `NoSpace` or OSError."""
        if group.new_file:
            # `NoSpace` is raised here, before any byte of the group is written.
            self.spares.begin_file(group.file, may_use_reserve=group.may_use_reserve)
            self._on_new_file(group.file)
            self.counters.rotations += 1
        self._file = group.file

    def _prepare_next_file(self) -> None:
        """Let the syncer thread create the next file before it is needed.

        Creating a file takes 50 ms while the journal of the file system is busy.
        """
        assert self._file is not None, "a group was submitted"
        if self.spares.is_next_due(self._file, self.state.written):
            self.spares.requested_after = self._file.base
            self.syncer.run_later(partial(self.spares.prepare_next, self._file))

    def _sync(self, lsn: int) -> bool:
        assert self._file is not None, "a group was submitted"
        # Record the LSN, so that `_plan_sync` plans no other sync for it.
        self._handed_on, self._sync_at = lsn, math.inf
        return self.syncer.sync(self._file, lsn)

    def _sync_later(self, lsn: int) -> None:
        assert self._file is not None, "something was written"
        self._handed_on, self._sync_at = lsn, math.inf
        if lsn > self.state.synced:  # false if the loop has synced it
            self.syncer.sync_later(self._file, lsn)

    def _plan_sync(self) -> None:
        """Set the time at which frames are synced for which no group requests a sync."""
        if self._sync_at == math.inf:
            # Set this before reading `written`, so that the loop sends a notification for each
            # write that this read does not cover.
            self._must_notify = True
            if self.state.written > max(self._handed_on, self.state.synced):
                self._must_notify, self._sync_at = False, self._wrote_at + self._sync_s

    # Used by the loop and the writer thread

    def _write(self, groups: list[WalGroup], *, immediate: bool = False) -> bool:
        """Write groups that have frames, as one contiguous range of their file.

        If ``immediate`` is true, the loop writes, so the groups count as reported. Return False if
        the log is broken. In that case, the frames of the groups are cut.
        """
        # The groups are contiguous, so one write covers all of them.
        file, start, end = groups[0].file, groups[0].start, groups[-1].end
        chunks = groups[0].chunks
        if len(groups) > 1:
            chunks = [chunk for group in groups for chunk in group.chunks]
        # Copying is cheaper than a vectored write of many short buffers.
        if end - start < JOIN_MAX_BYTES:
            chunks = [b"".join(chunks)]
        state = self.state
        # `begin_write` notes the range, so that it is known what to cut after a failed write.
        if not state.begin_write(file, end):
            return False
        error = None
        try:
            write_all(file.fd, chunks, file.offset(start))
        except OSError as failure:
            error = failure
        return state.end_write(end, error, reported=immediate)


def _check_name(file: WalFile | None) -> None:
    """Raise `DirectoryLost` if the file was moved or deleted, because startup would not find it."""
    if file is None:
        return
    own = identity(os.fstat(file.fd))
    if identity_at(file.path) not in (own, None):  # None: the next write reports the disk error
        raise DirectoryLost(NOT_FOUND_ERRORS)
