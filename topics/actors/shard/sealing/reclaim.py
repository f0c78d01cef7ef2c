"""Reclaim: frees log files, blobs, segments and extents that are no longer needed.

    extent     no longer in the index              -> punched, two checkpoints later
    segment    no extent is in the index           -> unlinked, when no checkpoint on disk needs it
    blob       a segment holds its records         -> unlinked, two checkpoints later
               the delete of its topic is durable  -> unlinked
    log file   its records are in segments         -> reused or unlinked, when its end is below the
                                                      older checkpoint's ``replay_from``

Two checkpoints are on the disk, and startup may need either of them. So data that the newest
checkpoint no longer needs is kept until that checkpoint is the older of the two. After an error,
the remaining work is done the next time. Data to which a checkpoint on disk or the index still
refers is never released. While a backup copies the files of a checkpoint (`Pin`), no data is
released. The pin breaks as soon as the disk has no space for a log file, a spare, a blob, a segment
of new records or a checkpoint (``sealing.py``). So a backup never stops a writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import trio

from topics.actors.shard.record_store import unlink_all
from topics.engine.locators import Locator, in_extent, is_extent, split_locator
from topics.storage import checkpoints
from topics.storage.checkpoints import CheckpointNeeds
from topics.storage.recovery.shard_recovery import RecoveredShard
from topics.storage.wal.log_file import WalFile


class Freed(NamedTuple):
    """Extents and blobs that were removed from the index between two checkpoints."""

    extents: list[Locator]
    blobs: list[Path]


NOTHING = CheckpointNeeds(0, frozenset())


@dataclass(eq=False, slots=True)
class Pin:
    """Keeps the files of a backup's ``checkpoint`` until the pin is released or ``is_broken``.

    ``kept``: the files that the checkpoint needs. ``blobs``: blobs that the shard no longer needs,
    because segments now contain their records or their topic is deleted. ``takes_newest``: pin the
    newest checkpoint that this process has written, and write a checkpoint only if there is none.
    """

    checkpoint: Path | None = None
    kept: CheckpointNeeds = NOTHING
    blobs: list[Path] = field(default_factory=list)
    is_broken: bool = False
    takes_newest: bool = False


class Reclaim:
    """Tracks which extents, segments, blobs and log files are in use, and frees unused ones.

    ``replay_from``: all records of the log before this LSN are in segments.
    """

    def __init__(self, shard: RecoveredShard) -> None:
        self._wal, self._segments = shard.wal, shard.segments
        self.replay_from = shard.kept[-1].replay_from if shard.kept else 0
        self.sealed = 0  # number of log files sealed since the process started
        self._written = deque(shard.kept, maxlen=checkpoints.CHECKPOINTS_KEPT)
        used = _used_extents(shard)
        # Number of extents in the index, for each existing segment. A segment that has none may
        # still be needed by the older checkpoint.
        self._live = {number: 0 for kept in shard.kept for number in kept.segments} | {
            number: len(extents) for number, extents in used.items()
        }
        # Extents freed since the last checkpoint. Initially, those that an earlier process freed
        # but did not punch.
        self._extents = [
            in_extent(number, extent)
            for number, extents in used.items()
            if extents
            for extent in self._segments.segments[number].unpunched(extents)
        ]
        self._blobs = list(shard.absorbed)
        self._unneeded_blobs: list[Path] = []  # blobs of deleted topics; startup never needs them
        self._freed: deque[Freed] = deque()  # one entry per checkpoint, newest last
        self._detached: list[WalFile] = []
        self.pin: Pin | None = None

    # Usage

    def add_segment(self, number: int) -> None:
        """Register a segment that is on the disk.

        The segment is not freed before its extents have been added with `add_extents`.
        """
        self._live[number] = 0

    def add_extents(self, number: int, count: int, unused: Iterable[Locator]) -> None:
        """Count ``count`` more extents that are in the index.

        The extents ``unused`` were never added to the index.
        """
        self._live[number] += count
        self._extents += unused

    def release_extent(self, locator: int) -> None:
        """Record that this extent is no longer in the index."""
        self._live[split_locator(locator)[0]] -= 1
        self._extents.append(Locator(locator))

    def seal_up_to(self, end: int) -> None:
        """Record that all records of the log before ``end`` are in segments."""
        self._release_blobs(self._wal.blobs.absorb(end))
        self._wal.unmap_below(end)
        self.replay_from = end
        self.sealed += 1

    def drop_blobs(self, paths: list[Path]) -> None:
        """Remove the blobs of a durably deleted topic, or keep them while there is a pin."""
        if self.pin is not None:
            self.pin.blobs += paths
            self._unneeded_blobs += paths
        else:
            unlink_all(paths)

    def _release_blobs(self, blobs: list[Path]) -> None:
        self._blobs += blobs
        if self.pin is not None:
            self.pin.blobs += blobs

    @property
    def named_segments(self) -> list[int]:
        """The segments to be listed in a new checkpoint, in the order of the log."""
        numbers = (number for number, count in self._live.items() if count)
        return sorted(numbers, key=lambda number: self._segments.segments[number].header.base)

    def are_unused(self, numbers: Iterable[int]) -> bool:
        """Return whether no extent of these segments is in the index."""
        return not any(self._live.get(number) for number in numbers)

    @property
    def _unused_segments(self) -> list[int]:
        """The segments that have no extents in the index.

        Such a segment never gets extents again, unless it is being installed.
        """
        return [number for number, count in self._live.items() if not count]

    @property
    def has_garbage(self) -> bool:
        """Whether another checkpoint would free space."""
        if self.pin is not None:
            return False
        waiting = any(freed.extents or freed.blobs for freed in self._freed)
        loose = (
            self._extents
            or self._blobs
            or self._unneeded_blobs
            or self._unused_segments
            or self._detached
        )
        return bool(waiting or loose or self._wal.oldest_lsn < self.replay_from)

    # Checkpoints

    @property
    def absorbed_blobs(self) -> list[Path]:
        """Blobs whose records are in segments that are not in the newest checkpoint yet."""
        return self._blobs

    @property
    def newest(self) -> CheckpointNeeds:
        """The files that the newest checkpoint needs."""
        return self._written[-1]

    def take_freed(self) -> Freed:
        """Take the data freed since the last checkpoint. Called when the next checkpoint begins."""
        freed, self._extents, self._blobs = Freed(self._extents, self._blobs), [], []
        return freed

    def restore_freed(self, freed: Freed) -> None:
        """Undo `take_freed`. Called when the checkpoint has failed."""
        self._extents[:0] = freed.extents
        self._blobs[:0] = freed.blobs

    def add_checkpoint(self, written: CheckpointNeeds, freed: Freed) -> None:
        """Register a written checkpoint, and the data that was freed before it began."""
        self._written.append(written)
        self._freed.append(freed)

    async def free(self) -> None:
        """Release all data that neither checkpoint on disk needs. Raises OSError.

        Do nothing while there is a pin.
        """
        if self.pin is not None:
            return
        unneeded = self._unneeded_blobs[:]
        if unneeded:
            await trio.to_thread.run_sync(unlink_all, unneeded)
            del self._unneeded_blobs[: len(unneeded)]
        # While there are fewer than CHECKPOINTS_KEPT checkpoints, startup may need every file.
        if len(self._written) < checkpoints.CHECKPOINTS_KEPT:
            return
        older = self._written[0]
        await self._unlink_segments(older.segments | self._written[-1].segments)
        # Neither checkpoint on disk needs data that was freed before the older checkpoint began.
        while len(self._freed) >= checkpoints.CHECKPOINTS_KEPT:
            await self._release(self._freed[0])
            self._freed.popleft()
        self._detached += self._wal.detach(older.replay_from)
        while self._detached:
            await trio.to_thread.run_sync(self._wal.writer.spares.add, self._detached[:1])
            del self._detached[0]

    def break_pin(self) -> bool:
        """Abort the backup in progress, because the space that it occupies is needed.

        Return False if there was no backup.
        """
        if self.pin is None:
            return False
        self.pin.is_broken, self.pin = True, None
        return True

    async def _unlink_segments(self, named: frozenset[int]) -> None:
        for number in [number for number in self._unused_segments if number not in named]:
            await trio.to_thread.run_sync(self._segments.unlink, number)
            del self._live[number]

    async def _release(self, freed: Freed) -> None:
        extents = [
            locator for locator in freed.extents if self._live.get(split_locator(locator)[0])
        ]
        if extents:
            await trio.to_thread.run_sync(self._segments.punch, extents)
        await trio.to_thread.run_sync(unlink_all, freed.blobs)


def _used_extents(shard: RecoveredShard) -> dict[int, set[int]]:
    """Return the extents in the index, by segment."""
    used: dict[int, set[int]] = {number: set() for number in shard.segments.segments}
    for topic in shard.engine.by_id.values():
        for locator in topic.index.locators():
            if is_extent(locator):
                number, extent = split_locator(locator)
                used[number].add(extent)
    return used
