"""Checkpointing: writes what a shard knows, so that a start replays little (bytes:
``formats/disk/checkpoint.py``).

    topics, some at a time, written aside piece by piece -> log synced up to an LSN
        -> delete flags up to there synced -> header written, all synced, renamed

A checkpoint is fuzzy: appends go on while it is made. Each topic is stored as committed, with the
LSN below which all of its frames are; replay from ``replay_from`` over newer state comes to the
same end:

- Appends at or below an extent's last seq are known; heads and floors only grow.
- Caps and configs are not applied again below a topic's LSN: later records would go.
- Delete flags are set twice without harm. A flag whose DELETE frame lies beyond the topic's LSN
  counts as live until that frame is replayed: a cap on the way finds what it found at first.
- Jobs of a queue are stored as they are when their turn comes, so leases may be ahead of the
  topic's LSN. The frames from there on are replayed in order, and each says all of a row. How many
  jobs were dead-lettered is stored as of the LSN, and counted from there on.
- A segment counts when it is installed in all of its topics.
- Frames of a topic that the checkpoint does not know are skipped below its LSN; above it they are
  damage.

No more than a piece of a checkpoint is in memory (``decisions/0043``). A checkpoint never holds a
change that may still be undone: it is given up when a group of the log fails meanwhile.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.engine.snapshot import items_to_keep
from topics.formats.disk.checkpoint import Item, PieceBuilder
from topics.storage import checkpoints
from topics.storage.checkpoints import CheckpointWriter, Kept
from topics.storage.recovery.steps import Shard


class Checkpointing:
    """The only writer of checkpoints."""

    def __init__(self, shard: Shard, commits: GroupCommit, reclaim: Reclaim) -> None:
        self._shard, self._commits, self._reclaim = shard, commits, reclaim
        self._table = shard.engine.table
        self._wal, self._segments = shard.wal, shard.segments
        self.written = 0  # since the start of the process
        self.written_at = time.monotonic()

    async def write(self) -> Path:
        """Write a checkpoint; its file. Raises OSError: then everything is as it was."""
        replay_from, losses = self._reclaim.replay_from, self._commits.losses
        numbers = self._reclaim.named_segments
        freed = self._reclaim.take_freed()
        try:
            writer = await trio.to_thread.run_sync(CheckpointWriter, self._shard.folders.checkpoint)
            try:
                builder = await self._write_pieces(writer, numbers)
                lsn = self._wal.next_lsn
                await self.sync_log(lsn, losses)
                await trio.to_thread.run_sync(self._segments.flags.sync, lsn)
                header = builder.header(lsn, replay_from, clean=False)
                pin = self._reclaim.pin
                pinned = None if pin is None else pin.checkpoint
                await trio.to_thread.run_sync(writer.finish, header, pinned)
            except BaseException:
                writer.abandon()
                raise
        except BaseException:
            self._reclaim.put_back(freed)
            raise
        self.written += 1
        self.written_at = time.monotonic()
        self._reclaim.add_checkpoint(Kept(replay_from, frozenset(numbers)), freed)
        return writer.path

    async def _write_pieces(self, writer: CheckpointWriter, numbers: list[int]) -> PieceBuilder:
        """Write all items aside, while the shard goes on."""
        builder = PieceBuilder()
        for item in self._items(numbers, is_last=False):
            if item is None:
                await trio.lowlevel.checkpoint()
            elif (piece := builder.add(item)) is not None:
                await trio.to_thread.run_sync(writer.write, piece)
        await trio.to_thread.run_sync(writer.write, builder.take() or b"")
        return builder

    def write_last(self) -> None:
        """Write the checkpoint of an orderly stop, after the log is closed. Raises OSError."""
        self._segments.flags.sync(self._wal.synced_lsn)
        folder, replay_from = self._shard.folders.checkpoint, self._reclaim.replay_from
        found = self._items(self._reclaim.named_segments, is_last=True)
        items = (item for item in found if item is not None)
        checkpoints.write(folder, self._wal.next_lsn, replay_from, items, clean=True)

    def _items(self, numbers: list[int], *, is_last: bool) -> Iterator[Item | None]:
        """Return the items of a checkpoint, see `items_to_keep`."""
        commits, known = self._commits, {"segments": numbers, "boot": self._shard.boot}
        return items_to_keep(self._table, known, commits.position_of, commits.now, is_last=is_last)

    async def sync_log(self, lsn: int, losses: int) -> None:
        """Return once the log is synced up to ``lsn``, its end of a moment ago.

        Raises OSError when changes were undone since there were ``losses``: what was noted then may
        hold topics that were never made, or lack one.
        """
        wal, commits = self._wal, self._commits
        wal.flush(sync=True, at_once=False)
        if commits.losses == losses:
            await commits.wait_synced(lsn)
        if wal.failed:
            raise wal.failed
        if commits.losses != losses:
            raise OSError(errno.ENOSPC, "changes were undone meanwhile")
