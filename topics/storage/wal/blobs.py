"""Blob files of one shard: the records of long writes, which are stored outside the log
(``formats/disk/blob.py``).

    begin -> write ... -> finish       the file is durable under its name
    add                                the log contains a frame that refers to the blob
    absorb | drop | remove             segments contain the records, or the records are deleted

A blob is used only after all of its bytes have been checked. A blob that this process has written
counts as checked. `verify` checks any other blob before its first use. For a blob that is missing
or was changed, `Damaged` is raised.
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
from topics.storage import file_names
from topics.storage.disk import AtomicFile, Damaged, allocate, make_directory, write_all
from topics.storage.file_names import own_files
from topics.storage.mapped_file import MappedFile

SUFFIX, NEW = ".blob", ".new"
CHUNK_BYTES = 1 << 20  # number of bytes read in one step


def blob_name(topic_id: int, first_seq: int) -> str:
    """Return the name of the blob that contains a write of a topic."""
    return f"{topic_id:x}-{first_seq:x}{SUFFIX}"


def blob_of(name: str) -> tuple[int, int] | None:
    """Return ``(topic_id, first_seq)`` from the name of a blob, or None for any other name."""
    found = file_names.BLOB.fullmatch(name)
    return (int(found[1], 16), int(found[2], 16)) if found else None


def blob_paths(folder: Path) -> list[Path]:
    """Return the sorted blobs in a folder, excluding foreign files."""
    return own_files(folder, file_names.BLOB)


def check_blob(path: Path) -> None:
    """Raise `BadBlob` unless the file is an intact blob of the write in its name."""
    named = blob_of(path.name)
    if named is None:
        raise BadBlob("does not have the name of a blob")
    file = MappedFile.of(path)
    blob.check(file.data, *named, file.can_read)


class BlobWriter:
    """Writes a new blob: call `write` with the chunks of its body in order, then `finish`.

    Each call may block on the disk, so it must run in a thread.
    """

    def __init__(self, store: BlobStore, topic_id: int, first_seq: int, body_len: int) -> None:
        self._store, self._id, self._body_len = store, (topic_id, first_seq), body_len
        # The checksum covers the identity of the blob, so a blob under a wrong name is not
        # accepted.
        self._crc = blob.body_crc(topic_id, first_seq, body_len)
        self._offset = blob.HEADER_BYTES
        self._file = AtomicFile(store.path(topic_id, first_seq), NEW)
        try:
            # If the disk is full, this call raises the error.
            allocate(self._file.fd, store.folder, blob.HEADER_BYTES + body_len)
        except OSError:
            self.abandon()
            raise

    def write(self, chunks: Sequence[Buffer]) -> None:
        """Append to the body, and sync it.

        Each call syncs, so that little data is queued at the disk when the log is synced.
        """
        for chunk in chunks:
            self._crc = crc32c.crc32c(chunk, self._crc)
        write_all(self._file.fd, chunks, self._offset)
        self._offset += sum(map(len, chunks))
        os.fdatasync(self._file.fd)

    def finish(self) -> None:
        """Write the header, and make the blob durable under its name."""
        assert self._offset == blob.HEADER_BYTES + self._body_len, (
            "the body has the announced length"
        )
        # The header is written last, so an unfinished file is never valid.
        header = blob.encode_header(*self._id, self._body_len, self._crc)
        os.pwrite(self._file.fd, header, 0)
        self._file.publish()
        self._store.written(*self._id)

    def abandon(self) -> None:
        """Remove the unfinished file."""
        self._file.abandon()


class BlobView(RecordsView):
    """The records of a blob. Before bytes are accessed, the view checks that they can be read."""

    __slots__ = ("_file", "_on_damage", "_tables_end")

    def __init__(
        self,
        flags: int,
        count: int,
        ext_len: int,
        file: MappedFile,
        on_damage: Callable[[Damaged], None],
    ) -> None:
        """Raise `Damaged`, as does each read of the view. ``on_damage`` is called first."""
        super().__init__(flags, count, ext_len, blob.body_of(file.data))
        self._file, self._on_damage = file, on_damage
        # The tables precede the records. They are checked now, and the records when they are
        # read.
        self._tables_end = len(file.data) - len(super().blob)
        self._check_readable(0, self._tables_end)

    def _check_readable(self, begin: int, end: int) -> None:
        try:
            self._file.check_readable(begin, end)
        except Damaged as damage:
            self._on_damage(damage)
            raise

    @property
    def blob(self) -> memoryview:
        """Return all rendered records after checking that they can be read."""
        found = super().blob
        self._check_readable(self._tables_end, self._tables_end + len(found))
        return found

    def part(self, begin: int, end: int) -> memoryview:
        """Return a range of the rendered records after checking that it can be read."""
        self._check_readable(self._tables_end + begin, self._tables_end + end)
        return super().blob[begin:end]


class _Blob:
    """A blob that the frame at ``lsn`` refers to.

    ``is_checked`` means that its contents are known to be intact. ``is_copied`` means that FORWARD
    frames refer to it, so copies are read from it.
    """

    __slots__ = ("is_checked", "is_copied", "length", "lsn", "mapped")

    def __init__(self, lsn: int, length: int, is_checked: bool) -> None:
        # ``lsn`` determines whether an undone or a sealed part of the log refers to the blob
        # (`drop_from`, `absorb`).
        self.lsn, self.length, self.is_checked = lsn, length, is_checked
        self.is_copied = False
        self.mapped: MappedFile | None = None


class BlobStore:
    """All blobs of a shard. A blob is mapped when it is first read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Called every few milliseconds by long operations.
        self.heartbeat: Callable[[], None] = lambda: None
        # Called for damage that a reader finds.
        self.on_damage: Callable[[Damaged], None] = lambda _: None
        # By topic id and first seq.
        self._held: dict[int, dict[int, _Blob]] = defaultdict(dict)
        # Blobs that this process has written, until `add`. They need no check, because this
        # process has computed their checksums.
        self._written: set[tuple[int, int]] = set()

    def path(self, topic_id: int, first_seq: int) -> Path:
        """Return the path of the blob of the topic's write that begins with ``first_seq``."""
        return self.folder / blob_name(topic_id, first_seq)

    def begin(self, topic_id: int, first_seq: int, body_len: int) -> BlobWriter:
        """Start a new blob. Raise OSError if the disk has no space for it."""
        make_directory(self.folder)
        return BlobWriter(self, topic_id, first_seq, body_len)

    def written(self, topic_id: int, first_seq: int) -> None:
        """Record that this process has written the blob."""
        self._written.add((topic_id, first_seq))

    def add(self, topic_id: int, first_seq: int, lsn: int) -> None:
        """Add a blob after the log has a frame at ``lsn`` that refers to it."""
        # A blob of this process is intact. Any other one is checked before its first use.
        is_checked = (topic_id, first_seq) in self._written
        self._written.discard((topic_id, first_seq))
        self._held[topic_id][first_seq] = _Blob(lsn, self.length(topic_id, first_seq), is_checked)

    def lsn(self, topic_id: int, first_seq: int) -> int:
        """Return the LSN of the frame that refers to an added blob."""
        return self._held[topic_id][first_seq].lsn

    def length(self, topic_id: int, first_seq: int) -> int:
        """Return the length of the blob's file, or 0 if the file is missing."""
        try:
            return self.path(topic_id, first_seq).stat().st_size
        except FileNotFoundError:
            return 0

    def bytes_from(self, lsn: int) -> int:
        """Return the total length of all blobs that frames from ``lsn`` on refer to."""
        return sum(
            held.length for seqs in self._held.values() for held in seqs.values() if held.lsn >= lsn
        )

    def file(self, topic_id: int, first_seq: int) -> MappedFile:
        """Return the map of an added blob. Raise `Damaged`.

        The first call reads the complete blob, unless this process has written it.
        """
        held = self._held[topic_id][first_seq]
        if held.mapped is None:
            self.verify(topic_id, first_seq)
            held.mapped = MappedFile.of(self.path(topic_id, first_seq))
        return held.mapped

    def verify(self, topic_id: int, first_seq: int, *, with_body: bool = True) -> None:
        """Check the header of an added blob and, with ``with_body``, the checksum of its body.

        The body is not read again if it has already been checked. Raise `Damaged`.
        """
        held, path = self._held[topic_id][first_seq], self.path(topic_id, first_seq)
        try:
            with path.open("rb", buffering=0) as file:
                header, size = file.read(blob.HEADER_BYTES), os.fstat(file.fileno()).st_size
                crc, wanted = blob.check_header(header, size, topic_id, first_seq)
                if with_body and not held.is_checked:
                    if self._crc_of_rest(file, crc) != wanted:
                        raise BadBlob("is damaged", blob.HEADER_BYTES)
                    held.is_checked = True
        except FileNotFoundError as error:
            raise Damaged(path, 0, "blob of the log is missing") from error
        except BadBlob as error:
            raise Damaged(path, error.offset, f"blob {error}") from error
        except OSError as error:
            # Other errors, such as a lack of descriptors, are not damage.
            if error.errno != errno.EIO:
                raise
            raise Damaged(path, 0, f"blob cannot be read: {error.strerror}") from error

    def _crc_of_rest(self, file: FileIO, crc: int) -> int:
        chunk = memoryview(bytearray(CHUNK_BYTES))
        while length := file.readinto(chunk):
            crc = crc32c.crc32c(chunk[:length], crc)
            self.heartbeat()
        return crc

    def __bool__(self) -> bool:
        """Return whether the log refers to any blob."""
        return bool(self._held)

    def is_added(self, topic_id: int, first_seq: int) -> bool:
        """Return whether the log refers to this blob."""
        return first_seq in self._held.get(topic_id, {})

    def added(self) -> list[tuple[int, int]]:
        """Return ``(topic_id, first_seq)`` of all added blobs."""
        return [(topic_id, seq) for topic_id, seqs in self._held.items() for seq in seqs]

    def below(self, lsn: int) -> list[Path]:
        """Return the paths of the blobs that frames below ``lsn`` refer to."""
        return [
            self.path(topic_id, seq)
            for topic_id, seqs in self._held.items()
            for seq, held in seqs.items()
            if held.lsn < lsn
        ]

    def keep_at(self, lsn: int) -> None:
        """Keep the blob of the frame at ``lsn``, if it has one, until its log file is sealed.

        A FORWARD frame refers to this frame, so copies are read from the blob even after its own
        topic is deleted.
        """
        # Compare all blobs, because the caller knows only the LSN of the frame.
        for seqs in self._held.values():
            for held in seqs.values():
                held.is_copied |= held.lsn == lsn

    def drop(self, topic_id: int) -> list[Path]:
        """Drop the blobs of a deleted topic. Return the files, which can be removed once the
        deletion is durable.

        Blobs from which copies are read stay. `absorb` drops them later.
        """
        held = self._held.pop(topic_id, {})
        copied = {seq: each for seq, each in held.items() if each.is_copied}
        if copied:
            self._held[topic_id] = copied
        return [self.path(topic_id, seq) for seq in held.keys() - copied.keys()]

    def drop_from(self, lsn: int) -> None:
        """Drop the blobs of frames from ``lsn`` on, which the log has dropped."""
        self._drop(lambda held: held.lsn >= lsn)

    def remove(self, topic_id: int, first_seq: int) -> None:
        """Undo `add` and remove the file. No frame of the log may refer to the blob."""
        self._held[topic_id].pop(first_seq, None)
        self._written.discard((topic_id, first_seq))
        self.path(topic_id, first_seq).unlink(missing_ok=True)

    def absorb(self, lsn: int) -> list[Path]:
        """Drop the blobs of frames below ``lsn``, because segments contain their records.

        Return the files, which no client reads any longer.
        """
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
        """Remove the blobs of writes that were never finished, and of deleted topics.

        ``heads`` has the last assigned seq of each topic. Also return the other blobs to which the
        replayed log does not refer, because segments contain their records or the records are
        deleted. These files are not removed here: the part of the log that refers to them is kept
        while the older checkpoint needs it.
        """
        # Blobs that the log refers to are in use.
        wanted = {self.path(*blob_id) for blob_id in self.added()}
        absorbed = []
        for path in own_files(self.folder, file_names.BLOB, file_names.NEW_BLOB):
            self.heartbeat()
            if path in wanted:
                continue
            named = blob_of(path.name)
            # The head distinguishes an absorbed blob, whose seqs were assigned, from an unfinished
            # one.
            if named is not None and named[1] <= heads.get(named[0], 0):
                # The write was in the log, so its records are in a segment or deleted.
                absorbed.append(path)
            else:
                # The write was never logged, or its topic is deleted.
                path.unlink()
        return absorbed
