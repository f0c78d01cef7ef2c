"""Linked logs: the payloads of copies, kept by hard links for as long as a ROUTER frame names them
(``decisions/0028``).

    linked/SHARD/SS-BASE.wal   a second name of the log file of shard SS that begins at LSN BASE
    linked/SHARD/SS-LSN.blob   a second name of the blob of shard SS's EXTERNAL frame at LSN

SHARD is the shard whose frames name the payloads, SS the one that wrote them.

    link     a file of another shard, before the first frame that names it is written
    note     the highest frame of the own log that names a file
    keep     the own log files that are given up, and are named by frames that stay
    release  links that no frame of a standing log file names

A link is durable before its file is named, so after a power loss no name is missing. A log file
with a second name is never used again: see `WalFile.is_kept`.

The loop reads and notes; links are made and removed in threads, one at a time. A reader sees a link
from when it is durable, until it is released.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.frames import FRAME_HEADER_BYTES
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.storage.disk import Damaged, sync_directory
from topics.storage.linked_file import (
    LinkedFile,
    Place,
    blob_file,
    check_payload,
    checked_blob,
    header_of,
)
from topics.storage.payload_sources import (
    PayloadFields,
    PayloadSources,
    blob_link_name,
    log_link_name,
    read_payload,
)
from topics.storage.wal.file import WalFile

# Files of other shards that one log file may name, beyond the first of each shard: a log that
# grows slowly does not keep the room of all the others.
FOREIGN_FILES_MAX = 4
# What a file system answers that has no hard links, or no more of them for this file.
NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV, errno.ENOSYS})
_NAME = re.compile(r"([0-9]{2,})-([0-9a-f]{16})(\.wal|\.blob)")
_EXTERNAL = int(RecordFlags.EXTERNAL)

Payload = tuple[int, int]
"""``(shard, lsn)`` of a payload frame."""


class Gone(OSError):
    """The payload is not where it was, and cannot be linked."""


class NamesPayload(Protocol):
    """A row of a ROUTER frame, as far as it names a payload."""

    @property
    def shard(self) -> int:
        """The shard whose log has the payload frame."""

    @property
    def lsn(self) -> int:
        """Of the payload frame."""


class OwnLog(Protocol):
    """The log whose frames name the payloads."""

    @property
    def next_lsn(self) -> int:
        """Where the next frame goes."""

    def standing_file(self, lsn: int) -> WalFile | None:
        """The file that holds a written frame; None when it was given up."""

    def file_begin(self, lsn: int) -> int:
        """Base of the file that a frame is in, which need not be written."""

    def end_file(self) -> None:
        """Let the next frame begin a new file."""


class ReplayedLog:
    """The own log during a replay: its files."""

    next_lsn = 0  # nothing is linked before the log is written

    def __init__(self, files: Sequence[WalFile]) -> None:
        self._files = files

    def standing_file(self, lsn: int) -> WalFile | None:
        """As `OwnLog.standing_file`."""
        at = bisect_right(self._files, lsn, key=lambda file: file.base)
        return self._files[at - 1] if at else None

    def file_begin(self, lsn: int) -> int:
        """As `OwnLog.file_begin`."""
        file = self.standing_file(lsn)
        return file.base if file else 0

    def end_file(self) -> None:
        """As `OwnLog.end_file`: the log does that when it is written."""


class LinkedLogs:
    """The payloads that the frames of one shard name; implements `Payloads`.

    ``kept_from``: links that were found and that no replayed frame names are kept until no older
    frame stands.
    """

    def __init__(self, folder: Path, data_dir: Path, shard: int, kept_from: int = 0) -> None:
        self.folder, self.shard = folder, shard
        self._own: OwnLog | None = None
        self._lock = threading.Lock()  # held while links are made or removed
        self._tables = threading.Lock()  # held while `_logs` and `_blobs` change: never for long
        self._sources = PayloadSources(data_dir)
        # By shard, in the order of their bases. A list that readers have is not changed.
        self._logs: dict[int, tuple[list[int], list[LinkedFile]]] = {}
        self._blobs: dict[Payload, LinkedFile] = {}
        self._released: list[LinkedFile] = []  # to be unlinked
        self._own_named: dict[int, int] = {}  # by base of a standing file: highest frame
        self._foreign: set[Payload] = set()  # log files that the newest own file names
        self._foreign_of = -1  # base of that file
        for path in self.paths():
            if name := _NAME.fullmatch(path.name):
                shard_of, start = int(name[1]), int(name[2], 16)
                self._register(LinkedFile(path, shard_of, start, kept_from - 1))

    def attach(self, own: OwnLog) -> None:
        """The log whose frames name the payloads."""
        self._own = own

    def paths(self) -> list[Path]:
        """All files of its folder."""
        return sorted(self.folder.glob("*"))

    def add_log(self, path: Path, base: int) -> None:
        """Read a file of the own log without a log that is written."""
        self._register(LinkedFile(path, self.shard, base, 0))

    def damaged(self, frame_lsn: int, reason: str) -> Damaged:
        """What is to be raised for a frame of the own log that contradicts its payloads."""
        file = self._own.standing_file(frame_lsn) if self._own else None
        if file is None:
            return Damaged(self.folder, 0, f"frame at {frame_lsn:#x}: {reason}")
        return Damaged(file.path, file.offset(frame_lsn), reason)

    # Read

    def payload(self, shard: int, lsn: int) -> RecordsView:
        """Records of the payload frame, compared with its checksum. Raises `Damaged`."""
        place = self._found(shard, lsn)
        fields = check_payload(place, lsn)
        _, _, body_len, count, ext_len, flags = fields
        if flags & _EXTERNAL:
            return RecordsView(flags, count, ext_len, self._blob_body(shard, lsn, fields))
        start = place.offset + FRAME_HEADER_BYTES
        return RecordsView(flags, count, ext_len, place.file.data[start : start + body_len])

    def look_for(self, shard: int, lsn: int) -> None:
        """Raises `Damaged` when there is no payload frame; its body is not compared."""
        place = self._found(shard, lsn)
        fields = header_of(place, lsn)
        if fields is None:
            reason = f"no payload frame of shard {shard} at {lsn:#x}"
            raise Damaged(place.file.path, place.offset, reason)
        if fields.flags & _EXTERNAL:
            blob_file(self._blob_path(shard, lsn, fields), fields)

    def _found(self, shard: int, lsn: int) -> Place:
        place = self._place(shard, lsn)
        if place is None:
            path = self.folder / log_link_name(shard, lsn)
            raise Damaged(path, 0, f"no log file with the payload of shard {shard} at {lsn:#x}")
        return place

    def _place(self, shard: int, lsn: int) -> Place | None:
        if shard == self.shard and self._own is not None:
            file = self._own.standing_file(lsn)
            if file is not None:
                return Place(file.mapped(), file.offset(lsn), file.seed)
        linked = self._linked_log(shard, lsn)
        if linked is None:
            return None
        mapped = linked.mapped()  # it learns the seed
        return Place(mapped, linked.offset(lsn), linked.seed)

    def _blob_body(self, shard: int, lsn: int, fields: PayloadFields) -> memoryview:
        linked = self._blobs.get((shard, lsn))
        if linked is not None:
            return linked.body(fields)
        return blob.body_of(checked_blob(self._blob_path(shard, lsn, fields), fields).data)

    def _blob_path(self, shard: int, lsn: int, fields: PayloadFields) -> Path:
        """The blob of a frame of the own log need not be linked."""
        if shard != self.shard or (shard, lsn) in self._blobs:
            return self.folder / blob_link_name(shard, lsn)
        return next(self._sources.blobs(shard, lsn, fields))

    def checking(self, shard: int, lsn: int, step_bytes: int = 1 << 20) -> Iterator[int]:
        """Compare the payload with its checksums; yields the bytes of each step, in a blob about
        ``step_bytes``. Raises `Damaged`.
        """
        fields = check_payload(self._found(shard, lsn), lsn)
        yield FRAME_HEADER_BYTES + fields.body_len
        if fields.flags & _EXTERNAL:
            path = self._blob_path(shard, lsn, fields)
            mapped, names = blob_file(path, fields), (fields.topic_id, fields.first_seq)
            try:
                for _ in blob.checking(mapped.data, *names, step_bytes, mapped.can_read):
                    yield step_bytes
            except BadBlob as error:
                raise Damaged(path, error.offset, f"blob {error}") from error

    def _linked_log(self, shard: int, lsn: int) -> LinkedFile | None:
        """The link that holds the frame, if any does."""
        found = self._logs.get(shard)
        if found is None:
            return None
        bases, files = found
        at = bisect_right(bases, lsn)
        return files[at - 1] if at else None

    def is_linked(self, shard: int, lsn: int) -> bool:
        """Whether a frame may name the payload: it stays as long as that frame stands.

        What stands in the own log is. An EXTERNAL frame is when its blob is linked, too.
        """
        fields = self._fields(shard, lsn)
        return fields is not None and (not fields.flags & _EXTERNAL or (shard, lsn) in self._blobs)

    def _fields(self, shard: int, lsn: int) -> PayloadFields | None:
        try:
            place = self._place(shard, lsn)
            return place and header_of(place, lsn)
        except Damaged:
            return None

    def peek(self, shard: int, lsn: int) -> RecordsView:
        """Records of a payload that is not linked, as a copy. Raises `Gone`."""
        if self.is_linked(shard, lsn):
            return self.payload(shard, lsn)
        for _, path in self._sources.log_files(shard, lsn):
            found = _read_payload(path, shard, lsn)
            if found is None:
                continue
            fields, body = found
            if fields.flags & _EXTERNAL:
                body = self._peek_blob(shard, lsn, fields)
            return RecordsView(fields.flags, fields.record_count, fields.ext_len, body)
        raise _gone(shard, lsn)

    def _peek_blob(self, shard: int, lsn: int, fields: PayloadFields) -> memoryview:
        for path in self._sources.blobs(shard, lsn, fields):
            try:
                return blob.body_of(checked_blob(path, fields).data)
            except Damaged:
                continue
        raise _gone(shard, lsn)

    # Linked: in a thread

    def link(self, wanted: Iterable[Payload]) -> None:
        """Link what is missing, and make it durable.

        For a thread. Raises `Gone`, and OSError as it comes: the file system may have no hard
        links. What was linked before that stays linked.
        """
        with self._lock:
            made: list[LinkedFile] = []
            try:
                for shard, lsn in wanted:
                    self._link_payload(shard, lsn, made)
            finally:
                self._finish(made)

    def _link_payload(self, shard: int, lsn: int, made: list[LinkedFile]) -> None:
        fields = self._linked_fields(shard, lsn, made)
        if fields is None and shard == self.shard:
            fields = self._own_fields(lsn)
        if fields is None:
            fields = self._link_log(shard, lsn, made)
        if fields.flags & _EXTERNAL and (shard, lsn) not in self._blobs:
            self._link_blob(shard, lsn, fields, made)

    def _linked_fields(self, shard: int, lsn: int, made: list[LinkedFile]) -> PayloadFields | None:
        """The payload, if a link holds it that stays until it is named."""
        linked = self._linked_log(shard, lsn)
        if linked is not None and linked.find(lsn) is not None:
            self._touch(shard, lsn)
        files = [each for each in made if each.is_log and each.shard == shard]
        linked = self._linked_log(shard, lsn)  # unless it was released meanwhile
        if linked is not None:
            files.append(linked)
        found = (linked.find(lsn) for linked in files if linked.start <= lsn)
        return next((fields for fields in found if fields is not None), None)

    def _own_fields(self, lsn: int) -> PayloadFields | None:
        """The payload, if a file of the own log holds it, as the disk has it: the loop alone may
        ask the log.
        """
        for _, path in self._sources.standing_files(self.shard, lsn):
            found = _read_payload(path, self.shard, lsn)
            if found is not None:
                return found[0]
        return None

    def _touch(self, shard: int, lsn: int) -> None:
        """A link that is there is about to be named: it is not released before that."""
        next_lsn = self._own.next_lsn if self._own else 0
        with self._tables:
            for linked in (self._linked_log(shard, lsn), self._blobs.get((shard, lsn))):
                if linked is not None:
                    linked.named_to = max(linked.named_to, next_lsn)

    def _link_log(self, shard: int, lsn: int, made: list[LinkedFile]) -> PayloadFields:
        for base, path in self._sources.log_files(shard, lsn):
            if _read_payload(path, shard, lsn) is None:
                continue
            linked = self._make(path, log_link_name(shard, base), shard, base)
            if linked is None:
                continue
            # A file that has its name still cannot become another one: a log that gives it up takes
            # that name first, and finds the link then.
            fields = linked.find(lsn) if _is_same(path, linked.path) else None
            if fields is not None:
                made.append(linked)
                return fields
            linked.path.unlink(missing_ok=True)
        raise _gone(shard, lsn)

    def _link_blob(
        self, shard: int, lsn: int, fields: PayloadFields, made: list[LinkedFile]
    ) -> None:
        for path in self._sources.blobs(shard, lsn, fields):
            linked = self._make(path, blob_link_name(shard, lsn), shard, lsn)
            if linked is None:
                continue
            try:
                linked.body(fields)
            except Damaged:
                linked.path.unlink(missing_ok=True)
                continue
            made.append(linked)
            return
        raise _gone(shard, lsn)

    def _make(self, source: Path, name: str, shard: int, start: int) -> LinkedFile | None:
        """A link that no reader sees so far; None when the source is gone. Raises OSError."""
        path = self.folder / name
        try:
            os.link(source, path)
        except FileNotFoundError:
            return None
        except FileExistsError:  # released, and not yet unlinked
            pass
        return LinkedFile(path, shard, start, self._own.next_lsn if self._own else 0)

    def _finish(self, made: Sequence[LinkedFile]) -> None:
        """Make new links durable, then let readers see them."""
        if made:
            sync_directory(self.folder)
            for linked in made:
                self._register(linked)

    def _register(self, linked: LinkedFile) -> None:
        with self._tables:
            if not linked.is_log:
                self._blobs[linked.shard, linked.start] = linked
                return
            files = [each for each in self._files(linked.shard) if each.start != linked.start]
            self._set_files(linked.shard, [*files, linked])

    def _files(self, shard: int) -> list[LinkedFile]:
        return self._logs.get(shard, ([], []))[1]

    def _set_files(self, shard: int, files: list[LinkedFile]) -> None:
        files.sort(key=lambda linked: linked.start)
        self._logs[shard] = [linked.start for linked in files], files

    # Named

    def note(self, frame_lsn: int, rows: Iterable[NamesPayload]) -> None:
        """The frame of the own log at ``frame_lsn`` names these payloads.

        A log file that names too many files of others is ended.
        """
        own = self._own
        assert own is not None, "frames are in a log"
        begin = own.file_begin(frame_lsn)
        if begin != self._foreign_of:
            self._foreign_of = begin
            self._foreign.clear()
        for row in rows:
            self._note(frame_lsn, row.shard, row.lsn, own)
        foreign = self._foreign
        if len(foreign) > FOREIGN_FILES_MAX:
            shards = {shard for shard, _ in foreign}
            if len(foreign) - len(shards) > FOREIGN_FILES_MAX:
                own.end_file()

    def _note(self, frame_lsn: int, shard: int, lsn: int, own: OwnLog) -> None:
        if self._blobs:
            external = self._blobs.get((shard, lsn))
            if external is not None:
                external.named_to = max(external.named_to, frame_lsn)
        file = own.standing_file(lsn) if shard == self.shard else None
        if file is not None:
            self._own_named[file.base] = max(self._own_named.get(file.base, 0), frame_lsn)
            return
        linked = self._linked_log(shard, lsn)
        if linked is not None:
            linked.named_to = max(linked.named_to, frame_lsn)
            if shard != self.shard:
                self._foreign.add((shard, linked.start))

    # Own files that are given up

    def unkept(self, files: Iterable[WalFile], limit: int) -> list[WalFile]:
        """Those of the own ``files`` that frames from ``limit`` on name, and that have no link."""
        linked = {each.start for each in self._files(self.shard)}
        return [
            file
            for file in files
            if self._own_named.get(file.base, -1) >= limit and file.base not in linked
        ]

    def keep(self, files: Iterable[WalFile]) -> None:
        """Link own files durably. For a thread. Raises OSError."""
        with self._lock:
            made: list[LinkedFile] = []
            try:
                for file in files:
                    name = log_link_name(self.shard, file.base)
                    linked = self._make(file.path, name, self.shard, file.base)
                    if linked is None:
                        raise _gone(self.shard, file.base)
                    linked.named_to = -1  # `give_up` knows
                    made.append(linked)
            finally:
                self._finish(made)

    def give_up(self, files: Iterable[WalFile]) -> None:
        """The own log has forgotten these files: from now on their links are read."""
        for file in files:
            named_to = self._own_named.pop(file.base, -1)
            linked = self._linked_log(self.shard, file.base)
            if linked is not None and linked.start == file.base:
                linked.named_to = max(linked.named_to, named_to)

    # Released

    def release(self, oldest_lsn: int) -> bool:
        """Forget links that no frame from ``oldest_lsn`` on names; whether some are to be
        unlinked.
        """
        with self._tables:
            for shard, (_, files) in [*self._logs.items()]:
                gone = [
                    linked
                    for linked in files
                    if linked.named_to < oldest_lsn and not self._stands(linked)
                ]
                if gone:
                    self._released += gone
                    self._set_files(shard, [linked for linked in files if linked not in gone])
            for payload, linked in [*self._blobs.items()]:
                if linked.named_to < oldest_lsn:
                    self._released.append(linked)
                    del self._blobs[payload]
        return bool(self._released)

    def _stands(self, linked: LinkedFile) -> bool:
        """Whether it is a file of the own log, whose frames are counted for the file."""
        return linked.shard == self.shard and linked.start in self._own_named

    def unlink_released(self) -> None:
        """Remove the links that were released. For a thread. Raises OSError."""
        with self._lock:
            while self._released:
                linked = self._released[0]
                if not self._is_back(linked):
                    linked.path.unlink(missing_ok=True)
                del self._released[0]

    def _is_back(self, linked: LinkedFile) -> bool:
        """Whether it was linked again meanwhile, under the same name."""
        if not linked.is_log:
            return (linked.shard, linked.start) in self._blobs
        return any(each.start == linked.start for each in self._files(linked.shard))


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except FileNotFoundError:
        return False


def _read_payload(path: Path, shard: int, lsn: int) -> tuple[PayloadFields, memoryview] | None:
    try:
        return read_payload(path, shard, lsn)
    except FileNotFoundError:
        return None


def _gone(shard: int, lsn: int) -> Gone:
    return Gone(errno.ENOENT, f"the payload of shard {shard} at {lsn:#x} is gone")
