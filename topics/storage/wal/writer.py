"""Group commit: what writes and syncs a shard's log.

The loop hands over groups of frames. The writer thread merges all that wait into one write and,
when one of them asks for it, one fdatasync. A short group is written by the loop itself, where
handing it over would take longer, and synced by it while syncs are cheap (``decisions/0040``). 16
clients of class ``disk`` got 7,700 records/s before that, and 10,100 with it. Beside a sync a write
may wait for the journal; ext4 has ``RWF_NOWAIT`` for reads only.

    hand_over --(short, nothing before it under way, no sync or a cheap one)-->
       |                                   write [-> fdatasync] --> Progress, returned
       |
       '--(GroupQueue)--> writer thread: write [-> fdatasync] --(eventfd)--> Progress, by `take`
                               |
                               '--(no group asked for a sync)--> Syncer: fdatasync, within sync_ms

Who may write: the loop while the log is written up to where its group starts, since then nothing is
under way, and while nothing before it waits for a sync, which may fail; else the writer thread,
until it has caught up. So there is always one that writes. A group that the loop syncs counts as
reported when it is synced, not before: if the sync fails, its frames are cut.

If the data directory no longer belongs to the server (`storage/folders.py`), nothing is synced:
each sync makes the quick check first. `check`, which the loop calls twice a second, also checks
that the file is still in its folder. After an error nothing more is written (`WriteState`). The one
exception is a new file for which there is no room: nothing was touched then, so the log goes on
from the LSN where it was, in a new era.
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
from topics.storage.wal.file import NoRoom, WalFile
from topics.storage.wal.groups import GroupQueue, WalGroup
from topics.storage.wal.hang_watch import HangWatch
from topics.storage.wal.progress import Progress, WalCounters, WriteState
from topics.storage.wal.spares import SpareFiles
from topics.storage.wal.syncer import Syncer

SYNC_BYTES = 4 << 20  # so much is synced before its time, so that no later sync takes long
JOIN_MAX_BYTES = 1 << 20  # below, one copy is cheaper than many pieces in one call
AT_ONCE_MAX_BYTES = 32 << 10  # a group up to this is written by the loop, if it may
UNSYNCED_MAX_BYTES = 256 << 10  # with more to sync, even a fast disk makes the loop wait
GONE = "the files of the log are gone or replaced"


class WalWriter:
    """Writes from ``lsn`` on, at first into ``file``.

    ``on_new_file`` is told of every new file before its first frame.
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
        self.state = WriteState(file, lsn, self.counters)
        self.syncer = Syncer(self.state, check)
        self.hang_watch = HangWatch()
        self.progress_fd = self.state.progress_fd
        self._groups = GroupQueue()
        # The loop's: up to where it wants a sync, and up to where it has told the writer thread.
        self._sync_wanted = self._told = lsn
        # The writer thread knows of nothing that is to be synced: the loop must tell it.
        self._must_tell = True
        # The writer thread's own. It starts with the values of now: by the time that it runs, the
        # loop may have written more.
        self._file = file
        self._handed_on = lsn  # up to here the log is synced, or the syncer was asked to
        self._wrote_at = 0.0
        self._sync_at = math.inf  # when what nobody waits for goes to the syncer
        self._failed_era = -1
        self._thread = threading.Thread(target=self._run, name="wal writer", daemon=True)
        self._thread.start()
        self.syncer.start()
        self.hang_watch.start()

    # The loop's side

    def hand_over(self, group: WalGroup) -> Progress | None:
        """Have the group written; the progress if that is done already, else `take` brings it."""
        state = self.state
        if (
            state.written == group.start
            and group.end - group.start <= AT_ONCE_MAX_BYTES
            and not group.new_file
            # Or a sync that fails would refuse what lies before an acknowledged record.
            and state.synced >= self._sync_wanted
        ):
            if group.sync:
                if self._may_sync(group.end) and self.syncer.try_hold():
                    return self._sync_at_once(group)
            elif not self.syncer.is_syncing():  # a write beside a sync may have to wait for it
                return self._write_at_once(group)
        self.put(group)
        return None

    def put(self, group: WalGroup) -> None:
        """Have the thread write the group, whatever it is: `take` brings the progress."""
        if group.sync:
            self._sync_wanted = group.end
        self._groups.put(group)

    def _may_sync(self, end: int) -> bool:
        is_little = end - self.state.synced <= UNSYNCED_MAX_BYTES
        return is_little and self.syncer.pace.is_cheap(time.perf_counter())

    def _write_at_once(self, group: WalGroup) -> Progress | None:
        began = time.perf_counter()
        self.hang_watch.begin()
        written = self._write([group], at_once=True)
        self.hang_watch.end()
        if not written:
            return None
        took_ms = (time.perf_counter() - began) * 1000
        if self._must_tell or group.end - self._told >= SYNC_BYTES:
            self._must_tell = False
            self._tell(group)
        return Progress(group.end, self.state.synced, took_ms, 0.0)

    def _sync_at_once(self, group: WalGroup) -> Progress | None:
        """Write and sync a group, with all syncs held off; None when the log is broken, and cut."""
        began = wrote_at = time.perf_counter()
        self.hang_watch.begin()
        try:
            if group.pieces:
                if not self._write([group]):
                    return None
                wrote_at = time.perf_counter()
            if not self.syncer.sync_held(group.file, group.end):
                return None
        finally:
            self.hang_watch.end()
            self.syncer.release()
        if not self.state.note_synced_group(group.end):
            return None
        synced_at = time.perf_counter()
        if group.end - self._told >= SYNC_BYTES:
            self._tell(group)  # it makes the next file
        write_ms, sync_ms = (wrote_at - began) * 1000, (synced_at - wrote_at) * 1000
        return Progress(group.end, group.end, write_ms, sync_ms)

    def _tell(self, group: WalGroup) -> None:
        """Tell the writer thread how far the loop has written."""
        self._told = group.end
        self._groups.put(WalGroup(group.era, group.file, group.end, group.end, [], False, False))

    def check(self) -> None:
        """Stop all writing if the files no longer belong to the server's data directory.

        These system calls do not block the loop, because the kernel caches names that are checked
        this often.
        """
        state = self.state
        if state.broken is None:
            try:
                self._check()
                _check_name(state.file)
            except OSError as error:
                state.break_off(error)

    def resume(self, lsn: int) -> None:
        """The log goes on here after `NoRoom`.

        What was handed over since is dropped, and no sync of it comes.
        """
        self._sync_wanted = min(self._sync_wanted, lsn)

    def find_room(self) -> bool:
        """Make the next file and the reserve, where they are missing; whether both are there.

        For a thread.
        """
        return self.state.broken is None and self.spares.fill(f"{self.state.written:016x}.room")

    def stop(self) -> None:
        """Do what was handed over, then end the threads; `take` still tells of it."""
        self._groups.close()
        self._thread.join()
        self.syncer.stop()
        self.hang_watch.stop()

    # The writer thread

    def _run(self) -> None:
        state = self.state
        while (groups := self._groups.take(self._sync_at)) is not None:
            if state.broken is not None:
                return self._groups.discard()
            if groups and groups[0].era <= self._failed_era:
                continue  # handed over before the loop knew of the failure
            try:
                progress = self._write_and_sync(groups)
            except NoRoom as error:
                self._failed_era = groups[0].era
                state.report(Progress(state.written, state.synced, 0.0, 0.0, error))
                continue
            except OSError as error:
                state.break_off(error)
                return self._groups.discard()
            if progress is not None:
                state.report(progress)
            self._plan_sync()
        return None

    def _write_and_sync(self, groups: list[WalGroup]) -> Progress | None:
        """Write the groups, of one file, and sync what is due; the progress, if there is any.

        Raises `NoRoom` and OSError.
        """
        began = time.perf_counter()
        full = [group for group in groups if group.pieces]
        if groups:
            self._enter_file(groups[0])
            if full and not self._write(full):
                return None
            self._prepare_next_file()
        self._wrote_at = time.perf_counter()
        # Not beyond its own groups: what the loop has written behind them may wait for a sync.
        written = full[-1].end if full else self.state.written
        sync_ms = 0.0
        if is_asked := any(group.sync for group in groups):
            if not self._sync(written):
                return None
            sync_ms = (time.perf_counter() - self._wrote_at) * 1000
        elif self._wrote_at >= self._sync_at or written - self._handed_on >= SYNC_BYTES:
            self._sync_later(written)
        if not (full or is_asked):
            return None
        write_ms = (self._wrote_at - began) * 1000
        # What the loop has synced behind them it tells itself, or refuses.
        return Progress(written, min(self.state.synced, written), write_ms, sync_ms)

    def _enter_file(self, group: WalGroup) -> None:
        """Go on in the group's file. Raises `NoRoom` and OSError."""
        if group.new_file:
            self.spares.begin_file(group.file, may_use_reserve=group.may_use_reserve)
            self._on_new_file(group.file)
            self.counters.rotations += 1
        self._file = group.file

    def _prepare_next_file(self) -> None:
        """Making a file takes 50 ms beside a busy journal, so the next one is made meanwhile."""
        assert self._file is not None, "a group was handed over"
        if self.spares.is_next_due(self._file, self.state.written):
            self.spares.ordered_behind = self._file.base
            self.syncer.run_later(partial(self.spares.prepare_next, self._file))

    def _sync(self, lsn: int) -> bool:
        assert self._file is not None, "a group was handed over"
        self._handed_on, self._sync_at = lsn, math.inf
        return self.syncer.sync(self._file, lsn)

    def _sync_later(self, lsn: int) -> None:
        assert self._file is not None, "something was written"
        self._handed_on, self._sync_at = lsn, math.inf
        if lsn > self.state.synced:  # the loop may have synced it
            self.syncer.sync_later(self._file, lsn)

    def _plan_sync(self) -> None:
        """Note when what was written and not handed on is to be synced."""
        if self._sync_at == math.inf:
            # Before it looks: what the loop writes after that look, it tells.
            self._must_tell = True
            if self.state.written > max(self._handed_on, self.state.synced):
                self._must_tell, self._sync_at = False, self._wrote_at + self._sync_s

    # Both sides

    def _write(self, groups: list[WalGroup], *, at_once: bool = False) -> bool:
        """Write groups with frames, one behind the other.

        ``at_once``: by the loop, so they count as reported. False: the log is broken, and cut.
        """
        file, start, end = groups[0].file, groups[0].start, groups[-1].end
        pieces = groups[0].pieces
        if len(groups) > 1:
            pieces = [piece for group in groups for piece in group.pieces]
        if end - start < JOIN_MAX_BYTES:
            pieces = [b"".join(pieces)]
        state = self.state
        if not state.begin_write(file, end):
            return False
        error = None
        try:
            write_all(file.fd, pieces, file.offset(start))
        except OSError as failure:
            error = failure
        return state.end_write(end, error, reported=at_once)


def _check_name(file: WalFile | None) -> None:
    """Raise `DirectoryLost` if the file was moved or deleted, so that a start would not find it."""
    if file is None:
        return
    own = identity(os.fstat(file.fd))
    if identity_at(file.path) not in (own, None):  # None: the next write reports the failing disk
        raise DirectoryLost(GONE)
