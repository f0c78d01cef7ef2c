"""Blob files of one shard: the records of long writes, beside the log (formats/disk/blob.py).

No byte of a blob is believed before all of it was looked at: by this process when it wrote it, or
by `verify`, which comes before the first use. What is not as it was written, or not there, is
`Damaged`.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from io import FileIO
from pathlib import Path

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk import blob
from topics.formats.disk.blob import BadBlob
from topics.storage.disk import Damaged, allocate, make_directory, mapped, sync_directory, write_all

SUFFIX, NEW = ".blob", ".new"
PIECE_BYTES = 1 << 20  # read at once
_NAME = re.compile(r"([0-9a-f]+)-([0-9a-f]+)(\.blob|\.new)")


class BlobWriter:
    """A blob on its way to the disk: `write` its body in order, then `finish`. Each call may take
    long; use a thread.
    """

    def __init__(self, store: BlobStore, topic_id: int, first_seq: int, body_len: int) -> None:
        self._store, self._id, self._body_len = store, (topic_id, first_seq), body_len
        self._crc = blob.body_crc(topic_id, first_seq, body_len)
        self._offset = blob.HEADER_BYTES
        self._aside = store.path(topic_id, first_seq).with_suffix(NEW)
        self._fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            allocate(self._fd, store.folder, blob.HEADER_BYTES + body_len)  # a full disk shows here
        except OSError:
            self.abandon()
            raise

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the body, and sync it: little by little, so that the log's own syncs find a
        short queue.
        """
        for piece in pieces:
            self._crc = crc32c.crc32c(piece, self._crc)
        write_all(self._fd, pieces, self._offset)
        self._offset += sum(map(len, pieces))
        os.fdatasync(self._fd)

    def finish(self) -> None:
        """Make the blob whole and durable under its name."""
        assert self._offset == blob.HEADER_BYTES + self._body_len, "the body is as long as was said"
        os.pwrite(self._fd, blob.encode_header(*self._id, self._body_len, self._crc), 0)
        os.fdatasync(self._fd)
        self._close()
        path = self._store.path(*self._id)
        self._aside.replace(path)
        sync_directory(path.parent)
        self._store.written(*self._id)

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class _Blob:
    """One that the log speaks of, by a frame at ``position``. ``sound``: its bytes are known to be
    as they were written.
    """

    __slots__ = ("length", "position", "sound", "view")

    def __init__(self, position: int, length: int, sound: bool) -> None:
        self.position, self.length, self.sound = position, length, sound
        self.view: memoryview | None = None


class BlobStore:
    """All blobs of a shard, mapped for reading when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_directory(folder)
        self.beat: Callable[[], None] = lambda: (
            None
        )  # called every few milliseconds by what takes long
        self._held: dict[int, dict[int, _Blob]] = defaultdict(dict)
        self._written: set[tuple[int, int]] = set()  # by this process, and not yet added

    def path(self, topic_id: int, first_seq: int) -> Path:
        """File of the write of this topic that begins with this seq."""
        return self.folder / f"{topic_id:x}-{first_seq:x}{SUFFIX}"

    def begin(self, topic_id: int, first_seq: int, body_len: int) -> BlobWriter:
        """Raises OSError when there is no room."""
        return BlobWriter(self, topic_id, first_seq, body_len)

    def written(self, topic_id: int, first_seq: int) -> None:
        """This process has just written it."""
        self._written.add((topic_id, first_seq))

    def add(self, topic_id: int, first_seq: int, position: int) -> None:
        """The log now holds a frame, at ``position``, that speaks of this blob."""
        sound = (topic_id, first_seq) in self._written
        self._written.discard((topic_id, first_seq))
        self._held[topic_id][first_seq] = _Blob(position, self.length(topic_id, first_seq), sound)

    def length(self, topic_id: int, first_seq: int) -> int:
        """Of its file; 0 when that is not there."""
        try:
            return self.path(topic_id, first_seq).stat().st_size
        except FileNotFoundError:
            return 0

    def bytes_from(self, position: int) -> int:
        """Length of all blobs of which frames at ``position`` or behind it speak."""
        return sum(
            held.length
            for seqs in self._held.values()
            for held in seqs.values()
            if held.position >= position
        )

    def body(self, topic_id: int, first_seq: int) -> memoryview:
        """Body of an added blob. Raises `Damaged`; the first call reads all of a blob that this
        process has not written.
        """
        held = self._held[topic_id][first_seq]
        if held.view is None:
            self.verify(topic_id, first_seq)
            held.view = mapped(self.path(topic_id, first_seq))
        return blob.body_of(held.view)

    def verify(self, topic_id: int, first_seq: int, *, whole: bool = True) -> None:
        """Read an added blob, unless it is known to be sound; without ``whole`` only its header.
        Raises `Damaged`.
        """
        held, path = self._held[topic_id][first_seq], self.path(topic_id, first_seq)
        try:
            with path.open("rb", buffering=0) as file:
                header, size = file.read(blob.HEADER_BYTES), os.fstat(file.fileno()).st_size
                crc, wanted = blob.check_header(header, size, topic_id, first_seq)
                if whole and not held.sound:
                    if self._crc_of_rest(file, crc) != wanted:
                        raise BadBlob("is damaged", blob.HEADER_BYTES)
                    held.sound = True
        except FileNotFoundError as error:
            raise Damaged(path, 0, "the log speaks of it, and it is not there") from error
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

    def added(self) -> list[tuple[int, int]]:
        """``(topic_id, first_seq)`` of all added blobs."""
        return [(topic_id, seq) for topic_id, seqs in self._held.items() for seq in seqs]

    def forget(self, topic_id: int) -> list[Path]:
        """The topic is gone; its files, which may be removed once that is durable."""
        return [self.path(topic_id, seq) for seq in self._held.pop(topic_id, {})]

    def forget_from(self, position: int) -> None:
        """The log has let frames fall from ``position`` on: it does not speak of their blobs."""
        self._drop(lambda held: held.position >= position)

    def remove(self, topic_id: int, first_seq: int) -> None:
        """Take back `add` and the file: the log surely does not speak of it."""
        self._held[topic_id].pop(first_seq, None)
        self._written.discard((topic_id, first_seq))
        self.path(topic_id, first_seq).unlink(missing_ok=True)

    def absorb(self, position: int) -> list[Path]:
        """Segments hold what the log says before ``position``: files that nobody reads any more."""
        return self._drop(lambda held: held.position < position)

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
        """Remove what nobody speaks of: blobs of writes that were never finished, or whose topic is
        gone.

        ``heads``: by topic, the last seq that was given out. The result are files whose records
        segments hold, or that have gone: the part of the log that speaks of them stands as long as
        the older checkpoint.
        """
        wanted = {self.path(*blob_id) for blob_id in self.added()}
        absorbed = []
        for path in self.folder.iterdir():
            self.beat()
            name = _NAME.fullmatch(path.name)
            if path in wanted or name is None:
                continue
            topic_id, seq, suffix = name.groups()
            if suffix == SUFFIX and int(seq, 16) <= heads.get(int(topic_id, 16), 0):
                absorbed.append(path)
            else:
                path.unlink()
        return absorbed
