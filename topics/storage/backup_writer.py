"""Backup writer: generates a tar with the files of a running server
(``formats/disk/backup_archive.py``).

Every step reads files, so it must run in a thread. Pages that are not mapped are dropped from the
kernel's page cache after the read, so that a backup does not evict pages that readers use.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from topics.formats.api.backup_body import KnownFile
from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import ArchiveFile, Manifest, Member
from topics.storage.disk import Damaged

CHUNK_BYTES: Final = 1 << 18  # number of bytes sent in one iteration of the front's loop


class BackupWriter:
    """Generates the bytes of a backup. ``members`` describes the files that were read completely.

    ``now_s`` is the modification time of all members. ``known`` lists the files that the receiver
    has. Bytes that it already has are not sent again. ``runs`` (`backup_archive.run_of`) must be
    set before log files are added.
    """

    def __init__(self, now_s: int, known: Iterable[KnownFile] = ()) -> None:
        self._now_s = now_s
        self._known = {each.path: each for each in known}
        self.members: list[Member] = []
        self.runs: list[int] = []

    def add(self, files: Iterable[ArchiveFile]) -> Iterator[bytes]:
        """Yield the tar members of these files.

        Raise OSError, and `Damaged` for a file that is shorter than expected.
        """
        for file in files:
            kept = self._kept(file)
            sent = file.length - kept
            digest = hashlib.sha256()
            if sent or not kept:
                name = f"{file.name}@{kept}" if kept else file.name
                yield backup_archive.header(name, sent, self._now_s)
                for chunk in read(Path(file.path), file.offset + kept, sent):
                    digest.update(chunk)
                    yield chunk
                yield backup_archive.padding(sent)
            member = Member(file.name, file.length, file.size, digest.hexdigest(), kept)
            self.members.append(member)

    def _kept(self, file: ArchiveFile) -> int:
        """Return the number of bytes at the start of a file that the receiver already has.

        This is all of its bytes or none of them, or the first part of a log file.
        """
        known = self._known.get(file.name)
        if known is None or known.bytes > file.length:
            return 0
        if known.bytes < file.length and not file.name.startswith(backup_archive.LOG):
            return 0
        found = identity(file, known.bytes, self.runs)
        return known.bytes if found == known.identity else 0

    def end(self, manifest: Manifest) -> bytes:
        """Return the manifest member and the end of the tar."""
        data = backup_archive.sealed(manifest)
        head = backup_archive.header(backup_archive.MANIFEST, len(data), self._now_s)
        return head + data + backup_archive.padding(len(data)) + backup_archive.END


def identity(file: ArchiveFile, length: int, runs: Sequence[int]) -> str:
    """Return the identity of the first ``length`` bytes. Raise OSError or `Damaged`."""
    digest = hashlib.sha256(backup_archive.run_of(file.name, runs))
    for offset, size in backup_archive.identity_ranges(file.name, length):
        for chunk in read(Path(file.path), file.offset + offset, size):
            digest.update(chunk)
    return digest.hexdigest()


def read(path: Path, offset: int, length: int) -> Iterator[bytes]:
    """Yield ``length`` bytes of a file from ``offset``, in chunks. Raise OSError or `Damaged`.

    The file is closed between two chunks. Otherwise a slow client could keep a file open that the
    server deletes in the meantime, and its disk space would stay allocated.
    """
    for at in range(offset, offset + length, CHUNK_BYTES):
        wanted = min(CHUNK_BYTES, offset + length - at)
        with path.open("rb", buffering=0) as file:
            chunk = os.pread(file.fileno(), wanted, at)
            os.posix_fadvise(file.fileno(), at, wanted, os.POSIX_FADV_DONTNEED)
        if len(chunk) < wanted:
            raise Damaged(path, at + len(chunk), "the file is truncated")
        yield chunk
