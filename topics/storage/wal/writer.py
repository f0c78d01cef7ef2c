"""What writes and syncs a shard's log: two threads, and the loop itself where handing over would
take longer than writing.

    hand_over --short, waits for no sync, nothing before it on its way--> write ------------>
    Progress, at once
       '--(queue)--> writer: write [-> fdatasync] ------------------------------------------->
       Progress --(eventfd)--> take
                        '--(what nobody waits for)--> syncer: fdatasync -------------------------'

The writer merges all groups that wait into one write and, when one of them asks for it, one
fdatasync. A write that waits for no sync would otherwise wait behind the regular ones, so those
have a thread of their own. Only one sync runs at a time, and none after one that failed: the kernel
tells of lost pages once, so a second sync would seem to have gone well.

Who may write: the loop while `_written` is where its group begins, since then nothing is on its
way, and while nothing before it waits for a sync, which may fail; else the writer, until it has
caught up. So there is always one that writes. ``decisions/0012`` says why the loop writes at all.

After an error nothing more is written. What was reported as written stays, as it may have been
acknowledged; all from there on is refused, and is cut off before anybody is told: a restart finds
no frame of it (``decisions/0014``). The one exception is a new file for which there is no room:
nothing was touched then, so the log goes on from the position where it was, in a new era.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from topics.formats.buffers import Buffer
from topics.storage.disk import write_all
from topics.storage.wal.file import NoRoom, WalFile
from topics.storage.wal.stock import WalStock

PREPARE = -1  # instead of a position to sync to: make a spare file
SYNC_BYTES = 4 << 20  # so much is synced before its time, so that no later sync takes long
JOIN_BYTES = 1 << 20  # below, one copy is cheaper than many pieces in one call
AT_ONCE_BYTES = 32 << 10  # a group up to this is written by the loop, if it may
log = structlog.get_logger()


@dataclass(slots=True)
class Group:
    """Frames that stand one after the other in one file; ``era`` counts how often the log went on
    after `NoRoom`.

    Without ``pieces`` it only asks for a sync, or for a look at what the loop has written.
    ``may_use_reserve``: for its new file.
    """

    era: int
    file: WalFile
    position: int
    end: int
    pieces: list[Buffer]
    sync: bool
    new_file: bool
    may_use_reserve: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the log reaches after a write: ``written`` in the kernel's hands, ``synced`` on the
    disk; what both took.
    """

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


