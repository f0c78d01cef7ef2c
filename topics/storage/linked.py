"""Linked payloads: the records that ROUTER frames of version 0.1 name, in the logs of all shards.

    wal/SHARD/BASE.wal         the own log
    linked/SHARD/SS-BASE.wal   a hard link to the file of shard SS that begins at LSN BASE
    linked/SHARD/SS-LSN.blob   a hard link to the blob of shard SS's EXTERNAL frame at LSN

Version 0.1 logged a payload once and linked the file into the shard of each dest: a slow dest
pinned files of its sources, and one damaged byte in a foreign payload kept a shard down (decision
0058). The links are only read, until the records of these frames are in segments: a start ends the
log file, so that it is sealed soon. Until two checkpoints no longer need these frames, the log
gives no file up (``actors/shard/sealing/reclaim.py``). Then the links are removed.
"""

from __future__ import annotations

from pathlib import Path

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind, check_frame
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader, decode_file_header
from topics.storage.disk import Damaged
from topics.storage.folders import Folders
from topics.storage.mapped_file import MappedFile
from topics.storage.names import LINKED_BLOB, LINKED_LOG, LOG, own_files
from topics.storage.wal.blobs import blob_name

STEP_BYTES = 1 << 20
_KINDS = (FrameKind.APPEND, FrameKind.PAYLOAD)


class LinkedPayloads:
    """The payloads that ROUTER frames of one shard name. ``needed_to``: the LSN behind the last of
    these frames that may stand; 0: there is none.
    """

    def __init__(self, folders: Folders) -> None:
        self._folders, self.folder = folders, folders.linked
        self.needed_to = 0
        self._files: dict[Path, MappedFile] = {}

    @property
    def is_there(self) -> bool:
        """Whether there are links."""
        return bool(own_files(self.folder, LINKED_LOG, LINKED_BLOB))

    def payload(self, shard: int, lsn: int) -> RecordsView:
        """The records of a payload frame, which is compared with its checksum. Raises `Damaged`."""
        base, path = self._file(shard, lsn)
        try:
            view = self._view(path)
            seed = decode_file_header(bytes(view[:FILE_HEADER_BYTES])).seed
        except BadHeader as error:
            raise Damaged(path, 0, str(error)) from error
        offset = FILE_HEADER_BYTES + lsn - base
        header = check_frame(view, offset, lsn, seed)
        if not isinstance(header, FrameHeader) or header.kind not in _KINDS:
            raise Damaged(path, offset, f"no payload frame of shard {shard} at {lsn:#x}")
        body = view[offset + FRAME_HEADER_BYTES :][: header.body_len]
        if header.flags & RecordFlags.EXTERNAL:
            body = self._blob(shard, header)
        return RecordsView(header.flags, header.record_count, header.ext_len, body)

    def _file(self, shard: int, lsn: int) -> tuple[int, Path]:
        """Base and path of the file that should hold the frame. Raises `Damaged`."""
        found = [
            (int(name[2], 16), path)
            for path in own_files(self.folder, LINKED_LOG)
            if (name := LINKED_LOG.fullmatch(path.name)) and int(name[1]) == shard
        ]
        if shard == self._folders.shard:
            own = own_files(self._folders.wal, LOG)
            found += [(int(path.stem, 16), path) for path in own]
        below = [each for each in found if each[0] <= lsn]
        if not below:
            path = self.folder / f"{shard:02d}-{lsn:016x}.wal"
            raise Damaged(path, 0, f"no log file with the payload of shard {shard} at {lsn:#x}")
        return max(below)

    def _blob(self, shard: int, header: FrameHeader) -> memoryview:
        path = self.folder / f"{shard:02d}-{header.lsn:016x}.blob"
        if not path.exists():
            name = blob_name(header.topic_id, header.first_seq)
            path = self._folders.root / "blob" / f"{shard:02d}" / name
        data = self._view(path)
        try:
            for _ in blob.checking(data, header.topic_id, header.first_seq, STEP_BYTES):
                pass
        except BadBlob as error:
            raise Damaged(path, error.offset, f"blob {error}") from error
        return blob.body_of(data)

    def _view(self, path: Path) -> memoryview:
        file = self._files.get(path)
        if file is None:
            try:
                file = self._files[path] = MappedFile.of(path)
            except FileNotFoundError as error:
                raise Damaged(path, 0, "file with payloads is missing") from error
        return file.data

    def remove(self) -> None:
        """No frame names them any more. For a thread. Raises OSError."""
        self._files.clear()
        for path in own_files(self.folder, LINKED_LOG, LINKED_BLOB):
            path.unlink()
