"""A linked file: a second name of a log file or a blob, opened when it is first read
(``linked_logs.py``).

It is only read, and stays mapped. What its log writes later shows in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FrameHeader, check_frame
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, decode_file_header
from topics.storage.disk import Damaged, mapped
from topics.storage.payload_sources import PayloadFields, payload_fields
from topics.storage.wal.file import LOG, RESERVE, SPARE


class LinkedFile:
    """A link. ``start``: base of a log file, LSN of a blob's frame; ``named_to``: the highest LSN
    of the own log at which a frame may name it.
    """

    __slots__ = ("_view", "named_to", "path", "seed", "shard", "start")

    def __init__(self, path: Path, shard: int, start: int, named_to: int) -> None:
        self.path, self.shard, self.start, self.named_to = path, shard, start, named_to
        self._view: memoryview | None = None
        self.seed = 0  # of the checksums, once the log file was viewed

    @property
    def is_log(self) -> bool:
        """Whether it is a log file, and no blob. One that lost its name is a spare by its name."""
        return self.path.suffix in (LOG, SPARE, RESERVE)

    def view(self) -> memoryview:
        """The whole log file. Raises `Damaged` when it is not what its name says."""
        if self._view is None:
            data = _mapped(self.path)
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
            self._view = data  # last: another thread may look
        return self._view

    def body(self, fields: PayloadFields) -> memoryview:
        """Body of the blob, whose first reader compares all of it. Raises `Damaged`."""
        if self._view is None:
            self._view = checked_blob(self.path, fields)
        return self._view

    def offset(self, lsn: int) -> int:
        """Offset in the log file of the frame at ``lsn``."""
        return FILE_HEADER_BYTES + lsn - self.start

    def fields(self, lsn: int) -> PayloadFields | None:
        """The payload frame at ``lsn``, if it is there. Raises `Damaged`."""
        return payload_fields(self.view(), self.offset(lsn), lsn)

    def find(self, lsn: int) -> PayloadFields | None:
        """As `fields`; None where the file is damaged, too."""
        try:
            return self.fields(lsn)
        except Damaged:
            return None


class Place(NamedTuple):
    """Where a payload frame should stand. ``seed``: of its checksum."""

    path: Path
    view: memoryview
    offset: int
    seed: int


def check_payload(place: Place, lsn: int) -> PayloadFields:
    """The payload frame, once it is found to be whole. Raises `Damaged`."""
    path, view, offset, seed = place
    fields = payload_fields(view, offset, lsn)
    if fields is None or not isinstance(check_frame(view, offset, lsn, seed), FrameHeader):
        raise Damaged(path, offset, "damaged payload frame")
    return fields


def blob_data(path: Path, fields: PayloadFields) -> memoryview:
    """A whole blob; its header is checked. Raises `Damaged`."""
    data = _mapped(path)
    try:
        header = bytes(data[: blob.HEADER_BYTES])
        blob.check_header(header, len(data), fields.topic_id, fields.first_seq)
    except BadBlob as error:
        raise Damaged(path, error.offset, f"blob {error}") from error
    return data


def checked_blob(path: Path, fields: PayloadFields) -> memoryview:
    """Body of a blob, every byte of which is as it was written. Raises `Damaged`."""
    data = blob_data(path, fields)
    try:
        return blob.check(data, fields.topic_id, fields.first_seq)
    except BadBlob as error:
        raise Damaged(path, error.offset, f"blob {error}") from error


def _mapped(path: Path) -> memoryview:
    try:
        return mapped(path)
    except FileNotFoundError as error:
        raise Damaged(path, 0, "file with payloads is missing") from error
