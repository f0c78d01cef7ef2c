"""Blob files of one shard: the records of long writes, beside the log (formats/blob.py)."""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import crc32c

from topics.formats import blob
from topics.formats.blob import BadBlob
from topics.formats.requests import Buffer
from topics.storage.disk import Damaged, allocate, make_directory, sync_directory, write_all

SUFFIX = ".blob"


class BlobWriter:
    """A blob on its way to the disk: `write` its body in order, then `finish`. Each call may take long; use a thread."""

    def __init__(self, store: BlobStore, topic_id: int, first_seq: int, body_len: int) -> None:
        self._store, self._id, self._body_len = store, (topic_id, first_seq), body_len
        self._crc = blob.body_crc(topic_id, first_seq, body_len)
        self._offset = blob.HEADER_BYTES
        self._aside = store.path(topic_id, first_seq).with_suffix(".new")
        self._fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            allocate(self._fd, store.folder, blob.HEADER_BYTES + body_len)  # a full disk shows here
        except OSError:
            self.abandon()
            raise

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the body, and sync it: little by little, so that the log's own syncs find a short queue."""
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

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class BlobStore:
    """All blobs of a shard, mapped for reading when first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        make_directory(folder)
        self._held: dict[int, dict[int, memoryview | None]] = defaultdict(dict)
        self._positions: dict[tuple[int, int], int] = {}  # of the frames that speak of them

    def path(self, topic_id: int, first_seq: int) -> Path:
        """File of the write of this topic that begins with this seq."""
        return self.folder / f"{topic_id:x}-{first_seq:x}{SUFFIX}"

    def begin(self, topic_id: int, first_seq: int, body_len: int) -> BlobWriter:
        """Raises OSError when there is no room."""
        return BlobWriter(self, topic_id, first_seq, body_len)

    def add(self, topic_id: int, first_seq: int, position: int) -> None:
        """The log now holds a frame, at ``position``, that speaks of this blob."""
        self._held[topic_id][first_seq] = None
        self._positions[topic_id, first_seq] = position

    def body(self, topic_id: int, first_seq: int) -> memoryview:
        """Body of an added blob."""
        view = self._held[topic_id][first_seq]
        if view is None:
            view = self._held[topic_id][first_seq] = self._map(self.path(topic_id, first_seq))
        return blob.body_of(view)

    def verify(self, topic_id: int, first_seq: int) -> None:
        """Read an added blob whole. Raises `Damaged`."""
        path = self.path(topic_id, first_seq)
        try:
            blob.check(self._map(path), topic_id, first_seq)
        except FileNotFoundError as error:
            raise Damaged(path, 0, "the log speaks of it, and it is not there") from error
        except (BadBlob, ValueError) as error:
            raise Damaged(path, 0, f"blob {error}") from error

    def added(self) -> list[tuple[int, int]]:
        """``(topic_id, first_seq)`` of all added blobs."""
        return [(topic_id, seq) for topic_id, seqs in self._held.items() for seq in seqs]

    def forget(self, topic_id: int) -> list[Path]:
        """The topic is gone; its files, which may be removed once that is durable."""
        seqs = self._held.pop(topic_id, {})
        for seq in seqs:
            del self._positions[topic_id, seq]
        return [self.path(topic_id, seq) for seq in seqs]

    def remove(self, topic_id: int, first_seq: int) -> None:
        """Take back `add` and the file: the log surely does not speak of it."""
        self._held[topic_id].pop(first_seq, None)
        self._positions.pop((topic_id, first_seq), None)
        self.path(topic_id, first_seq).unlink(missing_ok=True)

    def absorb(self, position: int) -> list[Path]:
        """Segments hold what the log says before ``position``: files that nobody reads any more."""
        sealed = [blob_id for blob_id, at in self._positions.items() if at < position]
        for topic_id, seq in sealed:
            del self._positions[topic_id, seq], self._held[topic_id][seq]
        return [self.path(*blob_id) for blob_id in sealed]

    def sweep(self, heads: dict[int, int]) -> list[Path]:
        """Remove what nobody speaks of: blobs of writes that were never finished, or whose topic is gone.

        ``heads``: by topic, the last seq that was given out. The result are files whose records segments hold, or that have gone:
        the part of the log that speaks of them stands as long as the older checkpoint.
        """
        wanted = {self.path(*blob_id) for blob_id in self.added()}
        absorbed = []
        for path in self.folder.iterdir():
            if path in wanted:
                continue
            topic_id, _, seq = path.name.removesuffix(SUFFIX).partition("-")
            if path.suffix == SUFFIX and int(seq, 16) <= heads.get(int(topic_id, 16), 0):
                absorbed.append(path)
            else:
                path.unlink()
        return absorbed

    @staticmethod
    def _map(path: Path) -> memoryview:
        with path.open("rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ))
