"""Segment maps: a cache of memory-mapped segments. A segment is mapped when it is first read.

The least recently used map is released if more than ``mapped_max`` maps are cached, so that a scan
of all segments does not increase the memory. A view that a reader holds keeps its map alive. The
maps of a merge are pinned: while the merge puts its extents into the index, no file may be opened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import crc32c

from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import ENTRY_BYTES, ExtentEntry, decode_entry
from topics.storage.mapped_file import CANNOT_READ, FILE_ERRORS, MappedFile
from topics.storage.segments.segment_file import Segment

MAPPED_MAX = 4
VIEWS_MAX = 1024  # maximum number of views per map; if there are more, all are dropped


class MappedSegment:
    """A mapped segment, with the views of its extents that were read."""

    def __init__(self, segment: Segment) -> None:
        """Map the file. Raise `Damaged`, and OSError if the file may be readable later."""
        self._segment = segment
        try:
            mapped = MappedFile.of(segment.path)
        except OSError as error:
            if error.errno not in FILE_ERRORS:
                raise
            raise segment.damaged(0, error.strerror or "cannot be read") from error
        self.data, self.can_read = mapped.data, mapped.can_read
        # Accesses beyond the end of a shorter file would cause SIGBUS.
        if len(self.data) != segment.size:
            raise segment.damaged(len(self.data), "the segment is truncated")
        self.views: dict[int, ExtentView] = {}
        self.old: set[int] = set()  # extents whose pages must be checked again

    def _read(self, begin: int, length: int) -> memoryview:
        """Return mapped bytes. Report and raise `Damaged` if they cannot be read."""
        if not self.can_read(begin, begin + length):
            raise self._segment.damaged(begin, CANNOT_READ)
        return self.data[begin : begin + length]

    def entry(self, extent: int) -> ExtentEntry:
        """Return the extent's directory entry. Raise `Damaged`."""
        return decode_entry(self._read(self._segment.entry_offset(extent), ENTRY_BYTES))

    def view(self, extent: int) -> ExtentView:
        """Return the extent's records. Raise `Damaged`."""
        view = self.views.get(extent)
        if view is None:
            if len(self.views) >= VIEWS_MAX:
                self.views.clear()
            # Tables that were found intact once are not checked again.
            checked = self._segment.checked
            view = self.new_view(self.entry(extent), checked=checked[extent] == 1)
            self.views[extent], checked[extent] = view, 1
            self.old.discard(extent)
        # Pages may have left memory since the view was made.
        elif extent in self.old:
            view.renew()
            self.old.discard(extent)
        return view

    def new_view(self, entry: ExtentEntry, *, checked: bool = False) -> ExtentView:
        """Return a new view that is not cached. Raise `Damaged`."""
        return ExtentView(entry, self.data, self._segment.damaged, self.can_read, checked=checked)

    def flags(self, extent: int) -> memoryview:
        """Return the extent's delete flags in the file. Raise `Damaged`."""
        entry = self.entry(extent)
        return self._read(entry.flags_at, entry.record_count)

    def has_tables(self, extent: int) -> bool:
        """Return whether the extent's tables are intact. Raise `Damaged`."""
        entry = self.entry(extent)
        tables = self._read(entry.tables_at, entry.tables_len)
        return bool(crc32c.crc32c(tables) == entry.tables_crc)


class SegmentMaps:
    """The cached maps of ``segments``."""

    def __init__(self, segments: Mapping[int, Segment], mapped_max: int) -> None:
        self._segments, self._mapped_max = segments, mapped_max
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()
        self._pinned: dict[int, MappedSegment] = {}

    def __len__(self) -> int:
        """Return the number of cached maps, excluding pinned maps."""
        return len(self._mapped)

    def of(self, number: int) -> MappedSegment:
        """Return the map of a segment. Raise the same errors as `MappedSegment`."""
        pinned = self._pinned.get(number)
        if pinned is not None:
            return pinned
        held = self._mapped.get(number)
        if held is None:
            held = self._mapped[number] = MappedSegment(self._segments[number])
            if len(self._mapped) > self._mapped_max:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(number)
        return held

    def pin(self, maps: Mapping[int, MappedSegment]) -> None:
        """Pin these maps, and unpin all others."""
        self._pinned = {**maps}

    def drop_views(self, number: int, extents: Iterable[int]) -> None:
        """Drop the views of these extents, whose bytes are about to be released."""
        held = self._mapped.get(number)
        if held is not None:
            for extent in extents:
                held.views.pop(extent, None)

    def reset_checked(self) -> None:
        """Mark all views for a new check, because pages may have left memory."""
        for held in (*self._mapped.values(), *self._pinned.values()):
            held.old = {*held.views}

    def release(self, number: int) -> None:
        """Release the map of a segment."""
        self._mapped.pop(number, None)

    def close(self) -> None:
        """Release all maps except the pinned ones."""
        self._mapped.clear()
