"""Segment store: the set of a shard's segments, and all operations on them.

    ``segment_file.py``  one file except its extents: opening, writing, releasing space
    ``maps.py``          memory-mapped files for readers
    ``merge_reader.py``  files that a merge copies into a new segment ``delete_flags.py``  delete
    flags, kept in memory until the log is synced, then in the file

Segments are read in place. Only their delete flags are changed in place, and the space of extents
without live records is released.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import Path

from topics.engine.locators import Locator, in_extent, split_locator
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import ExtentEntry, SegmentHeader
from topics.storage.disk import Damaged, make_directory
from topics.storage.file_names import NEW_SEGMENT, SEGMENT, own_files
from topics.storage.segments.delete_flags import PendingFlags
from topics.storage.segments.maps import MAPPED_MAX, SegmentMaps
from topics.storage.segments.segment_file import FINDINGS_MAX, Segment, SegmentWriter, segment_path


class SegmentStore:
    """The segments that belong to a shard's data.

    Only one thread at a time may change files. The loop may call `flag_deleted` concurrently.
    """

    def __init__(self, folder: Path, shard: int, *, mapped_max: int = MAPPED_MAX) -> None:
        self.folder, self.shard = folder, shard
        self.segments: dict[int, Segment] = {}
        self.damage: list[Damaged] = []  # damage that was found before `on_damage` was set
        self.on_damage: Callable[[Damaged], None] = self._note_damage
        self.maps = SegmentMaps(self.segments, mapped_max)
        self.flags = PendingFlags(self.segments, self.maps)

    @classmethod
    def open(
        cls,
        folder: Path,
        shard: int,
        numbers: Iterable[int],
        *,
        mapped_max: int = MAPPED_MAX,
        heartbeat: Callable[[], None] = lambda: None,
    ) -> SegmentStore:
        """Open the segments with these numbers. No file is changed. Raise `Damaged`.

        ``heartbeat`` is called after each file.
        """
        store = cls(folder, shard, mapped_max=mapped_max)
        for number in sorted(numbers):
            segment = Segment(segment_path(folder, number), shard, number)
            store.add(segment)
            if 1 in segment.has_deleted:
                store.flags.add_unsynced(number)
            heartbeat()
        return store

    def sweep(self, kept: Set[int], heartbeat: Callable[[], None] = lambda: None) -> None:
        """Remove all segments except the open ones and the numbers in ``kept``. Raise OSError.

        ``heartbeat`` is called for each file, to report progress.
        """
        wanted = {segment_path(self.folder, number) for number in {*self.segments, *kept}}
        for path in own_files(self.folder, SEGMENT, NEW_SEGMENT):
            heartbeat()
            if path not in wanted:
                path.unlink()

    def begin(self, number: int, base: int, end: int) -> SegmentWriter:
        """Start a new segment for the records of the log from ``base`` to ``end``.

        Raise OSError.
        """
        make_directory(self.folder)
        return SegmentWriter(self.folder, SegmentHeader(self.shard, number, base, end))

    def add(self, segment: Segment) -> None:
        """Add an open segment to the shard's data."""
        segment.on_damage = lambda damage: self.on_damage(damage)
        self.segments[segment.number] = segment

    def unlink(self, number: int) -> None:
        """Remove a segment. If this raises OSError, the segment is unchanged.

        The removal is durable after a sync of the folder. Startup removes segments that no
        checkpoint refers to.
        """
        segment_path(self.folder, number).unlink(missing_ok=True)
        self.segments.pop(number, None)
        self.maps.release(number)
        self.flags.drop_segment(number)

    def _note_damage(self, damage: Damaged) -> None:
        """Keep damage that is found before `on_damage` is set."""
        if len(self.damage) < FINDINGS_MAX:
            self.damage.append(damage)

    # Reading

    def entries(self, number: int) -> Iterator[tuple[Locator, ExtentEntry]]:
        """Return ``(locator, entry)`` of each extent of a segment."""
        entries = self.segments[number].entries()
        return ((in_extent(number, extent), entry) for extent, entry in enumerate(entries))

    def records(self, locator: int) -> ExtentView:
        """Return the extent's records, which stay valid while the view is held.

        This call and each read of the view may raise `Damaged`.
        """
        number, extent = split_locator(locator)
        return self.maps.of(number).view(extent)

    def has_tables(self, locator: int) -> bool:
        """Return whether the extent's tables are intact. A punched extent has no tables."""
        number, extent = split_locator(locator)
        return self.maps.of(number).has_tables(extent)

    # Delete flags

    def delete_flags(self, locator: int) -> memoryview | None:
        """Return the extent's current delete flags, or None if no flag is set."""
        number, extent = split_locator(locator)
        if not self.segments[number].has_deleted[extent]:
            return None
        flags = self.flags.get(locator)
        return self.maps.of(number).flags(extent) if flags is None else flags

    def is_all_deleted(self, locator: int) -> bool:
        """Return whether all records of the extent are deleted."""
        flags = self.delete_flags(locator)
        return flags is not None and bytes(flags).count(1) == len(flags)

    def flag_deleted(self, locator: int, indexes: Iterable[int], lsn: int) -> None:
        """Flag these records as deleted.

        Readers see the flags immediately. They are written to the file after the log is synced up
        to ``lsn``, which must never decrease.
        """
        number, extent = split_locator(locator)
        try:
            self.flags.add(Locator(locator), indexes, lsn)
        except Damaged:  # readers find the same damage
            self.segments[number].has_deleted[extent] = 1

    # Releasing space

    def punch(self, locators: Iterable[int]) -> None:
        """Release the space of these extents, which must not be read again. May run in a thread.

        All their delete flags are set durably beforehand, so that readers and `verify` do not
        treat the zeros of the released space as damage.
        """
        by_segment: dict[int, list[int]] = {}
        for locator in locators:
            number, extent = split_locator(locator)
            by_segment.setdefault(number, []).append(extent)
        for number, extents in by_segment.items():
            self._punch(self.segments[number], extents)

    def _punch(self, segment: Segment, extents: list[int]) -> None:
        """Release the space of extents of one segment."""
        with segment.opened() as fd:
            self.flags.drop(segment.number, extents)
            self.maps.drop_views(segment.number, extents)
            segment.punch(fd, extents)
