"""Disk space: whether a shard may write (decision 0015).

    READY      --a write found no space, or the reserve is used--> NO_ROOM
    NO_ROOM    --space for the next file and for the reserve is available--> READY
    both       --the log has failed--> READ_ONLY, until the process restarts
    both       --the data directory no longer belongs to the server--> DIRECTORY_LOST, also until
                 the process restarts

In NO_ROOM the shard accepts changes that free space, and refuses changes that grow the log. If the
log has no space for the startup frames, the shard is also in NO_ROOM, and refuses all changes.

The disk watch measures how long the disk has not responded. The threads of the log and of
streamed appends may hang in the kernel while the loop runs. The heartbeat calls `check` twice a
second. If there is no progress for `DISK_STALLED_S`, the shard refuses writes until the disk
responds again. The loop itself may hang in a short write or sync. Then the log's hang watch
publishes on the board how long the disk has not responded, so that the supervisor does not kill the
shard because of its disk. It also continues the heartbeat for `DISK_STALLED_S`, because the disk
may only be busy. After that the heartbeat stops, and the front also fails reads, because the loop
cannot serve them.
"""

from __future__ import annotations

import contextlib
import errno
import time
from collections.abc import Callable, Iterator

import structlog
import trio

from topics.actors.link.board import ShardCells, ShardState
from topics.actors.link.liveness import DISK_STALLED_S, Liveness
from topics.actors.link.tick import wait_tick
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.service import Service
from topics.errors import NotReady
from topics.storage import disk
from topics.storage.folders import DirectoryLost
from topics.storage.recovery.shard_recovery import RecoveredShard
from topics.storage.wal.log_file import NoSpace

RETRY_MIN_S, RETRY_MAX_S = 0.5, 5.0  # pause between two attempts to find space
FULL = NoSpace(errno.ENOSPC, "no space on the disk")
log = structlog.get_logger()


class DiskSpace(Service):
    """The state of one shard's disk. ``broken``: the error that prevents all further writes.

    A task checks the disk. The deadline queue is not used, because a check waits for the disk in a
    thread, and the pause before the next check begins when the check has ended.
    """

    def __init__(self, shard: RecoveredShard, commits: GroupCommit, cells: ShardCells) -> None:
        self.wal, self.commits, self._cells = shard.wal, commits, cells
        # Startup frames that the log had no space for.
        self.unwritten = list(shard.unwritten_frames)
        self.broken: OSError | None = None
        self.on_disk_full: Callable[[], None] = lambda: None  # called repeatedly while NO_ROOM

    def refusal(self, *, grows: bool) -> OSError | None:
        """Return the error with which the log would refuse a change, or None.

        ``grows``: the change frees no space.
        """
        if self.broken is not None:
            return self.broken
        return FULL if self.unwritten or (grows and self.wal.lacks_space) else None

    def show(self, error: OSError | None = None) -> None:
        """Publish the state on the board. ``error``: the error with which the log has failed."""
        self.broken = self.broken or error
        if isinstance(self.broken, DirectoryLost):
            self._show(ShardState.DIRECTORY_LOST)
        elif self.broken is not None:
            self._show(ShardState.READ_ONLY)
        else:
            self._show(ShardState.NO_ROOM if self.refusal(grows=True) else ShardState.READY)

    def _show(self, state: ShardState) -> None:
        if self._cells.state == state:
            return
        path = str(self.wal.folder)
        if state is ShardState.NO_ROOM:
            log.error("disk full", path=path, refused="appends and new topics")
        elif state is ShardState.DIRECTORY_LOST:
            reason = self.broken.strerror if self.broken else None
            log.error("data directory lost", path=path, refused="all writes", reason=reason)
        elif state is ShardState.READ_ONLY:
            log.error("log broken", path=path, refused="all writes", error=str(self.broken))
        elif self._cells.state == ShardState.NO_ROOM:
            log.info("disk space available", path=path)
        self._cells.state = state

    async def run(self) -> None:
        """Check the disk space until cancelled, or until writes are impossible (``broken``)."""
        pause_s = RETRY_MIN_S
        while self.broken is None:
            await wait_tick(pause_s)
            self.show()
            is_short = self._cells.state == ShardState.NO_ROOM
            if is_short:
                self.on_disk_full()
            failed = is_short and not await self.find_space()
            pause_s = min(2 * pause_s, RETRY_MAX_S) if failed else RETRY_MIN_S

    async def find_space(self) -> bool:
        """Try to allocate the needed files. Return whether the log may grow again."""
        if not await trio.to_thread.run_sync(self.wal.allocate_files):
            return False
        if self.unwritten and await self._note_start():
            self.unwritten = []
        self.show()
        return not self.unwritten

    async def _note_start(self) -> bool:
        """Write the startup frames to the log. Return whether this succeeded."""
        self.wal.begin(self.unwritten)
        return await self.commits.wait_synced(self.wal.next_lsn)


class DiskWatch:
    """Watches the disk of one shard."""

    def __init__(self, commits: GroupCommit, disk_space: DiskSpace, cells: ShardCells) -> None:
        self._commits, self._disk_space, self._cells = commits, disk_space, cells
        self._log, self._blobs, self._loop = Liveness(), Liveness(), Liveness()
        # Number of streamed appends in progress, and total number of steps of all streamed appends.
        self._streaming = self._steps = 0
        self.is_stalled = False
        commits.wal.watch_hangs(self._on_hang)

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Callable[[], None]]:
        """Count a running streamed append. The caller calls the yielded function at each step."""
        self._streaming += 1
        try:
            yield self._note_step
        finally:
            self._streaming -= 1

    def _note_step(self) -> None:
        self._steps += 1

    def check(self, now: float) -> None:
        """Publish how long the disk has not responded.

        Log when it stalls and when it responds again.
        """
        self._show(max(self._log_stall_s(now), self._blobs_stall_s(now)))

    def _on_hang(self, call: int) -> None:
        """Publish that the loop hangs in call number ``call``. Runs in the watch thread."""
        silent_s = self._loop.observe(call, time.monotonic())
        self._show(silent_s)
        if silent_s < DISK_STALLED_S:
            self._cells.heartbeat_ms = time.monotonic_ns() // 1_000_000

    def _show(self, silent_s: float) -> None:
        self._cells.disk_silent_ms = int(silent_s * 1000)
        if self.is_stalled != (silent_s >= DISK_STALLED_S):
            self.is_stalled = not self.is_stalled
            if self.is_stalled:
                log.error("disk stalled", silent_s=round(silent_s, 1))
            else:
                log.info("disk resumed")

    def _log_stall_s(self, now: float) -> float:
        commits = self._commits
        is_waited_for = len(commits) > 0 or commits.wal.is_syncing
        if not is_waited_for or self._disk_space.broken is not None:
            return self._log.observe(now, now)
        return self._log.observe((commits.oldest, commits.wal.synced_lsn), now)

    def _blobs_stall_s(self, now: float) -> float:
        return self._blobs.observe((self._streaming, self._steps) if self._streaming else now, now)


def unwritable(error: OSError) -> NotReady:
    """Return the client's error for a write that failed or was refused because of ``error``."""
    reason = "disk_full" if error.errno in disk.FULL else "read_only"
    if isinstance(error, DirectoryLost):
        reason = "directory_lost"
    return NotReady(f"the shard cannot write: {error.strerror or error}", reason=reason)
