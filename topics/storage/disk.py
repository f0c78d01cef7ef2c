"""The few things that durable files need beyond open and write."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from topics.engine.store import Unreadable
from topics.formats.requests import Buffer

IOV_MAX = 1024  # pieces that one pwritev takes
ADVICE_BYTES = 128 * 1024  # the kernel reads no more for one advice than its own read-ahead, which is this much unless set otherwise
_WRITE_AND_WAIT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER
DAMAGED = ".damaged"  # ends the name of what was kept aside
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Damaged(Unreadable):
    """Bytes on disk that cannot be trusted, with path, offset and reason; nothing is repaired by itself.

    At a start it stops the process, unless it is in an extent of a segment: readers are told of that.
    """

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(f"{path}, offset {offset}: {reason}")
        self.path, self.offset, self.reason = path, offset, reason


def boot_id() -> str:
    """Changes when the machine starts anew: what was written and not synced before is then in doubt. Empty where unknown."""
    try:
        return BOOT_ID.read_text().strip()
    except OSError:
        return ""


def sync_directory(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def keep_aside(path: Path) -> None:
    """Give a damaged file a second name, durably, under which it stays for people. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        path.with_name(path.name + DAMAGED).hardlink_to(path)
    sync_directory(path.parent)


def make_directory(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o700)
        sync_directory(path.parent)


def mapped(path: Path) -> memoryview:
    """The whole file, read in place; an empty one too."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return memoryview(b"")
        return memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED, mmap.PROT_READ))


def write_aside(path: Path, pieces: Sequence[Buffer]) -> None:
    """Make ``path`` hold exactly these bytes, or leave it as it was: written beside it, synced, renamed, the name synced."""
    aside = path.with_name(path.name + ".tmp")
    try:
        with _opened(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
            write_all(fd, pieces, 0)
            os.fdatasync(fd)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)  # on a full disk its room is wanted
        raise
    sync_directory(path.parent)


def write_all(fd: int, pieces: Sequence[Buffer], offset: int) -> None:
    """Write every byte of the pieces, one after the other, from ``offset`` on."""
    for start in range(0, len(pieces), IOV_MAX):
        batch = pieces[start : start + IOV_MAX]
        wanted = sum(map(len, batch))
        written = os.pwritev(fd, batch, offset)
        if written < wanted:  # a signal, or the disk filled up: the rest says which
            rest = memoryview(b"".join(batch))[written:]
            while rest:
                written = os.pwrite(fd, rest, offset + wanted - len(rest))
                rest = rest[written:]
        offset += wanted


def write_back(fd: int, offset: int, length: int) -> None:
    """Bring what was written there to the disk, without promising anything: a later sync finds little to do.

    A sync now and then would do it, too. But each also commits the journal of the file system, and while that stands in a queue with
    the data of a large file, writes to the log wait: 50 ms.
    """
    if _sync_file_range is None:
        os.fdatasync(fd)
    else:
        _sync_file_range(fd, offset, length, _WRITE_AND_WAIT)  # what goes wrong shows in the sync


def will_need(path: Path, offset: int, length: int) -> None:
    """Let the kernel begin to read there, without waiting for it. Raises OSError."""
    with _opened(path, os.O_RDONLY) as fd:
        for start in range(offset, offset + length, ADVICE_BYTES):
            os.posix_fadvise(fd, start, min(ADVICE_BYTES, offset + length - start), os.POSIX_FADV_WILLNEED)


def _find_sync_file_range() -> Callable[[int, int, int, int], int] | None:
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint], ctypes.c_int
    return call


_sync_file_range = _find_sync_file_range()


@contextlib.contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)
