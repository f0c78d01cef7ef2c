"""Checkpointing: stores the state of a shard, so that startup replays only a part of the log.

``formats/disk/checkpoint.py`` has the byte layout.

    1. Write the topics to a temporary file in chunks, a few topics at a time.
    2. Sync the log, and the delete flags that depend on it.
    3. Write the header, then sync and rename the file.

A checkpoint is fuzzy: appends continue while it is written. Each topic is stored in its committed
state, with the LSN below which all of its frames are applied. Replay from ``replay_from`` applies
old frames to newer state and reaches the same result, for these reasons:

- Appends at or below an extent's last seq are not applied again. Heads and floors only increase.
- Caps and configs are not applied again below a topic's LSN, because they would remove later
  records.
- Setting a delete flag twice has no effect. A flag whose DELETE frame is after the topic's LSN
  counts as live until that frame is replayed, so that a cap applied before it removes the same
  records.
- Jobs of a queue are stored in their state at the time of writing, so leases may be newer than the
  topic's LSN. The frames after this LSN are replayed in order, and each contains complete rows. The
  number of dead-lettered jobs is stored as of the LSN, and the replay counts later jobs.
- A segment is included only when the index refers to it for all of its topics.
- Below the checkpoint's LSN, frames of a topic that the checkpoint does not contain are skipped.
  Above it, such frames are damage.

At most one chunk of a checkpoint is in memory (``decisions/0043``). A checkpoint never contains a
change that may still be undone: if the log loses a group while a checkpoint is being written, the
checkpoint is abandoned.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import trio

from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing.reclaim import Reclaim
from topics.engine.snapshot import checkpoint_items
from topics.formats.disk.checkpoint import ChunkBuilder, Item
from topics.storage import checkpoints
from topics.storage.checkpoints import CheckpointNeeds, CheckpointWriter
from topics.storage.recovery.shard_recovery import RecoveredShard


class Checkpointing:
    """The only writer of checkpoints."""

    def __init__(self, shard: RecoveredShard, commits: GroupCommit, reclaim: Reclaim) -> None:
        self._shard, self._commits, self._reclaim = shard, commits, reclaim
        self._table = shard.engine.table
        self._wal, self._segments = shard.wal, shard.segments
        self.written = 0  # number of checkpoints written since the process started
        self.newest: Path | None = None  # the newest checkpoint that this process has written
        self.written_at = time.monotonic()

    async def write(self) -> Path:
        """Write a checkpoint and return its file.

        If this raises OSError, the state is unchanged.
        """
        replay_from, losses = self._reclaim.replay_from, self._commits.rollback_count
        numbers = self._reclaim.named_segments
        freed = self._reclaim.take_freed()
        try:
            writer = await trio.to_thread.run_sync(CheckpointWriter, self._shard.folders.checkpoint)
            try:
                # The items may depend on frames up to the current end of the log. Sync these frames
                # and the delete flags before the header makes the checkpoint valid.
                builder = await self._write_items(writer, numbers)
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
            self._reclaim.restore_freed(freed)
            raise
        self.written, self.newest = self.written + 1, writer.path
        self.written_at = time.monotonic()
        self._reclaim.add_checkpoint(CheckpointNeeds(replay_from, frozenset(numbers)), freed)
        return writer.path

    async def _write_items(self, writer: CheckpointWriter, numbers: list[int]) -> ChunkBuilder:
        """Write all items to the temporary file, while the shard serves requests."""
        builder = ChunkBuilder()
        for item in self._items(numbers, is_last=False):
            if item is None:
                await trio.lowlevel.checkpoint()
            elif (chunk := builder.add(item)) is not None:
                await trio.to_thread.run_sync(writer.write, chunk)
        await trio.to_thread.run_sync(writer.write, builder.take() or b"")
        return builder

    def write_last(self) -> None:
        """Write the checkpoint of a clean shutdown, after the log is closed. Raises OSError."""
        self._segments.flags.sync(self._wal.synced_lsn)
        folder, replay_from = self._shard.folders.checkpoint, self._reclaim.replay_from
        found = self._items(self._reclaim.named_segments, is_last=True)
        items = (item for item in found if item is not None)
        checkpoints.write(folder, self._wal.next_lsn, replay_from, items, clean=True)

    def _items(self, numbers: list[int], *, is_last: bool) -> Iterator[Item | None]:
        """Return the items of a checkpoint; see `checkpoint_items`."""
        commits, known = self._commits, {"segments": numbers, "boot": self._shard.boot}
        return checkpoint_items(
            self._table, known, commits.position_of, commits.now, is_last=is_last
        )

    async def sync_log(self, lsn: int, losses: int) -> None:
        """Wait until the log is synced up to ``lsn``, the current end of the log.

        Raises OSError if changes were undone since the number of rollbacks was ``losses``. Data
        collected since then may contain topics whose creation was undone, or lack topics whose
        deletion was undone.
        """
        wal, commits = self._wal, self._commits
        wal.flush(sync=True, immediate=False)
        if commits.rollback_count == losses:
            await commits.wait_synced(lsn)
        if wal.failed:
            raise wal.failed
        if commits.rollback_count != losses:
            raise OSError(errno.ENOSPC, "changes were undone before the log was synced")
