"""Backup stream: sends files of a running server as a tar (``formats/disk/backup_archive.py``).

Every step reads files, so it must run in a thread. Pages that are not mapped are dropped from the
kernel's page cache after the read, so that a backup does not evict pages that readers use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import File, Manifest, Member
from topics.storage.disk import Damaged

PIECE_BYTES: Final = 1 << 18  # sent in one iteration of the front's loop


class BackupStream:
    """Generates the bytes of a backup. ``members`` describes the files that were read completely.

    ``now_s`` is the modification time of all members.
    """

    def __init__(self, now_s: int) -> None:
        self._now_s = now_s
        self.members: list[Member] = []

    def add(self, files: Iterable[File]) -> Iterator[bytes]:
        """Yield the tar members of these files.

        Raise OSError, and `Damaged` for a file that is shorter than expected.
        """
        for file in files:
            yield backup_archive.header(file.name, file.length, self._now_s)
            digest = hashlib.sha256()
            for piece in read(Path(file.path), file.offset, file.length):
                digest.update(piece)
                yield piece
            yield backup_archive.padding(file.length)
            member = Member(file.name, file.length, file.size, digest.hexdigest())
            self.members.append(member)

    def end(self, manifest: Manifest) -> bytes:
        """Return the manifest member and the end of the tar."""
        data = backup_archive.sealed(manifest)
        head = backup_archive.header(backup_archive.MANIFEST, len(data), self._now_s)
        return head + data + backup_archive.padding(len(data)) + backup_archive.END


def read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """Yield ``length`` bytes of a file from ``offset``, in chunks. Raise OSError or `Damaged`.

    The file is closed between two chunks. Otherwise, after a backup loses its pin, a slow client
    would keep the disk space of a deleted file allocated.
    """
    for at in range(offset, offset + length, PIECE_BYTES):
        wanted = min(PIECE_BYTES, offset + length - at)
        with path.open("rb", buffering=0) as file:
            piece = os.pread(file.fileno(), wanted, at)
            os.posix_fadvise(file.fileno(), at, wanted, os.POSIX_FADV_DONTNEED)
        if len(piece) < wanted:
            raise Damaged(path, at + len(piece), "the file is truncated")
        yield piece
