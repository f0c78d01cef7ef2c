"""Blob files of one shard: the records of long writes, beside the log (``formats/disk/blob.py``).

    begin -> write ... -> finish       the file is on the disk under its name
    add                                a frame that names it is in the log
    absorb | forget | remove           segments hold its records, or nobody wants them any more

No byte of a blob is believed before all of it was checked: by this process when it wrote it, or by
`verify`, which comes before the first use. A blob that is missing or not as it was written is
`Damaged`.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.formats.disk.records import RecordsView
from topics.storage import names
from topics.storage.disk import Damaged, FileAside, allocate, make_directory, write_all
from topics.storage.mapped_file import MappedFile
from topics.storage.names import own_files

SUFFIX, NEW = ".blob", ".new"
PIECE_BYTES = 1 << 20  # read at once


def blob_name(topic_id: int, first_seq: int) -> str:
    """A blob is named by the write that it holds."""
    return f"{topic_id:x}-{first_seq:x}{SUFFIX}"


def blob_of(name: str) -> tuple[int, int] | None:
    """Return ``(topic_id, first_seq)`` from the name of a blob, or None for any other name."""
    found = names.BLOB.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def blob_paths(folder: Path) -> list[Path]:
    """Return the sorted blobs in a folder, without foreign files."""
    return own_files(folder, names.BLOB)


def check_blob(path: Path) -> None:
    """Raises `BadBlob` unless the file is the whole blob of the write in its name."""
    named = blob_of(path.name)
    if named is None:
        raise BadBlob("has the name of none")
    file = MappedFile.of(path)
    blob.check(file.data, *named, file.can_read)


class BlobWriter:
    """A blob under way to the disk: `write` its body in order, then `finish`.

    Each call may take long: for a thread.
    """

    def __init__(self, store: BlobStore, topic_id: int, first_seq: int, body_len: int) -> None:
        self._store, self._id, self._body_len = store, (topic_id, first_seq), body_len
        self._crc = blob.body_crc(topic_id, first_seq, body_len)
        self._offset = blob.HEADER_BYTES
        self._file = FileAside(store.path(topic_id, first_seq), NEW)
        try:
            # A full disk shows here.
            allocate(self._file.fd, store.folder, blob.HEADER_BYTES + body_len)
        except OSError:
            self.abandon()
            raise

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the body, and sync it.

        A sync for each call, so that the log's own syncs find a short queue.
        """
        for piece in pieces:
            self._crc = crc32c.crc32c(piece, self._crc)
        write_all(self._file.fd, pieces, self._offset)
        self._offset += sum(map(len, pieces))
        os.fdatasync(self._file.fd)

    def finish(self) -> None:
        """Make the blob whole and durable under its name."""
        assert self._offset == blob.HEADER_BYTES + self._body_len, "the body is as long as was said"
        header = blob.encode_header(*self._id, self._body_len, self._crc)
        os.pwrite(self._file.fd, header, 0)
        self._file.publish()
        self._store.written(*self._id)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._file.abandon()


class BlobView(RecordsView):
    """The records of a blob, which are asked for before they are touched (`MappedFile.ask`)."""

    __slots__ = ("_file", "_on_damage", "_tables_end")

    def __init__(
        self,
        flags: int,
        count: int,
        ext_len: int,
        file: MappedFile,
        on_damage: Callable[[Damaged], None],
    ) -> None:
        """Raises `Damaged`, and so does each read of the view; ``on_damage`` is told first."""
        super().__init__(flags, count, ext_len, blob.body_of(file.data))
        self._file, self._on_damage = file, on_damage
        self._tables_end = len(file.data) - len(super().blob)
        self._ask(0, self._tables_end)

    def _ask(self, begin: int, end: int) -> None:
        try:
            self._file.ask(begin, end)
        except Damaged as damage:
            self._on_damage(damage)
            raise

    @property
    def blob(self) -> memoryview:
        """All rendered records, asked for before they are touched."""
        found = super().blob
        self._ask(self._tables_end, self._tables_end + len(found))
        return found

    def part(self, begin: int, end: int) -> memoryview:
        """A range of the blob, asked for likewise."""
        self._ask(self._tables_end + begin, self._tables_end + end)
        return super().blob[begin:end]


class _Blob:
    """A blob that the frame at ``lsn`` names. ``is_checked``: it is as it was written.
    ``is_copied``: copies are read from it.
    """

    __slots__ = ("is_checked", "is_copied", "length", "lsn", "mapped")

    def __init__(self, lsn: int, length: int, is_checked: bool) -> None:
        self.lsn, self.length, self.is_checked = lsn, length, is_checked
        self.is_copied = False
        self.mapped: MappedFile | None = None


