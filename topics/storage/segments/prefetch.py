"""What readers of segments will want next, on its way into memory before they come for it.

Segments are read where they are mapped, by the loop that serves everybody: a page that is not in
memory holds all of them up until the disk has brought it. So when somebody reads on, the kernel is
asked for what follows, and reads while the loop does other things.

    extent that is read                          next extent of the topic, perhaps in another segment
    ------ reader ======= asked for ====> ....   tables, blob
           |-- AHEAD_BYTES ------------|         asked for when the reader is that near, its line of the directory before that
"""

from __future__ import annotations

import contextlib
import os

from topics.formats.disk.segment import ENTRY_BYTES, ExtentEntry, decode_entry
from topics.storage.disk import Damaged, will_need
from topics.storage.segments.store import Segment, SegmentStore, split_locator

AHEAD_BYTES = 4 << 20  # 10 ms of a disk that reads 400 MB/s
KNOWN_MAX = 16  # extents; what was asked for longer ago may have left memory again


class Prefetch:
    """Asks for what lies before readers, and remembers of some extents how far it has asked."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self._asked: dict[int, int] = {}  # by place, the end in the blob; the oldest first

    def expect(self, locator: int, index: int, following: int | None) -> None:
        """Somebody reads on at a record of the extent at ``place``, and then in the one at
        ``following``.

        Never waits for records. What cannot be read is left for the reader to find.
        """
        with contextlib.suppress(OSError, Damaged):
            number, _ = split_locator(locator)
            view = self._store.records(locator)
            at = view.ends[index - 1] if index else 0
            self._reach(self._store.segments[number], locator, view.entry, at)
            if following is not None:
                self._expect_next(following, view.entry.blob_bytes - at)

    def _reach(self, segment: Segment, locator: int, entry: ExtentEntry, at: int) -> None:
        end = min(at + AHEAD_BYTES, entry.blob_bytes)
        asked = self._asked.get(locator, at)
        if not at <= asked <= end:  # of another reader
            asked = at
        if asked == end or (end < entry.blob_bytes and 2 * (asked - at) > AHEAD_BYTES):
            return
        self._note(locator, end)
        will_need(segment.path, entry.offset + asked, end - asked)

    def _expect_next(self, locator: int, distance: int) -> None:
        """The reader will come to this extent after so many bytes."""
        if distance > 2 * AHEAD_BYTES or locator in self._asked:
            return
        number, extent = split_locator(locator)
        segment = self._store.segments[number]
        line = segment.trailer.directory_at + ENTRY_BYTES * extent
        if distance > AHEAD_BYTES:
            will_need(segment.path, line, ENTRY_BYTES)
            return
        with segment.path.open("rb", buffering=0) as file:
            entry = decode_entry(os.pread(file.fileno(), ENTRY_BYTES, line), 0)
        will_need(segment.path, entry.tables_at, entry.tables_len)
        self._reach(segment, locator, entry, 0)

    def _note(self, locator: int, end: int) -> None:
        self._asked.pop(locator, None)
        if len(self._asked) >= KNOWN_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[locator] = end
