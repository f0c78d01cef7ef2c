"""Disk watch: how long the disk has not answered while the loop lives.

The log's threads, and those of streamed appends, may hang in the kernel. The heartbeat calls `look`
twice a second; after `DISK_STALLED_S` without progress the shard refuses writes until the disk
answers again.

The loop itself may hang in a short write or sync. Then the log's hang watch says so in its place:
the board shows how long the disk has been silent, so the supervisor does not kill the shard for its
disk. The heartbeat goes on for `DISK_STALLED_S`, as for a busy disk; then it stops, and the front
ends reads, too, which no loop can answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

import structlog

from topics.actors.link.board import ShardWords
from topics.actors.link.pulse import DISK_STALLED_S, Pulse
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.room import Room

NS_PER_MS: Final = 1_000_000

log = structlog.get_logger()


class DiskWatch:
    """Watches the disk of one shard."""

    def __init__(self, commits: GroupCommit, room: Room, words: ShardWords) -> None:
        self._commits, self._room, self._words = commits, room, words
        self._log, self._blobs, self._loop = Pulse(), Pulse(), Pulse()
        self._streaming = self._steps = 0  # streamed appends under way, and steps of all of them
        self.is_stalled = False
        commits.wal.watch_hangs(self._on_hang)

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
        """Put on the board how long the disk has been silent, and log when it stalls or answers."""
        self._show(max(self._log_silent_s(now), self._blobs_silent_s(now)))

    def _on_hang(self, call: int) -> None:
        """The loop hangs in this call; told by the thread that watches it."""
        silent_s = self._loop.look(call, time.monotonic())
        self._show(silent_s)
        if silent_s < DISK_STALLED_S:
            self._words.heartbeat_ms = time.monotonic_ns() // NS_PER_MS

    def _show(self, silent_s: float) -> None:
        self._words.disk_silent_ms = int(silent_s * 1000)
        if self.is_stalled != (silent_s >= DISK_STALLED_S):
            self.is_stalled = not self.is_stalled
            if self.is_stalled:
                log.error("disk stalled", silent_s=round(silent_s, 1))
            else:
                log.info("disk answers again")

    def _log_silent_s(self, now: float) -> float:
        commits = self._commits
        is_waited_for = len(commits) > 0 or commits.wal.is_syncing
        if not is_waited_for or self._room.broken is not None:
            return self._log.look(now, now)
        return self._log.look((commits.oldest, commits.wal.synced_lsn), now)

    def _blobs_silent_s(self, now: float) -> float:
        return self._blobs.look((self._streaming, self._steps) if self._streaming else now, now)
