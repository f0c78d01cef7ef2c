"""Batches: the records that a router forwards next, prepared once for all routers that share them.

    location of the records     shard of the dest    contents of the forward
    the current log file        this shard           runs that refer to the frames of the records
    the current log file        another shard        the records, as an attachment
    anywhere else               any shard            the records, as an attachment

The number of a batch identifies it, so the dest's log stores its payload only once, regardless of
the number of forwards that contain it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from topics.engine.locators import is_in_log, lsn_of
from topics.engine.routing.picking import Picked
from topics.engine.store import Store
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import OWN_STAMP, RUN, Run, encode_runs, payload_of
from topics.formats.disk.records import RecordsView
from topics.storage.wal.log import Wal

# The header of the records in a message: flags, record_count, ext_len.
_BODY: Final = struct.Struct("<III")


class ForwardBatch(NamedTuple):
    """The records after the common cursor of some routers, up to ``to_seq``.

    ``number`` identifies ``body``; if it is 0, the runs refer to frames of the log. ``seqs``: the
    seq in the source of each run's first record.
    """

    to_seq: int
    hop: int
    runs: Sequence[Run] = ()
    seqs: Sequence[int] = ()
    body: bytes = b""
    number: int = 0

    def packed(self, drops: int, *, is_stamped: bool) -> bytes:
        """Encode the runs for a router. ``drops``: the fields that its copies do not contain."""
        if is_stamped:
            return encode_runs(
                run._replace(drops=drops, stamp=OWN_STAMP, stamp_seq=seq)
                for run, seq in zip(self.runs, self.seqs, strict=True)
            )
        return encode_runs(run._replace(drops=drops) for run in self.runs)


def frame_bytes_max(run_count: int, names: Iterable[str]) -> int:
    """Return an upper bound for the size of a FORWARD frame and its related frames in bytes,
    excluding the payload.

    ``names``: the names of the frame's routers, and the other strings in their stamps.
    """
    return 512 + RUN.size * run_count + sum(256 + len(name.encode()) for name in names)


def named_batch(picked: Picked, wal: Wal, names: Iterable[str]) -> ForwardBatch | None:
    """Return a batch that refers to the frames of its records.

    Return None if the next frame may not refer to all of these frames.
    """
    runs, seqs = [], []
    length = frame_bytes_max(len(picked.runs), names)
    for run in picked.runs:
        if not is_in_log(run.locator) or not wal.may_name(lsn_of(run.locator), length):
            return None
        runs.append(Run(run.locator, 0, run.start, run.stop))
        seqs.append(run.first_seq + run.start)
    return ForwardBatch(picked.to_seq, picked.hop, runs, seqs)


def body_batch(picked: Picked, store: Store, number: int) -> ForwardBatch:
    """Return a batch that contains copies of its records. Raises `Unreadable`."""
    pieces = [(store.records(run.locator), run.start, run.stop) for run in picked.runs]
    first = picked.runs[0]
    flags, count, ext, parts, _ = payload_of(
        pieces, first.first_seq + first.start, pieces[0][0].ts(first.start)
    )
    body = b"".join((_BODY.pack(flags, count, len(ext)), *parts))
    runs, seqs = list[Run](), list[int]()
    end = end_seq = 0
    for run in picked.runs:  # one new run for each range of contiguous seqs
        begin, seq = end, run.first_seq + run.start
        if runs and seq == end_seq:
            begin = runs.pop().start
        else:
            seqs.append(seq)
        end, end_seq = end + run.stop - run.start, run.first_seq + run.stop
        runs.append(Run(0, 0, begin, end))
    return ForwardBatch(picked.to_seq, picked.hop, runs, seqs, body, number)


def records_in(body: Buffer) -> RecordsView:
    """Return the records in a message, copied from the memory of the message."""
    flags, count, ext_len = _BODY.unpack_from(body)
    return RecordsView(flags, count, ext_len, memoryview(bytes(body[_BODY.size :])))
