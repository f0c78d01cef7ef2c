"""A linked file: a second name of a log file or a blob, opened when it is first read
(``linked_logs.py``).

It is only read, and stays mapped. What its log writes later shows in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, check_frame
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, decode_file_header
from topics.storage.disk import Damaged
from topics.storage.mapped_file import MappedFile
from topics.storage.payload_sources import PayloadFields, payload_fields
from topics.storage.wal.file import LOG, RESERVE, SPARE


class LinkedFile:
    """A link. ``start``: base of a log file, LSN of a blob's frame; ``named_to``: the highest LSN
    of the own log at which a frame may name it.
    """

    __slots__ = ("_mapped", "named_to", "path", "seed", "shard", "start")

    def __init__(self, path: Path, shard: int, start: int, named_to: int) -> None:
        self.path, self.shard, self.start, self.named_to = path, shard, start, named_to
        self._mapped: MappedFile | None = None
        self.seed = 0  # of the checksums, once the log file was viewed

    @property
    def is_log(self) -> bool:
        """Whether it is a log file, and no blob. One that lost its name is a spare by its name."""
        return self.path.suffix in (LOG, SPARE, RESERVE)

    def mapped(self) -> MappedFile:
        """The whole log file. Raises `Damaged` when it is not what its name says."""
        if self._mapped is None:
            mapped = _mapped(self.path)
            data = mapped.data
            mapped.ask(0, min(FILE_HEADER_BYTES, len(data)))
            try:
                header = decode_file_header(bytes(data[:FILE_HEADER_BYTES]))
            except BadHeader as error:
                raise Damaged(self.path, 0, f"linked log file {error}") from error
            if (header.shard, header.base) != (self.shard, self.start):
                reason = f"belongs to shard {header.shard}, LSN {header.base:#x}"
                raise Damaged(self.path, 12, reason)
            if len(data) < header.size:
                reason = f"the file is cut: it was made with {header.size} bytes"
                raise Damaged(self.path, len(data), reason)
            self.seed = header.seed
            self._mapped = mapped  # last: another thread may look
        return self._mapped

    def body(self, fields: PayloadFields) -> memoryview:
        """Body of the blob, whose first reader compares all of it. Raises `Damaged`."""
        if self._mapped is None:
            self._mapped = checked_blob(self.path, fields)
        self._mapped.ask(0, len(self._mapped.data))
        return blob.body_of(self._mapped.data)

    def offset(self, lsn: int) -> int:
        """Offset in the log file of the frame at ``lsn``."""
        return FILE_HEADER_BYTES + lsn - self.start

    def fields(self, lsn: int) -> PayloadFields | None:
        """The payload frame at ``lsn``, if it is there. Raises `Damaged`."""
        return header_of(Place(self.mapped(), self.offset(lsn), self.seed), lsn)

    def find(self, lsn: int) -> PayloadFields | None:
        """As `fields`; None where the file is damaged, too."""
        try:
            return self.fields(lsn)
        except Damaged:
            return None


class Place(NamedTuple):
    """Where a payload frame should stand. ``seed``: of its checksum."""

    file: MappedFile
    offset: int
    seed: int


def header_of(place: Place, lsn: int) -> PayloadFields | None:
    """As `payload_fields`. Raises `Damaged` where the header cannot be read."""
    file, offset, _ = place
    if offset > len(file.data) - FRAME_HEADER_BYTES:
        return None
    file.ask(offset, offset + FRAME_HEADER_BYTES)
    return payload_fields(file.data, offset, lsn)


def check_payload(place: Place, lsn: int) -> PayloadFields:
    """The payload frame, once it is found to be whole. Raises `Damaged`."""
    file, offset, seed = place
    fields = header_of(place, lsn)
    if fields is not None:
        file.ask(offset, offset + FRAME_HEADER_BYTES + fields.body_len)
        if isinstance(check_frame(file.data, offset, lsn, seed), FrameHeader):
            return fields
    raise Damaged(file.path, offset, "damaged payload frame")


def blob_file(path: Path, fields: PayloadFields) -> MappedFile:
    """A whole blob; its header is checked. Raises `Damaged`."""
    mapped = _mapped(path)
    data = mapped.data
    mapped.ask(0, min(blob.HEADER_BYTES, len(data)))
    try:
        header = bytes(data[: blob.HEADER_BYTES])
        blob.check_header(header, len(data), fields.topic_id, fields.first_seq)
    except BadBlob as error:
        raise Damaged(path, error.offset, f"blob {error}") from error
    return mapped


def checked_blob(path: Path, fields: PayloadFields) -> MappedFile:
    """A whole blob, every byte of which is as it was written. Raises `Damaged`."""
    mapped = blob_file(path, fields)
    try:
        blob.check(mapped.data, fields.topic_id, fields.first_seq, mapped.can_read)
    except BadBlob as error:
        raise Damaged(path, error.offset, f"blob {error}") from error
    return mapped


def _mapped(path: Path) -> MappedFile:
    try:
        return MappedFile.of(path)
    except FileNotFoundError as error:
        raise Damaged(path, 0, "file with payloads is missing") from error
