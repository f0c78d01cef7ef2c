"""Replay store: gives the engine access to records in segments and log files during a replay."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import chain, starmap

from topics.engine.locators import Locator, is_extent, lsn_of
from topics.engine.shard import ShardEngine
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import header_at
from topics.formats.disk.records import AbstractView, RecordsView
from topics.formats.disk.segment import ExtentEntry
from topics.formats.ranges import IndexRun, SeqRun
from topics.storage.disk import Damaged
from topics.storage.frame_reader import FrameReader, frame_lsn
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.log_file import WalFile


class ReplayStore:
    """A `Store` over segments and log files.

    The delete flags in segments may include deletes whose frames the replay has not reached yet.
    These records must count as live until then (`restore_live`), so the store keeps its own flags
    for such extents.
    """

    def __init__(
        self,
        engine: ShardEngine,
        segments: SegmentStore,
        files: Sequence[WalFile],
        frames: FrameReader,
    ) -> None:
        self._engine, self._segments, self._files = engine, segments, files
        self._frames = frames
        # The flags of extents whose flags in the file are ahead of the replay.
        self._flags: dict[int, bytearray] = {}

    def restore_live(self, locator: Locator, entry: ExtentEntry, runs: Iterable[SeqRun]) -> None:
        """Mark the records of these runs as live until the replay deletes them.

        If the replay enforces a cap before that, it must count these records. Otherwise it would
        evict fewer records than the original run, and evicted records would reappear.
        """
        deleted = self._segments.delete_flags(locator)
        if deleted is None:
            return
        flags = bytearray(deleted)
        for first, length in runs:
            start = max(first - entry.first_seq, 0)
            stop = min(first + length - entry.first_seq, len(flags))
            if start < stop:
                flags[start:stop] = bytes(stop - start)
        if flags != deleted:
            self._flags[locator] = flags

    def records(self, locator: Locator) -> AbstractView:
        """Return the records at a locator. Raise `Damaged`."""
        if is_extent(locator):
            return self._segments.records(locator)
        file = self._files[
            bisect_right(self._files, lsn_of(locator), key=lambda file: file.base) - 1
        ]
        try:
            return self._frames.records(file, locator)
        except Damaged as damage:
            if damage.path.exists():
                raise
            # The blob is missing: its topic is deleted later in the log, or `BlobStore.verify`
            # raises an error. Until then, use placeholder records of one byte each.
            count = header_at(file.view(), file.offset(frame_lsn(file, locator))).record_count
            return RecordsView(
                0, count, 0, memoryview(array("I", range(1, count + 1)).tobytes() + bytes(count))
            )

    def delete_flags(self, locator: Locator) -> Buffer | None:
        """Return the delete flags as of the replayed frame, or None if no flag is set."""
        if not is_extent(locator):
            return self._engine.delete_flags.get(locator)
        return self._flags.get(locator) or self._segments.delete_flags(locator)

    def flag_deleted(
        self, locator: Locator, count: int, runs: Sequence[IndexRun], _size: int
    ) -> None:
        """Flag these records as deleted."""
        if not is_extent(locator):
            self._engine.delete_flags.flag(locator, count, runs)
            return
        # Use LSN 0, because the log is synced before any flag is written.
        self._segments.flag_deleted(locator, chain.from_iterable(starmap(range, runs)), 0)
        if locator in self._flags:
            for start, stop in runs:
                self._flags[locator][start:stop] = b"\1" * (stop - start)

    def release(self, locators: Sequence[Locator]) -> None:
        """Drop flags in memory. Unreferenced extents are found after the replay."""
        self._engine.delete_flags.drop(locators)

    release_later = release