class WalWriter:
    """Writes from ``position`` on, at first into ``file``; ``opened`` is told of every new file
    before its first frame.
    """

    def __init__(
        self,
        folder: Path,
        position: int,
        file: WalFile | None,
        opened: Callable[[WalFile], None],
        *,
        file_bytes: int,
        sync_ms: int,
    ) -> None:
        self.folder, self.file_bytes, self._sync_s = folder, file_bytes, sync_ms / 1000
        self._opened = opened
        self.counters = WalCounters()
        self.stock = WalStock(folder, file_bytes)
        self._queue: queue.SimpleQueue[Group | None] = queue.SimpleQueue()
        self._done: deque[Progress] = deque()
        self._held: Group | None = None
        self._written = position
        self._sync_lock = threading.Lock()  # held during a sync and while its outcome is noted
        self._synced = position
        self._asked = position  # up to where the loop wants a sync
        # What was told and what is in doubt. The lock is for these alone and is never held during a
        # call that may wait.
        self._state = threading.Lock()
        self._reported = position  # what ends here is written, for all that the loop knows
        # Leaves the file in doubt; nothing but this is reported after it.
        self._broken: OSError | None = None
        self._writing = False
        # The file of the last write, and where that was to end.
        self._tried: tuple[WalFile | None, int] = file, position
        self._quiet = (
            True  # the writer knows of nothing that is to be synced: the loop must tell it
        )
        self._told = position  # up to where the loop has told it
        self._behind: queue.SimpleQueue[tuple[WalFile, int] | None] = queue.SimpleQueue()
        self._prepared_for = -1  # base of the file behind which a spare was asked for
        self.progress_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        # The writer gets its start by value: by the time that it runs, the loop may have gone on.
        self._thread = threading.Thread(
            target=self._run, args=(position, file), name="wal writer", daemon=True
        )
        self._syncer = threading.Thread(target=self._sync_behind, name="wal syncer", daemon=True)
        self._thread.start()
        self._syncer.start()

    # The loop's side

    @property
    def is_syncing(self) -> bool:
        """A sync is under way."""
        return self._sync_lock.locked()

    def hand_over(self, group: Group) -> Progress | None:
        """Have the group written; the progress if that is done already, else `take` brings it."""
        if (
            self._written == group.position
            and group.end - group.position <= AT_ONCE_BYTES
            and not (group.sync or group.new_file)
            # Or a sync that fails would refuse what lies before an acknowledged record.
            and self._synced >= self._asked
            and not self._sync_lock.locked()  # a write beside a sync may have to wait for it
        ):
            return self._write_at_once(group)
        if group.sync:
            self._asked = group.end
        self._queue.put(group)
        return None

    def _write_at_once(self, group: Group) -> Progress | None:
        began = time.perf_counter()
        if not self._write([group], at_once=True):
            return None
        took_ms = (time.perf_counter() - began) * 1000
        if self._quiet or group.end - self._told >= SYNC_BYTES:
            self._quiet, self._told = False, group.end
            self._queue.put(Group(group.era, group.file, group.end, group.end, [], False, False))
        return Progress(group.end, self._synced, took_ms, 0.0)

    def resume(self, position: int) -> None:
        """The log goes on here after `NoRoom`: what was handed over since is dropped, and no sync
        of it comes.
        """
        self._asked = min(self._asked, position)

    def take(self) -> list[Progress]:
        """What the threads have done since the last call, oldest first."""
        try:
            os.eventfd_read(self.progress_fd)
        except BlockingIOError:
            return []
        return [self._done.popleft() for _ in range(len(self._done))]

    def retire(self, files: list[WalFile]) -> None:
        """Keep files that the log needs no more as spares, or unlink them. Takes its time: for a
        thread. Raises OSError.
        """
        self.stock.add(files)

    def find_room(self) -> bool:
        """Whether there is a file for what comes next, and the reserve; they are made where there
        is room. For a thread.
        """
        return self._broken is None and self.stock.fill(f"{self._written:016x}.room")

    def give_up(self, error: OSError) -> None:
        """Break the log off as a failed write does: what is handed over from now on is refused. For
        a thread.
        """
        self._break(error)

    def stop(self) -> None:
        """Do what was handed over, then end the threads; `take` still tells of it."""
        self._queue.put(None)
        self._thread.join()
        self._behind.put(None)
        self._syncer.join()

    # The writer's side

    def _run(self, handed_on: int, file: WalFile | None) -> None:
        """``handed_on``: up to where it was synced, or the syncer has been told to."""
        failed_era = -1
        sync_at = math.inf  # when what nobody waits for goes to the syncer
        while True:
            groups = self._next_groups(sync_at)
            if groups is None:
                return None
            if self._broken is not None:
                return self._drain()
            if groups and groups[0].era <= failed_era:
                continue  # handed over before the loop knew of the failure
            full = [group for group in groups if group.pieces]
            wants_sync = any(group.sync for group in groups)
            began = time.perf_counter()
            sync_ms = 0.0
            try:
                if groups:
                    if groups[0].new_file:
                        self._create(groups[0])
                    file = groups[0].file
                    if full and not self._write(full):
                        return self._drain()
                    self._look_ahead(file)
                wrote, written = time.perf_counter(), self._written
                if file is not None and wants_sync:
                    if not self._sync(file, written):
                        return self._drain()
                    sync_ms = (time.perf_counter() - wrote) * 1000
                    handed_on, sync_at = written, math.inf
                elif file is not None and (wrote >= sync_at or written - handed_on >= SYNC_BYTES):
                    self._behind.put((file, written))
                    handed_on, sync_at = written, math.inf
            except NoRoom as error:
                failed_era = groups[0].era
                self._report(Progress(self._written, self._synced, 0.0, 0.0, error))
            except OSError as error:
                self._break(error)
                return self._drain()
            else:
                if full or wants_sync:
                    self._report(Progress(written, self._synced, (wrote - began) * 1000, sync_ms))
                if sync_at == math.inf:
                    self._quiet = (
                        True  # before it looks: what the loop writes after that look, it tells
                    )
                    if self._written > handed_on:
                        self._quiet, sync_at = False, wrote + self._sync_s

    def _look_ahead(self, file: WalFile) -> None:
        """A file that is half full will need a next one: making it takes 50 ms beside a busy
        journal, so it is made meanwhile.
        """
        half_full = 2 * file.offset(self._written) > self.file_bytes
        if half_full and file.base != self._prepared_for and not self.stock:
            self._prepared_for = file.base
            self._behind.put((file, PREPARE))

    def _sync(self, file: WalFile, position: int) -> bool:
        """Sync what was written before ``position``; False when a sync has failed."""
        with self._sync_lock:
            if self._broken is not None:
                return False
            if position > self._synced:
                try:
                    file.sync()
                except OSError as error:
                    self._break(error)  # before the lock is free: no other sync comes in between
                    return False
                self._synced = position
                self.counters.fsyncs += 1
            return True

    def _sync_behind(self) -> None:
        """The syncer, which makes spare files, too. Whatever waits is synced by one call, the last
        one.

        A file that has been synced whole is not touched again.
        """
        while (job := self._behind.get()) is not None:
            file, position = job
            if position == PREPARE:
                with contextlib.suppress(
                    OSError
                ):  # when there is no room, the writer will find out and say so
                    self.stock.look_ahead(file.base)
                continue
            began = time.perf_counter()
            if position > self._synced and self._sync(file, position):
                sync_ms = (time.perf_counter() - began) * 1000
                self._report(Progress(position, position, 0.0, sync_ms))

    def _write(self, groups: list[Group], *, at_once: bool = False) -> bool:
        """Groups with frames, one behind the other. ``at_once``: they count as reported. False: the
        log is broken, and cut off.
        """
        file, position, end = groups[0].file, groups[0].position, groups[-1].end
        pieces = [piece for group in groups for piece in group.pieces]
        if end - position < JOIN_BYTES:
            pieces = [b"".join(pieces)]
        with self._state:
            if self._broken is not None:
                return False
            self._writing, self._tried = True, (file, end)
        error = None
        try:
            write_all(file.fd, pieces, file.offset(position))
        except OSError as failure:
            error = failure
        with self._state:
            self._writing = False
            self._broken = self._broken or error
            if self._broken is None:
                self._written = end
                if at_once:
                    self._reported = end
                self.counters.batches += 1
                self.counters.bytes_written += end - position
                return True
        self._cut_and_tell()  # also for a sync that has failed meanwhile
        return False

    def _break(self, error: OSError) -> None:
        """An error that leaves the file in doubt: refuse all that was not reported, once."""
        with self._state:
            if self._broken is not None:
                return
            self._broken = error
            if self._writing:
                return  # who writes cuts and tells, when it is done
        self._cut_and_tell()

    def _cut_and_tell(self) -> None:
        """Nobody writes any more. What is refused must not be found by a restart, so it goes before
        its refusal is known.
        """
        file, end = self._tried
        error = self._broken
        assert error is not None, "only a broken log is cut"
        if file is not None and end > self._reported:
            try:
                file.blank(self._reported, end)
            except OSError as failure:
                log.critical(
                    "refused frames not cut off",
                    path=str(file.path),
                    offset=file.offset(self._reported),
                    error=str(failure),
                )
        self._tell(Progress(self._reported, self._synced, 0.0, 0.0, error))

    def _create(self, group: Group) -> None:
        """Begin the group's file. Raises as `WalFile.create`."""
        file = group.file
        usual = file.size == self.file_bytes
        try:
            file.create(self.stock.take() if usual else None)
        except NoRoom:
            reserve = self.stock.take_reserve() if usual and group.may_use_reserve else None
            if reserve is None:
                raise
            file.create(reserve)
        self._opened(file)
        self.counters.rotations += 1

    def _next_groups(self, until: float) -> list[Group] | None:
        """All that waits for one file, oldest first; empty when it is time to sync what nobody
        waits for; None at the end.
        """
        first = self._held
        self._held = None
        if first is None:
            try:
                first = self._queue.get(
                    timeout=None if until == math.inf else max(0.0, until - time.perf_counter())
                )
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
        """After an error that leaves the file in doubt: take what comes and let it fall, until the
        end.
        """
        while self._queue.get() is not None:
            pass

    def _report(self, progress: Progress) -> None:
        with self._state:
            if self._broken is not None:
                return
            self._reported = max(self._reported, progress.written)
            self._tell(progress)

    def _tell(self, progress: Progress) -> None:
        self._done.append(progress)
        os.eventfd_write(self.progress_fd, 1)
