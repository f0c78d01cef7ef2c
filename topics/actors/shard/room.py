"""Whether a shard may write: room on its disk, and the files that it writes to (decision 0015).

    READY      --no room was met, or the reserve is used up--> NO_ROOM
    NO_ROOM    --a file for what comes next, and the reserve, were found--> READY
    both       --the log is broken, or its files are gone--> READ_ONLY, until the process starts
               anew

In NO_ROOM what makes room is still done; what grows is refused.
"""

from __future__ import annotations

import errno

import structlog
import trio

from topics.actors.link.board import ShardState, ShardWords
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.service import Service
from topics.errors import NotReady
from topics.storage import disk
from topics.storage.recovery.steps import Shard
from topics.storage.wal.file import NoRoom

LOOK_S = 0.5  # between two looks at the files
AGAIN_FIRST_S, AGAIN_MAX_S = 0.25, 5.0  # between two attempts to find room
FULL = NoRoom(errno.ENOSPC, "no room on the disk")
log = structlog.get_logger()


class Room(Service):
    """The tasks that look after it, and what a request is refused with."""

    def __init__(self, shard: Shard, commits: GroupCommit, words: ShardWords) -> None:
        self.wal, self.commits, self._words = shard.wal, commits, words
        self._unsaid = list(shard.unwritten_frames)
        self.broken: OSError | None = None  # what ended all writing

    def refusal(self, *, grows: bool) -> OSError | None:
        """Why a request may not be done. ``grows``: it makes no room."""
        if self.broken is not None:
            return self.broken
        return FULL if self._unsaid or (grows and self.wal.short_of_room) else None

    def show(self, error: OSError | None = None) -> None:
        """Tell the board. ``error``: the log is broken by it."""
        self.broken = self.broken or error
        if self.broken is not None:
            self._show(ShardState.READ_ONLY)
        else:
            self._show(ShardState.NO_ROOM if self.refusal(grows=True) else ShardState.READY)

    def _show(self, state: ShardState) -> None:
        if self._words.state == state:
            return
        if state is ShardState.NO_ROOM:
            log.error("disk full", folder=str(self.wal.folder), refused="appends and new topics")
        elif state is ShardState.READ_ONLY:
            log.error(
                "log broken",
                folder=str(self.wal.folder),
                refused="all writes",
                error=str(self.broken),
            )
        elif self._words.state == ShardState.NO_ROOM:
            log.info("disk has room again", folder=str(self.wal.folder))
        self._words.state = state

    async def run(self) -> None:
        """Look after both, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_files)
            nursery.start_soon(self._watch_room)

    async def _watch_files(self) -> None:
        while self.broken is None:
            if await trio.to_thread.run_sync(self.wal.is_gone):
                gone = OSError(errno.ENOENT, "the files of the log are gone or replaced")
                await trio.to_thread.run_sync(self.wal.give_up, gone)
            await trio.sleep(LOOK_S)

    async def _watch_room(self) -> None:
        pause = AGAIN_FIRST_S
        while self.broken is None:
            await trio.sleep(pause)
            self.show()
            short = self._words.state == ShardState.NO_ROOM
            in_vain = short and not await self._find()
            pause = min(2 * pause, AGAIN_MAX_S) if in_vain else AGAIN_FIRST_S

    async def _find(self) -> bool:
        """Whether the shard may grow again."""
        if not await trio.to_thread.run_sync(self.wal.find_room):
            return False
        if self._unsaid and await self._say():
            self._unsaid = []
        self.show()
        return not self._unsaid

    async def _say(self) -> bool:
        """Whether the log now knows of this start."""
        self.wal.begin(self._unsaid)
        return await self.commits.wait_synced(self.wal.next_lsn)


def unwritable(error: OSError) -> NotReady:
    """What a client is told when its write failed, or could not be tried, with ``error``."""
    reason = "disk_full" if error.errno in disk.FULL else "read_only"
    return NotReady(f"the shard cannot write: {error.strerror or error}", reason=reason)
