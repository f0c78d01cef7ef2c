"""Batches: what a router forwards next, as rows that name payloads.

    records      rows name
    in the log   their frame; of copies, the frames that their own rows name
    sealed       a PAYLOAD frame, to which they are written first (`Missing`)
    in memory    a PAYLOAD frame, or the message itself when the dest keeps no log either

A shard's log may be ahead of the disk. Another shard's must not name what a power loss takes, so
it waits for a sync.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from topics.engine.locators import is_in_log, is_in_memory, lsn_of
from topics.engine.routing.picking import Picked, PickedRun
from topics.engine.store import Store
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import (
    CopyRow,
    Stamp,
    copy_count,
    decode_copies,
    encode_rows,
    payload_of,
    rows_within,
)
from topics.formats.disk.frames import FrameKind
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import EncodedRecords
from topics.formats.wire.calls import IN_MESSAGE
from topics.storage.wal.log import Wal

# Before the records of a message: flags, record_count, ext_len.
_BODY: Final = struct.Struct("<III")


class Batch(NamedTuple):
    """Rows for a forward. ``body``: records that no log holds. ``last_lsn``: of the frames that
    hold the records here; 0: none does.
    """

    to_seq: int
    hop: int
    rows: Sequence[CopyRow]
    seqs: Sequence[int]
    stamps: Sequence[Stamp]
    body: bytes = b""
    last_lsn: int = 0

    def behind(self, seq: int) -> Batch:
        """What follows ``seq`` of the source."""
        skip = 0
        seqs: list[int] = []
        for row, first in zip(self.rows, self.seqs, strict=True):
            count = row.stop - row.start
            done = min(max(seq + 1 - first, 0), count)
            skip += done
            if done < count:
                seqs.append(first + done)
        rows = rows_within(self.rows, skip, copy_count(self.rows))
        return self._replace(rows=rows, seqs=seqs)

    def packed(self, drops: int) -> bytes:
        """The rows, with what copies lose besides."""
        if drops:
            return encode_rows(row._replace(drops=row.drops | drops) for row in self.rows)
        return encode_rows(self.rows)


class Missing(NamedTuple):
    """Records that must be in the log first."""

    records: EncodedRecords
    first_seq: int
    ts: int
    seqs: Sequence[tuple[int, int]]  # first seq and count of each run
    to_seq: int
    hop: int

    def logged(self, shard: int, lsn: int) -> Batch:
        """The batch, once they are in the frame at ``lsn``."""
        return self._batch(shard, lsn, b"", lsn)

    def in_message(self) -> Batch:
        """The batch for a dest that keeps no log."""
        flags, count, ext, parts, _ = self.records
        body = b"".join((_BODY.pack(flags, count, len(ext)), *parts))
        return self._batch(IN_MESSAGE, 0, body, 0)

    def _batch(self, shard: int, lsn: int, body: bytes, last_lsn: int) -> Batch:
        rows, at = [], 0
        for _, count in self.seqs:
            rows.append(CopyRow(lsn, 0, shard, 0, 0, at, at + count))
            at += count
        seqs = [first for first, _ in self.seqs]
        return Batch(self.to_seq, self.hop, rows, seqs, (), body, last_lsn)


def records_in(body: Buffer) -> RecordsView:
    """The records of a message."""
    flags, count, ext_len = _BODY.unpack_from(body)
    return RecordsView(flags, count, ext_len, memoryview(bytes(body[_BODY.size :])))


def batch_of(picked: Picked, store: Store, wal: Wal, *, by_payload: bool) -> Batch | Missing:
    """What was picked, or as much of it as is of one kind; at least one run. ``by_payload``: its
    frames are not to be named.
    """
    is_named = is_in_log(picked.runs[0].locator) and not by_payload
    runs: list[PickedRun] = []
    for run in picked.runs:
        if (is_in_log(run.locator) and not by_payload) != is_named:
            break
        runs.append(run)
    last = runs[-1]
    to_seq = picked.to_seq if len(runs) == len(picked.runs) else last.first_seq + last.stop - 1
    if is_named:
        return _named(runs, to_seq, picked.hop, wal)
    first = runs[0].first_seq + runs[0].start
    pieces = [(store.records(run.locator), run.start, run.stop) for run in runs]
    ts = pieces[0][0].ts(runs[0].start)
    return Missing(
        payload_of(pieces, first, ts),
        first,
        ts,
        [(run.first_seq + run.start, run.stop - run.start) for run in runs],
        to_seq,
        picked.hop,
    )


def is_kept_in_memory(picked: Picked) -> bool:
    """Whether what comes first is in memory alone."""
    return is_in_memory(picked.runs[0].locator)


def _named(runs: Sequence[PickedRun], to_seq: int, hop: int, wal: Wal) -> Batch:
    """Rows for runs that are in the log."""
    rows: list[CopyRow] = []
    seqs: list[int] = []
    stamps: dict[Stamp, int] = {}
    for run in runs:
        lsn = lsn_of(run.locator)
        header, body = wal.frame_at(lsn)
        if header.kind == FrameKind.APPEND:
            rows.append(CopyRow(lsn, 0, wal.shard, 0, 0, run.start, run.stop))
            seqs.append(run.first_seq + run.start)
            continue
        held = decode_copies(header, body)
        seq = run.first_seq + run.start
        for row in rows_within(held.rows, run.start, run.stop):
            if row.stamp:
                stamp = held.stamps[row.stamp - 1]
                row = row._replace(stamp=stamps.setdefault(stamp, len(stamps) + 1))
            rows.append(row)
            seqs.append(seq)
            seq += row.stop - row.start
    return Batch(to_seq, hop, rows, seqs, [*stamps], last_lsn=lsn_of(runs[-1].locator))
