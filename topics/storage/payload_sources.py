"""Payload sources: where a frame of another shard's log stands at the moment.

    wal/SS/BASE.wal             the log itself
    linked/*/SS-BASE.wal        a link of any shard to a file that the log has given up
    blob/SS/TOPIC-SEQ.blob      the records of an EXTERNAL frame
    linked/*/SS-LSN.blob        a link of any shard to such a blob

The other shard goes on meanwhile: a file may be gone, or used again under another name, at any
moment between a look and the next. So what is found here is only where it is worth to look.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topics.formats.buffers import Buffer
from topics.formats.disk.frames import (
    APPEND_FIELDS,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    FrameHeader,
    FrameKind,
    check_frame,
    header_at,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, decode_file_header
from topics.storage.wal.blobs import SUFFIX as BLOB
from topics.storage.wal.blobs import blob_name
from topics.storage.wal.file import LOG, log_name

_KINDS = frozenset({int(FrameKind.APPEND), int(FrameKind.PAYLOAD)})


class PayloadFields(NamedTuple):
    """What a reader needs of the header of a payload frame."""

    topic_id: int
    first_seq: int
    body_len: int
    record_count: int
    ext_len: int
    flags: int


def log_link_name(shard: int, base: int) -> str:
    """Name of a link to a log file."""
    return f"{shard:02d}-{log_name(base)}"


def blob_link_name(shard: int, lsn: int) -> str:
    """Name of a link to the blob of the frame at ``lsn``."""
    return f"{shard:02d}-{lsn:016x}{BLOB}"


def payload_fields(data: Buffer, offset: int, lsn: int) -> PayloadFields | None:
    """The payload frame at ``offset``, if one that was written for ``lsn`` begins there.

    Its checksum is not compared.
    """
    if offset > len(data) - FRAME_HEADER_BYTES:
        return None
    magic, held_lsn, topic_id, first_seq, body_len, count, ext_len, kind, flags = (
        APPEND_FIELDS.unpack_from(data, offset)
    )
    if magic != FRAME_MAGIC or held_lsn != lsn or kind not in _KINDS:
        return None
    if offset + FRAME_HEADER_BYTES + body_len > len(data):
        return None
    return PayloadFields(topic_id, first_seq, body_len, count, ext_len, flags)


class PayloadSources:
    """Finds log files and blobs of the shards of one data directory. For one thread at a time."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._bases: dict[int, list[int]] = {}  # by shard, as they were found last

    def log_files(self, shard: int, lsn: int) -> Iterator[tuple[int, Path]]:
        """``(base, path)`` of the files that may hold the frame, the likeliest first."""
        yield from self.standing_files(shard, lsn)
        found = self._data_dir.glob(f"linked/*/{shard:02d}-*{LOG}")
        linked = [(_base_of_link(path), path) for path in found]
        yield from sorted(((base, path) for base, path in linked if base <= lsn), reverse=True)

    def standing_files(self, shard: int, lsn: int) -> Iterator[tuple[int, Path]]:
        """As `log_files`, in the log alone."""
        folder, tried = self._data_dir / "wal" / f"{shard:02d}", -1
        for is_anew in (False, True):
            base = self._base(folder, shard, lsn, is_anew=is_anew)
            if base is not None and (is_anew or base != tried):
                tried = base
                yield base, folder / log_name(base)

    def _base(self, folder: Path, shard: int, lsn: int, *, is_anew: bool) -> int | None:
        """Base of the file of the log that ``lsn`` falls into."""
        if is_anew or shard not in self._bases:
            names = (path.stem for path in folder.glob(f"*{LOG}"))
            self._bases[shard] = sorted(int(name, 16) for name in names)
        bases = self._bases[shard]
        at = bisect_right(bases, lsn)
        return bases[at - 1] if at else None

    def blobs(self, shard: int, lsn: int, fields: PayloadFields) -> Iterator[Path]:
        """Files that may be the blob of an EXTERNAL frame."""
        name = blob_name(fields.topic_id, fields.first_seq)
        yield self._data_dir / "blob" / f"{shard:02d}" / name
        yield from sorted(self._data_dir.glob(f"linked/*/{blob_link_name(shard, lsn)}"))


def _base_of_link(path: Path) -> int:
    return int(path.stem.partition("-")[2], 16)


def read_payload(path: Path, shard: int, lsn: int) -> tuple[PayloadFields, memoryview] | None:
    """The payload frame and a copy of its body, if the file is of this shard's log and holds the
    frame whole and undamaged.

    The file may be used again meanwhile: then the checksum shows it. Raises OSError.
    """
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        try:
            header = decode_file_header(os.pread(fd, FILE_HEADER_BYTES, 0))
        except BadHeader:
            return None
        offset = FILE_HEADER_BYTES + lsn - header.base
        if header.shard != shard or offset < FILE_HEADER_BYTES:
            return None
        head = os.pread(fd, FRAME_HEADER_BYTES, offset)
        body_len = header_at(head, 0).body_len if len(head) == FRAME_HEADER_BYTES else 0
        if offset + body_len > os.fstat(fd).st_size:
            return None
        frame = memoryview(os.pread(fd, FRAME_HEADER_BYTES + body_len, offset))
    fields = payload_fields(frame, 0, lsn)
    if fields is None:
        return None
    if not isinstance(check_frame(frame, 0, lsn, header.seed), FrameHeader):
        return None
    return fields, frame[FRAME_HEADER_BYTES:]
