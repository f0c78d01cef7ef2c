"""Mapped file: a file mapped into memory, with checks that its bytes can be read.

The kernel kills a process with SIGBUS if it accesses a mapped page that the disk cannot read, or a
page beyond the end of a truncated file. Therefore readers check each page before they access it:
MADV_POPULATE_READ loads the page, and returns an error if it cannot be loaded. For pages that are
in memory, this call takes a quarter of a microsecond. On kernels before 5.14, the check copies a
byte of each page instead. Callers rely on a check for half a second, which is the time between two
heartbeats.

Two alternatives were rejected. `pread` would copy each page of a reply once more. A SIGBUS handler
does not help, because Python runs signal handlers between two bytecode instructions, and the
instruction that faults never completes.

If a page is evicted from memory between the check and the access, the kernel may still kill the
process. Nothing blocks between the two, except that a message may wait for space in a ring.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
from collections.abc import Callable
from pathlib import Path

from topics.storage.disk import IOV_MAX, Damaged

PAGE_BYTES = mmap.PAGESIZE
STEP_BYTES = 8 << 20  # bytes checked per call, which even a slow disk reads within 0.1 s
CANNOT_READ = "the disk cannot read it, or the file is truncated"
# Errors in the file itself, which is damaged or missing. Other errors are caused by the process.
FILE_ERRORS = frozenset({errno.ENOENT, errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_POPULATE_READ = 22  # MADV_POPULATE_READ
# The number 133 is EHWPOISON: the memory of the page has failed.
_UNREADABLE = frozenset({errno.EFAULT, errno.EIO, 133})


class MappedFile:
    """A shared read-only map of the first ``size`` bytes of an open file, as ``data``."""

    __slots__ = ("_map", "data", "path")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        """Map the file. Raise OSError."""
        self.path, self.data = path, memoryview(b"")
        self._map: mmap.mmap | None = None
        if size:
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
            self.data = memoryview(self._map)

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """Return a map of the complete file. Raise OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(path, fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    @classmethod
    def of_bytes(cls, path: Path, data: memoryview) -> MappedFile:
        """Return an object with ``data`` as the contents of the file, without a map."""
        mapped = cls(path, -1, 0)
        mapped.data = data
        return mapped

    def can_read(self, begin: int, end: int) -> bool:
        """Load these bytes into memory. Return whether all of them can be accessed."""
        if self._map is None or begin >= end:
            return True
        start = begin - begin % PAGE_BYTES
        try:
            self._map.madvise(_POPULATE_READ, start, max(end - start, 1))
        except OSError as error:
            return error.errno not in _UNREADABLE and self._can_copy(start, end)
        return True

    def _can_copy(self, start: int, end: int) -> bool:
        """Check pages on a kernel without MADV_POPULATE_READ, by copying a byte of each page."""
        pages = range(start, end, PAGE_BYTES)
        try:
            return all(
                os.pwritev(_sink(), [self.data[at : at + 1] for at in some], 0) == len(some)
                for some in (pages[at : at + IOV_MAX] for at in range(0, len(pages), IOV_MAX))
            )
        except OSError as error:
            if error.errno not in _UNREADABLE:
                raise
            return False

    def first_unreadable(
        self, begin: int, end: int, heartbeat: Callable[[], None] = lambda: None
    ) -> int | None:
        """Return the offset of the first of these bytes that cannot be read, or None.

        ``heartbeat`` is called after each step of `STEP_BYTES`.
        """
        for start in range(begin, min(end, len(self.data)), STEP_BYTES):
            stop = min(start + STEP_BYTES, end, len(self.data))
            if not self.can_read(start, stop):
                first = start - start % PAGE_BYTES
                pages = range(first, stop, PAGE_BYTES)
                return max(begin, next(at for at in pages if not self.can_read(at, at + 1)))
            heartbeat()
        return None

    def check_readable(self, begin: int, end: int) -> None:
        """Raise `Damaged` if these bytes cannot be read."""
        if not self.can_read(begin, end):
            at = self.first_unreadable(begin, end)
            raise Damaged(self.path, begin if at is None else at, CANNOT_READ)

    def salvage(self) -> tuple[memoryview, list[int]]:
        """Return all bytes, with zeros in unreadable pages, and the offsets of these pages."""
        if self.first_unreadable(0, len(self.data)) is None:
            return self.data, []
        data, bad = bytearray(len(self.data)), []
        for at in range(0, len(data), PAGE_BYTES):
            if self.can_read(at, at + PAGE_BYTES):
                data[at : at + PAGE_BYTES] = self.data[at : at + PAGE_BYTES]
            else:
                bad.append(at)
        return memoryview(data), bad


@functools.cache
def _sink() -> int:
    return os.memfd_create("sink")


def read_at(path: Path, fd: int, length: int, offset: int) -> bytes:
    """Read bytes of an open file.

    Raise `Damaged` if the file is damaged or missing, and OSError for other errors.
    """
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        raise Damaged(path, offset, CANNOT_READ) from error
