"""Segment maps: segments in memory, mapped when somebody reads them.

The least recently used map is released when there are more than a few, so a scan of everything
leaves memory as it was. What a reader still holds keeps its map alive.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Iterable, Mapping

import crc32c

from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import ExtentEntry, decode_entry
from topics.storage.disk import mapped
from topics.storage.segments.file import Segment

MAPPED_MAX = 4
VIEWS_MAX = 1024  # of one map; further ones replace them all
# The file itself is damaged or gone; other errors come from the state of this process.
_FILE_ERRORS = {errno.ENOENT, errno.EIO, errno.EBADMSG, errno.EUCLEAN}


class MappedSegment:
    """A segment in memory, with the views of its extents made so far."""

    def __init__(self, segment: Segment) -> None:
        """Raises `Damaged`, and OSError when it may be readable later."""
        self._segment = segment
        try:
            self.data = mapped(segment.path)
        except OSError as error:
            if error.errno not in _FILE_ERRORS:
                raise
            raise segment.damaged(0, error.strerror or "cannot be read") from error
        if len(self.data) != segment.size:
            raise segment.damaged(len(self.data), "the segment is cut")
        self.views: dict[int, ExtentView] = {}

    def entry(self, extent: int) -> ExtentEntry:
        """The extent's entry in the directory."""
        return decode_entry(self.data, self._segment.entry_offset(extent))

    def view(self, extent: int) -> ExtentView:
        """The extent's records. Raises `Damaged`."""
        view = self.views.get(extent)
        if view is None:
            if len(self.views) >= VIEWS_MAX:
                self.views.clear()
            segment, checked = self._segment, self._segment.checked
            is_checked = checked[extent] == 1
            view = ExtentView(self.entry(extent), self.data, segment.damaged, checked=is_checked)
            self.views[extent], checked[extent] = view, 1
        return view

    def flags(self, extent: int) -> memoryview:
        """The extent's delete flags, as the file has them."""
        entry = self.entry(extent)
        return self.data[entry.flags_at : entry.flags_at + entry.record_count]

    def has_tables(self, extent: int) -> bool:
        """Whether the extent's tables are whole."""
        entry = self.entry(extent)
        tables = self.data[entry.tables_at : entry.tables_at + entry.tables_len]
        return bool(crc32c.crc32c(tables) == entry.tables_crc)


class SegmentMaps:
    """The mapped ones of ``segments``."""

    def __init__(self, segments: Mapping[int, Segment], mapped_max: int) -> None:
        self._segments, self._mapped_max = segments, mapped_max
        self._mapped: OrderedDict[int, MappedSegment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._mapped)

    def of(self, number: int) -> MappedSegment:
        """The segment, mapped if it was not. Raises as `MappedSegment`."""
        held = self._mapped.get(number)
        if held is None:
            held = self._mapped[number] = MappedSegment(self._segments[number])
            if len(self._mapped) > self._mapped_max:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(number)
        return held

    def forget_views(self, number: int, extents: Iterable[int]) -> None:
        """The bytes of these extents are about to go."""
        held = self._mapped.get(number)
        if held is not None:
            for extent in extents:
                held.views.pop(extent, None)

    def release(self, number: int) -> None:
        """Release the segment's map."""
        self._mapped.pop(number, None)

    def release_all(self) -> None:
        """Release all maps."""
        self._mapped.clear()
