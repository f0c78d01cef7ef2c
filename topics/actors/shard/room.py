"""Room: whether a shard may write (decision 0015).

    READY      --no room was met, or the reserve is used up--> NO_ROOM
    NO_ROOM    --a file for what comes next, and the reserve, were found--> READY
    both       --the log has failed, or its files are gone--> READ_ONLY, until the process starts
               anew

In NO_ROOM changes that make room are still done; changes that grow the log are refused. A start
that the log has no room to note is NO_ROOM, too, and refuses both.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

import structlog
import trio

from topics.actors.link.board import ShardState, ShardWords
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.service import Service
from topics.errors import NotReady
from topics.storage import disk
from topics.storage.recovery.steps import Shard
from topics.storage.wal.file import NoRoom

FILES_CHECK_S = 0.5  # between two checks that the log's files are there
RETRY_MIN_S, RETRY_MAX_S = 0.25, 5.0  # between two attempts to find room
FULL = NoRoom(errno.ENOSPC, "no room on the disk")
log = structlog.get_logger()


class Room(Service):
    """The state of one shard's disk. ``broken``: the error that ended all writing.

    Its two tasks sleep by themselves: their checks wait for the disk, in threads, and the next
    pause begins when a check has ended.
    """

    def __init__(self, shard: Shard, commits: GroupCommit, words: ShardWords) -> None:
        self.wal, self.commits, self._words = shard.wal, commits, words
        # Frames of this start that the log had no room for.
        self.owed = list(shard.unwritten_frames)
        self.broken: OSError | None = None
        self.on_short: Callable[[], None] = lambda: None  # called now and then in NO_ROOM

    def refusal(self, *, grows: bool) -> OSError | None:
        """Why a change may not be done; None when it may. ``grows``: it makes no room."""
        if self.broken is not None:
            return self.broken
        return FULL if self.owed or (grows and self.wal.short_of_room) else None

    def show(self, error: OSError | None = None) -> None:
        """Put the state on the board. ``error``: the log has failed with it."""
        self.broken = self.broken or error
        if self.broken is not None:
            self._show(ShardState.READ_ONLY)
        else:
            self._show(ShardState.NO_ROOM if self.refusal(grows=True) else ShardState.READY)

    def _show(self, state: ShardState) -> None:
        if self._words.state == state:
            return
        folder = str(self.wal.folder)
        if state is ShardState.NO_ROOM:
            log.error("disk full", folder=folder, refused="appends and new topics")
        elif state is ShardState.READ_ONLY:
            log.error("log broken", folder=folder, refused="all writes", error=str(self.broken))
        elif self._words.state == ShardState.NO_ROOM:
            log.info("disk has room again", folder=folder)
        self._words.state = state

    async def run(self) -> None:
        """Watch the log's files and its room, until cancelled or broken."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_files)
            nursery.start_soon(self._watch_room)

    async def _watch_files(self) -> None:
        while self.broken is None:
            if await trio.to_thread.run_sync(self.wal.is_gone):
                gone = OSError(errno.ENOENT, "the files of the log are gone or replaced")
                await trio.to_thread.run_sync(self.wal.writer.state.break_off, gone)
            await trio.sleep(FILES_CHECK_S)

    async def _watch_room(self) -> None:
        pause_s = RETRY_MIN_S
        while self.broken is None:
            await trio.sleep(pause_s)
            self.show()
            is_short = self._words.state == ShardState.NO_ROOM
            if is_short:
                self.on_short()
            failed = is_short and not await self.find_room()
            pause_s = min(2 * pause_s, RETRY_MAX_S) if failed else RETRY_MIN_S

    async def find_room(self) -> bool:
        """Look for room; whether the shard may grow again."""
        if not await trio.to_thread.run_sync(self.wal.find_room):
            return False
        if self.owed and await self._note_start():
            self.owed = []
        self.show()
        return not self.owed

    async def _note_start(self) -> bool:
        """Write the frames of this start; whether the log has them now."""
        self.wal.begin(self.owed)
        return await self.commits.wait_synced(self.wal.next_lsn)


def unwritable(error: OSError) -> NotReady:
    """What a client is told when its write failed, or could not be tried, with ``error``."""
    reason = "disk_full" if error.errno in disk.FULL else "read_only"
    return NotReady(f"the shard cannot write: {error.strerror or error}", reason=reason)
