"""Mapped file: a file in memory, and whether its bytes can be read.

The kernel ends a process that touches a mapped page which the disk cannot give, or that lies behind
the end of a file that was cut (SIGBUS). So a page is asked for before it is touched: the kernel
brings it (MADV_POPULATE_READ), and answers with an error when it cannot. What is in memory costs a
call of a quarter of a microsecond. A kernel before 5.14 is asked to copy a byte of each page. What
was asked for is believed for half a second, the time between two heartbeats. `pread` of everything
would copy each page of an answer once more; Python runs a handler of SIGBUS between two of its
instructions, and the one that faults never ends.

A page that leaves memory between the question and the touch may still end the process. Nothing
waits between the two, but for a message that waits for room in a ring.
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
STEP_BYTES = 8 << 20  # asked for at once; a slow disk gives so much in less than 0.1 s
CANNOT_READ = "the disk cannot read it, or the file is cut"
# The file itself is damaged or gone; other errors come from the state of this process.
FILE_ERRORS = frozenset({errno.ENOENT, errno.EIO, errno.EBADMSG, errno.EUCLEAN})
_POPULATE_READ = 22  # MADV_POPULATE_READ
# EHWPOISON: the memory of the page has failed.
_UNREADABLE = frozenset({errno.EFAULT, errno.EIO, 133})


class MappedFile:
    """The first ``size`` bytes of an open file, as ``data``; shared and read-only."""

    __slots__ = ("_map", "data", "path")

    def __init__(self, path: Path, fd: int, size: int) -> None:
        """Raises OSError."""
        self.path, self.data = path, memoryview(b"")
        self._map: mmap.mmap | None = None
        if size:
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
            self.data = memoryview(self._map)

    @classmethod
    def of(cls, path: Path) -> MappedFile:
        """The whole file. Raises OSError."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return cls(path, fd, os.fstat(fd).st_size)
        finally:
            os.close(fd)

    @classmethod
    def of_bytes(cls, path: Path, data: memoryview) -> MappedFile:
        """These bytes in the place of the file's."""
        mapped = cls(path, -1, 0)
        mapped.data = data
        return mapped

    def can_read(self, begin: int, end: int) -> bool:
        """Bring these bytes into memory; whether all of them can be touched now."""
        if self._map is None or begin >= end:
            return True
        start = begin - begin % PAGE_BYTES
        try:
            self._map.madvise(_POPULATE_READ, start, max(end - start, 1))
        except OSError as error:
            return error.errno not in _UNREADABLE and self._can_copy(start, end)
        return True

    def _can_copy(self, start: int, end: int) -> bool:
        """Ask a kernel that does not know the call: it copies a byte of each page."""
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
        self, begin: int, end: int, beat: Callable[[], None] = lambda: None
    ) -> int | None:
        """The first of these bytes that cannot be read, None when all can. ``beat``: called between
        two steps.
        """
        for start in range(begin, min(end, len(self.data)), STEP_BYTES):
            stop = min(start + STEP_BYTES, end, len(self.data))
            if not self.can_read(start, stop):
                first = start - start % PAGE_BYTES
                pages = range(first, stop, PAGE_BYTES)
                return max(begin, next(at for at in pages if not self.can_read(at, at + 1)))
            beat()
        return None

    def ask(self, begin: int, end: int) -> None:
        """Raises `Damaged` unless these bytes can be read."""
        if not self.can_read(begin, end):
            at = self.first_unreadable(begin, end)
            raise Damaged(self.path, begin if at is None else at, CANNOT_READ)

    def salvage(self) -> tuple[memoryview, list[int]]:
        """All bytes, with zeros in pages that cannot be read, and the offsets of these pages."""
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
    """Bytes of an open file. Raises `Damaged` where the disk cannot read, OSError otherwise."""
    try:
        return os.pread(fd, length, offset)
    except OSError as error:
        if error.errno not in FILE_ERRORS:
            raise
        raise Damaged(path, offset, CANNOT_READ) from error
