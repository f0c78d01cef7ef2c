"""Piece reader: from a piece to its records, in pages.

Every byte is checked before it is believed: chunks of a segment and blobs by their checksums, when
they are first read; frames of the log were checked by the replay that has made the piece. A page is
decoded in one go from the records as they stand, rendered as an answer of the server has them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from topics.client.http import Record
from topics.engine.locators import is_extent, split_locator
from topics.formats.disk.copies import is_row
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, header_at
from topics.formats.disk.records import RecordFlags, View, live_runs
from topics.storage.data_dir import held_for_reading
from topics.storage.disk import Damaged
from topics.storage.offline.files import Findings, OfflineLog, open_segments, shard_folders
from topics.storage.offline.pieces import Piece, Span
from topics.storage.segments.file import Segment
from topics.storage.segments.maps import MAPPED_MAX, SegmentMaps
from topics.storage.wal.file import WalFile
from topics.storage.wal.log import frame_records

PAGE_RECORDS, PAGE_BYTES = 5000, 8 << 20
_CHANGED = "is not what it was when the read was planned: a server has had the directory since"
_EXTERNAL = int(RecordFlags.EXTERNAL)
_records = msgspec.json.Decoder(list[Record])


class PieceReader:
    """Reads one piece. With ``ignore_damage`` damaged records are passed over: ``lost`` counts
    them, ``damage`` says where.
    """

    def __init__(self, piece: Piece, *, ignore_damage: bool = False) -> None:
        self._piece, self._findings = piece, Findings(ignore=ignore_damage)
        self.lost = 0

    @property
    def damage(self) -> list[Damaged]:
        """What was ignored."""
        return self._findings.damage

    def pages(self) -> Iterator[list[Record]]:
        """The live records, in the order of seqs. Raises `Damaged`, and as `held_for_reading`."""
        with held_for_reading(self._piece.data_dir):
            files = _Files(self._piece.data_dir, self._piece.shard, self._findings)
            try:
                yield from self._pages(files)
            finally:
                files.close()

    def _pages(self, files: _Files) -> Iterator[list[Record]]:
        slices: list[memoryview] = []
        count = size = 0
        for part, part_count in self._slices(files):
            if slices and (count + part_count > PAGE_RECORDS or size + len(part) > PAGE_BYTES):
                yield _decoded(slices)
                slices, count, size = [], 0, 0
            slices.append(part)
            count += part_count
            size += len(part)
        if slices:
            yield _decoded(slices)

    def _slices(self, files: _Files) -> Iterator[tuple[memoryview, int]]:
        """Rendered records that stand together, without the last comma, and how many they are."""
        for span in self._piece.spans:
            try:
                view = files.records(span, self._piece.topic_id)
            except Damaged as damage:
                self._lose(damage, span.live)
                continue
            for start, stop in live_runs(span.dead_flags(), span.start, span.stop):
                yield from self._run(view, start, stop)

    def _run(self, view: View, start: int, stop: int) -> Iterator[tuple[memoryview, int]]:
        while start < stop:
            end = view.fit(start, min(stop, start + PAGE_RECORDS), PAGE_BYTES)
            end = max(end, start + 1)  # at least one record, whatever its size
            bad = view.bad_run(start, end)
            if bad is not None and bad[0] == start:
                self._pass_over(view, *bad)
                start = bad[1]
                continue
            if bad is not None:
                end = bad[0]
            yield view.slice(start, end), end - start
            start = end

    def _pass_over(self, view: View, start: int, stop: int) -> None:
        try:
            view.slice(start, stop)
        except Damaged as damage:
            self._lose(damage, stop - start)

    def _lose(self, damage: Damaged, count: int) -> None:
        self._findings.add(damage)
        self.lost += count


def _decoded(slices: list[memoryview]) -> list[Record]:
    return _records.decode(b"".join((b"[", b",".join(slices), b"]")))


class _Files:
    """The files of a shard, opened when a span is in them."""

    def __init__(self, data_dir: Path, shard: int, findings: Findings) -> None:
        self._data_dir, self._shard, self._findings = data_dir, shard, findings
        self._folders = shard_folders(data_dir, shard)
        self._segments: dict[int, Segment] = {}
        self._maps = SegmentMaps(self._segments, MAPPED_MAX)

    def records(self, span: Span, topic_id: int) -> View:
        """The records at the locator of a span. Raises `Damaged`."""
        if is_extent(span.locator):
            return self._extent(span, topic_id)
        return self._frame(span, topic_id)

    def _extent(self, span: Span, topic_id: int) -> View:
        number, extent = split_locator(span.locator)
        if number not in self._segments:
            opened = open_segments(self._folders.segment, self._shard, (number,), Findings())
            self._segments[number] = opened[0]
        segment = self._segments[number]
        if extent >= segment.trailer.entry_count:
            raise Damaged(segment.path, 0, _CHANGED)
        held = self._maps.of(number)
        entry = held.entry(extent)
        if (entry.topic_id, entry.first_seq) != (topic_id, span.first_seq):
            raise Damaged(segment.path, entry.offset, _CHANGED)
        return held.view(extent)

    @cached_property
    def _log(self) -> OfflineLog:
        return OfflineLog(self._data_dir, self._shard, self._findings)

    def _frame(self, span: Span, topic_id: int) -> View:
        log = self._log
        at = bisect_right(log.files, span.locator, key=lambda file: file.base) - 1
        if at < 0:
            raise Damaged(self._folders.wal, 0, _CHANGED)
        file = log.files[at]
        header = None if is_row(span.locator) else _header(file, span.locator)
        if header is None:
            if not is_row(span.locator):
                raise Damaged(file.path, file.offset(span.locator), _CHANGED)
        elif (header.topic_id, header.first_seq) != (topic_id, span.first_seq):
            raise Damaged(file.path, file.offset(span.locator), _CHANGED)
        elif header.flags & _EXTERNAL:
            log.blobs.add(header.topic_id, header.first_seq, header.lsn)
        return frame_records(file, span.locator, log.blobs, log.copies)

    def close(self) -> None:
        """Close all files."""
        self._maps.release_all()
        if "_log" in self.__dict__:
            self._log.close()


def _header(file: WalFile, lsn: int) -> FrameHeader | None:
    """The header of the frame at ``lsn``, if one of that LSN is there."""
    if not file.holds(lsn, FRAME_HEADER_BYTES):
        return None
    header = header_at(file.view(), file.offset(lsn))
    return header if header.lsn == lsn else None
