"""Frame reader: returns the records of APPEND frames without copying them, and renders the rows of
FORWARD frames as records. ``formats/disk/copies.py`` describes the bytes of FORWARD frames.

The reader renders copies from the payload of their FORWARD frame, or from the frames in the same
file to which the FORWARD frame refers. It caches the most recent renderings, up to a limit in
bytes, because copies are usually read by many readers shortly after they were written.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Sequence

from topics.formats.disk.copies import (
    BadCopies,
    Copier,
    ForwardBody,
    Run,
    Stamp,
    copies_size,
    decode_forward,
    is_row,
    row_index,
    row_offset,
    view_of,
)
from topics.formats.disk.frames import (
    APPEND_FIELDS,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    FrameKind,
    header_at,
)
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.rendering import EncodedRecords
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import Damaged
from topics.storage.wal.blobs import BlobStore, BlobView
from topics.storage.wal.log_file import BODY_BYTES, WalFile

CACHE_BYTES = 16 << 20
_EXTERNAL = int(RecordFlags.EXTERNAL)
_KEPT_BYTES = 512  # approximate size of a rendering without its body


class FrameReader:
    """Reads the records at a locator of the log, with a cache of ``cache_bytes`` for renderings."""

    def __init__(self, blobs: BlobStore, cache_bytes: int = CACHE_BYTES) -> None:
        self._blobs, self._cache_bytes = blobs, cache_bytes
        # Keyed by the LSN of the row, in order of last use.
        self._kept: OrderedDict[int, RecordsView] = OrderedDict()
        self.kept_bytes = 0  # total size of the cached renderings
        # LSN and copier of the last frame, if all its dests have equal stamps and can share the
        # copier.
        self._last: tuple[int, Copier] | None = None

    def records(self, file: WalFile, locator: int) -> RecordsView:
        """Return the records at ``locator`` in ``file``: an APPEND frame or a row of a FORWARD
        frame.

        Raise `Damaged` if they cannot be read.
        """
        # Frames start at multiples of 8. Other locators are rows of FORWARD frames.
        if locator & 3:
            return self._copies(file, locator)
        view, offset = file.data or file.view(), FILE_HEADER_BYTES + locator - file.base
        if not file.checked_from <= offset < file.checked_to:
            file.check_readable(offset)
        magic, lsn, topic_id, first_seq, body_len, count, ext_len, _, flags = (
            APPEND_FIELDS.unpack_from(view, offset)
        )
        # The locator may be outdated, for example if the file was cut and then more frames were
        # appended.
        if lsn != locator or magic != FRAME_MAGIC:
            raise Damaged(file.path, offset, "the frame no longer exists")
        if flags & _EXTERNAL:
            held = self._blobs.file(topic_id, first_seq)
            return BlobView(flags, count, ext_len, held, self._blobs.on_damage)
        if body_len > BODY_BYTES:
            file.check_readable(offset)
        start = offset + FRAME_HEADER_BYTES
        return RecordsView(flags, count, ext_len, view[start : start + body_len])

    def _copies(self, file: WalFile, lsn: int) -> RecordsView:
        """Return the copies of the row at ``lsn``. Raise `Damaged`."""
        view = self._kept.get(lsn)
        if view is not None:
            self._kept.move_to_end(lsn)
            return view
        try:
            encoded = self._rendered(file, lsn)
        except (BadCopies, struct.error) as error:
            raise Damaged(file.path, file.offset(lsn), str(error)) from error
        view = view_of(encoded)
        self._cache(lsn, view)
        return view

    def payload(self, file: WalFile, lsn: int) -> RecordsView:
        """Return the records of the APPEND frame at ``lsn``, or the payload of a FORWARD frame.

        Raise `Damaged`.
        """
        try:
            return self._payload_at(file, lsn)
        except (BadCopies, struct.error) as error:
            raise Damaged(file.path, file.offset(lsn), str(error)) from error

    def drop_below(self, lsn: int) -> None:
        """Drop the cached data of frames below ``lsn``, to which no index refers any longer."""
        if self._last is not None and self._last[0] < lsn:
            self._last = None  # its copier keeps the map of the file in memory
        for each in [each for each in self._kept if each < lsn]:
            self._evict(each)

    def drop_from(self, lsn: int) -> None:
        """Drop the cached data from ``lsn`` on, because the log has dropped these frames.

        The log will assign their LSNs to other frames.
        """
        self._last = None
        for each in [each for each in self._kept if each >= lsn]:
            self._evict(each)

    def _cache(self, lsn: int, view: RecordsView) -> None:
        """Cache a rendering, and evict the least recently used renderings while the limit is
        exceeded.
        """
        size = view.length + _KEPT_BYTES
        if size > self._cache_bytes:
            return
        self._kept[lsn] = view
        self.kept_bytes += size
        while self.kept_bytes > self._cache_bytes:
            self._evict(next(iter(self._kept)))

    def _evict(self, lsn: int) -> None:
        """Remove a rendering from the cache, if it is cached."""
        view = self._kept.pop(lsn, None)
        if view is not None:
            self.kept_bytes -= view.length + _KEPT_BYTES

    def _rendered(self, file: WalFile, lsn: int) -> EncodedRecords:
        """Render the row at ``lsn``. Raise `BadCopies`, struct.error or `Damaged`."""
        begin = frame_lsn(file, lsn)
        header, held = forward_at(file, begin)
        index = row_index(header, lsn)
        # The row contains its distance from the frame. This detects a locator that is not a row.
        if index >= len(held.rows) or held.rows[index].back != lsn - begin:
            raise BadCopies("there is no row of a FORWARD frame")
        first_seq = held.rows[index].first_seq
        # Dests with equal stamps share one copier, which renders from any first seq.
        if self._last is not None and self._last[0] == begin:
            copier = self._last[1]
        else:
            copier = self._copier(file, held, held.stamps_of(index))
            self._last = (begin, copier) if held.own_stamp is None else None
        encoded = copier.render(first_seq, header.ts_ms)
        size = copies_size(header.record_count, held.tail_bytes, first_seq, header.ts_ms)
        _check(encoded, header, size)
        return encoded

    def _copier(self, file: WalFile, held: ForwardBody, stamps: Sequence[Stamp]) -> Copier:
        """Return an object that renders the runs of a FORWARD frame with these stamps."""
        views = {run.lsn: self._payload(file, held, run) for run in held.runs}
        return Copier([(views[run.lsn], run) for run in held.runs], stamps)

    def _payload(self, file: WalFile, held: ForwardBody, run: Run) -> RecordsView:
        """Return the records from which a run is copied: from another frame, or from this frame."""
        return self._payload_at(file, run.lsn) if run.lsn else own_payload(held)

    def _payload_at(self, file: WalFile, lsn: int) -> RecordsView:
        header, body = frame_in(file, lsn)
        if header.kind == FrameKind.FORWARD:
            return own_payload(decode_forward(header, body))
        if header.kind != FrameKind.APPEND:
            raise BadCopies("a FORWARD frame refers to a frame without records")
        if header.flags & _EXTERNAL and not self._blobs.is_added(header.topic_id, header.first_seq):
            # This happens only in a directory that no server uses.
            self._blobs.add(header.topic_id, header.first_seq, lsn)
        return self.records(file, lsn)


def frame_in(file: WalFile, lsn: int) -> tuple[FrameHeader, memoryview]:
    """Return the header and the body of the frame at ``lsn`` without checking them.

    Raise `Damaged` if they cannot be read.
    """
    view, offset = file.view(), file.offset(lsn)
    if not file.checked_from <= offset < file.checked_to:
        file.check_readable(offset)
    header = header_at(view, offset)
    if header.body_len > BODY_BYTES:
        file.check_readable(offset)
    start = offset + FRAME_HEADER_BYTES
    return header, view[start : start + header.body_len]


def frame_lsn(file: WalFile, locator: int) -> int:
    """Return the LSN of the frame at ``locator``. For the locator of a row, return the LSN of the
    frame that contains the row.

    Raise `Damaged`.
    """
    if not is_row(locator):
        return locator
    offset = file.offset(locator)
    if not file.checked_from <= offset < file.checked_to:
        file.check_readable(offset)
    return locator - row_offset(file.view(), offset)


def forward_at(file: WalFile, lsn: int) -> tuple[FrameHeader, ForwardBody]:
    """Return the FORWARD frame at ``lsn``. Raise `BadCopies` or struct.error if there is none."""
    if not file.base <= lsn or lsn % 8:
        raise BadCopies("the FORWARD frame of a row is not in its file")
    header, body = frame_in(file, lsn)
    if header.lsn != lsn or header.kind != FrameKind.FORWARD:
        raise BadCopies("the row belongs to no FORWARD frame")
    return header, decode_forward(header, body)


def own_payload(held: ForwardBody) -> RecordsView:
    """Return the records that a FORWARD frame contains. Raise `BadCopies` if it has none."""
    if held.payload is None:
        raise BadCopies("a FORWARD frame lacks the payload for its runs")
    return held.payload


def _check(encoded: EncodedRecords, header: FrameHeader, size: int) -> None:
    """Raise `BadCopies` if the copies do not match the counts and sizes in the frame's header."""
    if (encoded.record_count, encoded.flags, encoded.blob_bytes) != (
        *(header.record_count, header.flags, size),
    ):
        raise BadCopies("the copies do not match the header of the frame")