class BlobStore:
    """All blobs of a shard, mapped for reading when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Called every few milliseconds by what takes long.
        self.beat: Callable[[], None] = lambda: None
        self.on_damage: Callable[[Damaged], None] = lambda _: None  # what a reader meets
        self._held: dict[int, dict[int, _Blob]] = defaultdict(dict)
        self._written: set[tuple[int, int]] = set()  # by this process, and not yet added

    def path(self, topic_id: int, first_seq: int) -> Path:
        """The file of the topic's write that begins with this seq."""
        return self.folder / blob_name(topic_id, first_seq)

    def begin(self, topic_id: int, first_seq: int, body_len: int) -> BlobWriter:
        """Raises OSError when there is no room."""
        make_directory(self.folder)
        return BlobWriter(self, topic_id, first_seq, body_len)

    def written(self, topic_id: int, first_seq: int) -> None:
        """This process has just written it."""
        self._written.add((topic_id, first_seq))

    def add(self, topic_id: int, first_seq: int, lsn: int) -> None:
        """The log now holds a frame, at ``lsn``, that names this blob."""
        is_checked = (topic_id, first_seq) in self._written
        self._written.discard((topic_id, first_seq))
        self._held[topic_id][first_seq] = _Blob(lsn, self.length(topic_id, first_seq), is_checked)

    def lsn(self, topic_id: int, first_seq: int) -> int:
        """Of the frame that names an added blob."""
        return self._held[topic_id][first_seq].lsn

    def length(self, topic_id: int, first_seq: int) -> int:
        """Bytes of its file; 0 when the file is missing."""
        try:
            return self.path(topic_id, first_seq).stat().st_size
        except FileNotFoundError:
            return 0

    def bytes_from(self, lsn: int) -> int:
        """Bytes of all blobs that frames from ``lsn`` on name."""
        return sum(
            held.length for seqs in self._held.values() for held in seqs.values() if held.lsn >= lsn
        )

    def file(self, topic_id: int, first_seq: int) -> MappedFile:
        """An added blob. Raises `Damaged`.

        The first call reads all of a blob that this process has not written.
        """
        held = self._held[topic_id][first_seq]
        if held.mapped is None:
            self.verify(topic_id, first_seq)
            held.mapped = MappedFile.of(self.path(topic_id, first_seq))
        return held.mapped

    def verify(self, topic_id: int, first_seq: int, *, whole: bool = True) -> None:
        """Check an added blob, unless that was done; without ``whole`` only its header.

        Raises `Damaged`.
        """
        held, path = self._held[topic_id][first_seq], self.path(topic_id, first_seq)
        try:
            with path.open("rb", buffering=0) as file:
                header, size = file.read(blob.HEADER_BYTES), os.fstat(file.fileno()).st_size
                crc, wanted = blob.check_header(header, size, topic_id, first_seq)
                if whole and not held.is_checked:
                    if self._crc_of_rest(file, crc) != wanted:
                        raise BadBlob("is damaged", blob.HEADER_BYTES)
                    held.is_checked = True
        except FileNotFoundError as error:
            raise Damaged(path, 0, "blob named by the log is missing") from error
        except BadBlob as error:
            raise Damaged(path, error.offset, f"blob {error}") from error
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise Damaged(path, 0, f"blob cannot be read: {error.strerror}") from error

    def _crc_of_rest(self, file: FileIO, crc: int) -> int:
        piece = memoryview(bytearray(PIECE_BYTES))
        while length := file.readinto(piece):
            crc = crc32c.crc32c(piece[:length], crc)
            self.beat()
        return crc

    def __bool__(self) -> bool:
        """Whether the log names any blob."""
        return bool(self._held)

    def is_added(self, topic_id: int, first_seq: int) -> bool:
        """Whether the log names this blob."""
        return first_seq in self._held.get(topic_id, {})

    def added(self) -> list[tuple[int, int]]:
        """``(topic_id, first_seq)`` of all added blobs."""
        return [(topic_id, seq) for topic_id, seqs in self._held.items() for seq in seqs]

    def below(self, lsn: int) -> list[Path]:
        """The blobs that frames below ``lsn`` name."""
        return [
            self.path(topic_id, seq)
            for topic_id, seqs in self._held.items()
            for seq, held in seqs.items()
            if held.lsn < lsn
        ]

    def keep_at(self, lsn: int) -> None:
        """A FORWARD frame names the frame at ``lsn``: if that has a blob, copies are read from it
        until the log file is sealed, whatever becomes of its topic.
        """
        for seqs in self._held.values():
            for held in seqs.values():
                held.is_copied |= held.lsn == lsn

    def forget(self, topic_id: int) -> list[Path]:
        """The topic is gone; its files, to be removed once that is durable. Those that copies are
        read from are absorbed later.
        """
        held = self._held.pop(topic_id, {})
        copied = {seq: each for seq, each in held.items() if each.is_copied}
        if copied:
            self._held[topic_id] = copied
        return [self.path(topic_id, seq) for seq in held.keys() - copied.keys()]

    def forget_from(self, lsn: int) -> None:
        """The log has dropped its frames from ``lsn`` on, and does not name their blobs."""
        self._drop(lambda held: held.lsn >= lsn)

    def remove(self, topic_id: int, first_seq: int) -> None:
        """Undo `add` and remove the file: no frame of the log names it."""
        self._held[topic_id].pop(first_seq, None)
        self._written.discard((topic_id, first_seq))
        self.path(topic_id, first_seq).unlink(missing_ok=True)

    def absorb(self, lsn: int) -> list[Path]:
        """Segments hold the records of frames below ``lsn``; the files that nobody reads now."""
        return self._drop(lambda held: held.lsn < lsn)

    def _drop(self, which: Callable[[_Blob], bool]) -> list[Path]:
        dropped = [
            (topic_id, seq)
            for topic_id, seqs in self._held.items()
            for seq, held in seqs.items()
            if which(held)
        ]
        for topic_id, seq in dropped:
            del self._held[topic_id][seq]
            if not self._held[topic_id]:
                del self._held[topic_id]
        return [self.path(*blob_id) for blob_id in dropped]

    def sweep(self, heads: dict[int, int]) -> list[Path]:
        """Remove blobs of writes that were never finished, or whose topic is gone.

        ``heads``: by topic, the last seq that was given out. The result are files whose records are
        in segments, or gone: the part of the log that names them is kept as long as the older
        checkpoint.
        """
        wanted = {self.path(*blob_id) for blob_id in self.added()}
        absorbed = []
        for path in own_files(self.folder, names.BLOB, names.NEW_BLOB):
            self.beat()
            if path in wanted:
                continue
            named = blob_of(path.name)
            if named is not None and named[1] <= heads.get(named[0], 0):
                absorbed.append(path)
            else:
                path.unlink()
        return absorbed
