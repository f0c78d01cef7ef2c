"""Segment maps: segments in memory, mapped when somebody reads them.

The least recently used map is released when there are more than a few, so a scan of everything
leaves memory as it was. What a reader still holds keeps its map alive. The maps of a merge are
pinned: while it puts its extents into the index, no file is opened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import crc32c

from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import ENTRY_BYTES, ExtentEntry, decode_entry
from topics.storage.mapped_file import CANNOT_READ, FILE_ERRORS, MappedFile
from topics.storage.segments.file import Segment

MAPPED_MAX = 4
VIEWS_MAX = 1024  # of one map; further ones replace them all


class MappedSegment:
    """A segment in memory, with the views of its extents made so far."""

    def __init__(self, segment: Segment) -> None:
        """Raises `Damaged`, and OSError when it may be readable later."""
        self._segment = segment
        try:
            mapped = MappedFile.of(segment.path)
        except OSError as error:
            if error.errno not in FILE_ERRORS:
                raise
            raise segment.damaged(0, error.strerror or "cannot be read") from error
        self.data, self.can_read = mapped.data, mapped.can_read
        if len(self.data) != segment.size:
            raise segment.damaged(len(self.data), "the segment is cut")
        self.views: dict[int, ExtentView] = {}
        self.old: set[int] = set()  # extents whose views are to be renewed

    def _read(self, begin: int, length: int) -> memoryview:
        if not self.can_read(begin, begin + length):
            raise self._segment.damaged(begin, CANNOT_READ)
        return self.data[begin : begin + length]

    def entry(self, extent: int) -> ExtentEntry:
        """The extent's entry in the directory."""
        return decode_entry(self._read(self._segment.entry_offset(extent), ENTRY_BYTES))

    def view(self, extent: int) -> ExtentView:
        """The extent's records. Raises `Damaged`."""
        view = self.views.get(extent)
        if view is None:
            if len(self.views) >= VIEWS_MAX:
                self.views.clear()
            checked = self._segment.checked
            view = self.new_view(self.entry(extent), checked=checked[extent] == 1)
            self.views[extent], checked[extent] = view, 1
            self.old.discard(extent)
        elif extent in self.old:
            view.renew()
            self.old.discard(extent)
        return view

    def new_view(self, entry: ExtentEntry, *, checked: bool = False) -> ExtentView:
        """A view of its own. Raises `Damaged`."""
        return ExtentView(entry, self.data, self._segment.damaged, self.can_read, checked=checked)

    def flags(self, extent: int) -> memoryview:
        """The extent's delete flags, as the file has them."""
        entry = self.entry(extent)
        return self._read(entry.flags_at, entry.record_count)

    def has_tables(self, extent: int) -> bool:
        """Whether the extent's tables are whole."""
        entry = self.entry(extent)
        tables = self._read(entry.tables_at, entry.tables_len)
        return bool(crc32c.crc32c(tables) == entry.tables_crc)


class SegmentMaps:
    """The mapped ones of ``segments``."""

    def __init__(self, segments: Mapping[int, Segment], mapped_max: int) -> None:
        self._segments, self._mapped_max = segments, mapped_max
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()
        self._pinned: dict[int, MappedSegment] = {}

    def __len__(self) -> int:
        return len(self._mapped)

    def of(self, number: int) -> MappedSegment:
        """The segment, mapped if it was not. Raises as `MappedSegment`."""
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
        """Keep these maps, and no others that were pinned before."""
        self._pinned = {**maps}

    def forget_views(self, number: int, extents: Iterable[int]) -> None:
        """The bytes of these extents are about to go."""
        held = self._mapped.get(number)
        if held is not None:
            for extent in extents:
                held.views.pop(extent, None)

    def forget_asked(self) -> None:
        """Time has gone: pages may have left memory."""
        for held in (*self._mapped.values(), *self._pinned.values()):
            held.old = {*held.views}

    def release(self, number: int) -> None:
        """Release the segment's map."""
        self._mapped.pop(number, None)

    def close(self) -> None:
        """Release all maps but pinned ones."""
        self._mapped.clear()
