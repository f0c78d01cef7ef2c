"""Frame reader: rows of FORWARD frames as records, rendered once while they are among the
newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.formats.disk.record_support import Record, request
from tests.formats.disk.record_support import view_of as view_of_request
from tests.support.wal import Log
from topics.formats.disk.copies import (
    OWN_STAMP,
    Copier,
    ForwardBody,
    OwnStamp,
    Row,
    Run,
    Stamp,
    copy_count,
    forward_frame,
    row_lsn,
)
from topics.formats.disk.frame_bodies import append_frame
from topics.formats.disk.frames import Frame
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import encode
from topics.storage.disk import Damaged, make_directory
from topics.storage.frame_reader import CACHE_BYTES, FrameReader

RECORDS: list[Record] = [("n", "t", b'"%b"' % (b"x" * 1000), None), (None, None, b"2", b"{}")]
VIEW = view_of_request(request(RECORDS))
STAMPS = [Stamp("r", "src", 5, 2)]
RUNS = [Run(0, 7, 0, 2, 1, 1), Run(0, 0, 1, 2)]
ROWS = [Row(0, 3, 5, 9), Row(0, 4, 6, 100), Row(0, 5, 7, 0)]


class ReaderHarness:
    """A log with FORWARD frames."""

    def __init__(self, folder: Path) -> None:
        make_directory(folder / "wal")
        self.wal = Log(folder / "wal", sync_ms=60_000, file_bytes=1 << 20)
        self.copies = self.reader(CACHE_BYTES)

    def reader(self, cache_bytes: int) -> FrameReader:
        return FrameReader(self.wal.blobs, cache_bytes)

    def write(self, frame: Frame) -> int:
        """Write a frame and return its LSN."""
        lsn = self.wal.append(frame)
        self.wal.flush(sync=True)
        self.wal.next_progress()
        return lsn

    def append(self, records: list[Record] = RECORDS) -> int:
        flags, count, ext, parts, _ = encode(request(records), 1, 1000, keep_key=False)
        return self.write(append_frame(5, 1, 1000, count, flags, len(ext), parts))

    def forward(
        self, runs: Sequence[Run] = RUNS, rows: Sequence[Row] = ROWS, wrong: int = 0
    ) -> list[int]:
        """Write a FORWARD frame and return the LSNs of its rows. ``wrong`` is added to its stated
        length.
        """
        copier = Copier([(VIEW, run) for run in runs], STAMPS)
        payload = None if any(run.lsn for run in runs) else VIEW
        body = ForwardBody(
            8, 1, rows, runs, copier.tail_bytes + wrong, stamps=STAMPS, payload=payload
        )
        frame = forward_frame(1000, copy_count(runs), copier.flags, body)
        lsn = self.write(frame)
        return [row_lsn(lsn, frame.ext_len, index) for index in range(len(rows))]

    def read(self, lsn: int, reader: FrameReader | None = None) -> RecordsView:
        return (reader or self.copies).records(self.wal.file(lsn), lsn)


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[ReaderHarness]:
    found = ReaderHarness(tmp_path)
    yield found
    found.wal.stop()


def expected(first_seq: int, runs: Sequence[Run] = RUNS) -> bytes:
    return bytes(Copier([(VIEW, run) for run in runs], STAMPS).render(first_seq, 1000).parts[-1])


def test_each_dest_of_a_frame_has_its_own_seqs(harness: ReaderHarness) -> None:
    one, other, _ = harness.forward()
    assert bytes(harness.read(one).blob) == expected(9)
    assert bytes(harness.read(other).blob) == expected(100)
    view = harness.read(one)
    assert (view.count, view.ts(0)) == (3, 1000)
    assert bytes(view.slice(2, 3)) == b'{"$seq":11,"$ts":1000,"data":2,"meta":{}}'


def test_records_of_another_frame_in_the_same_log_file_are_found(harness: ReaderHarness) -> None:
    appended = harness.append()
    (row, *_) = harness.forward([run._replace(lsn=appended) for run in RUNS])
    assert bytes(harness.read(row).blob) == expected(9)
    with_payload = harness.wal.next_lsn
    harness.forward()
    (row, *_) = harness.forward([run._replace(lsn=with_payload) for run in RUNS])
    assert bytes(harness.read(row).blob) == expected(9)


def test_dests_with_their_own_stamps_do_not_share_a_rendering(harness: ReaderHarness) -> None:
    run = Run(0, 7, 0, 2, OWN_STAMP)
    stamps = [Stamp(name, "src", 5, 2) for name in "rs"]
    copiers = [Copier([(VIEW, run._replace(stamp=1))], [stamp]) for stamp in stamps]
    own = OwnStamp("src", 5, 2, ["r", "s"])
    body = ForwardBody(8, 1, ROWS[:2], [run], copiers[0].tail_bytes, own_stamp=own, payload=VIEW)
    frame = forward_frame(1000, 2, copiers[0].flags, body)
    lsn = harness.write(frame)
    for index, copier in enumerate(copiers):
        view = harness.read(row_lsn(lsn, frame.ext_len, index))
        assert bytes(view.blob) == copier.render(ROWS[index].first_seq, 1000).parts[-1]


def test_a_row_is_rendered_once_while_it_is_cached(harness: ReaderHarness) -> None:
    (row, *_) = harness.forward()
    first = harness.read(row)
    assert harness.read(row) is first
    harness.copies.drop_below(row + 1)
    assert harness.copies.kept_bytes == 0
    again = harness.read(row)
    assert again is not first
    harness.copies.drop_from(row)
    assert harness.copies.kept_bytes == 0


def test_the_most_recently_used_renderings_are_cached_within_the_bound(
    harness: ReaderHarness,
) -> None:
    rows = [harness.forward()[0] for _ in range(4)]
    harness.read(rows[0])
    reader = harness.reader(3 * harness.copies.kept_bytes)
    kept = [harness.read(row, reader) for row in rows[:3]]
    assert harness.read(rows[0], reader) is kept[0]
    harness.read(rows[3], reader)
    assert reader.kept_bytes <= 3 * harness.copies.kept_bytes
    assert harness.read(rows[0], reader) is kept[0]
    assert harness.read(rows[1], reader) is not kept[1], "the least recently used one is evicted"


def test_a_rendering_above_the_bound_is_not_cached_and_evicts_nothing(
    harness: ReaderHarness,
) -> None:
    (small, *_), (large, *_) = harness.forward(RUNS[1:]), harness.forward()
    reader = harness.reader(1000)
    kept = harness.read(small, reader)
    harness.read(large, reader)
    assert harness.read(small, reader) is kept
    assert reader.kept_bytes <= 1000


@pytest.mark.parametrize("runs", [RUNS, [Run(1 << 14, 0, 0, 2)], [Run(0, 0, 1, 2)]])
def test_a_frame_that_contradicts_its_payload_is_damage(
    harness: ReaderHarness, runs: list[Run]
) -> None:
    """The length of the rendering differs from the stated one, or a run refers to no frame."""
    (row, *_) = harness.forward(runs, wrong=7)
    with pytest.raises(Damaged, match=f"offset {harness.wal.file(row).offset(row)}"):
        harness.read(row)
    assert harness.copies.kept_bytes == 0


def test_an_lsn_that_is_not_a_row_of_a_frame_is_damage(harness: ReaderHarness) -> None:
    lsn = harness.append()
    (row, *_) = harness.forward()
    for wrong in (lsn + 66, row - 4, row + 4, row + 20 * len(ROWS)):
        with pytest.raises(Damaged):
            harness.read(wrong)
