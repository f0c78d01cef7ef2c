"""Durable files: the few calls that they need beyond open and write.

No call here swallows an error of a write or a sync, apart from calls that the file system does not
support, which have a slower way.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from topics.engine.store import Unreadable
from topics.formats.buffers import Buffer
from topics.formats.disk.versions import HEAD, VERSION_AT, other_version
from topics.storage.folders import shown

IOV_MAX = 1024  # pieces that one pwritev takes
# The kernel reads no more for one advice than its own read-ahead, which is this much by default.
ADVICE_BYTES = 128 * 1024
MARGIN_BYTES = 1 << 20  # a file that is allocated whole leaves so much to others
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
NOT_SUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODEV})
_WRITE_AND_WAIT = 1 | 2 | 4  # SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE, _WAIT_AFTER
DAMAGED = ".damaged"  # suffix of a damaged file that is kept for people
_KEEP_SIZE, _PUNCH_HOLE, _ZERO_RANGE = 0x01, 0x02, 0x10  # of fallocate(2)
_ZEROS = bytes(1 << 20)
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Damaged(Unreadable):
    """Bytes on disk that cannot be trusted, with path, offset and reason. Nothing is repaired.

    At a start it stops the process, unless it is in an extent of a segment, where it costs its
    readers these records (``decisions/0016``).
    """

    def __init__(self, path: Path, offset: int, reason: str) -> None:
        super().__init__(shown(f"{path}, offset {offset}: {reason}"))
        self.path, self.offset, self.reason = path, offset, reason


def check_version(path: Path) -> None:
    """Raise `Damaged` if the file has a format version that this program does not read."""
    head = b""
    with contextlib.suppress(OSError), path.open("rb") as file:  # a repair handles such a file
        head = file.read(HEAD.size)
    if reason := other_version(head):
        raise Damaged(path, VERSION_AT, reason)


def boot_id() -> str:
    """Names this run of the machine; empty where unknown.

    After another run, everything that was written and not synced is in doubt.
    """
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
    """Give a damaged file a second name, durably: it stays for people, beside an earlier one of
    its name. Raises OSError.
    """
    for number in count():
        name = path.with_name(f"{path.name}{f'.{number}' if number else ''}{DAMAGED}")
        with contextlib.suppress(FileExistsError):
            name.hardlink_to(path)
            break
        if name.samefile(path):
            break
    sync_directory(path.parent)


def make_directory(folder: Path, *, mode: int = 0o700) -> None:
    """Make ``folder`` and what is missing above it, durably."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=mode)
        sync_directory(path.parent)


class FileAside:
    """A file that is written under another name, and gets its own when it is whole.

        NAME.suffix, written and synced -> renamed to NAME -> folder synced

    Opened to write: ``fd``. Either `publish` or `abandon` ends it; `abandon` also after a
    `publish` that came to nothing.
    """

    def __init__(self, path: Path, suffix: str) -> None:
        """Raises OSError."""
        self.path, self._named = path, path.with_suffix(suffix)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self.fd = os.open(self._named, flags, 0o600)

    def publish(self) -> None:
        """Make the file durable under its own name. Raises OSError."""
        os.fdatasync(self.fd)
        self._close()
        self._named = self._named.replace(self.path)
        sync_directory(self.path.parent)

    def abandon(self) -> None:
        """Remove the file, whatever its name is by now."""
        self._close()
        self._named.unlink(missing_ok=True)

    def _close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def check_room(folder: Path, size: int) -> None:
    """Raise ENOSPC where ``size`` bytes have no room, and take none of it.

    An allocation that fails half-way takes all the room that is left for a moment, and the writes
    of others fail.
    """
    found = os.statvfs(folder)
    # No blocks at all: the file system does not tell.
    if found.f_blocks and found.f_bavail * found.f_frsize < size + MARGIN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))


def allocate(fd: int, folder: Path, size: int) -> None:
    """Allocate an empty file in ``folder`` whole. Raises OSError."""
    check_room(folder, size)
    os.posix_fallocate(fd, 0, size)


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


def zero(fd: int, offset: int, length: int) -> None:
    """Turn allocated bytes into zeros and keep them allocated; nothing is durable yet.

    Raises OSError.
    """
    if _fallocate is None or not length:
        return write_zeros(fd, offset, length)
    if _fallocate(fd, _ZERO_RANGE | _KEEP_SIZE, offset, length) == 0:
        return None
    code = ctypes.get_errno()
    if code not in NOT_SUPPORTED | FULL:  # it may want a block for its own lists
        raise OSError(code, os.strerror(code))
    return write_zeros(fd, offset, length)


def write_zeros(fd: int, offset: int, length: int) -> None:
    """Write zeros there. Raises OSError."""
    for start in range(0, length, len(_ZEROS)):
        write_all(fd, [_ZEROS[: length - start]], offset + start)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Give the blocks of these bytes back, where the file system can; they read as zeros. Raises
    OSError.
    """
    if _fallocate is not None and _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, offset, length):
        code = ctypes.get_errno()
        if code not in NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))


def write_again(fd: int, offset: int, length: int) -> None:
    """Write the bytes of this range once more, so that the next sync writes them to the disk.

    After a sync that failed, the kernel takes pages for written that the disk does not have. Raises
    OSError.
    """
    end = offset + length
    while offset < end and (data := os.pread(fd, min(end - offset, len(_ZEROS)), offset)):
        write_all(fd, [data], offset)
        offset += len(data)


def write_back(fd: int, offset: int, length: int) -> None:
    """Bring what was written there to the disk, so that a later sync finds little to do.

    Nothing is promised. A sync now and then would do the same, but it also commits the journal of
    the file system: while that waits behind the data of a large file, writes to the log wait 50 ms.
    Raises OSError.
    """
    if _sync_file_range is None:
        os.fdatasync(fd)
    elif _sync_file_range(fd, offset, length, _WRITE_AND_WAIT):
        # The kernel reports an error once for each descriptor: the next sync would succeed.
        code = ctypes.get_errno()
        if code not in NOT_SUPPORTED:
            raise OSError(code, os.strerror(code))


def will_need(path: Path, offset: int, length: int) -> None:
    """Ask the kernel to read this range ahead, without waiting for it. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for start in range(offset, offset + length, ADVICE_BYTES):
            os.posix_fadvise(
                fd, start, min(ADVICE_BYTES, offset + length - start), os.POSIX_FADV_WILLNEED
            )
    finally:
        os.close(fd)


def _find(name: str, *arguments: Any) -> Callable[[int, int, int, int], int] | None:
    """A call of the C library, where it has one."""
    try:
        call = getattr(ctypes.CDLL(None, use_errno=True), name)
    except (OSError, AttributeError):
        return None
    call.argtypes, call.restype = arguments, ctypes.c_int
    return call  # type: ignore[no-any-return]


_INT, _INT64, _UINT = ctypes.c_int, ctypes.c_int64, ctypes.c_uint
_sync_file_range = _find("sync_file_range", _INT, _INT64, _INT64, _UINT)
_fallocate = _find("fallocate", _INT, _INT, _INT64, _INT64)
