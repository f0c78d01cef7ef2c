"""Copy reader: ROUTER frames of the log as records (bytes: ``formats/disk/copies.py``).

The copies are rendered from the payload frames that the frame's rows name. The newest renderings
are kept, within a bound of bytes: a frame is mostly read when it has just been written, and by many
readers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from topics.formats.disk.copies import BadCopies, decode_copies, render_copies, view_of
from topics.formats.disk.frames import FrameHeader
from topics.formats.disk.records import RecordsView

CACHE_BYTES = 16 << 20
_KEPT_BYTES = 512  # what a rendering takes besides its body, about


class Payloads(Protocol):
    """Finds the frames that rows name."""

    def payload(self, shard: int, lsn: int) -> RecordsView:
        """The records of a payload frame. Raises `Damaged`."""


class CopyReader:
    """Reads ROUTER frames as records; keeps the newest renderings, 16 MiB at most.

    ``damaged`` makes the exception for a frame that contradicts its payloads or itself, from its
    LSN and a reason.
    """

    def __init__(
        self,
        payloads: Payloads,
        damaged: Callable[[int, str], Exception],
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._payloads, self._damaged, self._cache_bytes = payloads, damaged, cache_bytes
        self._kept: OrderedDict[int, RecordsView] = OrderedDict()  # by LSN, the last used last
        self._bytes = 0

    @property
    def kept_bytes(self) -> int:
        """What the renderings take that are kept."""
        return self._bytes

    def records(self, lsn: int, header: FrameHeader, body: memoryview) -> RecordsView:
        """The copies of the ROUTER frame at ``lsn``. Raises `Damaged`."""
        view = self._kept.get(lsn)
        if view is None:
            view = self._rendered(lsn, header, body)
            self.remember(lsn, view)
        else:
            self._kept.move_to_end(lsn)
        return view

    def remember(self, lsn: int, view: RecordsView) -> None:
        """The copies of the frame at ``lsn`` were rendered when it was appended."""
        self._forget(lsn)
        size = _size(view)
        if size > self._cache_bytes:
            return
        self._kept[lsn] = view
        self._bytes += size
        while self._bytes > self._cache_bytes:
            self._forget(next(iter(self._kept)))

    def forget_below(self, lsn: int) -> None:
        """The log begins at ``lsn`` now."""
        for each in [each for each in self._kept if each < lsn]:
            self._forget(each)

    def forget_from(self, lsn: int) -> None:
        """The log has dropped its frames from ``lsn`` on, and gives their LSNs to others."""
        for each in [each for each in self._kept if each >= lsn]:
            self._forget(each)

    def _forget(self, lsn: int) -> None:
        view = self._kept.pop(lsn, None)
        if view is not None:
            self._bytes -= _size(view)

    def _rendered(self, lsn: int, header: FrameHeader, body: memoryview) -> RecordsView:
        try:
            copies = decode_copies(header, body)
            payload = self._payloads.payload
            pieces = [(payload(row.shard, row.lsn), row) for row in copies.rows]
            encoded = render_copies(pieces, copies.stamps, header.first_seq, header.ts_ms)
        except BadCopies as error:
            raise self._damaged(lsn, str(error)) from error
        if (encoded.record_count, encoded.flags, encoded.blob_bytes) != (
            *(header.record_count, header.flags, copies.size),
        ):
            raise self._damaged(lsn, "the copies are not those that the frame was written for")
        return view_of(encoded)


def _size(view: RecordsView) -> int:
    return view.length + _KEPT_BYTES
