"""Disk watch: how long the log's threads, or those of streamed appends, have hung in the kernel.

The loop lives meanwhile and says so (`Heartbeat`); a disk that does not answer for
`DISK_STALLED_S` makes the shard refuse writes until it answers again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import structlog

from topics.actors.link.board import ShardWords
from topics.actors.link.pulse import DISK_STALLED_S, Pulse
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.room import Room

log = structlog.get_logger()


class DiskWatch:
    """Watches the disk of one shard."""

    def __init__(self, commits: GroupCommit, room: Room, words: ShardWords) -> None:
        self._commits, self._room, self._words = commits, room, words
        self._log, self._blobs = Pulse(), Pulse()
        self.is_stalled = False
        self._streaming = self._steps = 0  # streamed appends under way, and steps of all of them

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Callable[[], None]]:
        """A streamed append writes meanwhile; call what this gives at each step."""
        self._streaming += 1
        try:
            yield self._note_step
        finally:
            self._streaming -= 1

    def _note_step(self) -> None:
        self._steps += 1

    def look(self, now: float) -> None:
        """Tell the board and the log how long the disk has been silent."""
        waits = (
            len(self._commits) > 0 or self._commits.wal.is_syncing
        ) and self._room.broken is None
        progress = (self._commits.oldest, self._commits.wal.synced_lsn)
        silent_s = max(
            self._log.look(progress if waits else now, now),
            self._blobs.look((self._streaming, self._steps) if self._streaming else now, now),
        )
        self._words.disk_silent_ms = int(silent_s * 1000)
        if self.is_stalled != (silent_s >= DISK_STALLED_S):
            self.is_stalled = not self.is_stalled
            if self.is_stalled:
                log.error("disk stalled", silent_s=round(silent_s, 1))
            else:
                log.info("disk answers again")
