"""Copy reader: ROUTER frames as records, rendered once while they are among the newest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.disk.record_support import Record, request
from tests.formats.disk.record_support import view_of as view_of_request
from topics.formats.disk.copies import (
    CopiesBody,
    CopyRow,
    Stamp,
    copies_frame,
    copy_count,
    render_copies,
    view_of,
)
from topics.formats.disk.frames import FrameHeader, encode_frame, header_at
from topics.formats.disk.records import RecordsView
from topics.storage.copy_reader import CACHE_BYTES, CopyReader
from topics.storage.disk import Damaged

RECORDS: list[Record] = [("n", "t", b'"%b"' % (b"x" * 1000), None), (None, None, b"2", b"{}")]
STAMPS = [Stamp("r", "src", 5, 2)]
ROWS = [CopyRow(64, 7, 1, 1, 1, 0, 2), CopyRow(64, 0, 0, 0, 0, 1, 2)]


class Log:
    """Payload frames of two shards, and how often each was asked for."""

    def __init__(self) -> None:
        view = view_of_request(request(RECORDS))
        self.views = {(0, 64): view, (1, 64): view}
        self.asked: list[tuple[int, int]] = []

    def payload(self, shard: int, lsn: int) -> RecordsView:
        self.asked.append((shard, lsn))
        return self.views[shard, lsn]


def damaged(lsn: int, reason: str) -> Damaged:
    return Damaged(Path("some.wal"), lsn, reason)


def reader_of(log: Log, cache_bytes: int = CACHE_BYTES) -> CopyReader:
    return CopyReader(log, damaged, cache_bytes)


def frame(rows: list[CopyRow], size: int | None = None) -> tuple[FrameHeader, memoryview]:
    log = Log()
    pieces = [(log.views[row.shard, row.lsn], row) for row in rows]
    encoded = render_copies(pieces, STAMPS, 9, 1000)
    said = CopiesBody(3, 8, 3, 1, encoded.blob_bytes if size is None else size, 0, STAMPS, rows)
    made = copies_frame(5, 9, 1000, copy_count(rows), encoded.flags, said)
    header = header_at(b"".join(encode_frame(made, 0, 0, 0)), 0)
    return header, memoryview(b"".join(made.parts))


def test_copies_are_read_from_the_frames_that_the_rows_name() -> None:
    log = Log()
    view = reader_of(log).records(800, *frame(ROWS))
    assert log.asked == [(1, 64), (0, 64)]
    pieces = [(log.views[row.shard, row.lsn], row) for row in ROWS]
    encoded = render_copies(pieces, STAMPS, 9, 1000)
    assert bytes(view.blob) == encoded.parts[-1]
    assert (view.count, view.flags, view.ts(0)) == (3, encoded.flags, 1000)
    assert bytes(view.slice(2, 3)) == b'{"$seq":11,"$ts":1000,"data":2,"meta":{}}'


def test_a_frame_is_rendered_once_while_it_is_kept() -> None:
    log = Log()
    reader = reader_of(log)
    first = reader.records(800, *frame(ROWS))
    assert reader.records(800, *frame(ROWS)) is first
    assert len(log.asked) == 2
    reader.forget_below(808)
    assert reader.kept_bytes == 0
    assert bytes(reader.records(800, *frame(ROWS)).blob) == bytes(first.blob)
    assert len(log.asked) == 4


def test_a_rendering_of_the_append_is_used() -> None:
    log = Log()
    reader, view = reader_of(log), view_of_request(request(RECORDS))
    reader.remember(800, view)
    assert reader.records(800, *frame(ROWS)) is view
    assert log.asked == []


def test_the_renderings_that_were_used_last_are_kept_within_the_bound() -> None:
    log = Log()
    sizes = reader_of(log)
    sizes.records(800, *frame(ROWS))
    bound = 3 * sizes.kept_bytes
    reader = reader_of(log, bound)
    for lsn in (800, 808, 816):
        reader.records(lsn, *frame(ROWS))
    reader.records(800, *frame(ROWS))
    assert reader.kept_bytes == bound
    reader.records(824, *frame(ROWS))
    assert reader.kept_bytes == bound
    log.asked.clear()
    for lsn in (816, 800, 824):
        reader.records(lsn, *frame(ROWS))
    assert log.asked == []
    reader.records(808, *frame(ROWS))
    assert len(log.asked) == 2


def test_a_rendering_above_the_bound_is_not_kept_and_evicts_nothing() -> None:
    log = Log()
    small = [CopyRow(64, 0, 0, 0, 0, 1, 2)]
    reader = reader_of(log, 1000)
    kept = reader.records(800, *frame(small))
    reader.records(808, *frame(ROWS))
    assert reader.records(800, *frame(small)) is kept
    assert reader.kept_bytes <= 1000


def test_the_same_frame_remembered_twice_counts_once() -> None:
    reader, view = reader_of(Log()), view_of_request(request(RECORDS))
    reader.remember(800, view)
    size = reader.kept_bytes
    reader.remember(800, view_of(render_copies([(view, ROWS[1])], (), 1, 1)))
    assert 0 < reader.kept_bytes < size
    reader.forget_below(2**64)
    assert reader.kept_bytes == 0


@pytest.mark.parametrize("change", ["size", "flags", "payload", "map", "bytes"])
def test_a_frame_that_contradicts_its_payload_is_damage(change: str) -> None:
    log = Log()
    header, body = frame(ROWS, 7 if change == "size" else None)
    if change == "flags":
        header = header._replace(flags=0)
    elif change == "payload":
        log.views[0, 64] = view_of_request(request(RECORDS[:1]))
    elif change == "bytes":
        log.views[0, 64] = RecordsView(0, 2, 0, memoryview(bytes(100)))
    elif change == "map":
        body = memoryview(b"\xff" + bytes(body)[1:])
    reader = reader_of(log)
    with pytest.raises(Damaged, match=r"some\.wal, offset 800"):
        reader.records(800, header, body)
    assert reader.kept_bytes == 0


def test_a_payload_that_is_damaged_says_so_itself() -> None:
    class Lost(Log):
        def payload(self, shard: int, lsn: int) -> RecordsView:
            raise Damaged(Path("other.wal"), lsn, f"no frame of shard {shard}")

    with pytest.raises(Damaged, match=r"other\.wal"):
        reader_of(Lost()).records(800, *frame(ROWS))
